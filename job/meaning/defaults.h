// SPDX-License-Identifier: Apache-2.0
// What a job means where it does not say it: the defaults that more than one program needs, and the
// values of a spec with them. The table of the job file (job/schema.cc) takes them from here.
// Thread-safety: pure functions.
#ifndef LOCKSTEP_JOB_MEANING_DEFAULTS_H_
#define LOCKSTEP_JOB_MEANING_DEFAULTS_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "job/meaning/units.h"
#include "proto/job.pb.h"

namespace lockstep::job {

inline constexpr absl::Duration kDefaultFailureDetection = absl::Seconds(5);
inline constexpr absl::Duration kDefaultStartTimeout = absl::Minutes(10);
inline constexpr int kDefaultMaxRestarts = 3;
// Of a command, which may do harm when it is done twice.
inline constexpr int kDefaultCommandRestarts = 0;
// How long a command goes on without a word from its coordinator. What it did may be begun again
// elsewhere kCommandLeaseMargin later, when the hosts' connections know that they are cut.
inline constexpr absl::Duration kCommandLease = absl::Seconds(30);
// How long before that it is asked to end (SIGTERM).
inline constexpr absl::Duration kCommandLeaseNotice = absl::Seconds(3);
inline constexpr absl::Duration kCommandLeaseMargin = absl::Seconds(15);
inline constexpr absl::Duration kDefaultCommandGrace = absl::Seconds(10);
inline constexpr absl::Duration kDefaultLeaveGrace = absl::Minutes(2);
inline constexpr char kDefaultEvalEvery[] = "1 epoch";
inline constexpr double kDefaultDropoutRate = 0.5;
inline constexpr int64_t kDefaultEvalBlock = 1000;

// How long a worker may be silent, and how long it may take to its first step.
absl::Duration FailureDetection(const JobSpec& spec);
absl::Duration StartTimeout(const JobSpec& spec);
// Failures without progress that the job survives.
int MaxRestarts(const JobSpec& spec);
// From SIGTERM to SIGKILL for the commands of a job with `run`.
absl::Duration CommandGrace(const JobSpec& spec);
// How long a job that is to stop may take to leave before it is killed.
absl::Duration LeaveGrace(const JobSpec& spec);
// The most workers that the job can use: its shards, or as many as there may be.
int MostUsefulWorkers(const JobSpec& spec);
// For how long it may run. Without one: infinite.
absl::Duration TimeLimit(const JobSpec& spec);
// The share of values that the layer leaves out.
double DropoutRate(const DropoutLayer& layer);
// Samples of an evaluation block where a sample is `length` tokens: transformers have a row of
// activations for each token. At least 1.
int64_t EvalBlockOfTokens(int64_t length);

// How often the job evaluates, saves, and compares its workers' state. Errors: InvalidArgument,
// which names the key.
absl::StatusOr<Every> EvalEvery(const JobSpec& spec);
absl::StatusOr<Every> SaveEvery(const JobSpec& spec);
absl::StatusOr<Every> VerifyEvery(const JobSpec& spec);

}  // namespace lockstep::job

#endif  // LOCKSTEP_JOB_MEANING_DEFAULTS_H_
