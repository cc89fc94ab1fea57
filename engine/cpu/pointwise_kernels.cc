// SPDX-License-Identifier: Apache-2.0
// Elementwise kernels. Cut over threads at multiples of 1,024 elements. Those with a body for bf16
// take it as it is, for the numbers that widening first would give.
#include <algorithm>
#include <memory>

#include "engine/cpu/converting_kernel.h"
#include "engine/cpu/kernels.h"
#include "engine/cpu/simd/half_kernels.h"
#include "engine/cpu/simd/simd.h"

namespace lockstep::engine::cpu {
namespace {

constexpr int64_t kBlock = 1024;

struct Pointwise {
  const SimdKernels& simd;
  const HalfKernels& half;
  KernelOperands operands;
  float factor;

  const float* in(const RunContext& context, int i, int64_t at) const {
    return context.At<float>(operands.inputs[static_cast<size_t>(i)]) + at;
  }
  float* out(const RunContext& context, int64_t at) const {
    return context.At<float>(operands.outputs[0]) + at;
  }
  const uint16_t* in16(const RunContext& context, int i, int64_t at) const {
    return context.At<uint16_t>(operands.inputs[static_cast<size_t>(i)]) + at;
  }
  uint16_t* out16(const RunContext& context, int64_t at) const {
    return context.At<uint16_t>(operands.outputs[0]) + at;
  }
};

// `kBody` works on elements [at, at + n).
template <void (*kBody)(const Pointwise&, const RunContext&, int64_t at, int64_t n)>
class PointwiseKernel : public CpuKernel {
 public:
  PointwiseKernel(const Graph& graph, const Node& node, const KernelOperands& operands,
                  const CpuTarget& target)
      : pointwise_{SimdFor(target.isa), HalfKernelsFor(target.isa), operands,
                   static_cast<float>(node.attrs.Double("factor", 1))},
        elements_(node.outputs[0].elements()),
        threads_(target.threads) {}

  void Run(const RunContext& context) const override {
    context.pool->Run([&](int index) {
      const auto [begin, end] = PartOf((elements_ + kBlock - 1) / kBlock, index, threads_);
      const int64_t at = begin * kBlock;
      const int64_t n = std::min(end * kBlock, elements_) - at;
      if (n > 0) kBody(pointwise_, context, at, n);
    });
  }

 private:
  const Pointwise pointwise_;
  const int64_t elements_;
  const int threads_;
};

void AddBody(const Pointwise& p, const RunContext& context, int64_t at, int64_t n) {
  p.simd.add(p.in(context, 0, at), p.in(context, 1, at), n, p.out(context, at));
}
void ScaleBody(const Pointwise& p, const RunContext& context, int64_t at, int64_t n) {
  p.simd.scale(p.in(context, 0, at), p.factor, n, false, p.out(context, at));
}
void DepositBody(const Pointwise& p, const RunContext& context, int64_t at, int64_t n) {
  p.simd.scale(p.in(context, 0, at), 1, n, context.Adds(p.operands.outputs[0]), p.out(context, at));
}
void ReluBody(const Pointwise& p, const RunContext& context, int64_t at, int64_t n) {
  p.simd.relu(p.in(context, 0, at), n, p.out(context, at));
}
void ReluBackwardBody(const Pointwise& p, const RunContext& context, int64_t at, int64_t n) {
  p.simd.relu_backward(p.in(context, 0, at), p.in(context, 1, at), n, p.out(context, at));
}

void AddBf16Body(const Pointwise& p, const RunContext& context, int64_t at, int64_t n) {
  p.half.add_bf16(p.in16(context, 0, at), p.in16(context, 1, at), n, p.out16(context, at));
}
void ReluBackwardBf16Body(const Pointwise& p, const RunContext& context, int64_t at, int64_t n) {
  p.half.relu_backward_bf16(p.in16(context, 0, at), p.in16(context, 1, at), n,
                            p.out16(context, at));
}

template <void (*kBody)(const Pointwise&, const RunContext&, int64_t at, int64_t n)>
std::unique_ptr<CpuKernel> Prepare(const Graph& graph, const Node& node,
                                   const KernelOperands& operands, const CpuTarget& target) {
  return std::make_unique<PointwiseKernel<kBody>>(graph, node, operands, target);
}

// kBf16Body where all operands are bf16, else kBody.
template <void (*kBody)(const Pointwise&, const RunContext&, int64_t at, int64_t n),
          void (*kBf16Body)(const Pointwise&, const RunContext&, int64_t at, int64_t n)>
std::unique_ptr<CpuKernel> PrepareEither(const Graph& graph, const Node& node,
                                         const KernelOperands& operands, const CpuTarget& target) {
  return IsAllBf16(graph, node, target) ? Prepare<kBf16Body>(graph, node, operands, target)
                                        : Prepare<kBody>(graph, node, operands, target);
}

}  // namespace

const CpuKernelDef kAdd = {.prepare = PrepareEither<AddBody, AddBf16Body>, .takes_half = IsAllBf16};
const CpuKernelDef kScale = {nullptr, Prepare<ScaleBody>};
const CpuKernelDef kDeposit = {nullptr, Prepare<DepositBody>};
const CpuKernelDef kRelu = {nullptr, Prepare<ReluBody>};
const CpuKernelDef kReluBackward = {
    .prepare = PrepareEither<ReluBackwardBody, ReluBackwardBf16Body>, .takes_half = IsAllBf16};

}  // namespace lockstep::engine::cpu
