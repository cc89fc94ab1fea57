// SPDX-License-Identifier: Apache-2.0
// What is done about a worker that failed: the job goes on without it and a replacement is started,
// or the job ends. It ends when the failure would come again (wrong input, no memory, the same end
// twice before the first step) or when the budget of failures without progress is spent.
// Thread-safety: thread-compatible.
#ifndef LOCKSTEP_COORDINATOR_CORE_HEALING_H_
#define LOCKSTEP_COORDINATOR_CORE_HEALING_H_

#include <string>

#include "coordinator/core/context.h"

namespace lockstep::coordinator {

// Looks at the workers of a job that is not ending, and acts on those that failed.
void Heal(Context& context, Job& job);

// Counts one failure without progress. Returns whether the job survives it.
bool SpendRestart(Job& job);

// The worker of the place is no part of the job any more and is ended; the place is vacant. `fault`
// says of which fault it is a part (0: of none).
void Retire(Context& context, Job& job, Slot& slot, int64_t fault);

// Starts no worker of the job on the node for a while, longer each time, and with `other_data`
// (Exclusion) on others first after it. Returns for how long; zero when it is excluded already.
absl::Duration ExcludeNode(Context& context, Job& job, const std::string& node_id,
                           const std::string& reason, bool other_data = false);

// ExcludeNode for the node of this worker, whose failure is that node's (IsForGood), and says so.
void Exclude(Context& context, Job& job, const Worker& worker);

// A new life for the place, on its node or on one that has room.
void StartLife(Context& context, Job& job, Slot& slot);

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_CORE_HEALING_H_
