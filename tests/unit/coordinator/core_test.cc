// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/core.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "absl/strings/str_cat.h"
#include "coordinator/core/questions.h"
#include "proto/journal.pb.h"
#include "tests/unit/coordinator/cluster.h"

namespace lockstep::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(CoreTest, AJobOfTwoNodesSucceeds) {
  Cluster cluster(2, 4);
  cluster.Quiet();
  cluster.Submit("j", 2, 4);
  cluster.Quiet();
  EXPECT_EQ(cluster.job("j").state, SUCCEEDED);
  EXPECT_EQ(cluster.job("j").result.exit_code(), 0);
  EXPECT_EQ(cluster.job("j").slots[5].worker->host, "host-1");
  EXPECT_EQ(cluster.job("j").slots[5].local_rank, 1);
}

TEST(CoreTest, SaysWhyAJobWaitsAndDoesNotLetLaterOnesOvertake) {
  Cluster cluster(2, 4);
  cluster.Quiet();
  cluster.finish_at_once = false;
  cluster.Submit("a", 1, 3);
  cluster.Submit("b", 2, 4);
  cluster.Submit("c", 1, 1);
  EXPECT_EQ(cluster.job("a").state, STARTING);
  EXPECT_EQ(cluster.job("b").reason,
            "needs 8 slots on 2 nodes (4 on each); 2 nodes with 8 slots are connected, 5 free");
  EXPECT_THAT(cluster.job("c").reason, HasSubstr("waits behind job b"));
  cluster.Submit("d", 3, 4);
  EXPECT_EQ(cluster.effects_.reply.code(), absl::StatusCode::kInvalidArgument);  // 12 of 8 shards
  EXPECT_EQ(cluster.state_.jobs.count("d"), 0);
}

TEST(CoreTest, HigherPriorityGoesFirst) {
  Cluster cluster(1, 4);
  cluster.finish_at_once = false;
  cluster.Submit("low", 1, 4, 0);
  cluster.Submit("high", 1, 4, 5);
  cluster.Quiet();
  EXPECT_EQ(cluster.job("high").state, RUNNING);
  EXPECT_EQ(cluster.job("low").state, PENDING);
}

TEST(CoreTest, RefusesAnotherPlanAndAnotherKindOfDevice) {
  Cluster plan(1, 4);
  plan.plan_hash = {2};
  plan.Submit("j", 1, 4);
  plan.Quiet();
  EXPECT_EQ(plan.job("j").state, FAILED);
  EXPECT_THAT(plan.job("j").reason, HasSubstr("rank 2 (host-0) compiled another plan than rank 0"));
  Cluster device(1, 4);
  device.device_hash = {1};
  device.Submit("j", 1, 4);
  device.Quiet();
  EXPECT_EQ(device.job("j").state, FAILED);
  EXPECT_EQ(device.job("j").result.exit_code(), 5);
  EXPECT_THAT(device.job("j").reason, HasSubstr("rank 1 (cpu 1) computes other bits"));
}

TEST(CoreTest, NamesTheFirstDeathOfANode) {
  Cluster cluster(1, 4);
  cluster.finish_at_once = false;
  cluster.Submit("j", 1, 3);
  cluster.Quiet();
  cluster.End("j.2.1", 0, 11);
  cluster.End("j.0.1", 1, 0);
  cluster.RunFor(absl::Seconds(1));  // the one that is left may leave by itself
  ASSERT_EQ(cluster.job("j").faults.size(), 1);
  const Fault& fault = cluster.job("j").faults[0];
  EXPECT_EQ(fault.rank(), 2);
  EXPECT_EQ(fault.cause(), "killed by SIGSEGV (signal 11)");
  EXPECT_THAT(fault.victims(), ElementsAre(0, 1));
  EXPECT_EQ(cluster.job("j").result.exit_code(), 139);
}

TEST(CoreTest, JudgesTheSilentBeforeThoseThatWaitForThem) {
  Cluster cluster(1, 4);
  cluster.finish_at_once = false;
  cluster.Submit("j", 1, 2);
  cluster.Quiet();
  cluster.RunFor(absl::Seconds(1));
  cluster.silent = {1};
  cluster.standing = {0};  // waits for rank 1
  cluster.RunFor(absl::Seconds(4));
  EXPECT_EQ(cluster.job("j").state, RUNNING);
  cluster.RunFor(absl::Seconds(3));
  ASSERT_EQ(cluster.job("j").state, FAILED);
  EXPECT_EQ(cluster.job("j").faults[0].rank(), 1);
  EXPECT_EQ(cluster.job("j").faults[0].cause(), "no heartbeat for 5 s");
}

