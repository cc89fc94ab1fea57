// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/ops/reference.h"

#include <algorithm>
#include <cmath>

#include "common/check.h"
#include "common/half.h"

namespace lockstep::engine {
namespace {

// C[m, n] = A B with A(i, p), B(p, j) read through strides.
Doubles Product(int64_t m, int64_t n, int64_t k, const Doubles& a, int64_t a_row, int64_t a_k,
                const Doubles& b, int64_t b_k, int64_t b_column) {
  Doubles c(static_cast<size_t>(m * n));
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      double sum = 0;
      for (int64_t p = 0; p < k; ++p) {
        sum += a[static_cast<size_t>(i * a_row + p * a_k)] *
               b[static_cast<size_t>(p * b_k + j * b_column)];
      }
      c[static_cast<size_t>(i * n + j)] = sum;
    }
  }
  return c;
}

struct Softmax {
  double loss = 0;
  double count = 0;
  double correct = 0;
  double correct_top5 = 0;
  Doubles gradient;
};

Softmax SoftmaxOf(const OpCase& test, const std::vector<Doubles>& inputs) {
  const auto columns = static_cast<size_t>(test.inputs[0].shape[1]);
  const auto n = static_cast<size_t>(test.attrs.Int("classes", static_cast<int64_t>(columns)));
  // Evaluation knows no smoothing: it has no such attribute.
  const double smoothing = test.attrs.Double("label_smoothing");
  const double seed = inputs.size() > 2 ? inputs[2][0] : 1;
  Softmax result;
  result.gradient.resize(inputs[0].size());
  for (size_t i = 0; i < inputs[1].size(); ++i) {
    const double* x = inputs[0].data() + i * columns;
    const int64_t label = static_cast<int64_t>(inputs[1][i]);
    if (label < 0) continue;
    const double max = *std::max_element(x, x + n);
    double sum = 0;
    for (size_t j = 0; j < n; ++j) sum += std::exp(x[j] - max);
    double target = (1 - smoothing) * x[label];
    for (size_t j = 0; j < n; ++j) target += smoothing / static_cast<double>(n) * x[j];
    result.loss += std::log(sum) + max - target;
    result.correct_top5 += std::count_if(x, x + n, [&](double v) { return v > x[label]; }) < 5;
    result.count += 1;
    result.correct += std::max_element(x, x + n) - x == label;
    for (size_t j = 0; j < n; ++j) {
      const double p = std::exp(x[j] - max) / sum;
      const double hit = static_cast<int64_t>(j) == label ? 1 - smoothing : 0;
      result.gradient[i * columns + j] = seed * (p - hit - smoothing / static_cast<double>(n));
    }
  }
  return result;
}

std::vector<Doubles> Linear(const OpCase& test, const std::vector<Doubles>& in) {
  const int64_t m = test.inputs[0].shape[0], k = test.inputs[0].shape[1];
  const bool in_out = test.attrs.Int("in_out") != 0;
  const int64_t n = test.inputs[1].shape[in_out ? 1 : 0];
  Doubles y = Product(m, n, k, in[0], k, 1, in[1], in_out ? n : 1, in_out ? 1 : k);
  for (size_t i = 0; i < y.size(); ++i) {
    if (in.size() >= 3) y[i] += in[2][i % static_cast<size_t>(n)];
    if (in.size() == 4) y[i] += in[3][i];
  }
  const std::string activation = test.attrs.String("activation", "none");
  const Doubles sums = y;
  for (size_t i = 0; i < y.size(); ++i) {
    if (activation == "relu") {
      y[i] = std::max(y[i], 0.0);
    } else if (activation != "none") {
      y[i] = SmoothOf(activation, y[i]);
    }
  }
  if (test.attrs.Int("keep") != 0) return {y, sums};
  return {y};
}

Doubles LinearBackwardInput(const OpCase& test, const std::vector<Doubles>& in) {
  const int64_t m = test.inputs[0].shape[0], n = test.inputs[0].shape[1];
  const bool in_out = test.attrs.Int("in_out") != 0;
  const int64_t k = test.inputs[1].shape[in_out ? 0 : 1];
  Doubles dx = Product(m, k, n, in[0], n, 1, in[1], in_out ? 1 : k, in_out ? n : 1);
  const std::string third = test.attrs.String("third", "mask");
  for (size_t i = 0; in.size() == 3 && i < dx.size(); ++i) {
    if (third == "gelu_tanh") {
      dx[i] *= GeluTanhSlope(in[2][i]);
    } else if (third == "addend") {
      dx[i] += in[2][i];
    } else {
      dx[i] = in[2][i] > 0 ? dx[i] : 0;
    }
  }
  return dx;
}

std::vector<Doubles> LinearBackwardWeight(const OpCase& test, const std::vector<Doubles>& in) {
  const int64_t m = test.inputs[0].shape[0], n = test.inputs[0].shape[1];
  const int64_t k = test.inputs[1].shape[1];
  std::vector<Doubles> made = {Product(n, k, m, in[0], 1, n, in[1], k, 1)};
  if (const auto summed = static_cast<size_t>(test.attrs.Int("sums")); summed > 0) {
    const auto columns = static_cast<size_t>(summed == 1 ? n : k);
    Doubles sums(columns, 0);
    for (size_t i = 0; i < in[summed - 1].size(); ++i) sums[i % columns] += in[summed - 1][i];
    made.push_back(sums);
  }
  return made;
}

