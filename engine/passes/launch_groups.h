// SPDX-License-Identifier: Apache-2.0
// Nodes that a GPU runs in one launch, since what the first makes is read by the next at once: a
// residual's sum, with dropout or without, and the layer normalisation of it, where the residual
// may be a normalisation that is made for the sum alone; a normalisation, or the gradient of its
// input, and that in another type, whole or as dropout leaves it; before that the gradients of its
// scale and shift, which are of the same rows; a sum of gradients that nothing else reads, and the
// gradient of relu of it, where the sum is not written. The other results stay what they are, bit
// for bit. The memory plan takes the nodes of a group to run at the same time. What is grouped
// depends on the graph alone. Thread-safety: pure functions.
#ifndef LOCKSTEP_ENGINE_PASSES_LAUNCH_GROUPS_H_
#define LOCKSTEP_ENGINE_PASSES_LAUNCH_GROUPS_H_

#include <cstdint>
#include <vector>

#include "engine/graph/graph.h"

namespace lockstep::engine {

// The longest rows, in elements, whose gradients of a layer normalisation are all made at once: of
// multiples of 8.
inline constexpr int64_t kMostNormColumns = 2048;

// Returns whether node `id` is the sum of the residual `residual` and something else, and the next
// one the layer normalisation of it: the two are one launch.
bool NormsResidual(const Graph& graph, int id, Value residual);

// For each node the last node of its group, whose nodes follow one another: itself where it runs
// alone.
std::vector<int> LaunchGroups(const Graph& graph);

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_PASSES_LAUNCH_GROUPS_H_
