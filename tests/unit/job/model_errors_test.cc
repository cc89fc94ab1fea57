// SPDX-License-Identifier: Apache-2.0
// What is refused of a job file because no model, or no device, could be made of it.
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "job/job_file.h"

namespace lockstep::job {
namespace {

using ::testing::HasSubstr;

std::string Errors(const std::vector<std::string>& sets) {
  return ParseJob(
             "train:\n  model: {mlp: {}}\n  data: {fashion_mnist: {}}\n  global_batch: 256\n"
             "  epochs: 5\n  optimizer: {sgd: {lr: 0.1}}\n",
             "job.yaml", sets)
      .FormatErrors();
}

TEST(ModelErrors, ValuesBetweenTheBoundsThatNoModelHas) {
  const std::pair<const char*, const char*> cases[] = {
      {"train.model={resnet: {depth: 20}}",
       "'train.model.resnet.depth' is '20': must be one of 18, 34, 50, 101"},
      {"train.model={cnn: {kernel: 4}}", "'train.model.cnn.kernel' 4 is even; 3 or 5 would do"},
      {"train.model={gpt: {heads: 5, width: 128}}",
       "'train.model.gpt.heads' 5 does not divide 'width' 128"},
      {"train.model={bert: {heads: 3, width: 128}}",
       "'train.model.bert.heads' 3 does not divide 'width' 128"},
      {"train.model={layers: {sequence: []}}", "'train.model.layers' needs a layer at least"},
      {"train.model={layers: {}}", "'train.model.layers' needs a layer at least"},
      {"train.model={layers: {sequence: [linear: {}, relu: {}, linear: {}]}}",
       "'train.model.layers.sequence[0].linear' needs 'features'"},
      {"train.model={layers: {sequence: [residual: {body: [relu: {}, linear: {}]}, linear: {}]}}",
       "'train.model.layers.sequence[0].residual.body[1].linear' needs 'features'"},
      {"train.model={layers: {sequence: [conv: {channels: 5, groups: 2}, linear: {}]}}",
       "'train.model.layers.sequence[0].conv.groups' 2 does not divide 'channels' 5"},
      {"train.model={layers: {sequence: [max_pool: {kernel: 3, padding: 2}, linear: {}]}}",
       "'train.model.layers.sequence[0].max_pool.padding' 2 is more than half of 'kernel' 3"},
      {"train.model={layers: {sequence: [avg_pool: {kernel: 1, padding: 1}, linear: {}]}}",
       "'train.model.layers.sequence[0].avg_pool.padding' 1 is more than half of 'kernel' 1"},
      {"nccl={nthreads: 100}", "must be one of 64, 128, 256, 512"},
      {"nccl={proto: foo}", "expected LL, LL128, Simple"},
      {"nccl={proto: 'LL,'}", "expected LL, LL128, Simple"},
      {"nccl={proto: ''}", "expected LL, LL128, Simple"},
  };
  for (const auto& [set, expected] : cases) {
    EXPECT_THAT(Errors({set}), HasSubstr(expected)) << set;
  }
}

TEST(ModelErrors, ValuesThatModelsHaveAreTaken) {
  for (const char* set :
       {"train.model={resnet: {depth: 101}}", "train.model={resnet: {}}",
        "train.model={cnn: {kernel: 5}}", "train.model={cnn: {}}",
        "train.model={gpt: {heads: 4, width: 128}}", "train.model={gpt: {heads: 6}}",
        "train.model={layers: {sequence: [linear: {}]}}",
        "train.model={layers: {sequence: [residual: {body: [linear: {features: 4}]}, linear: {}]}}",
        "train.model={layers: {sequence: [conv: {channels: 4, groups: 2}, linear: {}]}}",
        "train.model={layers: {sequence: [avg_pool: {kernel: 56}, linear: {}]}}",
        "train.model={layers: {sequence: [max_pool: {kernel: 2, padding: 1}, linear: {}]}}",
        "nccl={nthreads: 256}", "nccl={proto: Simple}", "nccl={proto: 'LL,ll128'}",
        "nccl={proto: ^LL128}", "nccl={proto: 'allreduce:Simple;broadcast:LL,LL128'}",
        "nccl={proto: 'simple;bcast:^LL'}"}) {
    EXPECT_EQ(Errors({set}), "") << set;
  }
}

// Of a device that is "auto" it is known where the job runs.
TEST(ModelErrors, WhatWantsAGpuAndIsToComputeOnTheCpu) {
  for (const auto& [set, key] : {std::pair("nccl={use: always}", "'nccl.use'"),
                                 std::pair("resources.cudnn=always", "'resources.cudnn'")}) {
    EXPECT_THAT(Errors({set, "resources.device=cpu"}),
                HasSubstr(std::string(key) + " always wants GPUs, and 'resources.device' is cpu: "
                                             "set that to cuda, or leave this out"));
    EXPECT_EQ(Errors({set, "resources.device=cuda"}), "");
    EXPECT_EQ(Errors({set}), "");
    EXPECT_THAT(Errors({set, "resources.nproc_per_node=auto", "resources.device=cpu"}),
                HasSubstr("'resources.device' is cpu"));
    EXPECT_THAT(Errors({set, "resources.nproc_per_node=cpu"}),
                HasSubstr("counts CPUs: count gpu, or leave this out"));
  }
}

}  // namespace
}  // namespace lockstep::job
