// SPDX-License-Identifier: Apache-2.0
// A supervisor that is gone, as the one that would start a process with it sees it.
#include "launcher/supervisor/supervisor_client.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "common/fd.h"
#include "common/life.h"
#include "common/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launcher/agent/run_folder.h"
#include "launcher/agent/worker_process.h"
#include "launcher/spawner/wire.h"
#include "launcher/supervisor/wire.h"
#include "proto/supervisor.pb.h"

namespace lockstep::launcher {
namespace {

// A client whose reports nobody reads, as if its thread were not scheduled, and the other end.
struct Pair {
  std::shared_ptr<SupervisorClient> client;
  UniqueFd supervisor;
};

Pair Connected() {
  int fds[2];
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds), 0);
  Pair pair;
  pair.client = *SupervisorClient::Greet(UniqueFd(fds[0]), /*child=*/-1);
  pair.supervisor.reset(fds[1]);
  return pair;
}

TEST(SupervisorClientTest, OneThatIsGoneIsNotUsableFromThatMomentOn) {
  Pair pair = Connected();
  EXPECT_TRUE(pair.client->usable());
  pair.supervisor.reset();
  EXPECT_FALSE(pair.client->usable());
}

class WorkerProcessTest : public ::testing::Test {
 protected:
  WorkerProcessTest() : folder_(::testing::TempDir() + "/supervisor_client_test") {
    node_.starter = [this](const std::string&) -> absl::StatusOr<std::shared_ptr<ProcessStarter>> {
      std::shared_ptr<ProcessStarter> starter = std::move(starters_.back());
      starters_.pop_back();
      return starter;
    };
    node_.disk = [this](const std::string&) { return disk_; };
    node_.open_log = OpenRunLog;
    node_.on_lines = [](WorkerProcess*, bool, const std::vector<std::string>&) {};
    node_.program = "/bin/true";
    node_.own_run_folder = true;
    assignment_.set_job_id("j");
    assignment_.set_incarnation("j.0.1");
    assignment_.set_run_dir(folder_);
  }
  ~WorkerProcessTest() override {
    worker_.reset();
    disk_.reset();  // what it still does is of the node
    std::filesystem::remove_all(folder_);
  }

  // As its agent starts it.
  absl::Status Start(WorkerProcess& worker) {
    absl::Notification opened;
    WorkerProcess::Log log = absl::UnknownError("it is not opened");
    worker.OpenLog([&](const WorkerProcess::Log& result) {
      log = result;
      opened.Notify();
    });
    opened.WaitForNotification();
    LS_RETURN_IF_ERROR(log.status());
    return worker.Start(page_, *log);
  }

  // Returns what comes after the greeting.
  static std::vector<UniqueFd> ReceiveStart(const Pair& pair, SupervisorCommand* start) {
    EXPECT_TRUE(ReceiveMessage(pair.supervisor.get(), start).ok());
    EXPECT_TRUE(start->has_greeting());
    auto fds = ReceiveMessage(pair.supervisor.get(), start);
    EXPECT_TRUE(fds.ok()) << fds.status();
    return *std::move(fds);
  }

  // A worker that a supervisor was asked to start, and how.
  void StartOne() {
    pair_.emplace(Connected());
    starters_ = {pair_->client};
    worker_ = std::make_unique<WorkerProcess>(
        &node_, assignment_, /*id=*/1, WorkerProcess::Origin{.cluster_id = "c", .epoch = {1}});
    ASSERT_TRUE(Start(*worker_).ok());
    fds_ = ReceiveStart(*pair_, &start_);
  }

  const std::string folder_;
  std::shared_ptr<RunDisk> disk_ = std::make_shared<RunDisk>();
  std::vector<std::shared_ptr<ProcessStarter>> starters_;  // the next one is the last
  WorkerProcess::Node node_;
  WorkerAssignment assignment_;
  std::shared_ptr<LifePage> page_ = *LifePage::Create(1);
  std::optional<Pair> pair_;
  std::unique_ptr<WorkerProcess> worker_;
  SupervisorCommand start_;
  std::vector<UniqueFd> fds_;
};

