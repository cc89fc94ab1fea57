// SPDX-License-Identifier: Apache-2.0
// What jobs and users have used: slots and GPUs times the time for which they had them. It is
// written down when a job's slots change and when it ends, by user and day, and is kept longer than
// the jobs are. Thread-safety: thread-compatible.
#ifndef LOCKSTEP_COORDINATOR_CORE_ACCOUNTING_H_
#define LOCKSTEP_COORDINATOR_CORE_ACCOUNTING_H_

#include <map>
#include <string>

#include "absl/time/time.h"
#include "coordinator/core/context.h"

namespace lockstep::coordinator {

// The job has what it has from now on; what it had until now is counted: when that changes, and
// once an hour.
void CountUse(Context& context, Job& job);

// The job has ended now, whether it ever had anything or not.
void CountEnd(Context& context, const Job& job);

// Returns what the job has used so far.
Meter UseOf(const Job& job, absl::Time now);

// Each user's use in slot-seconds, older use for less (Options::fair_share_half_life).
std::map<std::string, double> RecentUses(const State& state, absl::Time now);

// After a start of the coordinator, of a job as the journal has it, or when its clock was set. What
// a job that runs had since is not counted when nobody can have seen it for so long (a clock was
// wrong, and is right now, or the reverse), nor has it run meanwhile.
void SkipUnseen(Job& job, absl::Time now);

// The clock is ahead by `leap` of all that is known: State::leap, if that is so much.
void NoteLeap(State& state, absl::Duration leap);

// Between two steps of a coordinator the clock went on by `leap`. Of more than a day it was set:
// SkipUnseen of all jobs, and NoteLeap.
void SkipLeap(State& state, absl::Duration leap, absl::Time now);

// Returns the newest time that the journal speaks of, `now` at the latest; InfinitePast: of none.
absl::Time NewestTime(const State& state, absl::Time now);

// Forgets days that are over for Options::keep_usage; none when the clock may be wrong
// (State::leap).
void ForgetOldUse(Context& context);

// Rows of the journal.
std::string UsageKey(const DayOfUser& day);
std::string UsageRow(const State& state, const DayOfUser& day);
// Takes a row in. False: it cannot be read.
bool RestoreUsage(const std::string& row, absl::Time now, State& state);

// Returns what users have used, and have now; `request` may ask for one, or from a day on.
GetUsageResponse GetUsage(const State& state, const GetUsageRequest& request, absl::Time now);

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_CORE_ACCOUNTING_H_
