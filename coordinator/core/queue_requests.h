// SPDX-License-Identifier: Apache-2.0
// What users say about how a job waits: for others, in an array, or until it is released.
// Thread-safety: thread-compatible.
#ifndef LOCKSTEP_COORDINATOR_CORE_QUEUE_REQUESTS_H_
#define LOCKSTEP_COORDINATOR_CORE_QUEUE_REQUESTS_H_

#include "absl/status/status.h"
#include "coordinator/core/context.h"
#include "coordinator/core/event.h"

namespace lockstep::coordinator {

// Takes what the request of a new job says of its waiting. Errors: NotFound, FailedPrecondition (a
// job that has to succeed has not), InvalidArgument; the job is not accepted then.
absl::Status TakeQueueRequest(const State& state, Job& job);

// Holds a job that waits, or releases it. Errors: NotFound, FailedPrecondition (it does not wait;
// it is not held).
absl::Status HoldJob(Context& context, const HoldRequested& event);

// Takes the jobs that have ended out of those that `job` waits for, an eighth of them at a time,
// and ends it when one of them should have succeeded and has not.
void LookAtDependencies(Context& context, Job& job);
// Takes them out at once, of all jobs, and has that written: some are to be forgotten.
void LetGoOfEnded(Context& context);

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_CORE_QUEUE_REQUESTS_H_
