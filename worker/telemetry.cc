// SPDX-License-Identifier: Apache-2.0
#include "worker/telemetry.h"

#include <unistd.h>

#include <cstdio>
#include <optional>

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

void Telemetry::SetRecorder(const FlightRecorder* recorder) {
  absl::MutexLock beat(&beat_mu_);
  absl::MutexLock lock(&mu_);
  recorder_ = recorder;
}

void Telemetry::BeatSoon() {
  absl::MutexLock lock(&mu_);
  soon_ = true;
}

void Telemetry::Loop() {
  while (true) {
    {
      absl::MutexLock lock(&mu_);
      const auto due = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return stop_ || soon_; };
      mu_.AwaitWithTimeout(absl::Condition(&due), interval_);
      if (stop_) return;
      soon_ = false;
    }
    Beat();
  }
}

void Telemetry::Beat() {
  absl::MutexLock beat(&beat_mu_);
  WorkerHeartbeat heartbeat;
  heartbeat.set_generation(board_->generation.load(std::memory_order_acquire));
  if (const int64_t nanos = board_->first_commit.load(std::memory_order_relaxed); nanos != 0) {
    heartbeat.mutable_first_commit()->set_seconds(nanos / 1'000'000'000);
    heartbeat.mutable_first_commit()->set_nanos(static_cast<int32_t>(nanos % 1'000'000'000));
  }
  heartbeat.set_resumed_step(board_->resumed_step.load(std::memory_order_relaxed));
  heartbeat.set_progress_counter(board_->moves.load(std::memory_order_relaxed));
  heartbeat.set_rss_bytes(ResidentBytes());
  board_->Read(heartbeat.mutable_progress());
  RunRecord* record;
  const FlightRecorder* recorder;
  {
    absl::MutexLock lock(&mu_);
    record = record_;
    recorder = recorder_;
  }
  if (const auto latest = recorder == nullptr ? std::nullopt : recorder->Latest();
      latest.has_value() && latest->stage < OpStage::kDone) {
    heartbeat.set_waiting_for(latest->waiting_for + 1);
  }
  link_->SendHeartbeat(heartbeat);
  if (record != nullptr) record->Write();
}

}  // namespace lockstep::worker
