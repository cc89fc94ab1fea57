// SPDX-License-Identifier: Apache-2.0
// cast: between fp32 and the 16-bit types, by blocks through a buffer on the stack.
#include <algorithm>
#include <cstring>
#include <memory>

#include "engine/cpu/kernels.h"
#include "engine/cpu/simd/half_kernels.h"

namespace lockstep::engine::cpu {
namespace {

constexpr int64_t kBlock = 1024;

class CastKernel : public CpuKernel {
 public:
  CastKernel(const Graph& graph, const Node& node, const KernelOperands& operands,
             const CpuTarget& target)
      : half_(HalfKernelsFor(target.isa)),
        from_(graph.type(node.inputs[0]).dtype),
        to_(node.outputs[0].dtype),
        elements_(node.outputs[0].elements()),
        operands_(operands) {}

  void Run(const RunContext& context) const override {
    const auto* x = context.At<std::byte>(operands_.inputs[0]);
    auto* y = context.At<std::byte>(operands_.outputs[0]);
    context.pool->Run([&](int index) {
      const auto [begin, end] =
          PartOf((elements_ + kBlock - 1) / kBlock, index, context.pool->threads());
      for (int64_t block = begin; block < end; ++block) {
        const int64_t at = block * kBlock;
        Convert(x + static_cast<size_t>(at) * SizeOf(from_), std::min(kBlock, elements_ - at),
                y + static_cast<size_t>(at) * SizeOf(to_));
      }
    });
  }

 private:
  void Convert(const std::byte* x, int64_t n, std::byte* y) const {
    float buffer[kBlock];
    const auto* values = reinterpret_cast<const float*>(x);
    if (IsHalf(from_)) {
      half_.Widen(from_, reinterpret_cast<const uint16_t*>(x), n, buffer);
      values = buffer;
    }
    if (IsHalf(to_)) {
      half_.Narrow(to_, values, n, reinterpret_cast<uint16_t*>(y));
    } else {
      std::memcpy(y, values, static_cast<size_t>(n) * sizeof(float));
    }
  }

  const HalfKernels& half_;
  const DType from_;
  const DType to_;
  const int64_t elements_;
  const KernelOperands operands_;
};

std::unique_ptr<CpuKernel> Prepare(const Graph& graph, const Node& node,
                                   const KernelOperands& operands, const CpuTarget& target) {
  return std::make_unique<CastKernel>(graph, node, operands, target);
}

}  // namespace

const CpuKernelDef kCast = {nullptr, Prepare};

}  // namespace lockstep::engine::cpu
