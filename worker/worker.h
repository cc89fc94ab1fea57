// SPDX-License-Identifier: Apache-2.0
// One worker process from its first line to its last: opens the data and compiles the plan, reports
// ready, enters generations until the work is done, makes the result durable and leaves when the
// coordinator lets it go.
// Thread-safety: confined to the main thread.
#ifndef LOCKSTEP_WORKER_WORKER_H_
#define LOCKSTEP_WORKER_WORKER_H_

#include "common/clock.h"
#include "common/life.h"
#include "proto/coordinator.pb.h"

namespace lockstep::worker {

// Runs the worker's life and returns what the process exits with: 0, the code the coordinator gave,
// or 1 after a failure, which has been reported and printed. `life` may be null. Blocks. Where a
// GPU was abandoned (engine/cuda/device.h) it leaves threads and memory to the process's end.
int RunWorker(const WorkerBootstrap& bootstrap, LifePage* life, Clock* clock);

}  // namespace lockstep::worker

#endif  // LOCKSTEP_WORKER_WORKER_H_
