// SPDX-License-Identifier: Apache-2.0
// Names the worker that slows the others down: over 100 reductions (and at least a second), or 10
// seconds, it comes last most of the time and takes over 20 % longer for a step than the middle one
// of the others, each by the shards it holds. It decides nothing.
// Thread-safety: thread-compatible.
#ifndef LOCKSTEP_COORDINATOR_CORE_STRAGGLER_H_
#define LOCKSTEP_COORDINATOR_CORE_STRAGGLER_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "coordinator/core/context.h"

namespace lockstep::coordinator {

// Looks at a window of the job's training when it is over. Followers are told at most once a
// minute.
void WatchStragglers(Context& context, Job& job);

// What a member did in a window, by rank.
struct StepShare {
  int shards = 1;
  int64_t reductions = 0;
  int64_t last = 0;     // of these, to how many it came last
  absl::Duration step;  // time of one step, waits included
  absl::Duration wait;  // of that, for the others to come
};

struct Straggler {
  int rank = 0;         // index into the shares
  absl::Duration lost;  // what the middle one of the others waits in a step
  absl::Duration step;  // of the middle one of the others
  bool operator==(const Straggler&) const = default;
};

// The one that slows the others down, if there is one.
std::optional<Straggler> FindStraggler(const std::vector<StepShare>& shares);

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_CORE_STRAGGLER_H_
