// SPDX-License-Identifier: Apache-2.0
#include "worker/checkpoint/checkpointer.h"

#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "checkpoint/checkpoint_folder.h"
#include "collectives/fake/fake_transport.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/checkpoint/recording_storage.h"
#include "tests/unit/engine/mlp_job.h"
#include "tests/unit/worker/group_members.h"
#include "worker/checkpoint/restore.h"

namespace lockstep::worker {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

// A worker with an engine, its state, and what saves it.
struct Rank {
  std::unique_ptr<FakeTransport> transport;
  std::unique_ptr<engine::Pages> arena;
  std::unique_ptr<engine::Pages> gradients;
  std::unique_ptr<engine::Executor> executor;
  std::unique_ptr<checkpoint::RecordingStorage> storage;
  std::unique_ptr<ProgressBoard> board;
  std::unique_ptr<Communicator> communicator;
  void* state = nullptr;
  std::unique_ptr<Checkpointer> checkpointer;
};

// The workers of one life of a job, whose steps are driven in turn.
class Job {
 public:
  Job(const std::string& folder, int world, const std::string& run = "run")
      : folder_(folder), plan_(*engine::Plan::Compile(engine::SmallMlp())), ranks_(world) {
    identity_.run = run;
    identity_.train = "{}";
    identity_.plan_hash = plan_->hash();
    for (Rank& rank : ranks_) MakeRank(&rank);
    Connect();
  }

  // Ends the generation, if there is one, and begins the next.
  void Connect() {
    ++generation_;
    const std::vector<GroupMember> members =
        GroupMembers(ranks_, [](const Rank& rank) -> Transport& { return *rank.transport; });
    Each([&](int r, Rank& rank) {
      auto made = rank.transport->Connect(generation_, members, r, Deadline());
      ASSERT_TRUE(made.ok()) << made.status();
      rank.communicator = *std::move(made);
    });
  }
  void Enter() {
    for (Rank& rank : ranks_) {
      rank.checkpointer->Enter(*rank.communicator, rank.executor->committed_step(), false);
    }
  }

  // One step on all ranks; `due` asks for a checkpoint after it.
  void Step(bool due = false) {
    const int64_t step = ranks_[0].executor->committed_step() + 1;
    StepHeader::Contents header;
    for (Rank& rank : ranks_) {
      header.save |= rank.checkpointer->WantsSave();
      header.parts_durable += rank.checkpointer->part() == SavedPart::kDurable;
      header.parts_failed += rank.checkpointer->part() == SavedPart::kFailed;
    }
    for (Rank& rank : ranks_) {
      const engine::TestBatch batch = engine::MakeBatch(plan_->spec(), step, 0);
      float* gradients = rank.gradients->floats();
      ASSERT_TRUE(rank.executor->RunShard(step, 0, 0, batch.fields(), gradients, {}).ok());
      rank.checkpointer->WaitForCopy();
      const engine::GradientSlice whole{0, plan_->gradient_count(), gradients};
      rank.executor->Update(step, absl::MakeConstSpan(&whole, 1)).value();
    }
    for (Rank& rank : ranks_) rank.checkpointer->AtBoundary(step, due, header, decided_);
  }
  // Steps until the checkpoint of `step` is there. Returns whether it came.
  bool StepUntilSaved(int64_t step) {
    for (int i = 0; i < 100'000; ++i) {
      if (fs::exists(folder_ + "/" + checkpoint::CheckpointName(step))) return true;
      Step();
    }
    return false;
  }
  void Complete() {
    Each([&](int, Rank& rank) {
      EXPECT_TRUE(rank.checkpointer
                      ->Complete(rank.communicator.get(), rank.executor->committed_step(), decided_,
                                 Deadline())
                      .ok());
    });
  }
  std::vector<absl::StatusOr<std::optional<Restored>>> Restore(const std::string& resume) {
    std::vector<absl::StatusOr<std::optional<Restored>>> results(ranks_.size(),
                                                                 absl::UnknownError(""));
    const ResumeSource source{folder_, resume, identity_, true};
    Each([&](int r, Rank& rank) {
      results[r] = RestoreState(rank.communicator.get(), source,
                                {plan_.get(), rank.executor.get(), rank.state}, rank.board.get(),
                                Deadline());
    });
    return results;
  }

  std::string State(int rank = 0) const {
    return std::string(static_cast<const char*>(ranks_[rank].state), plan_->state_bytes());
  }
  std::vector<Rank>& ranks() { return ranks_; }
  checkpoint::Manifest& identity() { return identity_; }
  Checkpointer::Decided& decided() { return decided_; }
  FakeClock* clock() { return &clock_; }

 private:
  static absl::Time Deadline() { return absl::Now() + absl::Seconds(100); }

