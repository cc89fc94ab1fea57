// SPDX-License-Identifier: Apache-2.0
// Softmax with cross-entropy over rows of logits. Probabilities exist only as the gradient's row,
// in place. Rows run in order on one thread: their losses are one sum.
#include <cmath>
#include <memory>

#include "engine/cpu/kernels.h"
#include "engine/cpu/simd/simd.h"
#include "engine/ops/counts.h"

namespace lockstep::engine::cpu {
namespace {

// Operands that a variant lacks are null.
struct Rows {
  const float* logits = nullptr;
  const int32_t* labels = nullptr;
  const float* seed = nullptr;
  float* gradient = nullptr;
  float* loss = nullptr;
  float* count = nullptr;
  bool add_sums = false;
  int64_t columns = 0;  // of the memory
  int64_t classes = 0;  // the first ones, which count
  double smoothing = 0;
};

struct Sums {
  double loss = 0;
  int64_t count = 0;
};

// Whether `label` is among the five largest of the row; the first of equals is the larger. NaN is
// larger than everything, and never the answer.
bool InFirstFive(const float* x, int64_t n, int32_t label) {
  const float own = x[label];
  int64_t before = 0;
  for (int64_t j = 0; j < label; ++j) before += !(x[j] < own);
  for (int64_t j = label; j < n; ++j) before += !(x[j] <= own);
  return before < 5 && !std::isnan(own);
}

// The sum of a row in a fixed order: eight partial sums, then these.
double RowSum(const float* x, int64_t n) {
  double lanes[8] = {};
  int64_t j = 0;
  for (; j + 8 <= n; j += 8) {
    for (int l = 0; l < 8; ++l) lanes[l] += static_cast<double>(x[j + l]);
  }
  double sum = 0;
  for (; j < n; ++j) sum += static_cast<double>(x[j]);
  for (const double lane : lanes) sum += lane;
  return sum;
}

// The gradient of a row whose exponentials and their sum are given.
void FinishGradient(const SimdKernels& simd, const Rows& rows, int32_t label, double sum,
                    float* dx) {
  const float seed = *rows.seed;
  simd.scale(dx, static_cast<float>(static_cast<double>(seed) / sum), rows.classes, false, dx);
  for (int64_t j = rows.classes; j < rows.columns; ++j) dx[j] = 0;
  if (rows.smoothing > 0) {
    const double each = rows.smoothing / static_cast<double>(rows.classes);
    const float part = static_cast<float>(static_cast<double>(seed) * each);
    for (int64_t j = 0; j < rows.classes; ++j) dx[j] -= part;
  }
  dx[label] -= static_cast<float>(static_cast<double>(seed) * (1 - rows.smoothing));
}

Sums RunRows(const SimdKernels& simd, const Rows& rows, int64_t m) {
  Sums sums;
  for (int64_t i = 0; i < m; ++i) {
    const float* x = rows.logits + i * rows.columns;
    float* dx = rows.gradient != nullptr ? rows.gradient + i * rows.columns : nullptr;
    const int32_t label = rows.labels[i];
    if (label < 0) {  // ignored
      for (int64_t j = 0; dx != nullptr && j < rows.columns; ++j) dx[j] = 0;
      continue;
    }
    const float max = simd.max(x, rows.classes);
    // Read before dx overwrites them.
    double target = static_cast<double>(x[label]);
    if (rows.smoothing > 0) {
      const double mean = RowSum(x, rows.classes) / static_cast<double>(rows.classes);
      target += rows.smoothing * (mean - target);
    }
    const double sum = simd.exp_sum(x, max, rows.classes, dx);
    sums.loss += std::log(sum) + (static_cast<double>(max) - target);
    ++sums.count;
    if (dx != nullptr) FinishGradient(simd, rows, label, sum, dx);
  }
  return sums;
}

void WriteSums(const Sums& sums, const Rows& rows) {
  const auto put = [&](float* out, float value) { *out = rows.add_sums ? *out + value : value; };
  put(rows.loss, static_cast<float>(sums.loss));
  const SplitCount split = Split(sums.count);
  put(rows.count, split.high);
  put(rows.count + 1, split.low);
}

class SoftmaxKernel : public CpuKernel {
 public:
  SoftmaxKernel(const Graph& graph, const Node& node, const KernelOperands& operands,
                const CpuTarget& target)
      : simd_(SimdFor(target.isa)),
        rows_(graph.type(node.inputs[0]).shape[0]),
        columns_(graph.type(node.inputs[0]).shape[1]),
        classes_(node.attrs.Int("classes") > 0 ? node.attrs.Int("classes") : columns_),
        smoothing_(node.attrs.Double("label_smoothing")),
        operands_(operands) {}

