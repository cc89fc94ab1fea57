// SPDX-License-Identifier: Apache-2.0
// The events of one job, kept for followers: log lines and other events each in a ring of their
// own, so that a chatty job loses old lines but no state, and of progress the newest alone.
// Followers hold a sequence number and ask for the next event; a slow one skips what is gone, is
// told so where it is lines, and blocks nobody. Thread-safety: thread-compatible.
#ifndef LOCKSTEP_COORDINATOR_OUTBOX_EVENT_LOG_H_
#define LOCKSTEP_COORDINATOR_OUTBOX_EVENT_LOG_H_

#include <cstdint>
#include <deque>
#include <memory>

#include "proto/coordinator.pb.h"

namespace lockstep::coordinator {

class EventLog {
 public:
  static constexpr int64_t kMaxLogLines = 20000;
  static constexpr size_t kMaxLogBytes = size_t{16} << 20;
  static constexpr size_t kMaxEvents = 5000;

  // Sequence numbers begin after `last`.
  explicit EventLog(int64_t last = 0) : last_(last) {}

  // Gives the event the next sequence number.
  void Append(JobEvent event);

  // The first kept event after `sequence`; without `logs` log lines are passed over. Null: none
  // yet.
  std::shared_ptr<const JobEvent> After(int64_t sequence, bool logs) const;

  // The job's final state was appended; nothing follows.
  bool ended() const { return ended_; }
  int64_t last_sequence() const { return last_; }

 private:
  using Ring = std::deque<std::shared_ptr<const JobEvent>>;

  int64_t last_;
  bool ended_ = false;
  Ring logs_;
  int64_t log_lines_ = 0;
  size_t log_bytes_ = 0;
  std::shared_ptr<const JobEvent> gone_;  // says that older lines were; null: none were
  Ring events_;
  std::shared_ptr<const JobEvent> progress_;
};

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_OUTBOX_EVENT_LOG_H_
