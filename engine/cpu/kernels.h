// SPDX-License-Identifier: Apache-2.0
// The CPU kernels, one for each op that computes; ops/registry.cc joins them with the ops.
// Thread-safety: immutable.
#ifndef LOCKSTEP_ENGINE_CPU_KERNELS_H_
#define LOCKSTEP_ENGINE_CPU_KERNELS_H_

#include "engine/cpu/kernel.h"

namespace lockstep::engine::cpu {

extern const CpuKernelDef kAdd;
extern const CpuKernelDef kBiasBackward;
extern const CpuKernelDef kCast;
extern const CpuKernelDef kClassificationSums;
extern const CpuKernelDef kDeposit;
extern const CpuKernelDef kLinear;
extern const CpuKernelDef kLinearBackwardInput;
extern const CpuKernelDef kLinearBackwardWeight;
extern const CpuKernelDef kLinearSoftmaxCrossEntropy;
extern const CpuKernelDef kQuantizeFp8;
extern const CpuKernelDef kRelu;
extern const CpuKernelDef kReluBackward;
extern const CpuKernelDef kScale;
extern const CpuKernelDef kSoftmaxCrossEntropy;
extern const CpuKernelDef kSoftmaxCrossEntropyBackward;
extern const CpuKernelDef kSoftmaxCrossEntropyWithGradient;

// Transformers.
extern const CpuKernelDef kAddPositions;
extern const CpuKernelDef kAddPositionsBackward;
extern const CpuKernelDef kAttention;
extern const CpuKernelDef kAttentionBackward;
extern const CpuKernelDef kAttentionStep;
extern const CpuKernelDef kDropout;
extern const CpuKernelDef kEmbedding;
extern const CpuKernelDef kEmbeddingBackward;
extern const CpuKernelDef kGelu;
extern const CpuKernelDef kGeluBackward;
extern const CpuKernelDef kLayerNorm;
extern const CpuKernelDef kLayerNormBackwardInput;
extern const CpuKernelDef kLayerNormBackwardWeight;
extern const CpuKernelDef kSigmoid;
extern const CpuKernelDef kSigmoidBackward;
extern const CpuKernelDef kSilu;
extern const CpuKernelDef kSiluBackward;
extern const CpuKernelDef kSoftmax;
extern const CpuKernelDef kSoftmaxBackward;
extern const CpuKernelDef kTakeRows;
extern const CpuKernelDef kTakeRowsBackward;
extern const CpuKernelDef kTanh;
extern const CpuKernelDef kTanhBackward;
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
extern const CpuKernelDef kConv2dMaxPool;
extern const CpuKernelDef kConv2dMaxPoolBackwardWeight;
extern const CpuKernelDef kFoldBatchNorm;
extern const CpuKernelDef kGlobalAveragePool;
extern const CpuKernelDef kGlobalAveragePoolBackward;
extern const CpuKernelDef kMaxPool2d;
extern const CpuKernelDef kMaxPool2dBackward;
extern const CpuKernelDef kMaxUnpool2d;

}  // namespace lockstep::engine::cpu

#endif  // LOCKSTEP_ENGINE_CPU_KERNELS_H_
