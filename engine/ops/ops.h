// SPDX-License-Identifier: Apache-2.0
// The ops of op_list.inc. Each is defined in the file of its name.
// Thread-safety: immutable.
#ifndef LOCKSTEP_ENGINE_OPS_OPS_H_
#define LOCKSTEP_ENGINE_OPS_OPS_H_

#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/float8.h"
#include "engine/graph/op.h"

namespace lockstep::engine::ops {

#define LOCKSTEP_OP(Name) extern const OpDef k##Name;
#define LOCKSTEP_POINTWISE(Name) extern const OpDef k##Name;
#define LOCKSTEP_CPU_OP(Name) extern const OpDef k##Name;
#define LOCKSTEP_PLAIN_OP(Name) extern const OpDef k##Name;
#include "engine/ops/op_list.inc"

// Returns the type of the operands, for an op whose operands are all alike. Errors:
// InvalidArgument.
absl::StatusOr<std::vector<TensorType>> InferSame(const std::vector<TensorType>& inputs,
                                                  const Attrs& attrs);
// One operation for each element of the first input, or of the first output.
double InputEach(const std::vector<TensorType>& inputs, const std::vector<TensorType>& outputs);
double OutputEach(const std::vector<TensorType>& inputs, const std::vector<TensorType>& outputs);
inline TensorType F32(Shape shape) { return {DType::kF32, std::move(shape)}; }

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

// The address of what is random in a run: i32 {step's low half, its high half, shard, micro-batch}.
inline constexpr int64_t kAddressWords = 4;
absl::Status CheckAddress(const TensorType& address);
// Attribute rate is in [0, 1).
absl::Status CheckRate(const Attrs& attrs);

// The attribute of an attention with dropout whose third output, and of a gradient of one whose
// last operand, has a bit for each probability that stays (passes/kept_dropout.h). A back end that
// asks for it says what lies where, and may leave it alone.
inline constexpr const char* kKeepsDropoutAttr = "keeps_dropout";

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
  bool keeps_dropout = false;
  size_t kept = 0;  // of a gradient, when keeps_dropout

  // That of dropout's bits: for each head a square of the length up to a multiple of 64. Whole
  // numbers of 32 bits.
  TensorType KeptType() const;

  // Errors: InvalidArgument that names the shapes.
  static absl::StatusOr<AttentionShape> Of(const std::vector<TensorType>& inputs,
                                           const Attrs& attrs, size_t first);
};
// Shared by the softmax ops: logits f32[m, n], labels i32[m].
absl::Status CheckLogits(const std::vector<TensorType>& inputs, const Attrs& attrs);
inline constexpr const char* kFirstOrder =
    "part of a backward pass: the engine differentiates once";

}  // namespace lockstep::engine::ops

#endif  // LOCKSTEP_ENGINE_OPS_OPS_H_
