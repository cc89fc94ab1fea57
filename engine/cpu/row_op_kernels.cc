// SPDX-License-Identifier: Apache-2.0
// Kernels that work row by row, or element by element: normalisation, activations, softmax,
// dropout, taking rows. Threads take whole rows, or blocks of 1,024 elements.
#include <algorithm>
#include <cstring>
#include <memory>
#include <string_view>

#include "engine/cpu/converting_kernel.h"
#include "engine/cpu/kernels.h"
#include "engine/cpu/random_address.h"
#include "engine/cpu/simd/row_kernels.h"
#include "engine/cpu/simd/simd.h"

namespace lockstep::engine::cpu {
namespace {

constexpr int64_t kBlock = 1024;

// What every kernel here needs to know; rows and columns are those of the first input.
class RowKernel : public CpuKernel {
 public:
  RowKernel(const Graph& graph, const Node& node, const KernelOperands& operands,
            const CpuTarget& target)
      : simd_(SimdFor(target.isa)),
        row_simd_(RowKernelsFor(target.isa)),
        elements_(graph.type(node.inputs[0]).elements()),
        columns_(graph.type(node.inputs[0]).shape.back()),
        rows_(elements_ / columns_),
        operands_(operands),
        threads_(target.threads) {}

 protected:
  float* In(const RunContext& context, size_t i) const {
    return context.At<float>(operands_.inputs[i]);
  }
  float* Out(const RunContext& context, size_t i = 0) const {
    return context.At<float>(operands_.outputs[i]);
  }
  // Input `i`, or null when the node has none.
  float* Optional(const RunContext& context, size_t i) const {
    return operands_.inputs.size() > i ? In(context, i) : nullptr;
  }
  // body(row) for each row.
  template <typename Body>
  void ForRows(const RunContext& context, const Body& body) const {
    context.pool->Run([&](int index) {
      const auto [begin, end] = PartOf(rows_, index, threads_);
      for (int64_t row = begin; row < end; ++row) body(row);
    });
  }
  // body(first element, count) for blocks of elements.
  template <typename Body>
  void ForBlocks(const RunContext& context, const Body& body) const {
    context.pool->Run([&](int index) {
      const auto [begin, end] = PartOf((elements_ + kBlock - 1) / kBlock, index, threads_);
      const int64_t at = begin * kBlock;
      const int64_t n = std::min(end * kBlock, elements_) - at;
      if (n > 0) body(at, n);
    });
  }

  const SimdKernels& simd_;
  const RowKernels& row_simd_;
  const int64_t elements_;
  const int64_t columns_;
  const int64_t rows_;
  const KernelOperands operands_;
  const int threads_;
};

// (x, gamma, beta) -> y, mean, rstd
class LayerNormKernel : public RowKernel {
 public:
  LayerNormKernel(const Graph& graph, const Node& node, const KernelOperands& operands,
                  const CpuTarget& target)
      : RowKernel(graph, node, operands, target),
        eps_(static_cast<float>(node.attrs.Double("eps", 1e-5))) {}

  void Run(const RunContext& context) const override {
    const float *x = In(context, 0), *gamma = In(context, 1), *beta = In(context, 2);
    float *y = Out(context), *mean = Out(context, 1), *rstd = Out(context, 2);
    ForRows(context, [&](int64_t row) {
      const int64_t at = row * columns_;
      row_simd_.layer_norm(x + at, gamma, beta, columns_, eps_, y + at, mean + row, rstd + row);
    });
  }

