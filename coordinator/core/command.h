// SPDX-License-Identifier: Apache-2.0
// What is different for a job whose work is a command (`run`). Its generations are attempts of the
// command: all ranks begin together, and when one fails, or others are to take part, all end and
// the next attempt begins, on a new port. Nobody has any state that the coordinator knows of, so
// nothing is copied and no step is counted; and no rank may run twice, so an attempt begins when
// every process of the last one has ended, or its host was out of sight for longer than a command
// goes on without its coordinator (job::kCommandLease). Thread-safety: thread-compatible.
#ifndef LOCKSTEP_COORDINATOR_CORE_COMMAND_H_
#define LOCKSTEP_COORDINATOR_CORE_COMMAND_H_

#include <string>

#include "absl/time/time.h"
#include "coordinator/core/context.h"
#include "coordinator/core/state.h"

namespace lockstep::coordinator {

inline bool IsCommand(const Job& job) { return job.spec().has_run(); }

// How long its ranks may take to end when they are asked to; of a job that trains zero.
absl::Duration CommandGrace(const Job& job);

// How long the worker may be silent until it is taken for lost: a command may go on where its host
// is out of sight.
absl::Duration SilenceLimit(const Context& context, const Job& job, const Worker& worker);

// Of a command: whether a rank that is to be in the next attempt is not ready for it, or a process
// of the last one may still run.
bool AwaitsRanks(const Context& context, const Job& job);

// Of a command: whether a member's rank runs, as far as that is known.
bool AnyRankRuns(const Job& job);

// Of a command: every member has finished.
bool AllFinished(const Job& job);

// Returns what the workers of the job, of either kind, do when it is to stop.
std::string HowToStop(const Job& job);

// Of a command that is to stop: whoever fails now has stopped. Ends the job when no attempt runs.
void EndDraining(Context& context, Job& job);

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_CORE_COMMAND_H_
