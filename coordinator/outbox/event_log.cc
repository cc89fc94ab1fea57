// SPDX-License-Identifier: Apache-2.0
#include "coordinator/outbox/event_log.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "job/meaning/job_state.h"

namespace lockstep::coordinator {
namespace {

// What the allocator adds to each block that it hands out.
constexpr size_t kBlock = 16;
// Who reads faster than the job prints, and began with the oldest lines, is told less often.
constexpr int64_t kOften = 3;

// Short lines take many times their length: each is a string of its own.
size_t MemoryOf(const JobEvent& event) {
  const size_t blocks = 4 + static_cast<size_t>(event.log().lines_size());
  return event.SpaceUsedLong() + blocks * kBlock;
}

}  // namespace

void EventLog::Append(JobEvent event) {
  if (ended_) return;
  event.set_sequence(++last_);
  ended_ = event.has_state() && job::IsFinal(event.state().state());
  auto kept = std::make_shared<const JobEvent>(std::move(event));
  if (kept->has_progress()) {
    progress_ = std::move(kept);
  } else if (kept->has_log()) {
    const size_t bytes = MemoryOf(*kept);
    const int64_t lines = kept->log().lines_size();
    logs_.push_back({std::move(kept), gone_lines_ + log_lines_, bytes});
    log_lines_ += lines;
    log_bytes_ += bytes;
    while ((log_lines_ > kMaxLogLines || log_bytes_ > kMaxLogBytes) && logs_.size() > 1) {
      DropOldestLines();
    }
  } else {
    event_bytes_ += MemoryOf(*kept);
    events_.push_back(std::move(kept));
    while (events_.size() > kMaxEvents || (event_bytes_ > kMaxEventBytes && events_.size() > 1)) {
      event_bytes_ -= MemoryOf(*events_.front());
      events_.pop_front();
    }
  }
}

void EventLog::DropOldestLines() {
  LS_CHECK(!logs_.empty());
  const Piece& oldest = logs_.front();
  log_lines_ -= oldest.event->log().lines_size();
  log_bytes_ -= oldest.bytes;
  gone_lines_ += oldest.event->log().lines_size();
  gone_sequence_ = oldest.event->sequence();
  gone_time_ = oldest.event->time();
  logs_.pop_front();
}

EventLog::NextLines EventLog::LinesAfter(const FollowerPlace& place, const JobEvent* other) const {
  const auto first_after = [this](int64_t sequence) {
    return std::upper_bound(
        logs_.begin(), logs_.end(), sequence,
        [](int64_t value, const Piece& piece) { return value < piece.event->sequence(); });
  };
  auto found = first_after(place.sequence);
  const std::optional<int64_t> had = place.lines;
  NextLines next;
  const auto find_missing = [&] {
    const int64_t before = found == logs_.end() ? gone_lines_ + log_lines_ : found->lines_before;
    next.missing = had.has_value() ? std::make_optional(before - *had) : std::nullopt;
    if (!had.has_value() && place.sequence >= gone_sequence_) next.missing = 0;
  };
  find_missing();
  // Who falls behind again and again would at once be behind again with the oldest that is kept.
  if (had.has_value() && *next.missing > 0 && !place.told && place.notices >= kOften) {
    const auto half = logs_.begin() + static_cast<std::ptrdiff_t>(logs_.size() / 2);
    const auto next_other = other == nullptr ? logs_.end() : first_after(other->sequence());
    found = std::max(found, std::min(half, next_other));
    find_missing();
  }
  next.piece = found == logs_.end() ? nullptr : &*found;
  const int64_t last_missing =
      found == logs_.begin() ? gone_sequence_ : std::prev(found)->event->sequence();
  next.sequence = std::max(place.sequence, last_missing);
  return next;
}

// What stands in the place of missing lines.
std::shared_ptr<const JobEvent> EventLog::Notice(const NextLines& next) const {
  const bool one = next.missing == 1;
  const std::string lines =
      next.missing.has_value() ? absl::StrCat(*next.missing, one ? " line" : " lines") : "lines";
  auto notice = std::make_shared<JobEvent>();
  notice->set_sequence(next.sequence);
  *notice->mutable_time() = next.piece == nullptr ? gone_time_ : next.piece->event->time();
  notice->set_notice(absl::StrCat(lines, " that workers printed ", one ? "is" : "are",
                                  " left out here, as only the newest are kept; the log files ",
                                  "have all of them"));
  return notice;
}

std::shared_ptr<const JobEvent> EventLog::After(FollowerPlace& place, bool logs) const {
  if (!place.lines.has_value() && place.sequence <= before_) place.lines = 0;
  const auto other =
      std::upper_bound(events_.begin(), events_.end(), place.sequence,
                       [](int64_t value, const auto& event) { return value < event->sequence(); });
  std::shared_ptr<const JobEvent> first = other == events_.end() ? nullptr : *other;
  const auto is_first = [&first](int64_t sequence) {
    return first == nullptr || sequence < first->sequence();
  };
  if (progress_ != nullptr && progress_->sequence() > place.sequence &&
      is_first(progress_->sequence())) {
    first = progress_;
  }
  const NextLines lines = logs ? LinesAfter(place, first.get()) : NextLines();
  const bool missing = lines.missing != 0;
  if (missing && (!place.told || lines.piece == nullptr) && is_first(lines.sequence)) {
    first = Notice(lines);
    const int64_t kept = gone_lines_ + log_lines_;
    place.lines = lines.piece == nullptr ? kept : lines.piece->lines_before;
    place.told = true;
    ++place.notices;
  } else if (lines.piece != nullptr && is_first(lines.piece->event->sequence())) {
    first = lines.piece->event;
    // What is missing again since the notice is left to the next one.
    const int64_t before = missing ? place.lines.value_or(0) : lines.piece->lines_before;
    place.lines = before + first->log().lines_size();
    place.told = false;
  } else if (first != nullptr) {
    place.told = false;
  }
  if (first != nullptr) place.sequence = first->sequence();
  return first;
}

}  // namespace lockstep::coordinator