  template <typename Body>
  void Each(Body body) {
    std::vector<std::jthread> threads;
    for (size_t r = 0; r < ranks_.size(); ++r) {
      threads.emplace_back([&, r] { body(static_cast<int>(r), ranks_[r]); });
    }
  }

  void MakeRank(Rank* rank) {
    rank->transport = std::make_unique<FakeTransport>(&network_, plan_->state_bytes() + 4096);
    rank->state = *rank->transport->Allocate(plan_->state_bytes(), "the state");
    rank->arena = std::make_unique<engine::Pages>(plan_->arena_bytes());
    rank->gradients = std::make_unique<engine::Pages>(plan_->gradient_count() * 4);
    rank->executor = *engine::Executor::Create(plan_, {rank->state, rank->arena->data()});
    rank->executor->InitState();
    rank->storage = std::make_unique<checkpoint::RecordingStorage>();
    rank->board = std::make_unique<ProgressBoard>();
    Checkpointer::Settings settings;
    settings.storage = rank->storage.get();
    settings.clock = &clock_;
    settings.folder = folder_;
    settings.keep = 2;
    settings.every = absl::Seconds(30);
    settings.identity = identity_;
    settings.plan = plan_.get();
    settings.state = rank->state;
    settings.board = rank->board.get();
    settings.part_bytes = 1024;  // as many parts as workers
    rank->checkpointer = *Checkpointer::Create(settings);
  }

  const std::string folder_;
  FakeNetwork network_;
  FakeClock clock_;
  std::shared_ptr<const engine::Plan> plan_;
  checkpoint::Manifest identity_;
  Checkpointer::Decided decided_;
  int64_t generation_ = 0;
  std::vector<Rank> ranks_;
};

class CheckpointerTest : public ::testing::Test {
 protected:
  CheckpointerTest() : folder_(std::string(::testing::TempDir()) + "/checkpointer") {
    fs::remove_all(folder_);
  }
  ~CheckpointerTest() override { fs::remove_all(folder_); }

  // The step that a life with `world` workers goes on after; -1: from the start.
  int64_t Resumed(int world, const std::string& resume, const std::string& wanted_state,
                  const std::string& run = "run") {
    Job job(folder_, world, run);
    int64_t step = -1;
    for (const auto& restored : job.Restore(resume)) {
      EXPECT_TRUE(restored.ok()) << restored.status();
      if (restored->has_value()) step = (*restored)->manifest.step;
    }
    for (int r = 0; r < world && step >= 0; ++r) {
      EXPECT_EQ(job.State(r), wanted_state) << "rank " << r << " of " << world;
      EXPECT_EQ(job.ranks()[r].executor->committed_step(), step);
    }
    return step;
  }
  void Flip(const std::string& name) {
    std::fstream file(folder_ + "/" + name, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-2, std::ios::end);
    file.put('\x5a');
  }
  std::vector<std::string> Hidden() {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_)) {
      const std::string name = entry.path().filename();
      if (name[0] == '.') names.push_back(name);
    }
    return names;
  }

  const std::string folder_;
};

TEST_F(CheckpointerTest, AnyNumberOfWorkersReadsWhatAnyNumberWrote) {
  for (const int writers : {1, 2, 3}) {
    fs::remove_all(folder_);
    std::string state;
    {
      Job job(folder_, writers);
      job.Enter();
      for (int i = 0; i < 5; ++i) job.Step();
      EvalResult eval;
      eval.set_step(4);
      eval.set_loss(0.1);
      job.decided() = {eval, 4, 3};
      job.Complete();
      state = job.State();
    }
    for (const int readers : {1, 2, 4}) EXPECT_EQ(Resumed(readers, "auto", state), 5);
    const auto found = checkpoint::FindCheckpoints(checkpoint::Storage::Disk(), folder_);
    ASSERT_EQ(found->checkpoints.size(), 1u);
    const checkpoint::Manifest& manifest = found->checkpoints[0].manifest;
    EXPECT_EQ(manifest.files.size(), writers == 1 ? 2u : 2u * writers + 1);
    EXPECT_EQ(manifest.evaluated_step, 4);
    EXPECT_EQ(manifest.best_step, 3);
    EXPECT_EQ(EvaluationOf(manifest)->loss(), 0.1);
    EXPECT_TRUE(Hidden().empty());
  }
}

TEST_F(CheckpointerTest, HoldsTheStateOfItsStepWhileTrainingGoesOn) {
  for (const int world : {1, 3}) {
    fs::remove_all(folder_);
    Job job(folder_, world);
    job.Enter();
    job.Step();
    job.Step(/*due=*/true);
    const std::string state = job.State();
    ASSERT_TRUE(job.StepUntilSaved(2));
    EXPECT_NE(job.State(), state);
    EXPECT_EQ(Resumed(2, "auto", state), 2);
  }
}