 protected:
  Rows Bind(const RunContext& context) const {
    Rows rows;
    rows.columns = columns_;
    rows.classes = classes_;
    rows.smoothing = smoothing_;
    rows.logits = context.At<float>(operands_.inputs[0]);
    rows.labels = context.At<int32_t>(operands_.inputs[1]);
    if (operands_.inputs.size() > 2) rows.seed = context.At<float>(operands_.inputs[2]);
    return rows;
  }
  void BindSums(const RunContext& context, Rows* rows) const {
    rows->loss = context.At<float>(operands_.outputs[0]);
    rows->count = context.At<float>(operands_.outputs[1]);
    rows->add_sums = context.Adds(operands_.outputs[0]);
  }

  const SimdKernels& simd_;
  const int64_t rows_;
  const int64_t columns_;
  const int64_t classes_;
  const double smoothing_;
  const KernelOperands operands_;
};

// (logits, labels) -> loss, count
class LossKernel : public SoftmaxKernel {
 public:
  using SoftmaxKernel::SoftmaxKernel;
  void Run(const RunContext& context) const override {
    Rows rows = Bind(context);
    BindSums(context, &rows);
    WriteSums(RunRows(simd_, rows, rows_), rows);
  }
};

// (logits, labels, seed) -> dlogits
class GradientKernel : public SoftmaxKernel {
 public:
  using SoftmaxKernel::SoftmaxKernel;
  void Run(const RunContext& context) const override {
    Rows rows = Bind(context);
    rows.gradient = context.At<float>(operands_.outputs[0]);
    RunRows(simd_, rows, rows_);
  }
};

// (logits, labels, seed) -> loss, count, dlogits
class BothKernel : public SoftmaxKernel {
 public:
  using SoftmaxKernel::SoftmaxKernel;
  void Run(const RunContext& context) const override {
    Rows rows = Bind(context);
    BindSums(context, &rows);
    rows.gradient = context.At<float>(operands_.outputs[2]);
    WriteSums(RunRows(simd_, rows, rows_), rows);
  }
};

// (logits, labels) -> f64[4]: loss, correct, count, correct among five, over the first valid_rows
// rows
class SumsKernel : public SoftmaxKernel {
 public:
  using SoftmaxKernel::SoftmaxKernel;
  void Run(const RunContext& context) const override {
    const Rows rows = Bind(context);
    const int64_t valid = context.valid_rows < rows_ ? context.valid_rows : rows_;
    const Sums sums = RunRows(simd_, rows, valid);
    int64_t correct = 0, correct_top5 = 0;
    for (int64_t i = 0; i < valid; ++i) {
      const float* x = rows.logits + i * columns_;
      int64_t best = 0;  // the first of equals
      for (int64_t j = 1; j < classes_; ++j) best = x[j] > x[best] ? j : best;
      correct += best == rows.labels[i];
      correct_top5 += rows.labels[i] >= 0 && InFirstFive(x, classes_, rows.labels[i]);
    }
    double* out = context.At<double>(operands_.outputs[0]);
    const double own[] = {sums.loss, static_cast<double>(correct), static_cast<double>(sums.count),
                          static_cast<double>(correct_top5)};
    const bool add = context.Adds(operands_.outputs[0]);
    for (int i = 0; i < 4; ++i) out[i] = add ? out[i] + own[i] : own[i];
  }
};

template <typename Kernel>
std::unique_ptr<CpuKernel> Prepare(const Graph& graph, const Node& node,
                                   const KernelOperands& operands, const CpuTarget& target) {
  return std::make_unique<Kernel>(graph, node, operands, target);
}

}  // namespace

const CpuKernelDef kSoftmaxCrossEntropy = {nullptr, Prepare<LossKernel>};
const CpuKernelDef kSoftmaxCrossEntropyBackward = {nullptr, Prepare<GradientKernel>};
const CpuKernelDef kSoftmaxCrossEntropyWithGradient = {nullptr, Prepare<BothKernel>};
const CpuKernelDef kClassificationSums = {nullptr, Prepare<SumsKernel>};

}  // namespace lockstep::engine::cpu
