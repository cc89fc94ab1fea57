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

// Of a device that is "auto" it is known where the job runs.
TEST(ModelErrors, WhatWantsAGpuAndIsToComputeOnTheCpu) {
  for (const auto& [set, key] : {std::pair("nccl={use: always}", "'nccl.use'"),
                                 std::pair("resources.cudnn=always", "'resources.cudnn'")}) {
    EXPECT_THAT(Errors({set, "resources.device=cpu"}),
                HasSubstr(std::string(key) + " always wants GPUs, and 'resources.device' is cpu: "
                                             "set that to cuda, or leave this out"));
    EXPECT_EQ(Errors({set, "resources.device=cuda"}), "");
    EXPECT_EQ(Errors({set}), "");
  }
}

}  // namespace
}  // namespace lockstep::job