TEST_F(CheckpointerTest, OneThatFallsDueMeanwhileIsSavedAfterIt) {
  Job job(folder_, 2);
  job.Enter();
  job.Step(/*due=*/true);
  job.Step(/*due=*/true);  // the first is under way
  ASSERT_TRUE(job.StepUntilSaved(1));
  int64_t second = 0;
  for (int i = 0; i < 100'000 && second == 0; ++i) {
    job.Step();
    const auto found = checkpoint::FindCheckpoints(checkpoint::Storage::Disk(), folder_);
    if (!found->checkpoints.empty()) second = found->checkpoints[0].manifest.step;
    if (second == 1) second = 0;
  }
  EXPECT_GT(second, 2);
}

TEST_F(CheckpointerTest, WishesByTheClock) {
  Job job(folder_, 1);
  job.Enter();
  Checkpointer& checkpointer = *job.ranks()[0].checkpointer;
  job.Step();
  EXPECT_FALSE(checkpointer.WantsSave());
  job.clock()->Advance(absl::Seconds(30));
  EXPECT_TRUE(checkpointer.WantsSave());
  job.Step();  // the wish rides in it
  EXPECT_FALSE(checkpointer.WantsSave());
  EXPECT_TRUE(job.StepUntilSaved(2));
}

TEST_F(CheckpointerTest, AFullDiskOfAnyRankCostsTheCheckpointAlone) {
  for (const int world : {1, 3}) {
    for (int broken = 0; broken < world; ++broken) {
      fs::remove_all(folder_);
      Job job(folder_, world);
      job.Enter();
      job.Step();
      job.Complete();
      const std::string state = job.State();
      job.Step();
      job.ranks()[broken].storage->FailAt(2, /*all=*/true);
      job.Complete();
      EXPECT_EQ(Resumed(2, "auto", state), 1);
      job.ranks()[broken].storage->FailAt(-1, false);
      job.Step();
      job.Complete();
      EXPECT_EQ(Resumed(2, "auto", job.State()), 3);
      EXPECT_TRUE(Hidden().empty());
    }
  }
}

TEST_F(CheckpointerTest, WhatAGenerationsEndCutShortIsSavedInTheNext) {
  Job job(folder_, 2);
  job.Enter();
  job.Step(/*due=*/true);
  // Nobody tells that the parts are durable: the generation ends.
  job.Connect();
  job.Enter();
  const auto saved = [&] {
    return !checkpoint::FindCheckpoints(checkpoint::Storage::Disk(), folder_)->checkpoints.empty();
  };
  for (int i = 0; i < 100'000 && !saved(); ++i) job.Step();
  EXPECT_TRUE(saved());
}

TEST_F(CheckpointerTest, ADamagedOneIsLeftForTheOneBefore) {
  std::string first;
  Job job(folder_, 2);
  job.Enter();
  job.Step();
  job.Complete();
  first = job.State();
  job.Step();
  job.Complete();
  EXPECT_EQ(Resumed(3, "auto", job.State()), 2);
  Flip("step-0000000002/training-00002-of-00002.safetensors");
  EXPECT_EQ(Resumed(3, "auto", first), 1);
  fs::remove(folder_ + "/step-0000000001/manifest.json");
  EXPECT_EQ(Resumed(2, "auto", first), -1) << "none is whole: from the start";
}

TEST_F(CheckpointerTest, WhereARunLooks) {
  Job job(folder_, 1);
  job.Enter();
  job.Step();
  job.Complete();
  const std::string state = job.State();
  EXPECT_EQ(Resumed(2, "never", state, "another run"), -1);
  EXPECT_EQ(Resumed(2, "never", state), 1) << "its own, after the loss of all its workers";
  const std::string moved = folder_ + "/moved";
  fs::create_directory(moved);
  fs::rename(folder_ + "/step-0000000001", moved + "/step-0000000001");
  EXPECT_EQ(Resumed(2, "auto", state), -1);
  EXPECT_EQ(Resumed(2, moved, state), 1);
  EXPECT_EQ(Resumed(2, moved + "/step-0000000001", state), 1);
  Job missing(folder_, 2);
  const auto results = missing.Restore(folder_ + "/nowhere");
  EXPECT_EQ(results[0].status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(results[1].status().code(), absl::StatusCode::kAborted);
  Flip("moved/step-0000000001/model.safetensors");
  Job damaged(folder_, 2);
  EXPECT_EQ(damaged.Restore(moved)[0].status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(CheckpointerTest, AnotherJobsIsRefused) {
  {
    Job job(folder_, 1);
    job.Enter();
    job.Step();
    job.Complete();
  }
  Job other(folder_, 2);
  other.identity().plan_hash = "another";
  const std::string before = other.State();
  const auto results = other.Restore("auto");
  EXPECT_EQ(results[0].status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(results[0].status().message(), HasSubstr("another plan"));
  EXPECT_EQ(results[1].status().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(other.State(), before);
}

}  // namespace
}  // namespace lockstep::worker
