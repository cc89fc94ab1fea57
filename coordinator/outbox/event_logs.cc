// SPDX-License-Identifier: Apache-2.0
#include "coordinator/outbox/event_logs.h"

#include <algorithm>
#include <utility>

namespace lockstep::coordinator {

void EventLogs::Append(const std::string& job_id, JobEvent event) {
  Job& job = jobs_.try_emplace(job_id, Job{EventLog(first_sequence_)}).first->second;
  log_bytes_ -= job.log.log_bytes();
  job.log.Append(std::move(event));
  log_bytes_ += job.log.log_bytes();
  if (job.log.ended() && job.end == 0) {
    job.end = ++last_end_;
    if (job.log.log_pieces() > 0) ended_[job.end] = &job;
    ended_bytes_ += job.log.log_bytes();
  }
  Fit();
}

void EventLogs::Forget(const std::string& job_id) {
  const auto found = jobs_.find(job_id);
  if (found == jobs_.end()) return;
  log_bytes_ -= found->second.log.log_bytes();
  if (ended_.erase(found->second.end) > 0) ended_bytes_ -= found->second.log.log_bytes();
  jobs_.erase(found);
}

const EventLog* EventLogs::Find(const std::string& job_id) const {
  const auto found = jobs_.find(job_id);
  return found == jobs_.end() ? nullptr : &found->second.log;
}

size_t EventLogs::DropOldestLines(EventLog& log) {
  const size_t before = log.log_bytes();
  log.DropOldestLines();
  const size_t dropped = before - log.log_bytes();
  log_bytes_ -= dropped;
  return dropped;
}

void EventLogs::DropOldestOfEnded() {
  EventLog& oldest = ended_.begin()->second->log;
  ended_bytes_ -= DropOldestLines(oldest);
  if (oldest.log_pieces() == 0) ended_.erase(ended_.begin());
}

void EventLogs::Fit() {
  while (log_bytes_ > most_log_bytes_ && ended_bytes_ > most_log_bytes_ / 4) DropOldestOfEnded();
  while (log_bytes_ > most_log_bytes_ && FitRunning()) {
  }
  while (log_bytes_ > most_log_bytes_ && !ended_.empty()) DropOldestOfEnded();
}

// Takes from the job that runs and has most what it has beyond an equal share of what the ended
// ones leave. Returns whether there was something.
bool EventLogs::FitRunning() {
  EventLog* largest = nullptr;
  size_t with_lines = 0;
  for (auto& [id, job] : jobs_) {
    if (job.end != 0) continue;
    if (job.log.log_pieces() > 0) ++with_lines;
    if (job.log.log_pieces() < 2) continue;
    if (largest == nullptr || job.log.log_bytes() > largest->log_bytes()) largest = &job.log;
  }
  if (largest == nullptr) return false;
  // Some more than has to be: not every line that follows looks at all jobs again.
  const size_t most = most_log_bytes_ - most_log_bytes_ / 16;
  const size_t share = (most - std::min(most, ended_bytes_)) / with_lines;
  if (largest->log_bytes() <= share) return false;
  while (log_bytes_ > most && largest->log_bytes() > share && largest->log_pieces() > 1) {
    DropOldestLines(*largest);
  }
  return true;
}

}  // namespace lockstep::coordinator