 private:
  const float eps_;
};

// (dy, x, gamma, mean, rstd, residual?) -> dx
class LayerNormBackwardInputKernel : public RowKernel {
 public:
  using RowKernel::RowKernel;
  void Run(const RunContext& context) const override {
    const float *dy = In(context, 0), *x = In(context, 1), *gamma = In(context, 2);
    const float *mean = In(context, 3), *rstd = In(context, 4);
    const float* residual = Optional(context, 5);
    float* dx = Out(context);
    ForRows(context, [&](int64_t row) {
      const int64_t at = row * columns_;
      row_simd_.layer_norm_backward(dy + at, x + at, gamma, mean[row], rstd[row],
                                    residual != nullptr ? residual + at : nullptr, columns_,
                                    dx + at);
    });
  }
};

// (dy, x, mean, rstd) -> dgamma, dbeta. Threads take blocks of columns.
class LayerNormBackwardWeightKernel : public RowKernel {
 public:
  using RowKernel::RowKernel;
  void Run(const RunContext& context) const override {
    const float *dy = In(context, 0), *x = In(context, 1);
    const float *mean = In(context, 2), *rstd = In(context, 3);
    float *dgamma = Out(context), *dbeta = Out(context, 1);
    // gamma and beta are used together: both outputs lie in the gradient vector, or neither does.
    const bool adds = context.Adds(operands_.outputs[0]);
    constexpr int64_t kColumns = 64;
    context.pool->Run([&](int index) {
      const auto [begin, end] = PartOf((columns_ + kColumns - 1) / kColumns, index, threads_);
      const int64_t at = begin * kColumns;
      const int64_t n = std::min(end * kColumns, columns_) - at;
      if (n <= 0) return;
      row_simd_.layer_norm_sums(dy + at, x + at, mean, rstd, columns_, rows_, n, adds, dgamma + at,
                                dbeta + at);
    });
  }
};

template <Activation kDefault>
class ActivationKernel : public RowKernel {
 public:
  ActivationKernel(const Graph& graph, const Node& node, const KernelOperands& operands,
                   const CpuTarget& target)
      : RowKernel(graph, node, operands, target),
        bf16_(IsAllBf16(graph, node, target)),
        function_(static_cast<size_t>(kDefault == Activation::kGeluErf &&
                                              node.attrs.String("approximate") == "tanh"
                                          ? Activation::kGeluTanh
                                          : kDefault)) {}

  void Run(const RunContext& context) const override {
    if (bf16_) {
      RunOn<uint16_t>(context, row_simd_.activation_bf16[function_],
                      row_simd_.activation_backward_bf16[function_]);
    } else {
      RunOn<float>(context, row_simd_.activation[function_],
                   row_simd_.activation_backward[function_]);
    }
  }

 private:
  template <typename T, typename Forward, typename Backward>
  void RunOn(const RunContext& context, Forward forward, Backward backward) const {
    const T* a = context.At<T>(operands_.inputs[0]);
    const T* b = operands_.inputs.size() > 1 ? context.At<T>(operands_.inputs[1]) : nullptr;
    T* out = context.At<T>(operands_.outputs[0]);
    ForBlocks(context, [&](int64_t at, int64_t n) {
      b == nullptr ? forward(a + at, n, out + at) : backward(a + at, b + at, n, out + at);
    });
  }

  const bool bf16_;
  const size_t function_;
};

class SoftmaxKernel : public RowKernel {
 public:
  using RowKernel::RowKernel;
  void Run(const RunContext& context) const override {
    const float* x = In(context, 0);
    float* y = Out(context);
    ForRows(context, [&](int64_t row) {
      const int64_t at = row * columns_;
      const double sum = simd_.exp_sum(x + at, simd_.max(x + at, columns_), columns_, y + at);
      simd_.scale(y + at, static_cast<float>(1 / sum), columns_, false, y + at);
    });
  }
};

// (dy, y) -> dx
class SoftmaxBackwardKernel : public RowKernel {
 public:
  using RowKernel::RowKernel;
  void Run(const RunContext& context) const override {
    const float *dy = In(context, 0), *y = In(context, 1);
    float* dx = Out(context);
    ForRows(context, [&](int64_t row) {
      const int64_t at = row * columns_;
      const float dot = row_simd_.dot(dy + at, y + at, columns_);
      row_simd_.softmax_backward(dy + at, y + at, dot, columns_, dx + at);
    });
  }
};

// (x, address, residual?) -> y
class DropoutKernel : public RowKernel {
 public:
  DropoutKernel(const Graph& graph, const Node& node, const KernelOperands& operands,
                const CpuTarget& target)
      : RowKernel(graph, node, operands, target), rule_(node.attrs) {}