TEST(CoreTest, JudgesTheHung) {
  Cluster cluster(1, 4);
  cluster.finish_at_once = false;
  cluster.Submit("j", 1, 2);
  cluster.Quiet();
  cluster.RunFor(absl::Seconds(1));
  cluster.standing = {1};
  cluster.RunFor(absl::Seconds(8));
  ASSERT_EQ(cluster.job("j").state, FAILED);
  EXPECT_EQ(cluster.job("j").faults[0].cause(), "no progress for 5 s");
}

TEST(CoreTest, DrainsOrKills) {
  Cluster drain(1, 4);
  drain.finish_at_once = false;
  drain.Submit("j", 1, 2);
  drain.Quiet();
  drain.Step(CancelRequested{"j", false});
  EXPECT_EQ(drain.job("j").state, DRAINING);
  drain.Quiet();
  EXPECT_EQ(drain.job("j").state, CANCELLED);
  EXPECT_EQ(drain.job("j").reason, "drained at step 7");
  Cluster kill(1, 4);
  kill.finish_at_once = false;
  kill.Submit("j", 1, 2);
  kill.Quiet();
  kill.Step(CancelRequested{"j", true});
  // Its workers are not gone yet, and nobody who asks takes it for one that goes on.
  const auto described = DescribeJob(kill.state_, "j", kill.now_);
  ASSERT_TRUE(described.ok()) << described.status();
  EXPECT_THAT(described->status().reason(), testing::StartsWith("ends as CANCELLED: "));
  kill.Quiet();
  EXPECT_EQ(kill.job("j").state, CANCELLED);
  EXPECT_TRUE(kill.processes_.empty());
}

// One step of a random life of a cluster with at most four jobs.
void Live(Cluster& cluster, std::mt19937& random, int& submitted) {
  const unsigned dice = random() % 100;
  auto any = [&] {
    return std::next(cluster.processes_.begin(), random() % cluster.processes_.size());
  };
  if (dice < 3 && submitted < 4) {
    cluster.Submit(absl::StrCat("j", submitted++), 1 + random() % 2, 1 + random() % 4);
  } else if (dice < 6) {
    cluster.Disconnect(random() % 2);
  } else if (dice < 9 && !cluster.processes_.empty()) {
    cluster.DisconnectWorker(any()->second);
  } else if (dice < 10 && !cluster.processes_.empty()) {
    const std::string victim = any()->first;
    cluster.End(victim, 0, 9);
  } else if (dice < 12 && submitted > 0) {
    const std::string id = absl::StrCat("j", random() % submitted);
    if (!cluster.job(id).final()) cluster.Step(CancelRequested{id, random() % 2 == 0});
  } else if (dice < 20) {
    cluster.Disturb(random);
  } else if (dice < 32) {
    cluster.Wait(absl::Milliseconds(20));
  } else {
    cluster.Deliver(random);
  }
}

// In the end everybody behaves: every job ends and no process is left.
void ExpectAllEnd(Cluster& cluster, int submitted) {
  cluster.RunFor(absl::Seconds(8));
  for (int i = 0; i < submitted; ++i) {
    const Job& job = cluster.job(absl::StrCat("j", i));
    EXPECT_TRUE(job.final()) << job.id << " " << job.reason;
  }
  EXPECT_TRUE(cluster.processes_.empty());
}

// Whatever the order of messages, lost connections, doubled and lost messages, and deaths: a
// generation's number names one membership, a rank is there once, final states are final.
// AddressSanitizer looks at memory, for which fewer are enough.
#ifdef LOCKSTEP_SANITIZE_ADDRESS
constexpr unsigned kOrders = 30;
#else
constexpr unsigned kOrders = 150;
#endif

TEST(CoreTest, SurvivesAnyOrder) {
  for (unsigned seed = 0; seed < kOrders; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    Cluster cluster(2, 4);
    int submitted = 0;
    for (int i = 0; i < 300; ++i) Live(cluster, random, submitted);
    ExpectAllEnd(cluster, submitted);
    if (HasFailure()) return;
  }
}

// The same with jobs that heal.
TEST(CoreTest, HealsInAnyOrder) {
  for (unsigned seed = 0; seed < kOrders; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    Cluster cluster(2, 4);
    cluster.restarts = 3;
    int submitted = 0;
    for (int i = 0; i < 300; ++i) Live(cluster, random, submitted);
    ExpectAllEnd(cluster, submitted);
    if (HasFailure()) return;
  }
}

