// SPDX-License-Identifier: Apache-2.0
// The CPU kernels, one for each op that computes; ops/registry.cc joins them with the ops.
// Thread-safety: immutable.
#ifndef LOCKSTEP_ENGINE_CPU_KERNELS_H_
#define LOCKSTEP_ENGINE_CPU_KERNELS_H_

#include "engine/cpu/kernel.h"

namespace lockstep::engine::cpu {

extern const CpuKernelDef kAdd;
extern const CpuKernelDef kBiasBackward;
extern const CpuKernelDef kClassificationSums;
extern const CpuKernelDef kDeposit;
extern const CpuKernelDef kLinear;
extern const CpuKernelDef kLinearBackwardInput;
extern const CpuKernelDef kLinearBackwardWeight;
extern const CpuKernelDef kRelu;
extern const CpuKernelDef kReluBackward;
extern const CpuKernelDef kScale;
extern const CpuKernelDef kSoftmaxCrossEntropy;
extern const CpuKernelDef kSoftmaxCrossEntropyBackward;
extern const CpuKernelDef kSoftmaxCrossEntropyWithGradient;

}  // namespace lockstep::engine::cpu

#endif  // LOCKSTEP_ENGINE_CPU_KERNELS_H_
