// SPDX-License-Identifier: Apache-2.0
// Softmax with cross-entropy over rows of logits. Probabilities exist only as the gradient's row,
// in place. Rows run in order on one thread: their losses are one sum.
#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include "engine/cpu/kernels.h"
#include "engine/cpu/softmax_rows.h"

namespace lockstep::engine::cpu {
namespace {

// How many classes of the row come before `label`: what is larger, and of equals the first. NaN is
// larger than everything, and never the answer: no place is its own.
int64_t Before(const float* x, int64_t n, int32_t label) {
  const float own = x[label];
  if (std::isnan(own)) return std::numeric_limits<int64_t>::max();
  int64_t before = 0;
  for (int64_t j = 0; j < label; ++j) before += !(x[j] < own);
  for (int64_t j = label; j < n; ++j) before += !(x[j] <= own);
  return before;
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
  SoftmaxRows Bind(const RunContext& context) const {
    SoftmaxRows rows;
    rows.columns = columns_;
    rows.classes = classes_;
    rows.smoothing = smoothing_;
    rows.logits = context.At<float>(operands_.inputs[0]);
    rows.labels = context.At<int32_t>(operands_.inputs[1]);
    if (operands_.inputs.size() > 2) rows.seed = context.At<float>(operands_.inputs[2]);
    return rows;
  }
  void BindSums(const RunContext& context, SoftmaxRows* rows) const {
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
    SoftmaxRows rows = Bind(context);
    BindSums(context, &rows);
    SoftmaxSums sums;
    RunSoftmaxRows(simd_, rows, rows_, &sums);
    WriteSoftmaxSums(sums, rows);
  }
};

// (logits, labels, seed) -> dlogits
class GradientKernel : public SoftmaxKernel {
 public:
  using SoftmaxKernel::SoftmaxKernel;
  void Run(const RunContext& context) const override {
    SoftmaxRows rows = Bind(context);
    rows.gradient = context.At<float>(operands_.outputs[0]);
    SoftmaxSums sums;
    RunSoftmaxRows(simd_, rows, rows_, &sums);
  }
};

// (logits, labels, seed) -> loss, count, dlogits, and the gradient of a bias
class BothKernel : public SoftmaxKernel {
 public:
  using SoftmaxKernel::SoftmaxKernel;
  void Run(const RunContext& context) const override {
    SoftmaxRows rows = Bind(context);
    BindSums(context, &rows);
    rows.gradient = context.At<float>(operands_.outputs[2]);
    const bool bias = operands_.outputs.size() == 4;
    if (bias) {
      // SoftmaxRows that are ignored add nothing; the sum goes to the result as bias_backward's
      // does.
      rows.bias = context.At<float>(operands_.scratch);
      std::fill_n(rows.bias, columns_, 0.0f);
    }
    SoftmaxSums sums;
    RunSoftmaxRows(simd_, rows, rows_, &sums);
    WriteSoftmaxSums(sums, rows);
    if (!bias) return;
    float* const out = context.At<float>(operands_.outputs[3]);
    if (context.Adds(operands_.outputs[3])) {
      simd_.add(out, rows.bias, columns_, out);
    } else {
      std::copy_n(rows.bias, columns_, out);
    }
  }
};

size_t BothScratch(const Graph& graph, const Node& node, const CpuTarget&) {
  if (node.outputs.size() < 4) return 0;
  return static_cast<size_t>(graph.type(node.inputs[0]).shape[1]) * sizeof(float);
}

// (logits, labels) -> f64[4]: loss, correct, count, correct among five, over the first valid_rows
// rows
class SumsKernel : public SoftmaxKernel {
 public:
  using SoftmaxKernel::SoftmaxKernel;
  void Run(const RunContext& context) const override {
    const SoftmaxRows rows = Bind(context);
    const int64_t valid = context.valid_rows < rows_ ? context.valid_rows : rows_;
    SoftmaxSums sums;
    RunSoftmaxRows(simd_, rows, valid, &sums);
    int64_t correct = 0, correct_top5 = 0;
    for (int64_t i = 0; i < valid; ++i) {
      if (rows.labels[i] < 0) continue;
      const int64_t before = Before(rows.logits + i * columns_, classes_, rows.labels[i]);
      correct += before == 0;
      correct_top5 += before < 5;
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
const CpuKernelDef kSoftmaxCrossEntropyWithGradient = {BothScratch, Prepare<BothKernel>};
const CpuKernelDef kClassificationSums = {nullptr, Prepare<SumsKernel>};

}  // namespace lockstep::engine::cpu