TEST(CoreTest, ReplacesTheDeadAndGoesOn) {
  Cluster cluster(1, 4);
  cluster.finish_at_once = false;
  cluster.restarts = 3;
  cluster.Submit("j", 1, 3);
  cluster.Quiet();
  cluster.RunFor(absl::Seconds(1));
  cluster.End("j.1.1", 0, 9);
  cluster.Quiet();
  const Job& job = cluster.job("j");
  EXPECT_EQ(job.state, RUNNING);
  EXPECT_EQ(job.slots[1].worker->incarnation, "j.1.2");
  EXPECT_EQ(job.generation.message.members_size(), 3);
  EXPECT_EQ(job.generation.message.start_step(), 1);
  ASSERT_EQ(job.faults.size(), 1);
  EXPECT_EQ(job.faults[0].rank(), 1);
  EXPECT_EQ(job.faults[0].cause(), "killed by SIGKILL (signal 9)");
  EXPECT_EQ(job.restarts, 1);
  EXPECT_TRUE(job.former.empty());
}

// Killed after any event, a coordinator goes on from its rows as one would that only lost all
// connections.
TEST(CoreTest, GoesOnFromItsRowsAfterAnyEvent) {
  for (unsigned seed = 0; seed < kOrders; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    Cluster cluster(2, 4);
    cluster.finish_at_once = seed % 2 == 0;
    cluster.restarts = seed % 3 == 0 ? 3 : 0;
    int submitted = 0;
    for (unsigned i = 0; i < 2 * seed; ++i) Live(cluster, random, submitted);
    cluster.Restart();
    for (int i = 0; i < 100; ++i) Live(cluster, random, submitted);
    if (seed % 2 == 0) {
      ExpectAllEnd(cluster, submitted);
    } else {
      cluster.RunFor(absl::Seconds(8));
    }
    if (HasFailure()) return;
  }
}

TEST(CoreTest, WhatANodeIsMadeOfOutlivesTheCoordinator) {
  Cluster cluster(1, 1);
  cluster.Quiet();
  for (int life = 0; life < 2; ++life) {
    const GetClusterResponse known = GetCluster(cluster.state_, cluster.now_);
    ASSERT_EQ(known.nodes_size(), 1);
    ASSERT_EQ(known.nodes(0).numa_size(), 1);
    EXPECT_EQ(known.nodes(0).numa(0).cpus(), "0-3");
    cluster.Restart();
  }
}

TEST(CoreTest, RefusesADamagedJournal) {
  Cluster cluster(1, 4);
  cluster.Submit("j", 1, 2);
  cluster.Quiet();
  std::vector<Row> rows = cluster.Rows();
  ASSERT_TRUE(Restore(rows, Options(), cluster.now_).ok());
  for (size_t i = 0; i < rows.size(); ++i) {
    std::vector<Row> damaged = rows;
    damaged[i].value += "\xff";
    const absl::Status status = Restore(damaged, Options(), cluster.now_).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(status.message(), HasSubstr(rows[i].key));
    // That these were ever there, nothing else says.
    if (rows[i].key == "node/n0" || rows[i].key.rfind("usage/", 0) == 0) continue;
    damaged = rows;
    damaged.erase(damaged.begin() + static_cast<long>(i));
    EXPECT_EQ(Restore(damaged, Options(), cluster.now_).status().code(),
              absl::StatusCode::kDataLoss)
        << rows[i].key;
  }
}

// The bytes of a number that is damaged are a record still; it must make no memory.
TEST(CoreTest, RefusesAJobOfMoreWorkersThanItHasRowsOf) {
  Cluster cluster(1, 4);
  cluster.Submit("j", 1, 2);
  cluster.Quiet();
  std::vector<Row> rows = cluster.Rows();
  const auto row =
      std::find_if(rows.begin(), rows.end(), [](const Row& one) { return one.key == "job/j"; });
  ASSERT_NE(row, rows.end());
  const std::string whole = row->value;
  for (const int slots : {-1, 3, kMaxWorkers + 1, 268'435'454}) {
    JobRecord record;
    ASSERT_TRUE(record.ParseFromString(whole));
    record.set_slots(slots);
    row->value = record.SerializeAsString();
    const absl::Status status = Restore(rows, Options(), cluster.now_).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << slots;
    EXPECT_THAT(status.message(), HasSubstr(slots == 3 ? "lacks worker 2 of job j" : "job/j"));
  }
}

