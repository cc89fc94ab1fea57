// SPDX-License-Identifier: Apache-2.0
// The CUDA kernels, one for each op that computes; ops/registry.cc joins them with the ops.
// Thread-safety: immutable.
#ifndef LOCKSTEP_ENGINE_CUDA_KERNELS_H_
#define LOCKSTEP_ENGINE_CUDA_KERNELS_H_

#include "engine/cuda/kernel.h"

namespace lockstep::engine::cuda {

extern const CudaKernelDef kAdd;
extern const CudaKernelDef kBiasBackward;
extern const CudaKernelDef kCast;
extern const CudaKernelDef kClassificationSums;
extern const CudaKernelDef kDeposit;
extern const CudaKernelDef kLinear;
extern const CudaKernelDef kLinearBackwardInput;
extern const CudaKernelDef kLinearBackwardWeight;
extern const CudaKernelDef kQuantizeFp8;
extern const CudaKernelDef kRelu;
extern const CudaKernelDef kReluBackward;
extern const CudaKernelDef kScale;
extern const CudaKernelDef kSoftmaxCrossEntropy;
extern const CudaKernelDef kSoftmaxCrossEntropyBackward;
extern const CudaKernelDef kSoftmaxCrossEntropyWithGradient;
// Transformers.
extern const CudaKernelDef kAddPositions;
extern const CudaKernelDef kAddPositionsBackward;
extern const CudaKernelDef kAttention;
extern const CudaKernelDef kAttentionBackward;
extern const CudaKernelDef kAttentionStep;
extern const CudaKernelDef kDropout;
extern const CudaKernelDef kEmbedding;
extern const CudaKernelDef kEmbeddingBackward;
extern const CudaKernelDef kGelu;
extern const CudaKernelDef kGeluBackward;
extern const CudaKernelDef kLayerNorm;
extern const CudaKernelDef kLayerNormBackwardInput;
extern const CudaKernelDef kLayerNormBackwardWeight;
extern const CudaKernelDef kSigmoid;
extern const CudaKernelDef kSigmoidBackward;
extern const CudaKernelDef kSilu;
extern const CudaKernelDef kSiluBackward;
extern const CudaKernelDef kSoftmax;
extern const CudaKernelDef kSoftmaxBackward;
extern const CudaKernelDef kTakeRows;
extern const CudaKernelDef kTakeRowsBackward;
extern const CudaKernelDef kTanh;
extern const CudaKernelDef kTanhBackward;
// Images: convolution, pooling, normalisation.
extern const CudaKernelDef kAvgPool2d;
extern const CudaKernelDef kAvgPool2dBackward;
extern const CudaKernelDef kBatchNorm;
extern const CudaKernelDef kBatchNormBackward;
extern const CudaKernelDef kBatchNormInference;
extern const CudaKernelDef kChannelsFirst;
extern const CudaKernelDef kChannelsLast;
extern const CudaKernelDef kConv2d;
extern const CudaKernelDef kConv2dBackwardInput;
extern const CudaKernelDef kConv2dBackwardWeight;
extern const CudaKernelDef kConv2dMaxPool;
extern const CudaKernelDef kConv2dMaxPoolBackwardWeight;
extern const CudaKernelDef kFoldBatchNorm;
extern const CudaKernelDef kGlobalAveragePool;
extern const CudaKernelDef kGlobalAveragePoolBackward;
extern const CudaKernelDef kMaxPool2d;
extern const CudaKernelDef kMaxPool2dBackward;
extern const CudaKernelDef kMaxUnpool2d;

}  // namespace lockstep::engine::cuda

#endif  // LOCKSTEP_ENGINE_CUDA_KERNELS_H_
