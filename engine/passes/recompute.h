// SPDX-License-Identifier: Apache-2.0
// Recomputation (activation checkpointing): values of the forward pass that the backward pass reads
// are not kept but made again, by copies of their nodes just before they are needed. The copies
// have the same inputs and attributes, so the bits are those of the plan without it: dropout is
// addressed.
//
// What is made again grows with the level:
//   0  nothing;
//   1  what norms, activations and casts make from values that are kept anyway (selective);
//   2  as 1, and all inside the first block of the model;
//   ...
//   1 + n  all inside each of the n blocks, whose first values alone are kept (T. Chen et al.,
//          "Training deep nets with sublinear memory cost", 2016).
// Blocks end at the graph's boundaries; what follows the last one is needed at once and is kept.
// Thread-safety: pure functions.
#ifndef LOCKSTEP_ENGINE_PASSES_RECOMPUTE_H_
#define LOCKSTEP_ENGINE_PASSES_RECOMPUTE_H_

#include <string>

#include "engine/graph/graph.h"

namespace lockstep::engine {

inline constexpr int kRecomputeSelective = 1;
// The level at which all blocks are made again.
int MostRecompute(const Graph& graph);

// `graph`, a whole training step, at `level`. Its backward pass begins with the first node that
// depends on the leaf named `seed`; all behind that is made once, where it stands.
Graph Recompute(const Graph& graph, const std::string& seed, int level);

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_PASSES_RECOMPUTE_H_