// Nothing that was not saved is told; it is told when it is.
TEST(CoreTest, DerivesAgainWhatCouldNotBeSaved) {
  State state;
  absl::Time now = absl::UnixEpoch();
  AgentMessage hello;
  hello.mutable_hello()->set_node_id("n");
  hello.mutable_hello()->set_slots(2);
  hello.mutable_hello()->set_protocol_version(1);
  Effects effects = Step(state, AgentSaid{1, hello}, now);
  SaveFailed(state, effects, now);
  EXPECT_TRUE(effects.to_agents.empty());
  EXPECT_LE(effects.wake_at, now + absl::Seconds(1));
  effects = Step(state, Tick{}, now);
  ASSERT_EQ(effects.to_agents.size(), 1);
  ASSERT_EQ(effects.rows.size(), 1);
  EXPECT_EQ(effects.rows[0].key, "node/n");

  SubmitJobRequest request;
  request.mutable_spec()->set_name("mlp");
  request.mutable_spec()->mutable_resources()->set_nodes(1);
  request.mutable_spec()->mutable_resources()->set_nproc_per_node(2);
  request.mutable_spec()->mutable_train();
  request.mutable_spec()->mutable_restart()->set_max_restarts(0);
  effects = Step(state, Submitted{"lost", request}, now);
  ASSERT_EQ(effects.to_agents.size(), 1);
  SaveFailed(state, effects, now);
  EXPECT_TRUE(effects.events.empty());
  EXPECT_EQ(state.jobs.count("lost"), 0);
  effects = Step(state, Tick{}, now);
  ASSERT_EQ(effects.to_agents.size(), 1);
  EXPECT_EQ(effects.to_agents[0].command.desired().workers_size(), 0);

  effects = Step(state, Submitted{"j", request}, now);
  ASSERT_EQ(effects.to_agents.size(), 1);
  AgentMessage exited;
  exited.mutable_exited()->set_job_id("j");
  exited.mutable_exited()->set_worker_incarnation("j.1.1");
  exited.mutable_exited()->set_signal(9);
  effects = Step(state, AgentSaid{1, exited}, now);
  ASSERT_EQ(effects.to_agents.size(), 2);
  SaveFailed(state, effects, now);
  ASSERT_EQ(effects.to_agents.size(), 1);  // said when it is true
  EXPECT_TRUE(effects.to_agents[0].command.has_acknowledged());
  effects = Step(state, Tick{}, now);
  ASSERT_EQ(effects.to_agents.size(), 1);
  EXPECT_EQ(effects.to_agents[0].command.desired().kill_jobs_size(), 1);
  EXPECT_THAT(effects.rows, ::testing::Contains(::testing::Field(&Row::key, "worker/j/1")));
}

// What a job keeps to itself goes to the nodes of its workers, and is in no answer.
TEST(CoreTest, SecretsGoToTheNodesOfTheWorkersAlone) {
  State state;
  const absl::Time now = absl::UnixEpoch();
  for (int i = 0; i < 3; ++i) {
    AgentMessage hello;
    hello.mutable_hello()->set_node_id(absl::StrCat("n-", i));
    hello.mutable_hello()->set_incarnation(absl::StrCat("n-", i, "-1"));
    hello.mutable_hello()->set_host(absl::StrCat("n-", i));
    hello.mutable_hello()->set_slots(1);
    hello.mutable_hello()->set_protocol_version(1);
    Step(state, AgentSaid{i + 1, hello}, now);
  }
  SubmitJobRequest request;
  request.mutable_spec()->set_name("mlp");
  request.mutable_spec()->mutable_resources()->set_nodes(2);
  request.mutable_spec()->mutable_resources()->set_nproc_per_node(1);
  request.mutable_spec()->mutable_train();
  (*request.mutable_spec()->mutable_secrets())["KEY"] = "hunter2";
  const Effects effects = Step(state, Submitted{"j", request}, now);
  ASSERT_EQ(effects.to_agents.size(), 2);
  for (const ToAgent& told : effects.to_agents) {
    ASSERT_EQ(told.command.desired().workers_size(), 1);
    EXPECT_EQ(Whole(told).desired().workers(0).spec().secrets().at("KEY"), "hunter2");
    EXPECT_NE(told.session, 3);
  }
  const auto described = DescribeJob(state, "j", now);
  ASSERT_TRUE(described.ok()) << described.status();
  EXPECT_THAT(described->ShortDebugString(), ::testing::Not(::testing::HasSubstr("hunter2")));
}

