// SPDX-License-Identifier: Apache-2.0
// The workers of one life of a job, whose steps are driven in turn, for tests of what saves and
// restores their state.
#ifndef LOCKSTEP_TESTS_UNIT_WORKER_CHECKPOINT_LIFE_H_
#define LOCKSTEP_TESTS_UNIT_WORKER_CHECKPOINT_LIFE_H_

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "checkpoint/checkpoint_folder.h"
#include "collectives/fake/fake_transport.h"
#include "gtest/gtest.h"
#include "tests/unit/checkpoint/recording_storage.h"
#include "tests/unit/engine/mlp_job.h"
#include "tests/unit/worker/group_members.h"
#include "worker/checkpoint/checkpointer.h"
#include "worker/checkpoint/folder_copies.h"
#include "worker/checkpoint/restore.h"

namespace lockstep::worker {

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
  Sharing before = Sharing::kUnknown;  // what it knows of its folder
  std::unique_ptr<Checkpointer> checkpointer;
};

// The workers of one life of a job, whose steps are driven in turn.
class Job {
 public:
  Job(const std::string& folder, int world, const std::string& run = "run",
      const std::string& run_dir = "", int keep = 2, std::vector<std::string> folders = {},
      const std::string& train = "{}", bool takes_over = false)
      : folder_(folder),
        folders_(std::move(folders)),
        run_dir_(run_dir),
        keep_(keep),
        takes_over_(takes_over),
        plan_(*engine::Plan::Compile(engine::SmallMlp())),
        ranks_(world) {
    identity_.run = run;
    identity_.train = train;
    identity_.plan_hash = plan_->hash();
    for (size_t r = 0; r < ranks_.size(); ++r) MakeRank(static_cast<int>(r));
    Connect();
  }

