// SPDX-License-Identifier: Apache-2.0
// How many workers a job may have, and what a flag such as --nproc-per-node makes of a resolved
// job. Thread-safety: pure functions.
#ifndef LOCKSTEP_JOB_MEANING_WORKERS_H_
#define LOCKSTEP_JOB_MEANING_WORKERS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "proto/job.pb.h"

namespace lockstep::job {

// The workers of each host, in the order of the ranks: ranks_per_node, or nodes times
// nproc_per_node. At least one host, each with at least one worker.
std::vector<int> RanksPerNode(const JobSpec& spec);
// Workers that the job asks for, the sum of these.
int WantedWorkers(const JobSpec& spec);
// The fewest that it goes on with, and the most that it may have at once, without spares: the
// bounds of `elastic`. One that is not stated is WantedWorkers, and where that lies outside of them
// they give way.
int LeastWorkers(const JobSpec& spec);
int MostWorkers(const JobSpec& spec);
// The most processes that it may have at once: spares too.
int MostProcesses(const JobSpec& spec);

// With resources.nproc_by: why it does not go with the rest of the job, in a sentence. Empty: it
// does, or is not set.
std::string WhyNotCounted(const JobSpec& spec);
// Returns whether the numbers that nproc_by asks for are yet to be counted.
bool IsUncounted(const JobSpec& spec);
// The numbers are there: hosts with so many workers each, in the order of the ranks, on `device`
// ("cpu" or "cuda"). Errors: as OverrideWorkers.
absl::Status SetCounted(const std::vector<int>& ranks, const std::string& device, JobSpec* spec);

// So many workers of a job that trains share their memory on one host, at most; commands share
// none.
inline constexpr int kMostTrainersOfHost = 512;
// Returns how many workers one host can have of the job.
int MostOnAHost(const JobSpec& spec);
// Why the job cannot have `ranks` workers on one host, in a sentence. Empty: it can.
std::string WhyTooManyOnAHost(int ranks, const JobSpec& spec);

// Why `workers` are too many for `shards`.
std::string TooManyWorkers(int64_t workers, int64_t shards);

// Runs the job with nodes x nproc_per_node workers instead of the file's number or list: sets
// `resources`. What `elastic` states, `train.shards` and with it the result stay as they are.
// Errors: InvalidArgument when a number is below 1; FailedPrecondition when the job has fewer
// shards than workers, or more on a host than can be there. `spec` is unchanged then.
absl::Status OverrideWorkers(int nodes, int nproc_per_node, JobSpec* spec);

}  // namespace lockstep::job

#endif  // LOCKSTEP_JOB_MEANING_WORKERS_H_
