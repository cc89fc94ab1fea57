// SPDX-License-Identifier: Apache-2.0
#include "worker/setup/compiled_job.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/worker/small_job.h"

namespace lockstep::worker {
namespace {

using ::testing::HasSubstr;

absl::Status Fit(const std::vector<int64_t>& takes, const std::vector<int64_t>& has) {
  const auto fields = [](const std::vector<int64_t>& shape) {
    return std::vector<FieldSpec>{{"inputs", FieldSpec::Type::kFloat32, shape, 0},
                                  {kLabelsField, FieldSpec::Type::kInt32, {}, 10}};
  };
  return CheckSamplesFit(fields(takes), fields(has), "the model takes", "the data has");
}

TEST(CheckSamplesFit, TakesTheSameValuesInTheSameOrder) {
  EXPECT_TRUE(Fit({3, 32, 32}, {3, 32, 32}).ok());
  EXPECT_TRUE(Fit({784}, {1, 28, 28}).ok());
  EXPECT_TRUE(Fit({1, 28, 28}, {784}).ok());
  EXPECT_TRUE(Fit({28, 28}, {784}).ok());
  EXPECT_TRUE(Fit({28, 28}, {28, 28, 1}).ok());
  EXPECT_TRUE(Fit({1}, {}).ok());
  EXPECT_TRUE(Fit({3072}, {3, 32, 32}).ok());
  EXPECT_TRUE(Fit({3, 32, 32}, {3, 1024}).ok());
  EXPECT_TRUE(Fit({4, 7, 28}, {28, 1, 28}).ok());
}

TEST(CheckSamplesFit, RefusesAnotherLayoutOfAsManyValues) {
  EXPECT_FALSE(Fit({784}, {783}).ok());
  EXPECT_FALSE(Fit({28, 28}, {14, 56}).ok());
  EXPECT_FALSE(Fit({3, 32, 32}, {32, 96}).ok());
  const absl::Status last = Fit({3, 32, 32}, {32, 32, 3});
  EXPECT_EQ(last.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(last.message()),
              HasSubstr("the model takes samples of inputs[3,32,32], labels[], but the data has "
                        "inputs[32,32,3], labels[]"));
}

TEST(CompileJob, WithoutEvaluationsTheArenaHasNoRoomForThem) {
  JobSpec job = SmallJob();
  job.mutable_train()->mutable_eval()->set_block(10000);
  const Compiled evaluates(job);
  job.mutable_train()->mutable_eval()->set_every("never");
  const Compiled never(job);
  EXPECT_LT(never.compiled.plan->arena_bytes(), evaluates.compiled.plan->arena_bytes() / 3);
  EXPECT_LT(never.compiled.need.total(), evaluates.compiled.need.total());
  EXPECT_EQ(never.compiled.plan->hash(), evaluates.compiled.plan->hash());
  job.mutable_resources()->set_memory(static_cast<int64_t>(never.compiled.need.total()));
  EXPECT_TRUE(CompileJob(job, *never.data.train).ok());
}

}  // namespace
}  // namespace lockstep::worker
