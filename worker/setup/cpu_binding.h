// SPDX-License-Identifier: Apache-2.0
// Keeps a worker on the CPUs near its GPU: its batches, page-locked memory and copies then stay in
// one part of the machine. Which CPUs a worker runs on changes no number.
// Thread-safety: before any thread starts.
#ifndef LOCKSTEP_WORKER_SETUP_CPU_BINDING_H_
#define LOCKSTEP_WORKER_SETUP_CPU_BINDING_H_

#include <string>

#include "common/cpu_list.h"
#include "proto/coordinator.pb.h"

namespace lockstep::worker {

struct CpuChoice {
  CpuList cpus;      // to stay on; none: where it is
  std::string says;  // of it, for the log; empty: nothing worth saying
};
// For a worker that may run on `allowed`: those of the assigned device's CPUs that are among them,
// unless they are fewer than its threads or resources.bind_cpus is "never".
CpuChoice ChooseCpus(const WorkerAssignment& assignment, const CpuList& allowed);

// Does so with this thread and those that it will start, and logs what was done. What fails is
// logged too and changes nothing.
void StayNearDevice(const WorkerAssignment& assignment);

}  // namespace lockstep::worker

#endif  // LOCKSTEP_WORKER_SETUP_CPU_BINDING_H_