  // Ends the generation, if there is one, and begins the next.
  void Connect() {
    ++generation_;
    const std::vector<GroupMember> members =
        GroupMembers(ranks_, [](const Rank& rank) -> Transport& { return *rank.transport; });
    Each([&](int r, Rank& rank) {
      auto made = rank.transport->Connect({generation_, "job", "", members, static_cast<int>(r)},
                                          Deadline());
      ASSERT_TRUE(made.ok()) << made.status();
      rank.communicator = *std::move(made);
    });
  }
  void Enter() {
    for (Rank& rank : ranks_) {
      rank.checkpointer->Enter(*rank.communicator, rank.executor->committed_step(), "", copies_);
    }
  }
  // A rank dies; those behind it move up, and the next generation is without it.
  void Lose(int rank) {
    for (size_t next = static_cast<size_t>(rank) + 1; next < ranks_.size(); ++next) {
      std::swap(ranks_[next - 1], ranks_[next]);
    }
    ranks_.pop_back();
  }
  // Each rank is a host of its own, and looks where its folder is. `stated`: what the job says.
  void Look(const std::string& stated = "auto") {
    Generation generation;
    generation.set_generation(generation_);
    generation.set_secret("secret");
    for (size_t r = 0; r < ranks_.size(); ++r) {
      lockstep::Member& member = *generation.add_members();
      member.set_rank(static_cast<int32_t>(r));
      member.set_host(absl::StrCat("h", r));
      member.mutable_address()->set_node_id(absl::StrCat("node", r));
    }
    std::vector<FolderCopies> seen(ranks_.size());
    Each([&](int r, Rank& rank) {
      const auto looked = LookAtFolder(
          rank.communicator.get(), generation,
          {FolderOf(r), "checkpoint.dir", stated, &identity_, false, rank.storage.get(),
           [&rank] { return rank.checkpointer->CheckMounted(); }, &rank.before},
          rank.board.get(), &clock_, Deadline());
      ASSERT_TRUE(looked.ok()) << looked.status();
      seen[static_cast<size_t>(r)] = *looked;
    });
    copies_ = seen[0];
    for (const FolderCopies& each : seen) EXPECT_EQ(each.writers, copies_.writers);
  }
  const FolderCopies& copies() const { return copies_; }

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
      const engine::TestBatch batch = engine::MakeBatch(plan_->spec(), step, data_);
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
      if (std::filesystem::exists(folder_ + "/" + checkpoint::CheckpointName(step))) return true;
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
    Each([&](int r, Rank& rank) {
      ResumeSource source{FolderOf(r), resume,
                          identity_,   reproducible_,
                          run_dir_,    rank.storage.get(),
                          newest_,     previous_generation_,
                          copies_,     {}};
      source.check_mounted = [&rank] { return rank.checkpointer->CheckMounted(); };
      if (find_data_ != nullptr) {
        source.data = [this, r](const checkpoint::GoOn&) { return find_data_(r); };
      }
      results[r] = RestoreState(rank.communicator.get(), source,
                                {plan_.get(), rank.executor.get(), rank.state}, rank.board.get(),
                                &clock_, Deadline());
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
  // Sets what the coordinator says to a checkpoint that is to appear. On threads of the workers.
  void Ask(std::function<absl::Status(const checkpoint::Manifest&)> may_publish) {
    may_publish_ = std::move(may_publish);
  }
  // Sets what the coordinator knows of the job's checkpoints.
  void Know(int64_t generation, int64_t step, int64_t previous_generation) {
    newest_.emplace().set_generation(generation);
    newest_->set_step(step);
    previous_generation_ = previous_generation;
  }
  // Sets what each rank finds of the data, on its checkpoint thread or in Restore.
  void FindData(std::function<std::vector<checkpoint::DataRecord>(int rank)> find_data) {
    find_data_ = std::move(find_data);
  }
  // Finding it has no end, unless it is given up.
  void DataHasNoEnd() { endless_data_ = true; }
  // Sets what the steps train on; each number is other data.
  void TrainOn(int data) { data_ = data; }
  // The job says train.reproducible: false.
  void TakeOthers() { reproducible_ = false; }
  // Whether no rank has all of the state.
  void SetInParts(bool in_parts) { in_parts_ = in_parts; }
  // The next generation has the number after `generation`.
  void SetGeneration(int64_t generation) { generation_ = generation; }

 private:
  static absl::Time Deadline() { return absl::Now() + absl::Seconds(100); }

  template <typename Body>
  void Each(Body body) {
    std::vector<std::jthread> threads;
    for (size_t r = 0; r < ranks_.size(); ++r) {
      threads.emplace_back([&, r] { body(static_cast<int>(r), ranks_[r]); });
    }
  }

  std::string FolderOf(int rank) const {
    return folders_.empty() ? folder_ : folders_[static_cast<size_t>(rank)];
  }

  void MakeRank(int number) {
    Rank* const rank = &ranks_[static_cast<size_t>(number)];
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
    settings.folder = FolderOf(number);
    settings.host = absl::StrCat("h", number);
    settings.worker = absl::StrCat("w.", number);
    settings.run_dir = run_dir_;
    settings.keep = keep_;
    settings.takes_over = takes_over_;
    settings.every = absl::Seconds(30);
    settings.identity = identity_;
    settings.plan = plan_.get();
    settings.state = rank->state;
    settings.board = rank->board.get();
    settings.in_parts = [this] { return in_parts_; };
    settings.part_bytes = 1024;  // as many parts as workers
    settings.may_publish = [this](const checkpoint::Manifest& manifest, const std::string&) {
      return may_publish_ == nullptr ? absl::OkStatus() : may_publish_(manifest);
    };
    settings.data = [this, number](const checkpoint::GoOn& go_on) {
      while (endless_data_ && go_on()) std::this_thread::yield();
      return find_data_ == nullptr ? std::vector<checkpoint::DataRecord>() : find_data_(number);
    };
    rank->checkpointer = *Checkpointer::Create(settings);
  }

  const std::string folder_;
  const std::vector<std::string> folders_;  // by rank; empty: one for all
  const std::string run_dir_;
  const int keep_;
  const bool takes_over_;
  FolderCopies copies_;
  int data_ = 0;
  bool in_parts_ = false;
  FakeNetwork network_;
  FakeClock clock_;
  std::shared_ptr<const engine::Plan> plan_;
  checkpoint::Manifest identity_;
  Checkpointer::Decided decided_;
  int64_t generation_ = 0;
  std::function<absl::Status(const checkpoint::Manifest&)> may_publish_;
  std::function<std::vector<checkpoint::DataRecord>(int rank)> find_data_;
  bool endless_data_ = false;
  bool reproducible_ = true;
  std::optional<CheckpointMark> newest_;
  int64_t previous_generation_ = 0;
  std::vector<Rank> ranks_;  // last: their threads use the rest
};

// Has the disk of `rank` give nothing of a file or a folder that is read for the first time until
// its board moves.
inline void WaitForBoardInReads(Rank* rank) {
  const auto known = std::make_shared<std::set<std::string>>();
  rank->storage->BeforeReads([board = rank->board.get(), known](const std::string& path) {
    const int64_t moves = board->moves;
    const bool first = known->insert(path).second;
    while (first && board->moves == moves) std::this_thread::yield();
    return absl::OkStatus();
  });
}

class CheckpointerTest : public ::testing::Test {
 protected:
  CheckpointerTest()
      : folder_(::testing::TempDir() + "checkpointer-" + std::to_string(::getpid())) {
    std::filesystem::remove_all(folder_);
  }
  ~CheckpointerTest() override { std::filesystem::remove_all(folder_); }

  // Returns when the run has said in the folder, which has no checkpoint yet, that it is there, and
  // looked at it.
  static void Begin(Job* job) {
    absl::Notification looked;
    job->FindData([&looked](int) {
      looked.Notify();
      return std::vector<checkpoint::DataRecord>();
    });
    job->Enter();
    looked.WaitForNotification();
    job->FindData(nullptr);
  }

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
  // But for what says that a run that is still there has the folder.
  std::vector<std::string> Hidden() {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      const std::string name = entry.path().filename();
      if (name[0] == '.' && name.rfind(".run-", 0) != 0) names.push_back(name);
    }
    return names;
  }

  const std::string folder_;
};

}  // namespace lockstep::worker

#endif  // LOCKSTEP_TESTS_UNIT_WORKER_CHECKPOINT_LIFE_H_
