// SPDX-License-Identifier: Apache-2.0
// A supervisor that is gone, as the one that would start a process with it sees it.
#include "launcher/supervisor/supervisor_client.h"

#include <sys/socket.h>

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

TEST(WorkerProcessTest, ASupervisorThatDiesWhenItIsAskedHasASuccessor) {
  Pair dead = Connected();
  Pair next = Connected();
  dead.supervisor.reset();
  std::vector<std::shared_ptr<ProcessStarter>> starters = {next.client, dead.client};
  WorkerProcess::Node node;
  node.starter = [&](const std::string&) -> absl::StatusOr<std::shared_ptr<ProcessStarter>> {
    std::shared_ptr<ProcessStarter> starter = std::move(starters.back());
    starters.pop_back();
    return starter;
  };
  node.program = "/bin/true";
  node.own_run_folder = true;
  WorkerAssignment assignment;
  assignment.set_job_id("j");
  assignment.set_incarnation("j.0.1");
  const std::string folder = ::testing::TempDir() + "/supervisor_client_test";
  assignment.set_run_dir(folder);
  std::shared_ptr<LifePage> page = *LifePage::Create(1);
  WorkerProcess worker(&node, assignment, /*id=*/1, {.cluster_id = "c", .epoch = 1});
  ASSERT_TRUE(worker.Start(page).ok());
  EXPECT_THAT(starters, ::testing::IsEmpty());
  SupervisorCommand greeting, start;
  ASSERT_TRUE(ReceiveMessage(next.supervisor.get(), &greeting).ok());
  ASSERT_TRUE(ReceiveMessage(next.supervisor.get(), &start).ok());
  EXPECT_EQ(start.start().argv(0), "/bin/true");
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace lockstep::launcher
