// SPDX-License-Identifier: Apache-2.0
// How any kernel works on operands that are stored in 16 bits. Kernels know fp32 alone; around one,
// 16-bit inputs are widened into scratch and its results are narrowed, once, to nearest even. Where
// the op allows it (HalfRules), this goes by blocks of rows, so that the fp32 copies are small and
// stay in the caches. How rows are cut depends on the op and its shapes alone.
// Kernels that take 16 bits as they are (CpuKernelDef::takes_half) are left alone.
//
// These functions stand for CpuKernelDef's own: what they return is the plain kernel's where no
// operand has 16 bits, and for ops that know types themselves (cast). Of a plan's targets each node
// takes that of its class.
// Thread-safety: pure functions.
#ifndef LOCKSTEP_ENGINE_CPU_CONVERTING_KERNEL_H_
#define LOCKSTEP_ENGINE_CPU_CONVERTING_KERNEL_H_

#include <cstddef>
#include <memory>

#include "engine/cpu/kernel.h"

namespace lockstep::engine {

// Returns whether an input or an output has 16 bits.
bool HasHalfOperand(const Graph& graph, const Node& node);
// Returns whether all of them are bf16: CpuKernelDef::takes_half of kernels with loops for that.
bool IsAllBf16(const Graph& graph, const Node& node, const CpuTarget& target);
// Bytes of scratch that the node needs, copies included.
size_t KernelScratchBytes(const Graph& graph, const Node& node, const CpuTargets& targets);
// Bytes of what the node's kernel can make once of input `CpuKernelDef::packed_input`; 0: nothing.
size_t KernelPackedBytes(const Graph& graph, const Node& node, const CpuTargets& targets);
// The node's kernel. `operands.scratch` has KernelScratchBytes, 64-byte aligned, less
// KernelPackedBytes where there is `operands.packed`.
std::unique_ptr<CpuKernel> PrepareKernel(const Graph& graph, const Node& node,
                                         const KernelOperands& operands, const CpuTargets& targets);

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_CPU_CONVERTING_KERNEL_H_
