// SPDX-License-Identifier: Apache-2.0
// The threads that only watch: one sends heartbeats with progress, the other writes the run's
// record, so that no disk holds up a heartbeat. Nothing in them can slow or stop a step.
//
// Thread-safety: thread-safe.
#ifndef LOCKSTEP_WORKER_CONTROL_TELEMETRY_H_
#define LOCKSTEP_WORKER_CONTROL_TELEMETRY_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "collectives/flight_recorder.h"
#include "common/clock.h"
#include "common/cond_var.h"
#include "common/thread.h"
#include "worker/control/control_link.h"
#include "worker/control/disk_wait.h"
#include "worker/control/progress_board.h"
#include "worker/control/run_record.h"

namespace lockstep::worker {

class Telemetry {
 public:
  // Starts the thread "telemetry". All arguments outlive this; `clock` is the one that board and
  // recorder are stamped with. While the board says IN_DATA_LOADER it has it move, as DiskWait
  // does: who waits for data cannot.
  Telemetry(ProgressBoard* board, ControlLink* link, Clock* clock, absl::Duration interval);
  // Writes the record once more, for which it blocks, sends once more, and joins.
  ~Telemetry();

  // Starts the thread "record", which writes this record from now on. Once.
  void SetRecord(RunRecord* record);
  // The worker's operations, from now on: heartbeats say whom they wait for.
  void SetRecorder(const FlightRecorder* recorder);
  // Sends now, which no disk holds up.
  void Send();
  // Has its threads send and write at once. Does not block.
  void BeatSoon();

 private:
  // A thread that does the same again and again.
  class Pulse {
   public:
    Pulse(const char* thread, absl::Duration interval, std::function<void()> work);
    // Blocks until what is being done is done.
    ~Pulse();
    void Soon();

   private:
    void Loop();

    const absl::Duration interval_;
    const std::function<void()> work_;
    absl::Mutex mu_;
    CondVar wake_;
    bool stop_ ABSL_GUARDED_BY(mu_) = false;
    bool soon_ ABSL_GUARDED_BY(mu_) = false;
    Thread thread_;  // last: uses the rest
  };

  void MoveForReads() ABSL_EXCLUSIVE_LOCKS_REQUIRED(beat_mu_);

  ProgressBoard* const board_;
  ControlLink* const link_;
  Clock* const clock_;
  const absl::Duration interval_;
  absl::Mutex beat_mu_;  // one heartbeat at a time
  DiskWait reads_ ABSL_GUARDED_BY(beat_mu_);
  int64_t moved_for_reads_ ABSL_GUARDED_BY(beat_mu_) = 0;
  absl::Mutex mu_;
  const FlightRecorder* recorder_ ABSL_GUARDED_BY(mu_) = nullptr;
  RunRecord* record_ = nullptr;  // of the thread that says which, and destroys this
  std::unique_ptr<Pulse> writes_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<Pulse> beats_;  // last: uses the rest
};

}  // namespace lockstep::worker

#endif  // LOCKSTEP_WORKER_CONTROL_TELEMETRY_H_