  void Run(const RunContext& context) const override {
    const float *x = In(context, 0), *residual = Optional(context, 2);
    const auto* address = context.At<int32_t>(operands_.inputs[1]);
    const RandomSite site = rule_.At(address);
    const int64_t before = MicroOf(address) * elements_;
    float* y = Out(context);
    ForBlocks(context, [&](int64_t at, int64_t n) {
      alignas(64) uint32_t words[kRandomBlock];
      for (const int64_t end = at + n; at < end;) {
        const int64_t element = before + at;
        const int64_t in_block = element % kRandomBlock;
        const int64_t count = std::min(kRandomBlock - in_block, end - at);
        row_simd_.random_halves(site, static_cast<uint64_t>(element / kRandomBlock), words);
        row_simd_.dropout(x + at, words + in_block, rule_.threshold, rule_.scale,
                          residual != nullptr ? residual + at : nullptr, count, y + at);
        at += count;
      }
    });
  }

 private:
  const DropRule rule_;
};

class TakeRowsKernel : public RowKernel {
 public:
  TakeRowsKernel(const Graph& graph, const Node& node, const KernelOperands& operands,
                 const CpuTarget& target)
      : RowKernel(graph, node, operands, target), stride_(node.attrs.Int("stride")) {}

  void Run(const RunContext& context) const override {
    for (int64_t row = 0; row < rows_; row += stride_) {
      std::memcpy(Out(context) + row / stride_ * columns_, In(context, 0) + row * columns_,
                  static_cast<size_t>(columns_) * sizeof(float));
    }
  }

 private:
  const int64_t stride_;
};

class TakeRowsBackwardKernel : public RowKernel {
 public:
  TakeRowsBackwardKernel(const Graph& graph, const Node& node, const KernelOperands& operands,
                         const CpuTarget& target)
      : RowKernel(graph, node, operands, target), stride_(node.attrs.Int("stride")) {}

  void Run(const RunContext& context) const override {
    const size_t bytes = static_cast<size_t>(columns_) * sizeof(float);
    std::memset(Out(context), 0, bytes * static_cast<size_t>(rows_ * stride_));
    for (int64_t row = 0; row < rows_; ++row) {
      std::memcpy(Out(context) + row * stride_ * columns_, In(context, 0) + row * columns_, bytes);
    }
  }

 private:
  const int64_t stride_;
};

template <typename Kernel>
std::unique_ptr<CpuKernel> Prepare(const Graph& graph, const Node& node,
                                   const KernelOperands& operands, const CpuTarget& target) {
  return std::make_unique<Kernel>(graph, node, operands, target);
}

}  // namespace

const CpuKernelDef kLayerNorm = {nullptr, Prepare<LayerNormKernel>};
const CpuKernelDef kLayerNormBackwardInput = {nullptr, Prepare<LayerNormBackwardInputKernel>};
const CpuKernelDef kLayerNormBackwardWeight = {nullptr, Prepare<LayerNormBackwardWeightKernel>};
const CpuKernelDef kGelu = {.prepare = Prepare<ActivationKernel<Activation::kGeluErf>>,
                            .takes_half = IsAllBf16};
const CpuKernelDef kGeluBackward = kGelu;
const CpuKernelDef kSilu = {.prepare = Prepare<ActivationKernel<Activation::kSilu>>,
                            .takes_half = IsAllBf16};
const CpuKernelDef kSiluBackward = kSilu;
const CpuKernelDef kTanh = {.prepare = Prepare<ActivationKernel<Activation::kTanh>>,
                            .takes_half = IsAllBf16};
const CpuKernelDef kTanhBackward = kTanh;
const CpuKernelDef kSigmoid = {nullptr, Prepare<ActivationKernel<Activation::kSigmoid>>};
const CpuKernelDef kSigmoidBackward = kSigmoid;
const CpuKernelDef kSoftmax = {nullptr, Prepare<SoftmaxKernel>};
const CpuKernelDef kSoftmaxBackward = {nullptr, Prepare<SoftmaxBackwardKernel>};
const CpuKernelDef kDropout = {nullptr, Prepare<DropoutKernel>};
const CpuKernelDef kTakeRows = {nullptr, Prepare<TakeRowsKernel>};
const CpuKernelDef kTakeRowsBackward = {nullptr, Prepare<TakeRowsBackwardKernel>};

}  // namespace lockstep::engine::cpu
