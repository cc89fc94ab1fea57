// SPDX-License-Identifier: Apache-2.0
// Who a generation's members are, to the data plane; and the last generation of a job, which those
// that are left make among themselves when no coordinator makes one for them.
// Thread-safety: pure functions.
#ifndef LOCKSTEP_WORKER_CONTROL_MEMBERSHIP_H_
#define LOCKSTEP_WORKER_CONTROL_MEMBERSHIP_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "collectives/communicator.h"
#include "collectives/group_end.h"
#include "proto/coordinator.pb.h"

namespace lockstep::worker {

// The generation, as the worker that was started with `bootstrap` joins it; its rank is -1 when it
// is no member.
GroupSpec GroupOf(const Generation& generation, const WorkerBootstrap& bootstrap);

// Returns, by rank, the lowest rank on its node: a place there may be empty, or another's by now,
// so that Member::local_rank says nothing of it.
std::vector<int> FirstRanks(const Generation& generation);

// Returns whether `rank` is a member on another node than `node_id`.
bool IsElsewhere(const GroupSpec& group, int rank, const std::string& node_id);
// Returns whether a connection ended, or said what was not meant. Of another host's process it
// tells no more: that it died is for its agent to say.
bool IsOfTheNetwork(const GroupSpec& group, const GroupEnd& end, const std::string& node_id);

// The generation `number` of those members of `last` that are left by `is_left`, in their order and
// with the secret of `last`; whoever asks the same about the same members gets the same. The step
// that it goes on after is for them to find out.
Generation SurvivorsOf(const Generation& last, int64_t number,
                       const std::function<bool(const Member& member)>& is_left);

}  // namespace lockstep::worker

#endif  // LOCKSTEP_WORKER_CONTROL_MEMBERSHIP_H_
