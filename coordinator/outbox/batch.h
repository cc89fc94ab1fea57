// SPDX-License-Identifier: Apache-2.0
// What steps have led to and may not be said yet: it is saved, and then said, as one.
// Thread-safety: thread-compatible.
#ifndef LOCKSTEP_COORDINATOR_OUTBOX_BATCH_H_
#define LOCKSTEP_COORDINATOR_OUTBOX_BATCH_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "coordinator/core/core.h"

namespace lockstep::coordinator {

// What the sender of an event is told. The ticket is the sender's.
struct Answer {
  int64_t ticket = 0;
  absl::Status status;
  SubmitJobResponse submitted;
  ScaleJobResponse scaled;
  bool durable = false;  // it is true whatever becomes of the batch
};

// A user's request that waits to be written down.
struct WaitingRequest {
  Row row;
  Event event;
  int64_t ticket = 0;
};

class Batch {
 public:
  // Of a job's events, other than the newest progress, so many are kept while they wait.
  static constexpr size_t kMaxEvents = 1000;

  // Adds the effects of one more step, taken at `now`, with its answer to `ticket` (0: nobody
  // asked).
  void Add(Effects effects, int64_t ticket, bool durable, absl::Time now);
  void Add(WaitingRequest request, absl::Time now);
  // Adds all of a later one.
  void Append(Batch later);
  // Returns whether there is anything to write.
  bool HasRows() const { return !effects.rows.empty() || !requests.empty(); }
  // The rows of its steps and of its requests, in order.
  std::vector<Row> RowsToWrite() const;
  bool empty() const;
  // Drops what is for a connection that is over.
  void DropAgent(SessionId session);
  void DropWorker(SessionId session);

  Effects effects;
  std::vector<Answer> answers;
  std::vector<WaitingRequest> requests;
  // Tickets of those who were shown what follows from it, and are answered when it is saved.
  std::vector<int64_t> shown;
  // When the oldest of it came; InfiniteFuture: it is empty.
  absl::Time since = absl::InfiniteFuture();

 private:
  // A wait for the disk may be long, so what a later step makes void goes: earlier values of a row,
  // earlier states wished of an agent or a worker, old progress, the oldest events of each job.
  void CompactWhenLarge();
  size_t Size() const;

  size_t compact_at_ = kMaxEvents;
};

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_OUTBOX_BATCH_H_
