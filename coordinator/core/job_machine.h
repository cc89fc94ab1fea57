// SPDX-License-Identifier: Apache-2.0
// The life of a job: accepted, started, ended. Every change of state has its reason and is told to
// followers here and nowhere else.
// Thread-safety: thread-compatible.
#ifndef LOCKSTEP_COORDINATOR_CORE_JOB_MACHINE_H_
#define LOCKSTEP_COORDINATOR_CORE_JOB_MACHINE_H_

#include <string>

#include "absl/status/status.h"
#include "coordinator/core/context.h"
#include "coordinator/core/event.h"

namespace lockstep::coordinator {

// Accepts a job (PENDING). A repeated request_id answers with the job that it made.
// Errors: InvalidArgument.
absl::Status Submit(Context& context, const Submitted& event);

// Drains or kills. Errors: NotFound, FailedPrecondition (already ended, or several are meant).
absl::Status Cancel(Context& context, const CancelRequested& event);

// Moves the job to `state`; followers hear of it when the state or the reason is new.
void SetState(Context& context, Job& job, JobState state, const std::string& reason);

// Sends the job on its way to the final state `target`; with `kill` its workers are killed at once.
// The first call wins.
void BeginEnding(Context& context, Job& job, JobState target, const std::string& reason,
                 int exit_code, bool kill = false);

// Takes every transition that is due.
void Advance(Context& context, Job& job);

// Returns what users are told about the job.
JobStatus StatusOf(const Job& job);

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_CORE_JOB_MACHINE_H_
