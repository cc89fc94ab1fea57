// SPDX-License-Identifier: Apache-2.0
// The ops. Each is defined in the file of its name.
// Thread-safety: immutable.
#ifndef LOCKSTEP_ENGINE_OPS_OPS_H_
#define LOCKSTEP_ENGINE_OPS_OPS_H_

#include "common/float8.h"
#include "engine/ops/op.h"

namespace lockstep::engine::ops {

extern const OpDef kAdd;
extern const OpDef kBiasBackward;
extern const OpDef kCast;
extern const OpDef kClassificationSums;
extern const OpDef kDeposit;
extern const OpDef kInput;
extern const OpDef kLinear;
extern const OpDef kLinearBackwardInput;
extern const OpDef kLinearBackwardWeight;
extern const OpDef kParameter;
extern const OpDef kQuantizeFp8;
extern const OpDef kRelu;
extern const OpDef kReluBackward;
extern const OpDef kReshape;
extern const OpDef kScale;
extern const OpDef kLinearSoftmaxCrossEntropy;
extern const OpDef kSoftmaxCrossEntropy;
extern const OpDef kSoftmaxCrossEntropyBackward;
extern const OpDef kSoftmaxCrossEntropyWithGradient;

// What the third operand of linear_backward_input is (attribute third; default: a mask).
enum class Third {
  kMask,    // "mask": 0 where it is not above 0
  kAddend,  // "addend": added to each element
  kGelu,    // "gelu_tanh": what gelu by tanh took; each element times its slope there
  kUnknown,
};
// Returns what `attrs` say it is.
Third ThirdOf(const Attrs& attrs);

// The FP8 format of a quantize_fp8 node (attribute format).
Float8Format Float8FormatOf(const Attrs& attrs);
// The attribute of linear and its gradients that names the FP8 formats of their factors, such as
// "e5m2,e4m3". passes/fp8.h sets it and rounds them.
inline constexpr const char* kFp8Attr = "fp8";

// Transformers.
extern const OpDef kAddPositions;
extern const OpDef kAddPositionsBackward;
extern const OpDef kAttention;
extern const OpDef kAttentionBackward;
extern const OpDef kAttentionStep;
extern const OpDef kDropout;
extern const OpDef kEmbedding;
extern const OpDef kEmbeddingBackward;
extern const OpDef kGelu;
extern const OpDef kGeluBackward;
extern const OpDef kLayerNorm;
extern const OpDef kLayerNormBackwardInput;
extern const OpDef kLayerNormBackwardWeight;
extern const OpDef kSigmoid;
extern const OpDef kSigmoidBackward;
extern const OpDef kSilu;
extern const OpDef kSiluBackward;
extern const OpDef kSoftmax;
extern const OpDef kSoftmaxBackward;
extern const OpDef kTakeRows;
extern const OpDef kTakeRowsBackward;
extern const OpDef kTanh;
extern const OpDef kTanhBackward;

// The address of what is random in a run: i32 {step's low half, its high half, shard, micro-batch}.
inline constexpr int64_t kAddressWords = 4;
absl::Status CheckAddress(const TensorType& address);
// Attribute rate is in [0, 1).
absl::Status CheckRate(const Attrs& attrs);

// What an attention node works on; its operands from number `first` on.
struct AttentionShape {
  int64_t batch = 0;
  int64_t length = 0;   // keys of a sequence
  int64_t queries = 0;  // its first rows that ask: all of them, or fewer
  int64_t heads = 0;
  int64_t width = 0;  // of all heads
  bool packed = false;
  bool causal = false;
  bool masked = false;
  bool lengths = false;  // the mask is a length for each sequence
  double rate = 0;
  size_t keys = 0;  // operand numbers, when masked and when rate > 0
  size_t address = 0;

  // Errors: InvalidArgument that names the shapes.
  static absl::StatusOr<AttentionShape> Of(const std::vector<TensorType>& inputs,
                                           const Attrs& attrs, size_t first);
};
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
extern const OpDef kConv2dMaxPool;
extern const OpDef kConv2dMaxPoolBackwardWeight;
extern const OpDef kFoldBatchNorm;
extern const OpDef kGlobalAveragePool;
extern const OpDef kGlobalAveragePoolBackward;
extern const OpDef kMaxPool2d;
extern const OpDef kMaxPool2dBackward;
extern const OpDef kMaxUnpool2d;

// Shared by the softmax ops: logits f32[m, n], labels i32[m].
absl::Status CheckLogits(const std::vector<TensorType>& inputs, const Attrs& attrs);
inline constexpr const char* kFirstOrder =
    "part of a backward pass: the engine differentiates once";

}  // namespace lockstep::engine::ops

#endif  // LOCKSTEP_ENGINE_OPS_OPS_H_
