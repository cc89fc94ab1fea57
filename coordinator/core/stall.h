// SPDX-License-Identifier: Apache-2.0
// Says live why a job stands: which ranks wait in which collective since when, which did not come
// and what these are doing. A stall is said once, and once when it is over; a failure that ends it
// is told as such. It decides nothing.
//
//   step 812, bucket 3, tree_reduce 4071 f32[25.6M]: ranks 0,1,3 wait 2 s; rank 2 last completed
//   4070, is in the data loader, host b pid 812
//
// Thread-safety: thread-compatible.
#ifndef LOCKSTEP_COORDINATOR_CORE_STALL_H_
#define LOCKSTEP_COORDINATOR_CORE_STALL_H_

#include <string>
#include <vector>

#include "coordinator/core/context.h"

namespace lockstep::coordinator {

// Looks at the newest heartbeats of the members. A rank that has been in one collective for longer
// than max(1 s, 5 x the median step) waits too long; before there is a median step, longer than
// failure_detection.
void WatchStall(Context& context, Job& job);

// A member of the generation as its newest heartbeat tells.
struct MemberView {
  int rank = 0;  // as the user knows it: the worker's place
  std::string host;
  int64_t pid = 0;
  absl::Duration silent;  // since its heartbeat
  bool is_silent = false;
  WorkerHeartbeat heartbeat;
};

// "step 812, bucket 3, tree_reduce 4071".
std::string OperationText(const FlightState& flight);

// The sentence: `waiting` wait for `missing`, `longest` for the longest time in `flight`. No
// missing rank: they wait for each other.
std::string StallText(const FlightState& flight, const std::vector<MemberView>& waiting,
                      const std::vector<MemberView>& missing, absl::Duration longest);

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_CORE_STALL_H_
