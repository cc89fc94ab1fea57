// SPDX-License-Identifier: Apache-2.0
// The ops of transformers in float64.
#include <cmath>

#include "common/check.h"
#include "common/philox.h"
#include "engine/ops/ops.h"
#include "tests/conformance/ops/reference.h"

namespace lockstep::engine {
namespace {

size_t At(int64_t i) { return static_cast<size_t>(i); }

// The 16 bits of element i of a site (engine/cpu/simd/row_kernels.h), by the plain Philox.
uint32_t HalfAt(uint64_t key, const Doubles& address, int64_t i) {
  const auto word = [&](size_t w) {
    return static_cast<uint32_t>(static_cast<int32_t>(address[w]));
  };
  const auto counter = static_cast<uint64_t>(i / 64 * 8 + i % 16 / 2);
  const auto words =
      Philox4x32({static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), word(0),
                  word(2) | word(1) << 16},
                 key, 7);
  return words[At(i % 64 / 16)] >> i % 2 * 16 & 0xFFFF;
}

// Returns what element i is multiplied with.
double DropFactor(const Attrs& attrs, const Doubles& address, int64_t i) {
  const double dropped = std::round(attrs.Double("rate") * 0x1.0p16);
  const uint32_t half = HalfAt(static_cast<uint64_t>(attrs.Int("key")), address, i);
  return half >= dropped ? 1 / (1 - dropped * 0x1.0p-16) : 0;
}

double NormalDensity(double x) { return std::exp(-x * x / 2) / std::sqrt(2 * M_PI); }
double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

double Gelu(double x, bool tanh) {
  if (!tanh) return x * std::erfc(-x / std::sqrt(2.0)) / 2;
  return x / 2 * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}
double GeluSlope(double x, bool tanh) {
  if (!tanh) return std::erfc(-x / std::sqrt(2.0)) / 2 + x * NormalDensity(x);
  const double t = std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x));
  const double inner = std::sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
  return (1 + t) / 2 + x / 2 * (1 - t * t) * inner;
}

std::vector<Doubles> Elementwise(const std::string& name, const OpCase& test,
                                 const std::vector<Doubles>& in) {
  const bool tanh = test.attrs.String("approximate") == "tanh";
  Doubles y = in[0];
  for (size_t i = 0; i < y.size(); ++i) {
    const double x = in.back()[i], a = in[0][i];
    if (name == "gelu") y[i] = Gelu(a, tanh);
    if (name == "gelu_backward") y[i] = a * GeluSlope(x, tanh);
    if (name == "silu") y[i] = a * Sigmoid(a);
    if (name == "silu_backward") y[i] = a * Sigmoid(x) * (1 + x * (1 - Sigmoid(x)));
    if (name == "tanh") y[i] = std::tanh(a);
    if (name == "tanh_backward") y[i] = a * (1 - x * x);
    if (name == "sigmoid") y[i] = Sigmoid(a);
    if (name == "sigmoid_backward") y[i] = a * x * (1 - x);
  }
  return {y};
}

std::vector<Doubles> Dropout(const OpCase& test, const std::vector<Doubles>& in) {
  Doubles y = in[0];
  const auto n = static_cast<int64_t>(y.size());
  for (int64_t i = 0; i < n; ++i) {
    const int64_t element = static_cast<int64_t>(in[1][3]) * n + i;
    y[At(i)] *= DropFactor(test.attrs, in[1], element);
    if (in.size() == 3) y[At(i)] += in[2][At(i)];
  }
  return {y};
}

std::vector<Doubles> Softmax(const OpCase& test, const std::vector<Doubles>& in, bool backward) {
  const size_t n = At(test.inputs[0].shape[1]);
  Doubles y = in[0];
  for (size_t row = 0; row < y.size(); row += n) {
    double sum = 0;
    for (size_t j = row; j < row + n; ++j) sum += backward ? y[j] * in[1][j] : std::exp(y[j]);
    for (size_t j = row; j < row + n; ++j) {
      y[j] = backward ? in[1][j] * (y[j] - sum) : std::exp(y[j]) / sum;
    }
  }
  return {y};
}

