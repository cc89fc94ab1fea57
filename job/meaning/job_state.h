// SPDX-License-Identifier: Apache-2.0
// What the states of a job mean.
// Thread-safety: pure functions.
#ifndef LOCKSTEP_JOB_MEANING_JOB_STATE_H_
#define LOCKSTEP_JOB_MEANING_JOB_STATE_H_

#include "proto/coordinator.pb.h"

namespace lockstep::job {

// Returns whether a job in this state has ended.
inline bool IsFinal(JobState state) {
  return state == SUCCEEDED || state == FAILED || state == CANCELLED;
}

}  // namespace lockstep::job

#endif  // LOCKSTEP_JOB_MEANING_JOB_STATE_H_