Doubles Cast(DType type, Doubles values) {
  for (double& value : values) {
    const auto x = static_cast<float>(value);
    if (type == DType::kBF16) value = static_cast<double>(BFloat16::FromFloat(x).ToFloat());
    if (type == DType::kF16) value = static_cast<double>(Float16::FromFloat(x).ToFloat());
  }
  return values;
}

// By a step for each binade, in double precision.
Doubles QuantizeFp8(const OpCase& test, Doubles values) {
  const bool e5m2 = test.attrs.String("format") == "e5m2";
  const double most = e5m2 ? 57344 : 448;
  const int least = e5m2 ? -14 : -6, fraction_bits = e5m2 ? 2 : 3;
  double largest = 0;
  for (const double x : values) {
    if (std::isfinite(x)) largest = std::max(largest, std::fabs(x));
  }
  double scale = 1;
  while (largest > 0 && largest * scale > most) scale /= 2;
  while (largest > 0 && largest * scale * 2 <= most) scale *= 2;
  for (double& x : values) {
    if (!std::isfinite(x)) {
      x = std::nan("");
    } else if (x != 0) {
      const double step = std::ldexp(1, std::max(std::ilogb(x * scale), least) - fraction_bits);
      x = std::nearbyint(x * scale / step) * step / scale;
    }
  }
  return values;
}

// By the references of its parts.
std::vector<Doubles> LinearSoftmaxCrossEntropy(const OpCase& test, const std::vector<Doubles>& in) {
  const int64_t m = test.inputs[0].shape[0], k = test.inputs[0].shape[1];
  const int64_t n = test.inputs[1].shape[0];
  OpCase linear{{test.inputs[0], test.inputs[1]}, {}, 0};
  std::vector<Doubles> operands = {in[0], in[1]};
  if (in.size() == 5) {
    linear.inputs.push_back(test.inputs[4]);
    operands.push_back(in[4]);
  }
  const OpCase loss{
      {{DType::kF32, {m, n}}, test.inputs[2], test.inputs[3]}, test.attrs, test.classes};
  const Softmax s = SoftmaxOf(loss, {Linear(linear, operands)[0], in[2], in[3]});
  std::vector<Doubles> results = {{s.loss},
                                  {0, s.count},
                                  Product(m, k, n, s.gradient, n, 1, in[1], k, 1),
                                  Product(n, k, m, s.gradient, 1, n, in[0], k, 1)};
  if (in.size() < 5) return results;
  Doubles sum(static_cast<size_t>(n));
  for (size_t i = 0; i < s.gradient.size(); ++i) sum[i % sum.size()] += s.gradient[i];
  results.push_back(sum);
  return results;
}

}  // namespace

std::vector<Doubles> Reference(const OpDef& op, const OpCase& test,
                               const std::vector<TensorType>& outputs,
                               const std::vector<Doubles>& in) {
  const std::string name = op.name;
  if (std::vector<Doubles> made = TransformerReference(op, test, outputs, in); !made.empty()) {
    return made;
  }
  if (name == "cast") return {Cast(outputs[0].dtype, Cast(test.inputs[0].dtype, in[0]))};
  if (name == "quantize_fp8") return {QuantizeFp8(test, Cast(test.inputs[0].dtype, in[0]))};
  if (name == "linear") return Linear(test, in);
  if (name == "linear_backward_input") return {LinearBackwardInput(test, in)};
  if (name == "linear_backward_weight") return LinearBackwardWeight(test, in);
  if (name == "bias_backward") {
    Doubles sum(static_cast<size_t>(outputs[0].elements()));
    for (size_t i = 0; i < in[0].size(); ++i) sum[i % sum.size()] += in[0][i];
    return {sum};
  }
  if (name == "softmax_cross_entropy") {
    const Softmax s = SoftmaxOf(test, in);
    return {{s.loss}, {0, s.count}};
  }
  if (name == "softmax_cross_entropy_backward") return {SoftmaxOf(test, in).gradient};
  if (name == "softmax_cross_entropy_with_gradient") {
    const Softmax s = SoftmaxOf(test, in);
    return {{s.loss}, {0, s.count}, s.gradient};
  }
  if (name == "linear_softmax_cross_entropy") return LinearSoftmaxCrossEntropy(test, in);
  if (name == "classification_sums") {
    const Softmax s = SoftmaxOf(test, in);
    return {{s.loss, s.correct, s.count, s.correct_top5}};
  }
  if (std::vector<Doubles> images = ImageReference(name, test, outputs, in); !images.empty()) {
    return images;
  }
  Doubles y = in[0];
  for (size_t i = 0; i < y.size(); ++i) {
    if (name == "relu") {
      y[i] = std::max(y[i], 0.0);
    } else if (name == "relu_backward") {
      y[i] = in[1][i] > 0 ? y[i] : 0;
    } else if (name == "add") {
      y[i] += in[1][i];
    } else if (name == "scale") {
      y[i] *= test.attrs.Double("factor", 1);
    } else {
      LS_CHECK(name == "deposit" || name == "reshape") << "no reference for " << name;
    }
  }
  return {y};
}

}  // namespace lockstep::engine
