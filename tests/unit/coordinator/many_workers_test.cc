// SPDX-License-Identifier: Apache-2.0
// A job has kMaxWorkers workers at most, whoever asks for more; a journal that knows one with more,
// as an earlier version let it have them, keeps no coordinator from its other jobs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/core/core.h"
#include "coordinator/core/journal.h"
#include "coordinator/core/nodes.h"
#include "coordinator/core/queue_view.h"
#include "proto/journal.pb.h"
#include "tests/unit/coordinator/cluster.h"

namespace lockstep::coordinator {
namespace {

using ::testing::HasSubstr;

// A command that may have any number of workers, as no file could ask for.
SubmitJobRequest Command(int most) {
  SubmitJobRequest request;
  request.mutable_spec()->set_name("command");
  request.mutable_spec()->mutable_resources()->set_nodes(1);
  request.mutable_spec()->mutable_resources()->set_nproc_per_node(2);
  request.mutable_spec()->mutable_run()->add_command("true");
  request.mutable_spec()->mutable_elastic()->set_min_workers(1);
  request.mutable_spec()->mutable_elastic()->set_max_workers(most);
  return request;
}

// The job's row as it would be after a version that knew no bound.
void ScaleInRow(const std::string& id, int workers, Cluster& cluster) {
  std::string& row = cluster.rows_.at(absl::StrCat("job/", id));
  JobRecord record;
  ASSERT_TRUE(record.ParseFromString(row));
  record.mutable_queue()->set_scaled_to(workers);
  record.mutable_queue()->set_preemptions(1);
  row = record.SerializeAsString();
}

TEST(ManyWorkersTest, AJobThatMayHaveMoreIsRefused) {
  Cluster cluster(1, 4);
  cluster.Quiet();
  cluster.Step(Submitted{"j", Command(kMaxWorkers + 1)});
  EXPECT_EQ(cluster.effects_.reply.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(cluster.effects_.reply.message(),
              HasSubstr("elastic.max_workers is 4097: a job has at most 4096 workers"));
  SubmitJobRequest spares = Command(4);
  spares.mutable_spec()->mutable_resources()->set_standby(kMaxWorkers + 1);
  cluster.Step(Submitted{"j", spares});
  EXPECT_EQ(cluster.effects_.reply.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(cluster.effects_.reply.message(), HasSubstr("resources.standby is 4097"));
  // Their product is no number of 32 bits.
  SubmitJobRequest product = Command(4);
  product.mutable_spec()->mutable_resources()->set_nodes(65536);
  product.mutable_spec()->mutable_resources()->set_nproc_per_node(65536);
  cluster.Step(Submitted{"j", product});
  EXPECT_THAT(cluster.effects_.reply.message(), HasSubstr("asked for 65536 x 65536"));
  EXPECT_TRUE(cluster.state_.jobs.empty());
  cluster.Step(Submitted{"j", Command(kMaxWorkers)});
  EXPECT_TRUE(cluster.effects_.reply.ok()) << cluster.effects_.reply;
}

SubmitJobRequest Training(int workers) {
  SubmitJobRequest request;
  request.mutable_spec()->set_name("mlp");
  request.mutable_spec()->mutable_resources()->set_nodes(1);
  request.mutable_spec()->mutable_resources()->set_nproc_per_node(workers);
  request.mutable_spec()->mutable_train()->set_shards(4096);
  return request;
}

// A file's number is not what is counted.
TEST(ManyWorkersTest, OfANodeWithMoreSlotsAJobThatTrainsGetsAsManyAsShareMemory) {
  Cluster cluster(1, 768);
  cluster.Quiet();
  SubmitJobRequest counted = Training(600);
  counted.mutable_spec()->mutable_resources()->set_nproc_by("cpu");
  cluster.Step(Submitted{"j", counted});
  EXPECT_TRUE(cluster.effects_.reply.ok()) << cluster.effects_.reply;
  EXPECT_EQ(cluster.state_.jobs.at("j").slots.size(), 512u);
  EXPECT_EQ(cluster.state_.jobs.at("j").spec().resources().nproc_per_node(), 512);
}

// The node that is left has slots for all of them.
TEST(ManyWorkersTest, NorDoesANodeGetMoreThatWereElsewhere) {
  Cluster cluster(2, 768);
  cluster.Quiet();
  SubmitJobRequest split = Training(4);
  split.mutable_spec()->mutable_resources()->set_nodes(2);
  for (const int ranks : {511, 4}) {
    split.mutable_spec()->mutable_resources()->add_ranks_per_node(ranks);
  }
  split.mutable_spec()->mutable_resources()->set_nproc_per_node(511);
  cluster.Step(Submitted{"j", split});
  ASSERT_TRUE(cluster.effects_.reply.ok()) << cluster.effects_.reply;
  const Job& job = cluster.state_.jobs.at("j");
  ASSERT_EQ(job.slots.size(), 515u);
  const auto room = [&](const Worker& worker) {
    return Room(cluster.state_, job, cluster.state_.nodes.at(worker.node_id), cluster.now_);
  };
  EXPECT_EQ(room(*job.slots.front().worker), 1);
  EXPECT_EQ(room(*job.slots.back().worker), 508);
}

// One that waits to begin again, of a version that accepted any elastic.max_workers.
TEST(ManyWorkersTest, NoJobIsScaledBeyond) {
  Cluster cluster(0, 0);
  cluster.Step(Submitted{"j", Command(kMaxWorkers)});
  Job& job = cluster.state_.jobs.at("j");
  job.request.mutable_spec()->mutable_elastic()->set_max_workers(2'000'000'000);
  job.preemptions = 1;
  for (const int workers : {kMaxWorkers + 1, 2'000'000'000}) {
    cluster.Step(ScaleRequested{"j", workers});
    EXPECT_EQ(cluster.effects_.reply.code(), absl::StatusCode::kInvalidArgument) << workers;
    EXPECT_THAT(cluster.effects_.reply.message(), HasSubstr("a job has at most 4096"));
  }
  EXPECT_EQ(job.scaled_to, 0);
  cluster.Step(ScaleRequested{"j", kMaxWorkers});
  EXPECT_TRUE(cluster.effects_.reply.ok()) << cluster.effects_.reply;
}

TEST(ManyWorkersTest, OneThatWaitsAndWasScaledBeyondHasTheMostAfterARestart) {
  Cluster cluster(0, 0);
  cluster.Step(Submitted{"j", Command(kMaxWorkers)});
  ScaleInRow("j", 2'000'000'000, cluster);
  cluster.Restart();
  ASSERT_FALSE(::testing::Test::HasFatalFailure());
  cluster.twin_.reset();
  EXPECT_EQ(cluster.job("j").wanted_workers(), kMaxWorkers);
}

// A start with more places than there may be would be written, and never be read again.
TEST(ManyWorkersTest, NoStartMakesMorePlaces) {
  Cluster cluster(1, 4);
  cluster.finish_at_once = false;
  cluster.Quiet();
  SubmitJobRequest held = Command(kMaxWorkers);
  held.set_hold(true);
  cluster.Step(Submitted{"j", held});
  Job& job = cluster.state_.jobs.at("j");
  job.scaled_to = kMaxWorkers + 1000;
  job.ask = AskOf(job);
  cluster.Step(HoldRequested{"j", /*release=*/true});
  cluster.RunFor(absl::Seconds(3));
  EXPECT_EQ(job.slots.size(), static_cast<size_t>(kMaxWorkers));
  EXPECT_EQ(job.target_workers, kMaxWorkers);
  EXPECT_TRUE(Restore(cluster.Rows(), Options(), cluster.now_).ok());
}

// Its rows are all there, and the coordinator begins; the job ends, and says why.
TEST(ManyWorkersTest, AJournaledJobOfMoreEndsAndTheOthersGoOn) {
  Cluster cluster(1, 4);
  cluster.finish_at_once = false;
  cluster.Quiet();
  cluster.Submit("k", 1, 2);
  cluster.Step(Submitted{"j", Command(2)});
  cluster.Quiet();
  Job& job = cluster.state_.jobs.at("j");
  ASSERT_EQ(job.state, RUNNING);
  while (job.slots.size() < kMaxWorkers + 904) job.slots.emplace_back().lives = job.lives;
  cluster.state_.owed_jobs.insert("j");
  cluster.Step(Tick{});
  ASSERT_TRUE(cluster.rows_.contains("worker/j/4999"));
  // All is there, or it is damage.
  std::vector<Row> damaged = cluster.Rows();
  std::erase_if(damaged, [](const Row& row) { return row.key == "worker/j/4999"; });
  EXPECT_EQ(Restore(damaged, Options(), cluster.now_).status().code(), absl::StatusCode::kDataLoss);

  cluster.Restart();
  ASSERT_FALSE(::testing::Test::HasFatalFailure());
  cluster.twin_.reset();
  cluster.RunFor(absl::Seconds(5));
  EXPECT_EQ(cluster.job("j").state, FAILED);
  EXPECT_EQ(cluster.job("j").reason, "it has 5000 workers, and a job has at most 4096");
  EXPECT_EQ(cluster.job("k").state, RUNNING);
  EXPECT_TRUE(Restore(cluster.Rows(), Options(), cluster.now_).ok());
}

// The same of one whose workers were counted, and which waits to begin again.
TEST(ManyWorkersTest, AJournaledJobThatAsksForMoreEnds) {
  Cluster cluster(0, 0);
  cluster.Step(Submitted{"j", Command(2)});
  SubmitJobRequest request = cluster.job("j").request;
  Resources& resources = *request.mutable_spec()->mutable_resources();
  resources.set_nproc_by("cpu");
  resources.add_ranks_per_node(5000);
  cluster.rows_.at("request/j") = request.SerializeAsString();
  cluster.Restart();
  ASSERT_FALSE(::testing::Test::HasFatalFailure());
  EXPECT_EQ(cluster.job("j").state, FAILED);
  EXPECT_EQ(cluster.job("j").reason, "it has 5000 workers, and a job has at most 4096");
}

TEST(ManyWorkersTest, CountedWorkersAreNotMore) {
  Cluster cluster(1, 5000);
  cluster.finish_at_once = false;
  cluster.Quiet();
  SubmitJobRequest request = Command(0);
  request.mutable_spec()->clear_elastic();
  request.mutable_spec()->mutable_resources()->set_nproc_by("cpu");
  cluster.Step(Submitted{"j", request});
  EXPECT_EQ(cluster.job("j").state, PENDING);
  EXPECT_EQ(cluster.job("j").reason,
            "needs all slots of 1 node, 4096 workers at most; 1 node with 5000 slots is connected; "
            "start another with 'launcher join', or submit with a number of workers");
}

}  // namespace
}  // namespace lockstep::coordinator
