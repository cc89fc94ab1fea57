// SPDX-License-Identifier: Apache-2.0
// A supervisor that is gone, as the one that would start a process with it sees it.
#include "launcher/supervisor/supervisor_client.h"

#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/fd.h"
#include "common/life.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
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
    node_.on_lines = [](WorkerProcess*, bool, const std::vector<std::string>&) {};
    node_.program = "/bin/true";
    node_.own_run_folder = true;
    assignment_.set_job_id("j");
    assignment_.set_incarnation("j.0.1");
    assignment_.set_run_dir(folder_);
  }
  ~WorkerProcessTest() override { std::filesystem::remove_all(folder_); }

  // Returns what comes after the greeting.
  static std::vector<UniqueFd> ReceiveStart(const Pair& pair, SupervisorCommand* start) {
    EXPECT_TRUE(ReceiveMessage(pair.supervisor.get(), start).ok());
    EXPECT_TRUE(start->has_greeting());
    auto fds = ReceiveMessage(pair.supervisor.get(), start);
    EXPECT_TRUE(fds.ok()) << fds.status();
    return *std::move(fds);
  }

  const std::string folder_;
  std::vector<std::shared_ptr<ProcessStarter>> starters_;  // the next one is the last
  WorkerProcess::Node node_;
  WorkerAssignment assignment_;
  std::shared_ptr<LifePage> page_ = *LifePage::Create(1);
};

TEST_F(WorkerProcessTest, ASupervisorThatDiesWhenItIsAskedHasASuccessor) {
  Pair dead = Connected();
  Pair next = Connected();
  dead.supervisor.reset();
  starters_ = {next.client, dead.client};
  WorkerProcess worker(&node_, assignment_, /*id=*/1, {.cluster_id = "c", .epoch = {1}});
  ASSERT_TRUE(worker.Start(page_).ok());
  EXPECT_THAT(starters_, ::testing::IsEmpty());
  SupervisorCommand start;
  ReceiveStart(next, &start);
  EXPECT_EQ(start.start().argv(0), "/bin/true");
}

TEST_F(WorkerProcessTest, WhatTheAgentShowsAndWhatItWasGivenIsNotTheJobsToSee) {
  Pair pair = Connected();
  starters_ = {pair.client};
  WorkerProcess worker(&node_, assignment_, /*id=*/1, {.cluster_id = "c", .epoch = {1}});
  ASSERT_TRUE(worker.Start(page_).ok());
  SupervisorCommand start;
  ReceiveStart(pair, &start);
  EXPECT_THAT(start.start().unset_env(),
              ::testing::IsSupersetOf({"LOCKSTEP_TOKEN", "LOCKSTEP_TOKEN_FILE",
                                       "CREDENTIALS_DIRECTORY", "NOTIFY_SOCKET"}));
}

// The supervisor has the read ends as well, so epoll would go on telling of one that is closed
// here: it is to be forgotten first.
TEST_F(WorkerProcessTest, AStreamThatHasEndedStaysOpenUntilTheEndIsKnown) {
  Pair pair = Connected();
  starters_ = {pair.client};
  WorkerProcess worker(&node_, assignment_, /*id=*/1, {.cluster_id = "c", .epoch = {1}});
  ASSERT_TRUE(worker.Start(page_).ok());
  SupervisorCommand start;
  std::vector<UniqueFd> fds = ReceiveStart(pair, &start);
  ASSERT_GE(fds.size(), size_t{4});
  ASSERT_EQ(::write(fds[0].get(), "last", 4), 4);
  fds[0].reset();  // stdout's write end
  EXPECT_FALSE(worker.ReadOutput(0));
  EXPECT_GE(worker.output_fd(0), 0);
  EXPECT_TRUE(worker.ReadOutput(1));
  worker.FinishOutput();
  EXPECT_LT(worker.output_fd(0), 0);
  EXPECT_THAT(worker.LastOutput(), ::testing::ElementsAre("last"));
}

}  // namespace
}  // namespace lockstep::launcher
