// SPDX-License-Identifier: Apache-2.0
// The thread that only watches: sends heartbeats with progress and writes the run's record. Nothing
// in it can slow or stop a step.
//
// Thread-safety: thread-safe.
#ifndef LOCKSTEP_WORKER_CONTROL_TELEMETRY_H_
#define LOCKSTEP_WORKER_CONTROL_TELEMETRY_H_

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "collectives/flight_recorder.h"
#include "common/clock.h"
#include "common/cond_var.h"
#include "common/thread.h"
#include "worker/control/control_link.h"
#include "worker/control/progress_board.h"
#include "worker/control/run_record.h"

namespace lockstep::worker {

class Telemetry {
 public:
  // Starts the thread "telemetry". All arguments outlive this; `clock` is the one that board and
  // recorder are stamped with.
  Telemetry(const ProgressBoard* board, ControlLink* link, Clock* clock, absl::Duration interval);
  // Sends and writes once more, and joins.
  ~Telemetry();

  // The record to write, from now on; nullptr: none.
  void SetRecord(RunRecord* record);
  // The worker's operations, from now on: heartbeats say whom they wait for.
  void SetRecorder(const FlightRecorder* recorder);
  // Sends and writes now.
  void Flush();
  // Sends alone, which no disk holds up. On the thread of SetRecord and SetRecorder.
  void Send();
  // Has its thread send and write at once. Does not block.
  void BeatSoon();

 private:
  void Loop();
  void Beat();

  const ProgressBoard* const board_;
  ControlLink* const link_;
  Clock* const clock_;
  const absl::Duration interval_;
  absl::Mutex beat_mu_;  // one Beat at a time
  absl::Mutex mu_;
  CondVar wake_;
  RunRecord* record_ ABSL_GUARDED_BY(mu_) = nullptr;
  const FlightRecorder* recorder_ ABSL_GUARDED_BY(mu_) = nullptr;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  bool soon_ ABSL_GUARDED_BY(mu_) = false;
  Thread thread_;  // last: uses the rest
};

}  // namespace lockstep::worker

#endif  // LOCKSTEP_WORKER_CONTROL_TELEMETRY_H_
