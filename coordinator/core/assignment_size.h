// SPDX-License-Identifier: Apache-2.0
// How much a node's agent is told of a job: its assignments, each with the whole job file, come in
// one message, and one that is larger than an agent takes would keep it from all work.
// Thread-safety: thread-compatible.
#ifndef LOCKSTEP_COORDINATOR_CORE_ASSIGNMENT_SIZE_H_
#define LOCKSTEP_COORDINATOR_CORE_ASSIGNMENT_SIZE_H_

#include <cstdint>
#include <string>

#include "coordinator/core/state.h"

namespace lockstep::coordinator {

// Bytes of the assignments on one node, at most, whoever's they are. Agents of this version and of
// those before take a message of 64 MiB.
inline constexpr int64_t kMostAssigned = int64_t{48} << 20;

// Returns why no agent is told of so large a job, in a sentence; empty: as many workers of such
// jobs as the largest of the nodes that are known has slots may be told of together. Of a larger
// node that joins later nothing is known here.
std::string WhyTooLargeToAssign(const State& state, const SubmitJobRequest& request);

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_CORE_ASSIGNMENT_SIZE_H_
