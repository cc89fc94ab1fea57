// SPDX-License-Identifier: Apache-2.0
// How a job waits, and what it has used, as a part of its row in the journal.
// Thread-safety: pure functions.
#ifndef LOCKSTEP_COORDINATOR_CORE_QUEUE_RECORD_H_
#define LOCKSTEP_COORDINATOR_CORE_QUEUE_RECORD_H_

#include "coordinator/core/state.h"
#include "proto/queue.pb.h"

namespace lockstep::coordinator {

QueueRecord ToQueueRecord(const Job& job);
void FromQueueRecord(const QueueRecord& record, Job& job);

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_CORE_QUEUE_RECORD_H_
