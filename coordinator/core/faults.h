// SPDX-License-Identifier: Apache-2.0
// The failures that a job has healed, as its row, `launcher describe` and its result have them.
// Thread-safety: pure functions on values.
#ifndef LOCKSTEP_COORDINATOR_CORE_FAULTS_H_
#define LOCKSTEP_COORDINATOR_CORE_FAULTS_H_

#include <cstddef>

#include "coordinator/core/state.h"

namespace lockstep::coordinator {

// So many of a job's are kept, and so many of them are its first; the others are its newest.
inline constexpr size_t kMostFaults = 100;
inline constexpr size_t kFirstFaults = 20;

// Adds one to those of the job, with the next number. Where there are too many, one between the
// first and the newest goes, of which nothing is open any more. Returns its place, from 1.
int AddFault(Job& job, Fault fault);

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_CORE_FAULTS_H_