std::vector<Doubles> LayerNorm(const OpCase& test, const std::vector<Doubles>& in) {
  const size_t m = At(test.inputs[0].shape[0]), n = At(test.inputs[0].shape[1]);
  Doubles y = in[0], means(m), rstds(m);
  for (size_t i = 0; i < m; ++i) {
    double sum = 0, squares = 0;
    for (size_t j = 0; j < n; ++j) sum += in[0][i * n + j];
    means[i] = sum / static_cast<double>(n);
    for (size_t j = 0; j < n; ++j) squares += std::pow(in[0][i * n + j] - means[i], 2);
    rstds[i] = 1 / std::sqrt(squares / static_cast<double>(n) + test.attrs.Double("eps"));
    for (size_t j = 0; j < n; ++j) {
      y[i * n + j] = (in[0][i * n + j] - means[i]) * rstds[i] * in[1][j] + in[2][j];
    }
  }
  return {y, means, rstds};
}

std::vector<Doubles> LayerNormBackwardInput(const OpCase& test, const std::vector<Doubles>& in) {
  const size_t m = At(test.inputs[0].shape[0]), n = At(test.inputs[0].shape[1]);
  Doubles dx = in[0];
  for (size_t i = 0; i < m; ++i) {
    const auto normal = [&](size_t j) { return (in[1][i * n + j] - in[3][i]) * in[4][i]; };
    double a = 0, b = 0;
    for (size_t j = 0; j < n; ++j) {
      a += in[0][i * n + j] * in[2][j] / static_cast<double>(n);
      b += in[0][i * n + j] * in[2][j] * normal(j) / static_cast<double>(n);
    }
    for (size_t j = 0; j < n; ++j) {
      dx[i * n + j] = in[4][i] * (in[0][i * n + j] * in[2][j] - a - normal(j) * b);
      if (in.size() == 6) dx[i * n + j] += in[5][i * n + j];
    }
  }
  return {dx};
}

std::vector<Doubles> LayerNormBackwardWeight(const OpCase& test, const std::vector<Doubles>& in) {
  const size_t n = At(test.inputs[0].shape[1]);
  Doubles dgamma(n), dbeta(n);
  for (size_t e = 0; e < in[0].size(); ++e) {
    dgamma[e % n] += in[0][e] * (in[1][e] - in[2][e / n]) * in[3][e / n];
    dbeta[e % n] += in[0][e];
  }
  return {dgamma, dbeta};
}

std::vector<Doubles> Embedding(const std::string& name, const OpCase& test,
                               const std::vector<TensorType>& outputs,
                               const std::vector<Doubles>& in) {
  const size_t c = At(outputs[0].shape[1]);
  const int64_t length = test.attrs.Int("length", 1);
  Doubles y(At(outputs[0].elements()));
  if (name == "embedding") {
    for (size_t e = 0; e < y.size(); ++e) {
      const double token = in[0][e / c];
      y[e] = token < 0 ? 0 : in[1][static_cast<size_t>(token) * c + e % c];
    }
  } else if (name == "embedding_backward") {
    if (in.size() == 3) y = in[2];
    for (size_t e = 0; e < in[1].size(); ++e) {
      if (in[0][e / c] >= 0) y[static_cast<size_t>(in[0][e / c]) * c + e % c] += in[1][e];
    }
  } else if (name == "add_positions") {
    for (size_t e = 0; e < y.size(); ++e) y[e] = in[0][e] + in[1][e / c % At(length) * c + e % c];
  } else {
    for (size_t e = 0; e < in[0].size(); ++e) y[e / c % At(length) * c + e % c] += in[0][e];
  }
  return {y};
}

std::vector<Doubles> TakeRows(const OpCase& test, const std::vector<Doubles>& in, bool backward) {
  const size_t n = At(test.inputs[0].shape[1]), stride = At(test.attrs.Int("stride"));
  Doubles y(backward ? in[0].size() * stride : in[0].size() / stride);
  const size_t rows = std::min(y.size(), in[0].size()) / n;
  for (size_t i = 0; i < rows; ++i) {
    for (size_t j = 0; j < n; ++j) {
      if (backward) {
        y[i * stride * n + j] = in[0][i * n + j];
      } else {
        y[i * n + j] = in[0][i * stride * n + j];
      }
    }
  }
  return {y};
}

