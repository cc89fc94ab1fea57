// SPDX-License-Identifier: Apache-2.0
// For how long a job has run, which is what its time limit is about: not while none of its workers
// has a place, as no node has room for one or the only node is gone. Thread-safety:
// thread-compatible.
#ifndef LOCKSTEP_COORDINATOR_CORE_RUN_TIME_H_
#define LOCKSTEP_COORDINATOR_CORE_RUN_TIME_H_

#include "absl/time/time.h"
#include "coordinator/core/state.h"

namespace lockstep::coordinator {

// Notes whether the job, which has begun, waits for a node with all its workers. It has run until
// one of those that it had was last heard.
void NoteWait(Job& job, absl::Time now);

// Returns for how long the job has run, in earlier starts, too.
absl::Duration RanFor(const Job& job, absl::Time now);

// The newest `span` of the time counts neither as run nor as waited.
void SkipTime(Job& job, absl::Duration span, absl::Time now);

// The clock by which the job's times were written may have been ahead of this one: it has begun,
// and waits, since `now` at the latest.
void EndFuture(Job& job, absl::Time now);

// The job stops, and may start again: it has run for RanFor.
void EndRun(Job& job, absl::Time now);

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_CORE_RUN_TIME_H_
