// SPDX-License-Identifier: Apache-2.0
#include "job/meaning/units.h"
#include "job/job_file.h"
#include "job/meaning/defaults.h"
#include "job/meaning/workers.h"

#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "job/nearest_name.h"

namespace lockstep::job {
namespace {

TEST(Units, Durations) {
  const std::vector<std::pair<std::string, int64_t>> good = {{"30s", 30'000'000'000},
                                                             {"500ms", 500'000'000},
                                                             {"5m", 300'000'000'000},
                                                             {"1h30m", 5400'000'000'000},
                                                             {"1.5s", 1'500'000'000},
                                                             {"2d", 172800'000'000'000},
                                                             {"0", 0},
                                                             {"7ns", 7}};
  for (const auto& [text, nanoseconds] : good) {
    const auto parsed = ParseDuration(text);
    ASSERT_TRUE(parsed.ok()) << text;
    EXPECT_EQ(*parsed, nanoseconds) << text;
    EXPECT_EQ(*ParseDuration(FormatDuration(nanoseconds)), nanoseconds);
  }
  for (const char* text : {"", "30", "s", "-5s", "5 s", "5x", "1.s.", "99999999999999999999s",
                           "200000d", "0.5ns", "5s!", "inf"}) {
    EXPECT_FALSE(ParseDuration(text).ok()) << text;
  }
  EXPECT_EQ(FormatDuration(90'000'000'000), "90s");
}

TEST(Units, Sizes) {
  const std::vector<std::pair<std::string, int64_t>> good = {
      {"64MiB", 64 << 20},        {"2GB", 2'000'000'000}, {"1.5KiB", 1536}, {"512B", 512}, {"0", 0},
      {"3 TiB", int64_t{3} << 40}};
  for (const auto& [text, bytes] : good) {
    const auto parsed = ParseSize(text);
    ASSERT_TRUE(parsed.ok()) << text;
    EXPECT_EQ(*parsed, bytes) << text;
    EXPECT_EQ(*ParseSize(FormatSize(bytes)), bytes);
  }
  for (const char* text : {"", "64", "64M", "64mib", "-1B", "0.3B", "9999999TiB", "1MiB1"}) {
    EXPECT_FALSE(ParseSize(text).ok()) << text;
  }
  EXPECT_EQ(FormatSize(2'000'000'000), "2GB");
}

TEST(Units, Every) {
  for (const char* text : {"500 steps", "1 epoch", "30s", "never", "1 step"}) {
    ASSERT_TRUE(ParseEvery(text).ok()) << text;
    EXPECT_EQ(ParseEvery(text)->ToString(), text);
  }
  for (const char* text : {"", "0 steps", "steps", "5", "5 apples", "-1 step", "1 epoch or so"}) {
    EXPECT_FALSE(ParseEvery(text).ok()) << text;
  }
}

TEST(Units, EveryOfAJob) {
  JobSpec spec;
  EXPECT_EQ(EvalEvery(spec)->epochs, 1);
  EXPECT_TRUE(SaveEvery(spec)->never());
  spec.mutable_train()->mutable_eval()->set_every("never");
  spec.mutable_checkpoint()->set_every("2d");
  spec.set_verify_replicas("500 steps");
  EXPECT_TRUE(EvalEvery(spec)->never());
  EXPECT_EQ(SaveEvery(spec)->time, absl::Hours(48));
  EXPECT_EQ(VerifyEvery(spec)->steps, 500);
  spec.set_verify_replicas("3 days");
  EXPECT_EQ(VerifyEvery(spec).status().message(),
            "'verify_replicas' is '3 days': expected such as '500 steps', '1 epoch' or '30s' or "
            "'never'");
}

// What the file's table fills in is what the programs take where nothing was filled in.
TEST(Meaning, AResolvedJobMeansWhatAnEmptyOneMeans) {
  const LoadResult resolved = ParseJob(
      "train: {model: {layers: {sequence: [dropout, linear]}}, data: {synthetic: {}}, "
      "global_batch: 8, steps: 1, optimizer: {sgd: {lr: 1}}}",
      "x.yaml", {});
  ASSERT_TRUE(resolved.ok()) << resolved.FormatErrors();
  const JobSpec& spec = resolved.spec;
  const JobSpec empty;
  EXPECT_EQ(FailureDetection(spec), FailureDetection(empty));
  EXPECT_EQ(StartTimeout(spec), StartTimeout(empty));
  EXPECT_EQ(MaxRestarts(spec), MaxRestarts(empty));
  EXPECT_EQ(EvalEvery(spec)->ToString(), EvalEvery(empty)->ToString());
  EXPECT_EQ(DropoutRate(spec.train().model().layers().sequence(0).dropout()),
            DropoutRate(DropoutLayer()));
}

TEST(Meaning, WorkersOfEachHost) {
  JobSpec spec;
  EXPECT_EQ(RanksPerNode(spec), std::vector<int>{1});
  spec.mutable_resources()->set_nodes(2);
  spec.mutable_resources()->set_nproc_per_node(3);
  EXPECT_EQ(RanksPerNode(spec), (std::vector<int>{3, 3}));
  spec.mutable_resources()->add_ranks_per_node(3);
  spec.mutable_resources()->add_ranks_per_node(1);
  EXPECT_EQ(WantedWorkers(spec), 4);
  EXPECT_EQ(RanksPerNode(spec), (std::vector<int>{3, 1}));
  ASSERT_TRUE(OverrideWorkers(1, 2, &spec).ok());
  EXPECT_EQ(RanksPerNode(spec), std::vector<int>{2});
}

TEST(Meaning, AHostHasRoomForSoManyThatTrain) {
  JobSpec spec;
  ASSERT_TRUE(OverrideWorkers(1, 4096, &spec).ok()) << "commands share no memory";
  spec.mutable_train()->set_shards(4096);
  ASSERT_TRUE(OverrideWorkers(8, 512, &spec).ok());
  const absl::Status status = OverrideWorkers(1, 513, &spec);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              testing::HasSubstr("513 workers on one host: at most"));
  EXPECT_EQ(spec.resources().nproc_per_node(), 512);
  EXPECT_EQ(SetCounted({1, 513}, "cpu", &spec).message(), status.message());
  ASSERT_TRUE(SetCounted({1, 512}, "cpu", &spec).ok());
}

TEST(Meaning, WorkersOfAJob) {
  JobSpec spec;
  EXPECT_EQ(WantedWorkers(spec), 1);
  EXPECT_EQ(LeastWorkers(spec), 1);
  spec.mutable_resources()->set_nodes(2);
  spec.mutable_resources()->set_nproc_per_node(3);
  spec.mutable_resources()->set_standby(2);
  EXPECT_EQ(WantedWorkers(spec), 6);
  EXPECT_EQ(LeastWorkers(spec), 6);
  spec.mutable_elastic()->set_min_workers(2);
  spec.mutable_elastic()->set_max_workers(8);
  EXPECT_EQ(LeastWorkers(spec), 2);
  EXPECT_EQ(MostWorkers(spec), 8);
  EXPECT_EQ(MostProcesses(spec), 10);
}

TEST(NearestName, FindsSlipsAndNothingElse) {
  const std::vector<std::string> names = {"global_batch", "epochs", "lr", "momentum"};
  EXPECT_EQ(NearestName("globl_batch", names), "global_batch");
  EXPECT_EQ(NearestName("Global-Batch", names), "global_batch");
  EXPECT_EQ(NearestName("epcohs", names), "epochs");
  EXPECT_EQ(NearestName("batch", names), "global_batch");
  EXPECT_EQ(NearestName("zebra", names), "");
  EXPECT_EQ(EditDistance("abcd", "abdc"), 1);
}

}  // namespace
}  // namespace lockstep::job
