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

// Images: convolution, pooling, normalisation.
extern const CpuKernelDef kAvgPool2d;
extern const CpuKernelDef kAvgPool2dBackward;
extern const CpuKernelDef kBatchNorm;
extern const CpuKernelDef kBatchNormBackward;
extern const CpuKernelDef kBatchNormInference;
extern const CpuKernelDef kChannelsFirst;
extern const CpuKernelDef kChannelsLast;
extern const CpuKernelDef kConv2d;
extern const CpuKernelDef kConv2dBackwardInput;
extern const CpuKernelDef kConv2dBackwardWeight;
extern const CpuKernelDef kFoldBatchNorm;
extern const CpuKernelDef kGlobalAveragePool;
extern const CpuKernelDef kGlobalAveragePoolBackward;
extern const CpuKernelDef kMaxPool2d;
extern const CpuKernelDef kMaxPool2dBackward;

}  // namespace lockstep::engine::cpu

#endif  // LOCKSTEP_ENGINE_CPU_KERNELS_H_
