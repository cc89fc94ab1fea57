// SPDX-License-Identifier: Apache-2.0
// An administrator's word about nodes: one that is drained gets no work until it is given back, and
// its workers move to other nodes (handover.h). The word stays whatever becomes of the node's agent
// or of the coordinator. Thread-safety: thread-compatible.
#ifndef LOCKSTEP_COORDINATOR_CORE_DRAIN_H_
#define LOCKSTEP_COORDINATOR_CORE_DRAIN_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/core/context.h"
#include "coordinator/core/event.h"

namespace lockstep::coordinator {

// The id of the node that `reference` means: an id, the name of a host with one node, or the
// beginning of one node's id. Errors: NotFound; FailedPrecondition when several are meant, which it
// lists.
absl::StatusOr<std::string> FindNodeId(const State& state, const std::string& reference);

// Asked again, it changes the reason. Errors: as FindNodeId; InvalidArgument (a reason with control
// characters, or a long one).
absl::Status DrainNode(Context& context, const DrainRequested& event);

// Gives the node work again, also one that is left out because it failed, and forgets its failures.
// Errors: as FindNodeId; FailedPrecondition when it is neither.
absl::Status UndrainNode(Context& context, const UndrainRequested& event);

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_CORE_DRAIN_H_
