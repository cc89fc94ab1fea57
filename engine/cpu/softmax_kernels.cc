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
};

struct Sums {
  double loss = 0;
  int64_t count = 0;
};

Sums RunRows(const SimdKernels& simd, const Rows& rows, int64_t m, int64_t n) {
  Sums sums;
  const float seed = rows.seed != nullptr ? *rows.seed : 0;
  for (int64_t i = 0; i < m; ++i) {
    const float* x = rows.logits + i * n;
    float* dx = rows.gradient != nullptr ? rows.gradient + i * n : nullptr;
    const int32_t label = rows.labels[i];
    if (label < 0) {  // ignored
      for (int64_t j = 0; dx != nullptr && j < n; ++j) dx[j] = 0;
      continue;
    }
    const float max = simd.max(x, n);
    const float target = x[label];  // read before dx overwrites it
    const double sum = simd.exp_sum(x, max, n, dx);
    sums.loss += std::log(sum) + (static_cast<double>(max) - static_cast<double>(target));
    ++sums.count;
    if (dx == nullptr) continue;
    simd.scale(dx, static_cast<float>(static_cast<double>(seed) / sum), n, false, dx);
    dx[label] -= seed;
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
        operands_(operands) {}

 protected:
  Rows Bind(const RunContext& context) const {
    Rows rows;
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
  const KernelOperands operands_;
};

// (logits, labels) -> loss, count
class LossKernel : public SoftmaxKernel {
 public:
  using SoftmaxKernel::SoftmaxKernel;
  void Run(const RunContext& context) const override {
    Rows rows = Bind(context);
    BindSums(context, &rows);
    WriteSums(RunRows(simd_, rows, rows_, columns_), rows);
  }
};

// (logits, labels, seed) -> dlogits
class GradientKernel : public SoftmaxKernel {
 public:
  using SoftmaxKernel::SoftmaxKernel;
  void Run(const RunContext& context) const override {
    Rows rows = Bind(context);
    rows.gradient = context.At<float>(operands_.outputs[0]);
    RunRows(simd_, rows, rows_, columns_);
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
    WriteSums(RunRows(simd_, rows, rows_, columns_), rows);
  }
};

// (logits, labels) -> f64[3]: loss, correct, count over the first valid_rows rows
class SumsKernel : public SoftmaxKernel {
 public:
  using SoftmaxKernel::SoftmaxKernel;
  void Run(const RunContext& context) const override {
    const Rows rows = Bind(context);
    const int64_t valid = context.valid_rows < rows_ ? context.valid_rows : rows_;
    const Sums sums = RunRows(simd_, rows, valid, columns_);
    int64_t correct = 0;
    for (int64_t i = 0; i < valid; ++i) {
      const float* x = rows.logits + i * columns_;
      int64_t best = 0;  // the first of equals
      for (int64_t j = 1; j < columns_; ++j) best = x[j] > x[best] ? j : best;
      correct += best == rows.labels[i];
    }
    double* out = context.At<double>(operands_.outputs[0]);
    out[0] = sums.loss;
    out[1] = static_cast<double>(correct);
    out[2] = static_cast<double>(sums.count);
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
