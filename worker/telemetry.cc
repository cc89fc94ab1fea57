// SPDX-License-Identifier: Apache-2.0
#include "worker/telemetry.h"

#include <unistd.h>

#include <cstdio>

namespace lockstep::worker {
namespace {

int64_t ResidentBytes() {
  // The second number of statm is the resident pages.
  long size = 0, resident = 0;
  if (std::FILE* file = std::fopen("/proc/self/statm", "re")) {
    if (std::fscanf(file, "%ld %ld", &size, &resident) != 2) resident = 0;
    std::fclose(file);
  }
  return int64_t{resident} * ::sysconf(_SC_PAGESIZE);
}

}  // namespace

Telemetry::Telemetry(const ProgressBoard* board, ControlLink* link, absl::Duration interval)
    : board_(board), link_(link), interval_(interval), thread_("telemetry", [this] { Loop(); }) {}

Telemetry::~Telemetry() {
  {
    absl::MutexLock lock(&mu_);
    stop_ = true;
  }
  thread_.Join();
  Beat();
}

void Telemetry::SetRecord(RunRecord* record) {
  absl::MutexLock beat(&beat_mu_);
  absl::MutexLock lock(&mu_);
  record_ = record;
}

void Telemetry::Flush() { Beat(); }

void Telemetry::Loop() {
  while (true) {
    {
      absl::MutexLock lock(&mu_);
      const auto stopped = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return stop_; };
      if (mu_.AwaitWithTimeout(absl::Condition(&stopped), interval_)) return;
    }
    Beat();
  }
}

void Telemetry::Beat() {
  absl::MutexLock beat(&beat_mu_);
  WorkerHeartbeat heartbeat;
  heartbeat.set_generation(board_->generation.load(std::memory_order_relaxed));
  heartbeat.set_progress_counter(board_->moves.load(std::memory_order_relaxed));
  heartbeat.set_rss_bytes(ResidentBytes());
  board_->Read(heartbeat.mutable_progress());
  link_->SendHeartbeat(heartbeat);
  RunRecord* record;
  {
    absl::MutexLock lock(&mu_);
    record = record_;
  }
  if (record != nullptr) record->Write();
}

}  // namespace lockstep::worker
