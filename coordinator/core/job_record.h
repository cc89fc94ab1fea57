// SPDX-License-Identifier: Apache-2.0
// A job and its places as their rows in the journal, and back. What agents and workers say again
// when they connect is not in them; times of the past are, those of a life begin anew with `now`.
// Thread-safety: pure functions.
#ifndef LOCKSTEP_COORDINATOR_CORE_JOB_RECORD_H_
#define LOCKSTEP_COORDINATOR_CORE_JOB_RECORD_H_

#include "absl/time/time.h"
#include "coordinator/core/state.h"
#include "proto/journal.pb.h"

namespace lockstep::coordinator {

JobRecord ToRecord(const Job& job);
// The request and the generation are there already or come with rows of their own.
void FromRecord(const JobRecord& record, Job& job, absl::Time now);

// The place `index` of a job and its worker.
WorkerRecord ToRecord(const Slot& slot, int index);
// The same into a record that was used before, which saves making its parts.
void FillIn(const Slot& slot, int index, WorkerRecord& record);
void FromRecord(const WorkerRecord& record, Slot& slot, absl::Time now);

// Everything that a place's row is made of and that changes within a life: what a worker has said
// of its peers and its result by the number of these messages, what its agent and the core said by
// their serials, where it was put by its life and its phase. Equal stamps are equal rows, without
// making them.
RowStamp StampOf(const Slot& slot);
// Returns whether an agent is to know the same of the place: its worker is there to stay, before
// and now. That its job ends is no part of this.
bool IsWishedAlike(const RowStamp& before, const RowStamp& now);

// A row of a version that did not write down what a worker has of its node: as it was dealt out.
void FillAllocation(const JobSpec& spec, Worker& worker);

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_CORE_JOB_RECORD_H_