// One head of one sequence with every probability in memory.
class Head {
 public:
  Head(const OpCase& test, const std::vector<Doubles>& in, size_t first, int64_t unit)
      : shape_(*ops::AttentionShape::Of(test.inputs, test.attrs, first)),
        test_(test),
        in_(in),
        first_(first),
        unit_(unit),
        depth_(shape_.width / shape_.heads) {}

  // Where element j of row t of part 0, 1, 2 (q, k, v) lies: operand and place.
  std::pair<size_t, size_t> Place(int part, int64_t t, int64_t j) const {
    const int64_t row = unit_ / shape_.heads * (part == 0 ? shape_.queries : shape_.length) + t;
    const int64_t column = unit_ % shape_.heads * depth_ + j;
    if (!shape_.packed) return {static_cast<size_t>(part), At(row * shape_.width + column)};
    return {0, At(row * 3 * shape_.width + part * shape_.width + column)};
  }
  double Get(int part, int64_t t, int64_t j) const {
    const auto [operand, place] = Place(part, t, j);
    return in_[first_ + operand][place];
  }
  size_t OutPlace(int64_t t, int64_t j) const {
    return At((unit_ / shape_.heads * shape_.queries + t) * shape_.width +
              unit_ % shape_.heads * depth_ + j);
  }
  bool Sees(int64_t t, int64_t key) const {
    if (shape_.causal && key > t) return false;
    if (!shape_.masked) return true;
    const Doubles& keys = in_[shape_.keys];
    const int64_t sample = unit_ / shape_.heads;
    if (shape_.lengths) return static_cast<double>(key) < keys[At(sample)];
    return keys[At(sample * shape_.length + key)] != 0;
  }
  double Score(int64_t t, int64_t key) const {
    double sum = 0;
    for (int64_t j = 0; j < depth_; ++j) sum += Get(0, t, j) * Get(1, key, j);
    return sum / std::sqrt(static_cast<double>(depth_));
  }
  double Factor(int64_t t, int64_t key) const {
    if (shape_.rate == 0) return 1;
    const Doubles& address = in_[shape_.address];
    const int64_t unit = static_cast<int64_t>(address[3]) * shape_.batch * shape_.heads + unit_;
    const int64_t padded = (shape_.length + 63) / 64 * 64;
    return DropFactor(test_.attrs, address, (unit * shape_.length + t) * padded + key);
  }

  void Forward(Doubles* y, Doubles* log_sums) const {
    for (int64_t t = 0; t < shape_.queries; ++t) {
      double sum = 0;
      for (int64_t key = 0; key < shape_.length; ++key) {
        if (Sees(t, key)) sum += std::exp(Score(t, key));
      }
      (*log_sums)[At(unit_ * shape_.queries + t)] = sum > 0 ? std::log(sum) : 0;
      for (int64_t key = 0; key < shape_.length; ++key) {
        if (!Sees(t, key)) continue;
        const double p = std::exp(Score(t, key)) / sum * Factor(t, key);
        for (int64_t j = 0; j < depth_; ++j) (*y)[OutPlace(t, j)] += p * Get(2, key, j);
      }
    }
  }

  void Backward(std::vector<Doubles>* gradients) const {
    const auto add = [&](int part, int64_t t, int64_t j, double value) {
      const auto [operand, place] = Place(part, t, j);
      (*gradients)[operand][place] += value;
    };
    for (int64_t t = 0; t < shape_.queries; ++t) {
      double delta = 0;
      for (int64_t j = 0; j < depth_; ++j) delta += in_[0][OutPlace(t, j)] * in_[1][OutPlace(t, j)];
      for (int64_t key = 0; key < shape_.length; ++key) {
        if (!Sees(t, key)) continue;
        const double p = std::exp(Score(t, key) - in_[2][At(unit_ * shape_.queries + t)]);
        const double factor = Factor(t, key);
        double dp = 0;
        for (int64_t j = 0; j < depth_; ++j) {
          dp += in_[0][OutPlace(t, j)] * Get(2, key, j);
          add(2, key, j, factor * p * in_[0][OutPlace(t, j)]);
        }
        const double ds = p * (factor * dp - delta) / std::sqrt(static_cast<double>(depth_));
        for (int64_t j = 0; j < depth_; ++j) {
          add(0, t, j, ds * Get(1, key, j));
          add(1, key, j, ds * Get(0, t, j));
        }
      }
    }
  }

