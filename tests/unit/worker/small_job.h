// SPDX-License-Identifier: Apache-2.0
// A job that trains in no time, and one as its ranks have it. Thread-safety: plain functions.
#ifndef LOCKSTEP_TESTS_UNIT_WORKER_SMALL_JOB_H_
#define LOCKSTEP_TESTS_UNIT_WORKER_SMALL_JOB_H_

#include "proto/job.pb.h"
#include "worker/setup/compiled_job.h"

namespace lockstep::worker {

inline JobSpec SmallJob() {
  JobSpec job;
  job.set_name("small");
  job.mutable_resources()->set_nodes(1);
  job.mutable_resources()->set_nproc_per_node(2);
  job.mutable_resources()->set_cpus_per_proc(1);
  Train& train = *job.mutable_train();
  train.mutable_model()->mutable_mlp()->add_hidden(64);
  SyntheticClassification& data = *train.mutable_data()->mutable_synthetic();
  data.set_train_samples(500);
  data.set_test_samples(130);
  data.set_features(40);
  data.set_classes(5);
  train.set_global_batch(48);
  train.set_shards(4);
  train.set_steps(10);
  train.mutable_optimizer()->mutable_sgd()->set_lr(0.1);
  train.mutable_optimizer()->mutable_sgd()->set_momentum(0.9);
  train.mutable_eval()->set_block(50);
  return job;
}

// A job with its data.
struct Compiled {
  explicit Compiled(const JobSpec& job)
      : data(OpenJobData(job).value()), compiled(CompileJob(job, data).value()) {}
  JobData data;
  CompiledJob compiled;
};

}  // namespace lockstep::worker

#endif  // LOCKSTEP_TESTS_UNIT_WORKER_SMALL_JOB_H_
