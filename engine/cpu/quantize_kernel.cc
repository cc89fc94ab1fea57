// SPDX-License-Identifier: Apache-2.0
// quantize_fp8: the largest magnitude of each thread's part, then the rounding, by blocks through a
// buffer on the stack.
#include <algorithm>
#include <memory>

#include "common/float8.h"
#include "engine/cpu/kernels.h"
#include "engine/cpu/simd/half_kernels.h"
#include "engine/ops/ops.h"

namespace lockstep::engine::cpu {
namespace {

constexpr int64_t kBlock = 1024;

class QuantizeKernel : public CpuKernel {
 public:
  QuantizeKernel(const Graph& graph, const Node& node, const KernelOperands& operands,
                 const CpuTarget& target)
      : half_(HalfKernelsFor(target.isa)),
        widens_(IsHalf(graph.type(node.inputs[0]).dtype)),
        format_(ops::Float8FormatOf(node.attrs)),
        elements_(node.outputs[0].elements()),
        operands_(operands) {}

  void Run(const RunContext& context) const override {
    auto* most = context.At<float>(operands_.scratch);  // of each thread's part
    context.pool->Run([&](int index) {
      float part = 0;
      ForBlocks(context, index, [&](const float* x, int64_t, int64_t n) {
        for (int64_t i = 0; i < n; ++i) part = std::max(part, Float8Magnitude(x[i]));
      });
      most[index] = part;
    });
    const float largest = *std::max_element(most, most + context.pool->threads());
    const int scale = Float8ScaleExponent(format_, largest);
    auto* y = context.At<uint16_t>(operands_.outputs[0]);
    context.pool->Run([&](int index) {
      ForBlocks(context, index, [&](const float* x, int64_t at, int64_t n) {
        float rounded[kBlock];
        for (int64_t i = 0; i < n; ++i) rounded[i] = RoundToFloat8(format_, scale, x[i]);
        half_.narrow_bf16(rounded, n, y + at);
      });
    });
  }

 private:
  // Calls body(x, at, n) for the blocks of thread `index`, in fp32.
  template <typename Body>
  void ForBlocks(const RunContext& context, int index, const Body& body) const {
    float buffer[kBlock];
    const int64_t blocks = (elements_ + kBlock - 1) / kBlock;
    const auto [begin, end] = PartOf(blocks, index, context.pool->threads());
    for (int64_t block = begin; block < end; ++block) {
      const int64_t at = block * kBlock;
      const int64_t n = std::min(kBlock, elements_ - at);
      if (!widens_) {
        body(context.At<float>(operands_.inputs[0]) + at, at, n);
        continue;
      }
      half_.widen_bf16(context.At<uint16_t>(operands_.inputs[0]) + at, n, buffer);
      body(buffer, at, n);
    }
  }

  const HalfKernels& half_;
  const bool widens_;
  const Float8Format format_;
  const int64_t elements_;
  const KernelOperands operands_;
};

size_t Scratch(const Graph& /*graph*/, const Node& /*node*/, const CpuTarget& target) {
  return static_cast<size_t>(target.threads) * sizeof(float);
}

std::unique_ptr<CpuKernel> Prepare(const Graph& graph, const Node& node,
                                   const KernelOperands& operands, const CpuTarget& target) {
  return std::make_unique<QuantizeKernel>(graph, node, operands, target);
}

}  // namespace

const CpuKernelDef kQuantizeFp8 = {Scratch, Prepare};

}  // namespace lockstep::engine::cpu
