// SPDX-License-Identifier: Apache-2.0
// linear and its gradients as matrix products.
#include <algorithm>
#include <memory>
#include <optional>
#include <string>

#include "engine/cpu/gemm.h"
#include "engine/cpu/kernels.h"
#include "engine/cpu/simd/half_kernels.h"
#include "engine/ops/ops.h"

namespace lockstep::engine::cpu {
namespace {

// Whether both factors come in bf16 (kernel.h).
bool FactorsAreBf16(const Graph& graph, const Node& node) {
  return graph.type(node.inputs[0]).dtype == DType::kBF16;
}

GemmShape ForwardShape(const Graph& graph, const Node& node) {
  const Shape& x = graph.type(node.inputs[0]).shape;
  const Shape& w = graph.type(node.inputs[1]).shape;
  const bool in_out = node.attrs.Int("in_out") != 0;
  return {.m = x[0],
          .n = w[in_out ? 1 : 0],
          .k = x[1],
          .a_transposed = false,
          .b_transposed = !in_out,
          .bf16 = FactorsAreBf16(graph, node)};
}

// (dy [m, n], w [n, k]) -> dx [m, k]
GemmShape InputShape(const Graph& graph, const Node& node) {
  const Shape& dy = graph.type(node.inputs[0]).shape;
  const Shape& w = graph.type(node.inputs[1]).shape;
  const bool in_out = node.attrs.Int("in_out") != 0;
  return {.m = dy[0],
          .n = w[in_out ? 0 : 1],
          .k = dy[1],
          .a_transposed = false,
          .b_transposed = in_out,
          .bf16 = FactorsAreBf16(graph, node)};
}

// (dy [m, n], x [m, k]) -> dw [n, k]
GemmShape WeightShape(const Graph& graph, const Node& node) {
  const Shape& dy = graph.type(node.inputs[0]).shape;
  const Shape& x = graph.type(node.inputs[1]).shape;
  return {.m = dy[1],
          .n = x[1],
          .k = dy[0],
          .a_transposed = true,
          .b_transposed = false,
          .bf16 = FactorsAreBf16(graph, node)};
}

class LinearKernel : public CpuKernel {
 public:
  LinearKernel(const Graph& graph, const Node& node, const KernelOperands& operands,
               const CpuTarget& target)
      : gemm_(ForwardShape(graph, node), target.isa, target.threads),
        operands_(operands),
        row_simd_(RowKernelsFor(target.isa)),
        elements_(node.outputs[0].elements()),
        relu_(node.attrs.String("activation") == "relu") {
    const std::string activation = node.attrs.String("activation", "none");
    if (activation == "gelu") activation_ = Activation::kGeluErf;
    if (activation == "gelu_tanh") activation_ = Activation::kGeluTanh;
    if (activation == "silu") activation_ = Activation::kSilu;
  }

  void Run(const RunContext& context) const override {
    GemmEpilogue epilogue;
    if (operands_.inputs.size() >= 3) epilogue.bias = context.At<float>(operands_.inputs[2]);
    if (operands_.inputs.size() == 4) epilogue.residual = context.At<float>(operands_.inputs[3]);
    epilogue.relu = relu_;
    const bool keeps = operands_.outputs.size() == 2;
    if (!keeps) epilogue.activation = activation_;
    float* const sums = context.At<float>(operands_.outputs[keeps ? 1 : 0]);
    gemm_.Run(context.At<void>(operands_.inputs[0]), context.At<void>(operands_.inputs[1]), sums,
              false, epilogue, context.At<float>(operands_.scratch), context.pool);
    if (!keeps) return;
    row_simd_.activation[static_cast<size_t>(*activation_)](
        sums, elements_, context.At<float>(operands_.outputs[0]));
  }

 private:
  const Gemm gemm_;
  const KernelOperands operands_;
  const RowKernels& row_simd_;
  const int64_t elements_;
  const bool relu_;
  std::optional<Activation> activation_;
};

class BackwardInputKernel : public CpuKernel {
 public:
  BackwardInputKernel(const Graph& graph, const Node& node, const KernelOperands& operands,
                      const CpuTarget& target)
      : gemm_(InputShape(graph, node), target.isa, target.threads),
        operands_(operands),
        row_simd_(RowKernelsFor(target.isa)),
        elements_(node.outputs[0].elements()),
        third_(ops::ThirdOf(node.attrs)) {}

  void Run(const RunContext& context) const override {
    GemmEpilogue epilogue;
    if (operands_.inputs.size() == 3) {
      const float* third = context.At<float>(operands_.inputs[2]);
      if (third_ == ops::Third::kMask) epilogue.mask = third;
      if (third_ == ops::Third::kAddend) epilogue.residual = third;
    }
    float* const dx = context.At<float>(operands_.outputs[0]);
    gemm_.Run(context.At<void>(operands_.inputs[0]), context.At<void>(operands_.inputs[1]), dx,
              false, epilogue, context.At<float>(operands_.scratch), context.pool);
    if (operands_.inputs.size() < 3 || third_ != ops::Third::kGelu) return;
    row_simd_.activation_backward[static_cast<size_t>(Activation::kGeluTanh)](
        dx, context.At<float>(operands_.inputs[2]), elements_, dx);
  }

