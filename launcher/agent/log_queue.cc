// SPDX-License-Identifier: Apache-2.0
#include "launcher/agent/log_queue.h"

#include <string>
#include <utility>

namespace lockstep::launcher {

void LogQueue::Add(Text text) {
  absl::MutexLock lock(&mu_);
  texts_.push_back(std::move(text));
}

absl::Status LogQueue::WriteOldest(LogFile* log) {
  const std::string* lines;
  {
    absl::MutexLock lock(&mu_);
    if (texts_.empty() || stopped_) return absl::OkStatus();
    lines = &texts_.front().lines;  // which stays where it is when others come behind
  }
  absl::Status written = log->Append(*lines);
  absl::MutexLock lock(&mu_);
  texts_.pop_front();
  return written;
}

void LogQueue::Stop() {
  absl::MutexLock lock(&mu_);
  stopped_ = true;
}

std::vector<LogQueue::Text> LogQueue::Unwritten() const {
  absl::MutexLock lock(&mu_);
  return {texts_.begin(), texts_.end()};
}

}  // namespace lockstep::launcher
