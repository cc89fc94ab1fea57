// SPDX-License-Identifier: Apache-2.0
// What is to be said of a learning rate's schedule once the length of the run is known.
// Thread-safety: pure functions.
#ifndef LOCKSTEP_JOB_MEANING_SCHEDULE_H_
#define LOCKSTEP_JOB_MEANING_SCHEDULE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "proto/job.pb.h"

namespace lockstep::job {

// Returns what of the schedule lies beyond a run of `total_steps`, a sentence each. It is allowed,
// as a run may be a short trial of a long one, and seldom meant.
std::vector<std::string> ScheduleWarnings(const Schedule& schedule, int64_t total_steps);

}  // namespace lockstep::job

#endif  // LOCKSTEP_JOB_MEANING_SCHEDULE_H_
