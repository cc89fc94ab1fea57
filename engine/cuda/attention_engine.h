// SPDX-License-Identifier: Apache-2.0
// Which engine does a node of attention, or of its gradient, as far as the graph decides it: cuDNN
// (where it is there, and not slower), our own kernels on tensor cores, or those in fp32; and what
// of the tensor cores' peak our own ones can reach. Thread-safety: pure functions.
#ifndef LOCKSTEP_ENGINE_CUDA_ATTENTION_ENGINE_H_
#define LOCKSTEP_ENGINE_CUDA_ATTENTION_ENGINE_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "engine/cuda/kernels.h"
#include "engine/graph/graph.h"
#include "engine/ops/ops.h"

namespace lockstep::engine::cuda {

enum class AttentionEngine { kCudnn, kTensorCores, kFloats };

// REQUIRES, here and below: an `attention` or `attention_backward`.
// Errors: InvalidArgument that names the shapes.
absl::StatusOr<ops::AttentionShape> AttentionShapeOf(const Graph& graph, const Node& node);

// Bytes beside the results that cuDNN is given for a gradient; 0 where it may not do it.
// REQUIRES: an `attention_backward`.
size_t CudnnBackwardBytes(const Graph& graph, const Node& node);

// The type of its queries, keys and values.
Type FactorType(const Graph& graph, const Node& node);

// Returns whether our own kernels of sm_90a take such a shape with factors of that type, as
// FitsWarpgroups has it (kernels/attention_warpgroup.h) of memory that is aligned.
bool SuitsWarpgroups(const ops::AttentionShape& shape, Type type);
// The same of any node.
bool SuitsWarpgroups(const Graph& graph, const Node& node);
// Returns the length up to whole tiles of theirs.
int64_t PaddedAttentionLength(int64_t length);

// Returns whether a forward pass is to leave dropout's bits for the backward pass: with dropout,
// where our own kernels of sm_90a do both on a GPU that has them. Not of sequences of one block's
// 128 tokens, whose attention is bound by memory as it is, nor where the bits would take more of it
// than queries, keys and values: they grow with the square of the length.
bool KeepsDropout(const Graph& graph, const Node& node);

// As on a GPU with cuDNN.
AttentionEngine AttentionEngineOf(const Graph& graph, const Node& node);

// How our own kernels do such a node on a GPU that has the instructions of sm_90a, or not: "wgmma",
// "mma.sync", or "fp32" without tensor cores.
const char* OwnAttentionEngine(const ops::AttentionShape& shape, Type type, bool warpgroups);

// Of our own kernels on tensor cores, those of sm_90a where `warpgroups` and they suit: the node's
// operations (CostOf) by what the tensor cores do at their peak in the time of the kernels'
// instructions, none of which waits (docs/gpu.md). In (0, 1].
double InstructionShare(const ops::AttentionShape& shape, bool backward, bool warpgroups);

}  // namespace lockstep::engine::cuda

#endif  // LOCKSTEP_ENGINE_CUDA_ATTENTION_ENGINE_H_
