// SPDX-License-Identifier: Apache-2.0
// The device that a worker trains on: what the coordinator has assigned, made sure of.
// Thread-safety: ClaimDevice before any thread starts; the others are thread-safe.
#ifndef LOCKSTEP_WORKER_SETUP_DEVICE_CHOICE_H_
#define LOCKSTEP_WORKER_SETUP_DEVICE_CHOICE_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/engine.h"
#include "proto/coordinator.pb.h"
#include "proto/job.pb.h"

namespace lockstep::worker {

// Makes the assigned GPU the only one that this process sees (CUDA_VISIBLE_DEVICES), so that it is
// number 0. Nothing for the CPU.
void ClaimDevice(const WorkerAssignment& assignment);

// Returns whether what this process sees is the assigned GPU: two workers on one would be slow, or
// wait for each other in NCCL, and nothing would say why. Errors: FailedPrecondition, with both.
absl::Status CheckDevice(const WorkerAssignment& assignment);

// `job` with the assigned device instead of its wish. Says so when "auto" has become the CPU.
// Errors: FailedPrecondition when the job wants a GPU and there is none, with what to do.
absl::StatusOr<JobSpec> JobOnDevice(const JobSpec& job, const WorkerAssignment& assignment);

// Returns what the plan runs on here. Errors: FailedPrecondition, Internal of a GPU.
absl::StatusOr<std::string> DescribeDeviceOf(const engine::Plan& plan);

}  // namespace lockstep::worker

#endif  // LOCKSTEP_WORKER_SETUP_DEVICE_CHOICE_H_
