// SPDX-License-Identifier: Apache-2.0
#include "worker/setup/tuning_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

namespace lockstep::worker {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

JobSpec JobWith(const std::string& matmul, int nodes) {
  JobSpec job;
  job.mutable_resources()->set_matmul(matmul);
  job.mutable_resources()->set_nodes(nodes);
  return job;
}

TEST(TuningFiles, OneNodeMeasuresUnlessTheLibraryChooses) {
  ::setenv("XDG_CACHE_HOME", "/cache", 1);
  const auto both =
      ElementsAre("run/matmul-algorithms.tsv", "/cache/lockstep/matmul-algorithms.tsv");
  EXPECT_THAT(TuningFiles(JobWith("auto", 1), "run"), both);
  EXPECT_THAT(TuningFiles(JobWith("measured", 2), "run"), both);
  EXPECT_THAT(TuningFiles(JobWith("auto", 2), "run"), IsEmpty());
  EXPECT_THAT(TuningFiles(JobWith("library", 1), "run"), IsEmpty());
}

TEST(TuningFiles, CudnnIsUsedAsTheJobSays) {
  JobSpec job;
  EXPECT_EQ(CudnnUseOf(job), engine::CudnnUse::kAuto);
  job.mutable_resources()->set_cudnn("always");
  EXPECT_EQ(CudnnUseOf(job), engine::CudnnUse::kAlways);
  job.mutable_resources()->set_cudnn("never");
  EXPECT_EQ(CudnnUseOf(job), engine::CudnnUse::kNever);
}

}  // namespace
}  // namespace lockstep::worker