// A verdict on a checkpoint follows from no state: it waits until the mark is in the journal.
TEST(CoreTest, KeepsAVerdictThatCouldNotBeSaved) {
  State state;
  const absl::Time now = absl::UnixEpoch();
  AgentMessage agent;
  agent.mutable_hello()->set_node_id("n");
  agent.mutable_hello()->set_slots(1);
  agent.mutable_hello()->set_protocol_version(1);
  Step(state, AgentSaid{1, agent}, now);
  SubmitJobRequest request;
  request.mutable_spec()->set_name("mlp");
  request.mutable_spec()->mutable_resources()->set_nodes(1);
  request.mutable_spec()->mutable_resources()->set_nproc_per_node(1);
  request.mutable_spec()->mutable_train();
  Step(state, Submitted{"j", request}, now);
  WorkerMessage worker;
  worker.set_job_id("j");
  worker.set_incarnation("j.0.1");
  worker.mutable_hello()->set_protocol_version(1);
  Step(state, WorkerSaid{2, worker}, now);
  worker.mutable_ready();
  Step(state, WorkerSaid{2, worker}, now);
  worker.mutable_checkpoint()->mutable_mark()->set_generation(1);
  Effects effects = Step(state, WorkerSaid{2, worker}, now);
  ASSERT_EQ(effects.to_workers.size(), 1);
  SaveFailed(state, effects, now);
  ASSERT_EQ(effects.to_workers.size(), 1);
  EXPECT_EQ(effects.to_workers[0].command.checkpoint().refused(), "");
}

// What is forgotten goes from the journal, however often writing fails meanwhile.
TEST(CoreTest, ErasesAgainWhatCouldNotBeErased) {
  State state;
  state.options.keep_ended = 0;
  absl::Time now = absl::UnixEpoch();
  SubmitJobRequest request;
  request.mutable_spec()->set_name("mlp");
  request.mutable_spec()->mutable_resources()->set_nodes(1);
  request.mutable_spec()->mutable_resources()->set_nproc_per_node(1);
  request.mutable_spec()->mutable_train();
  Step(state, Submitted{"j", request}, now);
  Step(state, CancelRequested{"j", true}, now);
  ASSERT_EQ(state.jobs.count("j"), 1);
  now += state.options.keep_ended_for;
  const auto keys = [](const Effects& effects) {
    std::vector<std::string> keys;
    for (const Row& row : effects.rows) {
      EXPECT_TRUE(row.erased) << row.key;
      keys.push_back(row.key);
    }
    return keys;
  };
  Effects effects = Step(state, Tick{}, now);
  EXPECT_EQ(state.jobs.count("j"), 0);
  EXPECT_THAT(effects.forgotten_jobs, ::testing::ElementsAre("j"));
  EXPECT_THAT(keys(effects), ::testing::UnorderedElementsAre("job/j", "request/j"));
  for (int i = 0; i < 2; ++i) {
    SaveFailed(state, effects, now);
    EXPECT_THAT(effects.rows, ::testing::IsEmpty());
    EXPECT_THAT(effects.forgotten_jobs, ::testing::ElementsAre("j"));  // told when it is true
    AppendEffects(effects, Step(state, Tick{}, now));
    EXPECT_THAT(keys(effects), ::testing::UnorderedElementsAre("job/j", "request/j"));
  }
  EXPECT_THAT(Step(state, Tick{}, now).rows, ::testing::IsEmpty());
}

// A batch that holds both a job's last rows and their end is lost as a whole.
TEST(CoreTest, AForgottenJobIsOwedNoRows) {
  State state;
  state.options.keep_ended = 0;
  state.options.keep_ended_for = absl::ZeroDuration();
  absl::Time now = absl::UnixEpoch();
  SubmitJobRequest request;
  request.mutable_spec()->set_name("mlp");
  request.mutable_spec()->mutable_resources()->set_nodes(1);
  request.mutable_spec()->mutable_resources()->set_nproc_per_node(1);
  request.mutable_spec()->mutable_train();
  Step(state, Submitted{"j", request}, now);
  now += absl::Seconds(2);
  Effects effects = Step(state, CancelRequested{"j", true}, now);
  EXPECT_EQ(effects.rows.size(), 4);  // the job's row, its user's of the day, and the end of both
  SaveFailed(state, effects, now);
  EXPECT_TRUE(state.owed_jobs.empty());
  effects = Step(state, Tick{}, now);
  EXPECT_EQ(effects.rows.size(), 3);  // not the job's
}

}  // namespace
}  // namespace lockstep::coordinator
