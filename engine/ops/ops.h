// SPDX-License-Identifier: Apache-2.0
// The ops. Each is defined in the file of its name.
// Thread-safety: immutable.
#ifndef LOCKSTEP_ENGINE_OPS_OPS_H_
#define LOCKSTEP_ENGINE_OPS_OPS_H_

#include "engine/ops/op.h"

namespace lockstep::engine::ops {

extern const OpDef kAdd;
extern const OpDef kBiasBackward;
extern const OpDef kClassificationSums;
extern const OpDef kDeposit;
extern const OpDef kInput;
extern const OpDef kLinear;
extern const OpDef kLinearBackwardInput;
extern const OpDef kLinearBackwardWeight;
extern const OpDef kParameter;
extern const OpDef kRelu;
extern const OpDef kReluBackward;
extern const OpDef kReshape;
extern const OpDef kScale;
extern const OpDef kSoftmaxCrossEntropy;
extern const OpDef kSoftmaxCrossEntropyBackward;
extern const OpDef kSoftmaxCrossEntropyWithGradient;

// Images: convolution, pooling, normalisation.
extern const OpDef kAvgPool2d;
extern const OpDef kAvgPool2dBackward;
extern const OpDef kBatchNorm;
extern const OpDef kBatchNormBackward;
extern const OpDef kBatchNormInference;
extern const OpDef kChannelsFirst;
extern const OpDef kChannelsLast;
extern const OpDef kConv2d;
extern const OpDef kConv2dBackwardInput;
extern const OpDef kConv2dBackwardWeight;
extern const OpDef kFoldBatchNorm;
extern const OpDef kGlobalAveragePool;
extern const OpDef kGlobalAveragePoolBackward;
extern const OpDef kMaxPool2d;
extern const OpDef kMaxPool2dBackward;

// Shared by the softmax ops: logits f32[m, n], labels i32[m].
absl::Status CheckLogits(const std::vector<TensorType>& inputs);
inline constexpr const char* kFirstOrder =
    "part of a backward pass: the engine differentiates once";

}  // namespace lockstep::engine::ops

#endif  // LOCKSTEP_ENGINE_OPS_OPS_H_
