// SPDX-License-Identifier: Apache-2.0
#include "worker/checkpoint/checkpoint_identity.h"

#include <memory>
#include <set>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/engine/mlp_job.h"
#include "worker/checkpoint/checkpoint_layout.h"

namespace lockstep::worker {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

JobSpec ExampleJob() {
  JobSpec job;
  Train& train = *job.mutable_train();
  train.mutable_model()->mutable_mlp()->add_hidden(33);
  train.mutable_optimizer()->mutable_sgd()->set_lr(0.1);
  train.set_seed(7);
  train.set_shards(4);
  train.set_epochs(5);
  train.mutable_data()->mutable_loader()->set_prefetch(4);
  return job;
}

class CheckpointIdentityTest : public ::testing::Test {
 protected:
  checkpoint::Manifest Of(const JobSpec& job, const std::string& device = "d") {
    return IdentityOf(job, "run", *plan_, device, "device " + device);
  }
  std::string Difference(const JobSpec& now) { return DifferenceOf(Of(ExampleJob()), Of(now)); }
  const std::shared_ptr<const engine::Plan> plan_ = *engine::Plan::Compile(engine::SmallMlp());
};

TEST_F(CheckpointIdentityTest, TheSameJobMayGoOnHoweverManyWorkersItHas) {
  JobSpec job = ExampleJob();
  job.mutable_resources()->set_nproc_per_node(3);
  job.mutable_elastic()->set_min_workers(1);
  job.mutable_checkpoint()->set_keep(9);
  job.set_name("other");
  job.mutable_train()->mutable_data()->mutable_loader()->set_threads(3);
  EXPECT_EQ(Difference(job), "");
}

// A table whose first line is some numbers once was a header without being said to be one.
TEST_F(CheckpointIdentityTest, WhetherATableHasAHeaderIsNoDifference) {
  JobSpec before = ExampleJob(), now = ExampleJob();
  before.mutable_train()->mutable_data()->mutable_csv()->set_label("y");
  now.mutable_train()->mutable_data()->mutable_csv()->set_label("y");
  now.mutable_train()->mutable_data()->mutable_csv()->set_header("yes");
  EXPECT_EQ(DifferenceOf(Of(before), Of(now)), "");
  now.mutable_train()->mutable_data()->mutable_csv()->set_label("x");
  EXPECT_THAT(DifferenceOf(Of(before), Of(now)), HasSubstr("train.data.csv.label"));
}

// What it changes of the plan, the plan's hash says.
TEST_F(CheckpointIdentityTest, WhatIsKeptIsNoDifference) {
  JobSpec job = ExampleJob();
  Passes& passes = *job.mutable_train()->mutable_passes();
  passes.set_keep_constants(false);
  passes.set_keep_dropout(false);
  EXPECT_EQ(Difference(job), "");
  EXPECT_EQ(DifferenceOf(Of(job), Of(ExampleJob())), "");
  passes.set_fuse(false);
  EXPECT_THAT(Difference(job), HasSubstr("train.passes"));
}

TEST_F(CheckpointIdentityTest, WhatDecidesTheMathIsNamed) {
  JobSpec job = ExampleJob();
  job.mutable_train()->mutable_optimizer()->mutable_sgd()->set_lr(0.05);
  EXPECT_EQ(Difference(job), "train.optimizer.sgd.lr: 0.1 -> 0.05");
  job.mutable_train()->set_shards(2);
  EXPECT_THAT(Difference(job), HasSubstr("train.shards: 4 -> 2"));
  job = ExampleJob();
  job.mutable_train()->mutable_ema()->set_decay(0.9);
  EXPECT_THAT(Difference(job), HasSubstr("train.ema"));
  job = ExampleJob();
  job.mutable_train()->set_epochs(4);
  EXPECT_EQ(Difference(job), "train.epochs: 5 -> 4");
}

TEST_F(CheckpointIdentityTest, ALongerRunGoesOnWhereNothingBeforeDependsOnItsLength) {
  JobSpec job = ExampleJob();
  job.mutable_train()->set_epochs(6);
  EXPECT_EQ(Difference(job), "");
  job.mutable_train()->clear_epochs();
  job.mutable_train()->set_steps(100000);
  EXPECT_THAT(Difference(job), HasSubstr("train.epochs: 5")) << "who knows how many steps that was";

  const auto longer = [&](const JobSpec& before) {
    JobSpec after = before;
    after.mutable_train()->set_epochs(6);
    return DifferenceOf(Of(before), Of(after));
  };
  job = ExampleJob();
  Schedule& schedule = *job.mutable_train()->mutable_schedule();
  schedule.set_warmup_steps(3);
  schedule.mutable_step()->set_every(10);
  EXPECT_EQ(longer(job), "");
  schedule.mutable_exponential()->set_gamma(0.9);
  EXPECT_EQ(longer(job), "");
  schedule.mutable_cosine();
  EXPECT_EQ(longer(job), "train.epochs: 5 -> 6");
  schedule.mutable_wsd();
  EXPECT_EQ(longer(job), "train.epochs: 5 -> 6");
}

// The shorter run evaluates at its end in any case.
TEST_F(CheckpointIdentityTest, ALongerRunHasTheSameEvaluationsBehindIt) {
  JobSpec before = ExampleJob(), after = ExampleJob();
  after.mutable_train()->set_epochs(6);
  const auto difference = [&](const std::string& every) {
    before.mutable_train()->mutable_eval()->set_every(every);
    after.mutable_train()->mutable_eval()->set_every(every);
    return DifferenceOf(Of(before), Of(after));
  };
  EXPECT_EQ(difference("2 epochs"), "") << "nothing follows from them";
  before.mutable_train()->mutable_early_stop();
  after.mutable_train()->mutable_early_stop();
  EXPECT_EQ(difference("1 epoch"), "");
  EXPECT_EQ(difference("5 epochs"), "");
  EXPECT_EQ(difference("2 epochs"), "train.epochs: 5 -> 6");
  EXPECT_EQ(difference("10 steps"), "train.epochs: 5 -> 6") << "who knows when that is";
  before = after = ExampleJob();
  before.mutable_train()->mutable_best();
  after.mutable_train()->mutable_best();
  before.mutable_train()->set_steps(30);
  before.mutable_train()->clear_epochs();
  after.mutable_train()->set_steps(50);
  after.mutable_train()->clear_epochs();
  EXPECT_EQ(difference("10 steps"), "");
  EXPECT_EQ(difference("40 steps"), "train.steps: 30 -> 50");
}

TEST_F(CheckpointIdentityTest, AnOlderVersionsPlanOfAnotherLengthIsAnotherLength) {
  JobSpec job = ExampleJob();
  job.mutable_train()->set_epochs(6);
  checkpoint::Manifest saved = Of(ExampleJob());
  EXPECT_TRUE(IsMadeLonger(saved, Of(job)));
  EXPECT_FALSE(IsMadeLonger(saved, saved));
  saved.plan_hash = "with its length";
  EXPECT_EQ(DifferenceOf(saved, Of(job)), "train.epochs: 5 -> 6");
}

TEST_F(CheckpointIdentityTest, PlanAndDeviceAreLookedAtToo) {
  const checkpoint::Manifest saved = Of(ExampleJob());
  checkpoint::Manifest now = saved;
  now.plan_hash = "another";
  now.older_plan_hashes = {"another"};
  EXPECT_THAT(DifferenceOf(saved, now), HasSubstr("compiles another plan"));
  now.older_plan_hashes.push_back(saved.plan_hash);
  EXPECT_EQ(DifferenceOf(saved, now), "") << "older versions wrote that of what is computed again";
  now = saved;
  now.threads = 2;
  EXPECT_EQ(DifferenceOf(saved, now), "");
  EXPECT_EQ(DifferenceOf(saved, Of(ExampleJob(), "e")),
            "the device computes other bits: device d -> device e");
  now = saved;
  now.train = R"({"field_of_the_future":1})";
  EXPECT_THAT(DifferenceOf(now, saved), HasSubstr("does not know"));
}

// Older versions wrote the hash of the level that their memory gave.
TEST_F(CheckpointIdentityTest, AnotherPlanOfRecomputeAutoMayBeAnotherLevel) {
  JobSpec job = ExampleJob();
  job.mutable_train()->set_recompute("auto");
  const checkpoint::Manifest now = Of(job);
  checkpoint::Manifest saved = now;
  saved.plan_hash = "another";
  EXPECT_THAT(DifferenceOf(saved, now), HasSubstr("or recompute: auto chose another level"));
  EXPECT_THAT(DifferenceOf(saved, now), HasSubstr("resources.memory"));
  saved = Of(ExampleJob());
  saved.plan_hash = "another";
  EXPECT_THAT(DifferenceOf(saved, Of(ExampleJob())), Not(HasSubstr("recompute")));
}

TEST_F(CheckpointIdentityTest, DataThatChangedIsNamedBeforeThePlan) {
  checkpoint::Manifest saved = Of(ExampleJob()), now = saved;
  const checkpoint::DataRecord test{"test.csv", 10, 5};
  saved.samples = 60;
  saved.data = {{"train.csv", 100, 7}, test};
  EXPECT_EQ(DifferenceOf(saved, now), "") << "not known of every source";
  EXPECT_EQ(DifferenceOf(now, saved), "") << "not known of older versions";
  now.samples = 60;
  now.data = {{"train.csv", 100, 8}, test};
  EXPECT_EQ(DifferenceOf(saved, now), "train.data: train.csv is not what it was");
  now.samples = 61;
  now.data = {{"train.csv", 103, 7}, test};
  now.plan_hash = "another";
  now.older_plan_hashes = {"another"};  // the schedule's length is in it
  EXPECT_EQ(DifferenceOf(saved, now),
            "train.data: 60 -> 61 samples; train.data: train.csv is not what it was");
}

TEST_F(CheckpointIdentityTest, WhatWasEvaluatedSaysNothingOfOtherData) {
  const checkpoint::Manifest saved = Of(ExampleJob());
  EXPECT_FALSE(HasEvaluatedOther(saved, Of(ExampleJob())));
  JobSpec job = ExampleJob();
  job.mutable_train()->mutable_optimizer()->mutable_sgd()->set_lr(0.07);
  EXPECT_FALSE(HasEvaluatedOther(saved, Of(job)));
  job.mutable_train()->mutable_eval()->set_block(7);
  EXPECT_TRUE(HasEvaluatedOther(saved, Of(job)))
      << "the sums of other blocks are rounded otherwise";
  job = ExampleJob();
  job.mutable_train()->mutable_data()->mutable_csv()->set_test("other.csv");
  EXPECT_TRUE(HasEvaluatedOther(saved, Of(job)));
  // Beside another difference, too.
  job = ExampleJob();
  job.mutable_train()->mutable_optimizer()->mutable_sgd()->set_lr(0.07);
  checkpoint::Manifest before = saved, now = Of(job);
  before.data = {{"test.csv", 10, 5}};
  now.data = {{"test.csv", 10, 6}};
  EXPECT_TRUE(HasEvaluatedOther(before, now));
}

// A file is opened with ".gz" or without, whichever is there.
TEST_F(CheckpointIdentityTest, DataThatIsOpenedUnderAnotherNameIsNamed) {
  checkpoint::Manifest saved = Of(ExampleJob()), now = saved;
  const checkpoint::DataRecord labels{"labels", 10, 5};
  saved.data = {{"images.gz", 100, 7}, labels};
  now.data = {{"images", 300, 8}, labels};
  EXPECT_EQ(DataDifferenceOf(saved, now), "train.data: images is opened where images.gz was");
  EXPECT_EQ(DifferenceOf(saved, now), DataDifferenceOf(saved, now));
  now.data = {};
  EXPECT_EQ(DataDifferenceOf(saved, now), "") << "not known of every source";
  // Older versions wrote down files of a test split that is never opened, too.
  saved.data = {{"images", 300, 8}, labels, {"test.gz", 9, 9}};
  now.data = {{"images", 300, 8}, labels};
  EXPECT_EQ(DataDifferenceOf(saved, now), "");
  EXPECT_EQ(DataDifferenceOf(now, saved), "");
}

TEST_F(CheckpointIdentityTest, PartsHaveEveryTensorOnceAndAreAlike) {
  for (int parts = 1; parts <= 5; ++parts) {
    const CheckpointLayout layout(plan_.get(), parts);
    EXPECT_EQ(layout.parts(), parts);
    std::set<const engine::StateEntry*> seen;
    std::set<std::string> names;
    size_t bytes = 0;
    for (int part = 0; part < parts; ++part) {
      bytes += layout.BytesOf(part);
      for (const LayoutFile& file : layout.FilesOf(part)) {
        EXPECT_TRUE(names.insert(file.name).second);
        for (const engine::StateEntry* entry : file.entries) {
          EXPECT_TRUE(seen.insert(entry).second);
          EXPECT_EQ(file.name[0] == 'm', entry->role == engine::StateEntry::Role::kParameter);
        }
      }
    }
    EXPECT_EQ(seen.size(), plan_->state().size());
    EXPECT_GE(layout.MostBytes() * static_cast<size_t>(parts), bytes);
    EXPECT_EQ(layout.Index().empty(), parts == 1);
  }
  EXPECT_EQ(CheckpointLayout::PartsFor(1000, 4), 1);
  EXPECT_EQ(CheckpointLayout::PartsFor(size_t{1500} << 20, 4), 4);
  EXPECT_EQ(CheckpointLayout::PartsFor(2 * CheckpointLayout::kPartBytes, 4), 2);
}

}  // namespace
}  // namespace lockstep::worker