 private:
  const Gemm gemm_;
  const KernelOperands operands_;
  const RowKernels& row_simd_;
  const int64_t elements_;
  const ops::Third third_;
};

class BackwardWeightKernel : public CpuKernel {
 public:
  BackwardWeightKernel(const Graph& graph, const Node& node, const KernelOperands& operands,
                       const CpuTarget& target)
      : gemm_(WeightShape(graph, node), target.isa, target.threads),
        operands_(operands),
        simd_(SimdFor(target.isa)),
        half_(HalfKernelsFor(target.isa)),
        bf16_(FactorsAreBf16(graph, node)),
        rows_(graph.type(node.inputs[0]).shape[0]),
        summed_(static_cast<size_t>(node.attrs.Int("sums"))),
        columns_(node.outputs.back().shape[0]) {}

  static size_t ScratchBytes(const Graph& graph, const Node& node, const CpuTarget& target) {
    const size_t product =
        Gemm(WeightShape(graph, node), target.isa, target.threads).scratch_bytes();
    if (!FactorsAreBf16(graph, node) || node.attrs.Int("sums") == 0) return product;
    const int64_t columns = node.outputs.back().shape[0];
    return std::max(product, static_cast<size_t>(kWidenedRows * columns) * sizeof(float));
  }

  void Run(const RunContext& context) const override {
    const Storage& out = operands_.outputs[0];
    gemm_.Run(context.At<void>(operands_.inputs[0]), context.At<void>(operands_.inputs[1]),
              context.At<float>(out), context.Adds(out), {}, context.At<float>(operands_.scratch),
              context.pool);
    if (summed_ == 0) return;
    const Storage& summed = operands_.inputs[summed_ - 1];
    const Storage& sums = operands_.outputs[1];
    float* const to = context.At<float>(sums);
    if (!bf16_) {
      simd_.sum_rows(context.At<float>(summed), columns_, rows_, columns_, context.Adds(sums), to);
      return;
    }
    const auto* halves = context.At<uint16_t>(summed);
    float* const widened = context.At<float>(operands_.scratch);
    for (int64_t row = 0; row < rows_; row += kWidenedRows) {
      const int64_t count = std::min(kWidenedRows, rows_ - row);
      half_.widen_bf16(halves + row * columns_, count * columns_, widened);
      simd_.sum_rows(widened, columns_, count, columns_, row > 0 || context.Adds(sums), to);
    }
  }

 private:
  static constexpr int64_t kWidenedRows = 16;

  const Gemm gemm_;
  const KernelOperands operands_;
  const SimdKernels& simd_;
  const HalfKernels& half_;
  const bool bf16_;
  const int64_t rows_;
  const size_t summed_;    // the operand, from 1; 0: none
  const int64_t columns_;  // of it
};

class BiasBackwardKernel : public CpuKernel {
 public:
  BiasBackwardKernel(const Graph& graph, const Node& node, const KernelOperands& operands,
                     const CpuTarget& target)
      : simd_(SimdFor(target.isa)),
        rows_(graph.type(node.inputs[0]).shape[0]),
        columns_(graph.type(node.inputs[0]).shape[1]),
        operands_(operands) {}

  void Run(const RunContext& context) const override {
    const Storage& out = operands_.outputs[0];
    simd_.sum_rows(context.At<float>(operands_.inputs[0]), columns_, rows_, columns_,
                   context.Adds(out), context.At<float>(out));
  }

 private:
  const SimdKernels& simd_;
  const int64_t rows_;
  const int64_t columns_;
  const KernelOperands operands_;
};

template <typename Kernel>
std::unique_ptr<CpuKernel> Prepare(const Graph& graph, const Node& node,
                                   const KernelOperands& operands, const CpuTarget& target) {
  return std::make_unique<Kernel>(graph, node, operands, target);
}

template <GemmShape (*kShape)(const Graph&, const Node&)>
size_t Scratch(const Graph& graph, const Node& node, const CpuTarget& target) {
  return Gemm(kShape(graph, node), target.isa, target.threads).scratch_bytes();
}

template <GemmShape (*kShape)(const Graph&, const Node&)>
bool TakesBf16(const Graph& graph, const Node& node, const CpuTarget& target) {
  return target.bf16_pairs && PairsBf16(kShape(graph, node).k);
}

}  // namespace

const CpuKernelDef kLinear = {.scratch_bytes = Scratch<ForwardShape>,
                              .prepare = Prepare<LinearKernel>,
                              .takes_bf16 = TakesBf16<ForwardShape>};
const CpuKernelDef kLinearBackwardInput = {.scratch_bytes = Scratch<InputShape>,
                                           .prepare = Prepare<BackwardInputKernel>,
                                           .takes_bf16 = TakesBf16<InputShape>};
const CpuKernelDef kLinearBackwardWeight = {.scratch_bytes = BackwardWeightKernel::ScratchBytes,
                                            .prepare = Prepare<BackwardWeightKernel>,
                                            .takes_bf16 = TakesBf16<WeightShape>};
const CpuKernelDef kBiasBackward = {nullptr, Prepare<BiasBackwardKernel>};

}  // namespace lockstep::engine::cpu
