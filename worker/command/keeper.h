// SPDX-License-Identifier: Apache-2.0
// The life of a worker of a job with `run`: the keeper of one rank. It speaks with the coordinator
// as every worker does (hello, ready, generation, finished), holds a port in case its command is
// rank 0, runs the command under torchrun's contract while a generation lasts, and ends it with all
// that came of it. How the command ends is how the keeper ends, so that agent and coordinator see
// it as they see any worker's end. keeper_machine.h decides; this carries it out. Thread-safety:
// called once, on the process's main thread, before any other thread.
#ifndef LOCKSTEP_WORKER_COMMAND_KEEPER_H_
#define LOCKSTEP_WORKER_COMMAND_KEEPER_H_

#include "common/clock.h"
#include "proto/coordinator.pb.h"

namespace lockstep::worker {

// Runs until the coordinator, the agent or the command's end says otherwise, and ends the process.
[[noreturn]] void RunKeeper(const WorkerBootstrap& bootstrap, Clock* clock);

}  // namespace lockstep::worker

#endif  // LOCKSTEP_WORKER_COMMAND_KEEPER_H_
