// SPDX-License-Identifier: Apache-2.0
// Differentiation: appends the backward pass to a graph, by the ops' gradient rules.
// Thread-safety: pure functions.
#ifndef LOCKSTEP_ENGINE_PASSES_AUTODIFF_H_
#define LOCKSTEP_ENGINE_PASSES_AUTODIFF_H_

#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/graph/graph.h"

namespace lockstep::engine {

// The gradients of sum over seeds of <first, second> for each value of `wrt`: `second` is the
// gradient of `first`. A value of `wrt` that no seed depends on gets an invalid Value. Nothing is
// computed that `wrt` does not need (such as the input gradient of a first layer). A value that is
// used several times gets the sum in the order of the backward pass: the last use first. Errors:
// InvalidArgument when an op on the way has no gradient.
absl::StatusOr<std::vector<Value>> Differentiate(Graph* graph,
                                                 const std::vector<std::pair<Value, Value>>& seeds,
                                                 const std::vector<Value>& wrt);

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_PASSES_AUTODIFF_H_
