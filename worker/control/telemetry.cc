// SPDX-License-Identifier: Apache-2.0
#include "worker/control/telemetry.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>

#include "collectives/reduce.h"
#include "common/clock.h"

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

void SetSince(int64_t nanos, absl::Time now, google::protobuf::Duration* duration) {
  const int64_t since = absl::ToUnixNanos(now) - nanos;
  duration->set_seconds(since / 1'000'000'000);
  duration->set_nanos(static_cast<int32_t>(since % 1'000'000'000));
}

// Adds what the operation that the worker is in says of itself.
void Describe(const FlightRecord& record, absl::Time now, FlightState* flight) {
  const Operation& operation = record.operation;
  flight->set_operation(std::string(OpKindName(operation.kind)));
  if (IsNumbered(operation.kind)) flight->set_sequence(operation.sequence);
  if (operation.count > 0) {
    flight->set_dtype(std::string(DTypeName(operation.dtype)));
    flight->set_count(operation.count);
  }
  flight->set_step(operation.step);
  flight->set_bucket(operation.bucket);
  flight->set_moving(record.stage == OpStage::kMoving);
  flight->set_open_us(std::max<int64_t>(0, absl::ToUnixNanos(now) - record.enqueued_ns) / 1000);
}

// The newest record in a compact form.
void ReadRecorder(const FlightRecorder& recorder, absl::Time now, WorkerHeartbeat* heartbeat) {
  FlightState* flight = heartbeat->mutable_flight();
  flight->set_last_completed(recorder.LastCompleted(heartbeat->generation()));
  const std::optional<FlightRecord> latest = recorder.Latest();
  if (latest.has_value() && latest->stage < OpStage::kDone) {
    heartbeat->set_waiting_for(latest->waiting_for + 1);
    Describe(*latest, now, flight);
  }
  const ArrivalCounts counts = recorder.Arrivals();
  heartbeat->mutable_arrivals()->set_reductions(counts.reductions);
  heartbeat->mutable_arrivals()->set_last(counts.last);
  heartbeat->mutable_arrivals()->set_waited_us(counts.waited_ns / 1000);
}

}  // namespace

Telemetry::Pulse::Pulse(const char* thread, absl::Duration interval, std::function<void()> work)
    : interval_(interval), work_(std::move(work)), thread_(thread, [this] { Loop(); }) {}

Telemetry::Pulse::~Pulse() {
  {
    absl::MutexLock lock(&mu_);
    stop_ = true;
  }
  wake_.NotifyAll();
  thread_.Join();
}

void Telemetry::Pulse::Soon() {
  {
    absl::MutexLock lock(&mu_);
    soon_ = true;
  }
  wake_.NotifyAll();
}

void Telemetry::Pulse::Loop() {
  while (true) {
    {
      absl::MutexLock lock(&mu_);
      wake_.AwaitFor(&mu_, interval_,
                     [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return stop_ || soon_; });
      if (stop_) return;
      soon_ = false;
    }
    work_();
  }
}

Telemetry::Telemetry(ProgressBoard* board, ControlLink* link, Clock* clock, absl::Duration interval)
    : board_(board),
      link_(link),
      clock_(clock),
      interval_(interval),
      reads_(board, clock),
      beats_(std::make_unique<Pulse>("telemetry", interval, [this] { Send(); })) {}

Telemetry::~Telemetry() {
  std::unique_ptr<Pulse> writes;
  {
    absl::MutexLock lock(&mu_);
    writes = std::move(writes_);
  }
  writes.reset();
  if (record_ != nullptr) record_->Write();
  beats_.reset();
  Send();
}

void Telemetry::SetRecord(RunRecord* record) {
  record_ = record;
  absl::MutexLock lock(&mu_);
  writes_ = std::make_unique<Pulse>("record", interval_, [record] { record->Write(); });
}

void Telemetry::SetRecorder(const FlightRecorder* recorder) {
  absl::MutexLock beat(&beat_mu_);
  absl::MutexLock lock(&mu_);
  recorder_ = recorder;
}

void Telemetry::BeatSoon() {
  beats_->Soon();
  absl::MutexLock lock(&mu_);
  if (writes_ != nullptr) writes_->Soon();
}

void Telemetry::MoveForReads() {
  if (board_->activity.load(std::memory_order_relaxed) != IN_DATA_LOADER) return;
  // Whatever else moved tells that it is another read, or that this one gets on.
  const int64_t others = board_->moves.load(std::memory_order_relaxed) - moved_for_reads_;
  if (reads_.Look(others)) ++moved_for_reads_;
}

void Telemetry::Send() {
  absl::MutexLock beat(&beat_mu_);
  MoveForReads();
  WorkerHeartbeat heartbeat;
  heartbeat.set_generation(board_->generation.load(std::memory_order_acquire));
  if (const int64_t nanos = board_->first_commit.load(std::memory_order_acquire); nanos != 0) {
    SetSince(nanos, clock_->Now(), heartbeat.mutable_since_first_commit());
  }
  if (const int64_t nanos = board_->restored.load(std::memory_order_relaxed); nanos != 0) {
    SetSince(nanos, clock_->Now(), heartbeat.mutable_since_restored());
  }
  heartbeat.set_resumed_step(board_->resumed_step.load(std::memory_order_relaxed));
  heartbeat.set_rss_bytes(ResidentBytes());
  board_->Read(heartbeat.mutable_progress());
  const FlightRecorder* recorder;
  {
    absl::MutexLock lock(&mu_);
    recorder = recorder_;
  }
  const int64_t moved = recorder == nullptr ? 0 : recorder->moves();
  heartbeat.set_progress_counter(board_->moves.load(std::memory_order_relaxed) + moved);
  heartbeat.set_activity(static_cast<Activity>(board_->activity.load(std::memory_order_relaxed)));
  if (recorder != nullptr) ReadRecorder(*recorder, clock_->Now(), &heartbeat);
  link_->SendHeartbeat(heartbeat);
}

}  // namespace lockstep::worker
