// SPDX-License-Identifier: Apache-2.0
// From the job's message to the plain values of the engine and the data: with model_plan.h the one
// place that knows both. Thread-safety: pure functions.
#ifndef LOCKSTEP_WORKER_SETUP_JOB_PLAN_H_
#define LOCKSTEP_WORKER_SETUP_JOB_PLAN_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "data/dataset.h"
#include "data/sampler.h"
#include "engine/engine.h"
#include "job/meaning/defaults.h"
#include "job/meaning/workers.h"
#include "proto/job.pb.h"

namespace lockstep::worker {

// What a job means is known in one place for all programs.
using job::Every;
using job::LeastWorkers;
using job::MostWorkers;

// The samples that the job names. Errors: InvalidArgument when there is no data.
absl::StatusOr<data::Source> DataSource(const Train& train);

// How its training images are changed at random.
data::Augment AugmentOf(const Train& train);

// Returns what is done to a plan, as `train.passes` has it.
engine::PassOptions PassOptionsOf(const Passes& passes);

// Samples that are evaluated at once: `given`, and where it is 0 what fits samples of `fields`.
int64_t EvalBlockOf(int64_t given, const std::vector<FieldSpec>& fields);

// `job`'s train part with what the opened data says about a sample; total_steps is the run's
// length. Errors: InvalidArgument for what this version does not train.
absl::StatusOr<engine::TrainSpec> EngineSpec(const JobSpec& job, const data::Dataset& dataset,
                                             int64_t total_steps);

// How the job deals `dataset_size` samples. REQUIRES: a resolved job.
// Errors: InvalidArgument when a dropped tail leaves an epoch without a step, or train.epochs are
// more than 10^15 steps.
absl::StatusOr<std::unique_ptr<data::DistributedSampler>> MakeSampler(const Train& train,
                                                                      int64_t dataset_size);

// Steps of the whole run.
int64_t TotalSteps(const Train& train, const data::DistributedSampler& sampler);

// Returns whether its moments are sharded: train.zero_stage is 1 and there can be enough workers
// for it.
bool ShardsMoments(const JobSpec& job);
// Returns whether sums of gradients are rounded to bf16: train.gradient_compression.
bool CompressesGradients(const JobSpec& job);

}  // namespace lockstep::worker

#endif  // LOCKSTEP_WORKER_SETUP_JOB_PLAN_H_
