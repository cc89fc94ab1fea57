// SPDX-License-Identifier: Apache-2.0
// The CPU kernels, one for each op of ops/op_list.inc that computes.
// Thread-safety: immutable.
#ifndef LOCKSTEP_ENGINE_CPU_KERNELS_H_
#define LOCKSTEP_ENGINE_CPU_KERNELS_H_

#include "engine/cpu/kernel.h"
#include "engine/graph/op.h"

namespace lockstep::engine {
namespace cpu {

#define LOCKSTEP_OP(Name) extern const CpuKernelDef k##Name;
#define LOCKSTEP_POINTWISE(Name) extern const CpuKernelDef k##Name;
#define LOCKSTEP_CPU_OP(Name) extern const CpuKernelDef k##Name;
#define LOCKSTEP_PLAIN_OP(Name)
#include "engine/ops/op_list.inc"

}  // namespace cpu

// Null when `op` has no kernel: a leaf or a view.
const CpuKernelDef* FindCpuKernel(const OpDef& op);
// REQUIRES: `op` has one.
const CpuKernelDef& CpuKernelOf(const OpDef& op);

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_CPU_KERNELS_H_
