// SPDX-License-Identifier: Apache-2.0
#include "coordinator/outbox/event_log.h"

#include <algorithm>
#include <utility>

namespace lockstep::coordinator {
namespace {

bool IsFinal(const JobEvent& event) {
  if (!event.has_state()) return false;
  const JobState state = event.state().state();
  return state == SUCCEEDED || state == FAILED || state == CANCELLED;
}

std::shared_ptr<const JobEvent> FirstAfter(const std::deque<std::shared_ptr<const JobEvent>>& ring,
                                           int64_t sequence) {
  const auto found =
      std::upper_bound(ring.begin(), ring.end(), sequence,
                       [](int64_t value, const auto& event) { return value < event->sequence(); });
  return found == ring.end() ? nullptr : *found;
}

// What stands in the place of lines that are kept no more; `newest` has the last of them.
std::shared_ptr<const JobEvent> NoteOfGone(const JobEvent& newest) {
  auto note = std::make_shared<JobEvent>();
  note->set_sequence(newest.sequence());
  *note->mutable_time() = newest.time();
  note->set_notice(
      "lines that workers printed before are not kept any more; the log files have all of them");
  return note;
}

}  // namespace

void EventLog::Append(JobEvent event) {
  if (ended_) return;
  event.set_sequence(++last_);
  ended_ = IsFinal(event);
  auto kept = std::make_shared<const JobEvent>(std::move(event));
  if (kept->has_progress()) {
    progress_ = std::move(kept);
  } else if (kept->has_log()) {
    log_lines_ += kept->log().lines_size();
    log_bytes_ += kept->ByteSizeLong();
    logs_.push_back(std::move(kept));
    while ((log_lines_ > kMaxLogLines || log_bytes_ > kMaxLogBytes) && logs_.size() > 1) {
      log_lines_ -= logs_.front()->log().lines_size();
      log_bytes_ -= logs_.front()->ByteSizeLong();
      gone_ = NoteOfGone(*logs_.front());
      logs_.pop_front();
    }
  } else {
    events_.push_back(std::move(kept));
    if (events_.size() > kMaxEvents) events_.pop_front();
  }
}

std::shared_ptr<const JobEvent> EventLog::After(int64_t sequence, bool logs) const {
  std::shared_ptr<const JobEvent> first = FirstAfter(events_, sequence);
  auto consider = [&first, sequence](const std::shared_ptr<const JobEvent>& event) {
    if (event == nullptr || event->sequence() <= sequence) return;
    if (first == nullptr || event->sequence() < first->sequence()) first = event;
  };
  consider(progress_);
  if (logs) {
    consider(gone_);
    consider(FirstAfter(logs_, sequence));
  }
  return first;
}

}  // namespace lockstep::coordinator
