// SPDX-License-Identifier: Apache-2.0
// Which transport carries a job's gradients: the host's memory, or NCCL between GPUs.
// Thread-safety: confined to the worker's main thread.
#ifndef LOCKSTEP_WORKER_SETUP_DATA_PLANE_H_
#define LOCKSTEP_WORKER_SETUP_DATA_PLANE_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "collectives/communicator.h"
#include "common/life.h"
#include "proto/coordinator.pb.h"
#include "worker/setup/compiled_job.h"

namespace lockstep::worker {

// Since this version of NCCL several ranks may share a GPU, when it is told so.
inline constexpr int kNcclSharesGpus = 23000;

// Returns where gradients of `job` are reduced on the assigned device; rank 0 logs why not by NCCL.
// Errors: FailedPrecondition when the job insists on NCCL.
absl::StatusOr<GradientPlace> PlaceOfGradients(const JobSpec& job,
                                               const WorkerAssignment& assignment);

// The same before there are workers, for a job that each worker has a GPU of its own for: by what
// the job says, and whether NCCL is on this host.
GradientPlace ExpectedPlace(const JobSpec& job);

// Returns what the coordinator compares between the workers: the hash of the plan, and whether
// gradients go by NCCL, as everybody's do or nobody's. One host may have it and another not.
std::string PlanAsTold(const engine::Plan& plan, GradientPlace place);

// The data plane of a job that was compiled for `place`, with room for its state and gradients.
// With `over_hosts` TCP joins the hosts, beside NCCL too; else no port is opened. `told` are the
// addresses at which others look for this worker: when all of them are this machine's loopback it
// listens there alone. `life` outlives it. Memory that is short is waited for, for `patience` at
// most: who survives the worker that this one replaces gives its memory back when it has seen its
// death. Errors: ResourceExhausted; FailedPrecondition, Internal of the GPU.
absl::StatusOr<std::unique_ptr<Transport>> OpenDataPlane(
    const CompiledJob& compiled, GradientPlace place, const WorkerAssignment& assignment,
    const LifePage* life, absl::Duration patience, bool over_hosts = false,
    std::vector<std::string> told = {});

}  // namespace lockstep::worker

#endif  // LOCKSTEP_WORKER_SETUP_DATA_PLANE_H_
