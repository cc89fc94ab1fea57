// SPDX-License-Identifier: Apache-2.0
// Which ranks gave the numbers that made a sum not finite. Thread-safety: pure functions, but for
// the communicator's.
#ifndef LOCKSTEP_WORKER_STEP_NON_FINITE_RANKS_H_
#define LOCKSTEP_WORKER_STEP_NON_FINITE_RANKS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "collectives/communicator.h"

namespace lockstep::worker {

// Returns whether a number that is not finite is among what this rank gave to the sum `reduced`, as
// far as that is still there: a slice of the result may lie over its own. `count`: numbers of each.
bool GaveNonFinite(absl::Span<const NodeBuffer> given, int64_t count,
                   absl::Span<const Slice> reduced);

// Adds to `why` the ranks that gave what is not finite. All members do so, each with what it knows
// of itself; where some do not come by `deadline`, or nobody knows, nothing is added. Blocks.
absl::Status WithRanks(const absl::Status& why, bool own, Communicator* communicator,
                       absl::Time deadline);

}  // namespace lockstep::worker

#endif  // LOCKSTEP_WORKER_STEP_NON_FINITE_RANKS_H_
