// SPDX-License-Identifier: Apache-2.0
// Whether attention, or its gradient, is done by our own kernels or by cuDNN, as cudnn_tuning.h
// chooses. cuDNN may do it where our own tensor cores do, without a mask of keys and without
// dropout, whose random numbers are addressed in a way that is ours.
// Thread-safety: its device's thread's.
#ifndef LOCKSTEP_ENGINE_CUDA_ATTENTION_CUDNN_H_
#define LOCKSTEP_ENGINE_CUDA_ATTENTION_CUDNN_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/cuda/cudnn_attention.h"
#include "engine/cuda/cudnn_tuning.h"
#include "engine/cuda/kernel.h"
#include "engine/ops/ops.h"

namespace lockstep::engine::cuda {

// Returns whether cuDNN could do it with the roundings of our own kernels, from its types alone:
// `type` is that of the factors.
bool SuitsCudnn(const ops::AttentionShape& shape, Type type);
// REQUIRES: SuitsCudnn.
CudnnAttentionShape CudnnShapeOf(const ops::AttentionShape& shape, Type type, bool backward);

// Returns what a program has room for beside the results of a node of attention: an eighth of what
// all of its nodes give, from 256 MiB to 4 GiB.
size_t MostAttentionWorkspace(const Graph& graph);

// Bytes that the backward passes want beside their results: the 16-bit gradients of the scores,
// which are multiplied twice as no sum may be shared. 0 where that is more than `most`: GPUs whose
// passes want so much (all but sm_100 and 103) use our own kernels then.
size_t AttentionWorkspaceBytes(const CudnnAttentionShape& shape, size_t most);

// "" when rows of `depth` values `made` are `expected` but for rounding to `type`; else what is
// wrong. Both sides round probabilities, or the gradients of scores, by half a unit each: with
// random signs that makes in a sum a fraction of a unit of the row's size, of which 8 are allowed.
// A row counts as a 32nd of the size of all at least.
// REQUIRES: as many of both, whole rows.
std::string AttentionDisagreement(absl::Span<const float> made, absl::Span<const float> expected,
                                  Type type, int64_t depth);
// The same of logarithms of sums, in fp32.
std::string LogSumDisagreement(absl::Span<const float> made, absl::Span<const float> expected);

// What a node of attention, or of its gradient, has for cuDNN.
struct AttentionNode {
  CudnnAttentionShape shape;
  size_t outputs = 1;
  std::string own = {};  // as OwnAttentionEngine has it
  std::function<CudnnAttention::Operands(const CudaContext& context)> bind = nullptr;
  // Of the scratch.
  size_t workspace_at = 0;
  size_t workspace_bytes = 0;
};

// The kernel of the node, `own` being that of our own kernels. Blocks while it is measured.
// REQUIRES: SuitsCudnn. Errors: those of CudnnTuning::Choose.
absl::StatusOr<CudaKernel> ChooseAttention(CudnnTuning* tuning, const Operands& operands,
                                           const AttentionNode& node, CudaKernel own);

// Prepares a small attention, for GPUs from sm_80 on and versions from kCudnnForAttention on.
// Blocks for a second or so, while the library compiles it. Errors: Internal with what the library
// refuses.
absl::Status TryAttention(const Cudnn& cudnn);

}  // namespace lockstep::engine::cuda

#endif  // LOCKSTEP_ENGINE_CUDA_ATTENTION_CUDNN_H_
