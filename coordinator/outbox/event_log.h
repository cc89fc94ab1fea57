// SPDX-License-Identifier: Apache-2.0
// The events of one job, kept for followers: log lines and other events each in a ring of their
// own, so that a chatty job loses old lines but no state, and of progress the newest alone.
// Followers hold their place and ask for the next event; a slow one skips what is gone, is told how
// many lines that is, and blocks nobody. Thread-safety: thread-compatible.
#ifndef LOCKSTEP_COORDINATOR_OUTBOX_EVENT_LOG_H_
#define LOCKSTEP_COORDINATOR_OUTBOX_EVENT_LOG_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>

#include "proto/coordinator.pb.h"

namespace lockstep::coordinator {

// How far a follower has come in a job's events.
struct FollowerPlace {
  // It has the events up to `sequence`, and comes back: 0 begins with the oldest. `waits`: for
  // events that are still to come.
  explicit FollowerPlace(int64_t sequence, bool waits = true) : sequence(sequence), waits(waits) {}

  int64_t sequence;
  bool waits;
  // What does not wait ends with the newest event that there was when it came. Nothing: it has not
  // asked yet, or waits.
  std::optional<int64_t> end;
  // The log lines up to there: those that it has, and those that it was told of as missing.
  // Nothing: not known, since it is back.
  std::optional<int64_t> lines;
  // It was told of missing lines, and has no other event since.
  bool told = false;
  int64_t notices = 0;  // how often it was told
};

class EventLog {
 public:
  static constexpr int64_t kMaxLogLines = 20000;
  static constexpr size_t kMaxLogBytes = size_t{16} << 20;  // of memory
  static constexpr size_t kMaxEvents = 5000;
  static constexpr size_t kMaxEventBytes = size_t{4} << 20;  // of memory

  // Sequence numbers begin after `last`.
  explicit EventLog(int64_t last = 0) : before_(last), last_(last), gone_sequence_(last) {}

  // Gives the event the next sequence number.
  void Append(JobEvent event);

  // The first kept event after `place`, or the notice that lines are missing before it, and moves
  // `place` on to it; without `logs` log lines are passed over. One notice is not followed by
  // another one while there are lines. Null: none yet.
  std::shared_ptr<const JobEvent> After(FollowerPlace& place, bool logs) const;

  // Forgets the oldest log lines. REQUIRES: log_pieces() > 0.
  void DropOldestLines();

  // The job's final state was appended; nothing follows.
  bool ended() const { return ended_; }
  int64_t last_sequence() const { return last_; }
  // Returns what the kept log lines take, in bytes of memory.
  size_t log_bytes() const { return log_bytes_; }
  // In how many events they came.
  size_t log_pieces() const { return logs_.size(); }

 private:
  struct Piece {
    std::shared_ptr<const JobEvent> event;
    int64_t lines_before;  // of the job
    size_t bytes;
  };
  // What a follower gets next of the lines, and how many are missing before that; nothing: some,
  // and it is not known how many. Null: nothing is kept after its place.
  struct NextLines {
    const Piece* piece = nullptr;
    std::optional<int64_t> missing = 0;
    int64_t sequence = 0;  // of the last event with missing ones
  };
  // What lies before the first other event after the place is not passed over.
  NextLines LinesAfter(const FollowerPlace& place, const JobEvent* other) const;
  std::shared_ptr<const JobEvent> Notice(const NextLines& next) const;

  const int64_t before_;
  int64_t last_;
  bool ended_ = false;
  std::deque<Piece> logs_;
  int64_t log_lines_ = 0;
  size_t log_bytes_ = 0;
  // The lines that are kept no more, and the number and time of the last event that had some.
  int64_t gone_lines_ = 0;
  int64_t gone_sequence_;
  google::protobuf::Timestamp gone_time_;
  std::deque<std::shared_ptr<const JobEvent>> events_;
  size_t event_bytes_ = 0;  // what they take of memory
  std::shared_ptr<const JobEvent> progress_;
};

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_OUTBOX_EVENT_LOG_H_
