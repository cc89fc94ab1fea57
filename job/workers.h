// SPDX-License-Identifier: Apache-2.0
// How many workers a job may have, and what a flag such as --nproc-per-node makes of a resolved
// job. Thread-safety: pure functions.
#ifndef LOCKSTEP_JOB_WORKERS_H_
#define LOCKSTEP_JOB_WORKERS_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "proto/job.pb.h"

namespace lockstep::job {

// Why `workers` are too many for `shards`.
std::string TooManyWorkers(int64_t workers, int64_t shards);

// Runs the job with nodes x nproc_per_node workers instead of the file's number: sets `resources`
// and moves the bounds of `elastic` with it (equal bounds stay equal; else they widen to hold the
// new number). `train.shards` and with it the result stay as they are. Errors: InvalidArgument when
// a number is below 1; FailedPrecondition when the job has fewer shards than workers. `spec` is
// unchanged then.
absl::Status OverrideWorkers(int nodes, int nproc_per_node, JobSpec* spec);

}  // namespace lockstep::job

#endif  // LOCKSTEP_JOB_WORKERS_H_