 private:
  const ops::AttentionShape shape_;
  const OpCase& test_;
  const std::vector<Doubles>& in_;
  const size_t first_;
  const int64_t unit_;
  const int64_t depth_;
};

std::vector<Doubles> Attention(const OpCase& test, const std::vector<TensorType>& outputs,
                               const std::vector<Doubles>& in, bool backward) {
  std::vector<Doubles> results;
  for (const TensorType& type : outputs) results.emplace_back(At(type.elements()));
  const size_t first = backward ? 3 : 0;
  const ops::AttentionShape shape = *ops::AttentionShape::Of(test.inputs, test.attrs, first);
  for (int64_t unit = 0; unit < shape.batch * shape.heads; ++unit) {
    const Head head(test, in, first, unit);
    if (backward) {
      head.Backward(&results);
    } else {
      head.Forward(&results[0], &results[1]);
    }
  }
  return results;
}

std::vector<Doubles> AttentionStep(const OpCase& test, const std::vector<Doubles>& in) {
  const size_t rows = At(test.inputs[0].shape[0]);
  const size_t t = At(test.inputs[1].shape[1]), c = At(test.inputs[1].shape[2]);
  const size_t depth = c / At(test.attrs.Int("heads"));
  Doubles y(rows * c), kept = in[1];
  const auto is_there = [&](size_t row) {
    return in[2][row] >= 0 && in[2][row] < static_cast<double>(t);
  };
  for (size_t row = 0; row < rows; ++row) {
    if (!is_there(row)) continue;
    const auto position = static_cast<size_t>(in[2][row]);
    for (size_t j = 0; j < c; ++j) {
      kept[position * c + j] = in[0][(3 * row + 1) * c + j];
      kept[(t + position) * c + j] = in[0][(3 * row + 2) * c + j];
    }
  }
  for (size_t row = 0; row < rows; ++row) {
    if (!is_there(row)) continue;
    for (size_t j = 0; j < c; ++j) {
      const size_t first = j / depth * depth;
      double sum = 0, total = 0;
      for (size_t key = 0; key <= static_cast<size_t>(in[2][row]); ++key) {
        double score = 0;
        for (size_t d = first; d < first + depth; ++d) {
          score += in[0][3 * row * c + d] * kept[key * c + d];
        }
        const double e = std::exp(score / std::sqrt(static_cast<double>(depth)));
        sum += e;
        total += e * kept[(t + key) * c + j];
      }
      y[row * c + j] = total / sum;
    }
  }
  return {y, kept};
}

}  // namespace

double SmoothOf(const std::string& activation, double x) {
  return activation == "silu" ? x * Sigmoid(x) : Gelu(x, activation == "gelu_tanh");
}

double GeluTanhSlope(double x) { return GeluSlope(x, true); }

std::vector<Doubles> TransformerReference(const OpDef& op, const OpCase& test,
                                          const std::vector<TensorType>& outputs,
                                          const std::vector<Doubles>& in) {
  const std::string name = op.name;
  if (name == "dropout") return Dropout(test, in);
  if (name == "softmax") return Softmax(test, in, false);
  if (name == "softmax_backward") return Softmax(test, in, true);
  if (name == "layer_norm") return LayerNorm(test, in);
  if (name == "layer_norm_backward_input") return LayerNormBackwardInput(test, in);
  if (name == "layer_norm_backward_weight") return LayerNormBackwardWeight(test, in);
  if (name == "take_rows") return TakeRows(test, in, false);
  if (name == "take_rows_backward") return TakeRows(test, in, true);
  if (name == "attention") return Attention(test, outputs, in, false);
  if (name == "attention_step") return AttentionStep(test, in);
  if (name == "attention_backward") return Attention(test, outputs, in, true);
  for (const char* known :
       {"embedding", "embedding_backward", "add_positions", "add_positions_backward"}) {
    if (name == known) return Embedding(name, test, outputs, in);
  }
  for (const char* known : {"gelu", "silu", "tanh", "sigmoid"}) {
    if (name == known || name == std::string(known) + "_backward") {
      return Elementwise(name, test, in);
    }
  }
  return {};
}

}  // namespace lockstep::engine
