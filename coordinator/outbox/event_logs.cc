// SPDX-License-Identifier: Apache-2.0
#include "coordinator/outbox/event_logs.h"

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
  }
  Fit();
}

void EventLogs::Forget(const std::string& job_id) {
  const auto found = jobs_.find(job_id);
  if (found == jobs_.end()) return;
  log_bytes_ -= found->second.log.log_bytes();
  ended_.erase(found->second.end);
  jobs_.erase(found);
}

const EventLog* EventLogs::Find(const std::string& job_id) const {
  const auto found = jobs_.find(job_id);
  return found == jobs_.end() ? nullptr : &found->second.log;
}

void EventLogs::DropOldestLines(EventLog& log) {
  log_bytes_ -= log.log_bytes();
  log.DropOldestLines();
  log_bytes_ += log.log_bytes();
}

void EventLogs::Fit() {
  while (log_bytes_ > most_log_bytes_ && !ended_.empty()) {
    EventLog& oldest = ended_.begin()->second->log;
    DropOldestLines(oldest);
    if (oldest.log_pieces() == 0) ended_.erase(ended_.begin());
  }
  while (log_bytes_ > most_log_bytes_ && FitRunning()) {
  }
}

// Takes from the job that has most what it has beyond an equal share. Returns whether there was
// something. REQUIRES: no ended job has lines.
bool EventLogs::FitRunning() {
  EventLog* largest = nullptr;
  size_t with_lines = 0;
  for (auto& [id, job] : jobs_) {
    if (job.log.log_pieces() > 0) ++with_lines;
    if (job.log.log_pieces() < 2) continue;
    if (largest == nullptr || job.log.log_bytes() > largest->log_bytes()) largest = &job.log;
  }
  if (largest == nullptr) return false;
  // Some more than has to be: not every line that follows looks at all jobs again.
  const size_t most = most_log_bytes_ - most_log_bytes_ / 16;
  const size_t share = most / with_lines;
  if (largest->log_bytes() <= share) return false;
  while (log_bytes_ > most && largest->log_bytes() > share && largest->log_pieces() > 1) {
    DropOldestLines(*largest);
  }
  return true;
}

}  // namespace lockstep::coordinator