TEST_F(WorkerProcessTest, ASupervisorThatDiesWhenItIsAskedHasASuccessor) {
  Pair dead = Connected();
  Pair next = Connected();
  dead.supervisor.reset();
  starters_ = {next.client, dead.client};
  WorkerProcess worker(&node_, assignment_, /*id=*/1, {.cluster_id = "c", .epoch = {1}});
  ASSERT_TRUE(Start(worker).ok());
  EXPECT_THAT(starters_, ::testing::IsEmpty());
  SupervisorCommand start;
  ReceiveStart(next, &start);
  EXPECT_EQ(start.start().argv(0), "/bin/true");
}

TEST_F(WorkerProcessTest, WhatTheAgentShowsAndWhatItWasGivenIsNotTheJobsToSee) {
  StartOne();
  EXPECT_THAT(start_.start().unset_env(),
              ::testing::IsSupersetOf({"LOCKSTEP_TOKEN", "LOCKSTEP_TOKEN_FILE",
                                       "CREDENTIALS_DIRECTORY", "NOTIFY_SOCKET"}));
}

// What its user's service manager gave a launcher is the run's.
TEST_F(WorkerProcessTest, ARunOfItsUsersOwnLacksTheTokenAlone) {
  node_.is_private = true;
  StartOne();
  EXPECT_THAT(start_.start().unset_env(),
              ::testing::UnorderedElementsAre("LOCKSTEP_TOKEN", "LOCKSTEP_TOKEN_FILE"));
}

// The supervisor has the read ends as well, so epoll would go on telling of one that is closed
// here: it is to be forgotten first.
TEST_F(WorkerProcessTest, AStreamThatHasEndedStaysOpenUntilTheEndIsKnown) {
  StartOne();
  ASSERT_GE(fds_.size(), size_t{4});
  ASSERT_EQ(::write(fds_[0].get(), "last", 4), 4);
  fds_[0].reset();  // stdout's write end
  EXPECT_FALSE(worker_->ReadOutput(0));
  EXPECT_GE(worker_->output_fd(0), 0);
  EXPECT_TRUE(worker_->ReadOutput(1));
  worker_->FinishOutput();
  EXPECT_LT(worker_->output_fd(0), 0);
  EXPECT_THAT(worker_->LastOutput(), ::testing::ElementsAre("last"));
}

TEST_F(WorkerProcessTest, WhatWaitsForADiskIsCountedWithWhatItTakesToWait) {
  StartOne();
  absl::Notification answers;
  disk_->Do([&] { answers.WaitForNotification(); });
  size_t lines = 0;
  for (; disk_->has_room() && lines < RunDisk::kRoom / 100; ++lines) {
    ASSERT_EQ(::write(fds_[0].get(), "\n", 1), 1);
    EXPECT_TRUE(worker_->ReadOutput(0));
  }
  EXPECT_FALSE(disk_->has_room()) << lines << " lines of no letter, read one by one";
  answers.Notify();
  EXPECT_TRUE(disk_->Settle(absl::Seconds(10)));
}

TEST_F(WorkerProcessTest, WhatWasNotLoggedWithoutAnAgentIsLoggedByTheNextOne) {
  Pair pair = Connected();
  const std::string path = ::testing::TempDir() + "/adopted.log";
  SupervisorClient::Kept kept;
  for (int i = 0; i < 2; ++i) kept.fds.emplace_back(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  kept.fds.emplace_back(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  kept.process.set_lost_lines(2);
  for (const bool unlogged : {false, true}) {
    PrintedLine* const line = kept.process.add_lines();
    line->set_text(unlogged ? "it waited" : "it is there");
    line->set_unlogged(unlogged);
  }
  WorkerProcess worker(&node_, assignment_, /*id=*/1, {.cluster_id = "c", .epoch = {1}});
  worker.Adopt(pair.client, std::move(kept), page_, /*life_slot=*/0);
  EXPECT_TRUE(disk_->Settle(absl::Seconds(20)));
  std::ostringstream log;
  log << std::ifstream(path).rdbuf();
  EXPECT_EQ(log.str(), "[2 lines are missing here: this log could not be written]\nit waited\n");
  EXPECT_THAT(worker.LastOutput(), ::testing::ElementsAre("it is there", "it waited"));
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace lockstep::launcher
