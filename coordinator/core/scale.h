// SPDX-License-Identifier: Apache-2.0
// Changes the number of a job's workers.
// Thread-safety: thread-compatible.
#ifndef LOCKSTEP_COORDINATOR_CORE_SCALE_H_
#define LOCKSTEP_COORDINATOR_CORE_SCALE_H_

#include "absl/status/status.h"
#include "coordinator/core/context.h"
#include "coordinator/core/event.h"

namespace lockstep::coordinator {

// Gives places up, the newest first but none before its state is held elsewhere, or opens new ones
// on nodes with room; the workers leave and join between steps. A job that was stopped for another
// and waits begins again with so many.
// Errors: NotFound, InvalidArgument (outside elastic.min_workers to elastic.max_workers, more than
// shards), FailedPrecondition (ended, draining, never started, beyond its user's quota),
// ResourceExhausted (no node has room).
absl::Status Scale(Context& context, const ScaleRequested& event);

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_CORE_SCALE_H_
