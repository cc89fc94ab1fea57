// SPDX-License-Identifier: Apache-2.0
#include "worker/command/rank_process.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/descendants.h"
#include "gtest/gtest.h"

namespace lockstep::worker {
namespace {

// Commands tell through pipes where they are; to open one waits for the other side.
class RankProcessTest : public testing::Test {
 protected:
  void SetUp() override {
    RankProcess::BecomeReaper();
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
    for (const char* pipe : {"/ready", "/go", "/never"}) {
      ASSERT_EQ(::mkfifo((folder_ + pipe).c_str(), 0600), 0);
    }
  }
  void TearDown() override {
    process_.KillAll();
    std::filesystem::remove_all(folder_);
  }

  // Starts `script` of a shell, and waits until it has written to the pipe `ready`.
  void Start(const std::string& script) {
    const auto started =
        process_.Start({"/bin/sh", "-c", script}, {absl::StrCat("DIR=", folder_)}, {});
    ASSERT_TRUE(started.ok()) << started;
    std::string line;
    ASSERT_TRUE(std::getline(std::ifstream(folder_ + "/ready"), line));
  }
  void Go() { std::ofstream(folder_ + "/go") << "go\n"; }
  // Waits until a child has ended, and leaves it to be reaped: the command itself, or any.
  static void AwaitEnd(idtype_t which, pid_t pid) {
    siginfo_t info{};
    ASSERT_EQ(::waitid(which, static_cast<id_t>(pid), &info, WEXITED | WNOWAIT), 0);
  }
  bool Saved() const { return std::filesystem::exists(folder_ + "/saved"); }

  const std::string folder_ = absl::StrCat(testing::TempDir(), "/rank_process_test-", ::getpid());
  RankProcess process_;
};

// As `run: python3 train.py`: the shell ends at once, and what it runs saves.
constexpr char kSaves[] =
    "(trap '' TERM; echo ready >$DIR/ready; read go <$DIR/go; echo saved >$DIR/saved); true";

TEST_F(RankProcessTest, WhatAShellRunsMaySaveAfterTheShellHasEnded) {
  Start(kSaves);
  const pid_t shell = process_.pid();
  process_.Terminate();
  AwaitEnd(P_PID, shell);
  ASSERT_FALSE(process_.Reap().has_value());
  EXPECT_TRUE(process_.running());
  Go();
  AwaitEnd(P_ALL, 0);
  const auto end = process_.Reap();
  ASSERT_TRUE(end.has_value());
  EXPECT_EQ(end->signal, SIGTERM) << "as the command itself ended";
  EXPECT_TRUE(Saved());
  EXPECT_FALSE(process_.running());
}

TEST_F(RankProcessTest, NothingIsLeftWhenTheTimeIsOver) {
  Start(kSaves);
  const pid_t shell = process_.pid();
  process_.Terminate();
  AwaitEnd(P_PID, shell);
  ASSERT_FALSE(process_.Reap().has_value());
  process_.Kill();
  const auto end = process_.Reap();
  ASSERT_TRUE(end.has_value());
  EXPECT_EQ(end->signal, SIGTERM);
  EXPECT_FALSE(Saved());
  EXPECT_TRUE(ChildProcesses().empty());
}

TEST_F(RankProcessTest, MemoryIsCountedOfTheNewestCommandAlone) {
  constexpr int64_t kMuch = int64_t{64} << 20;
  const auto peak_of = [this](const std::string& script) {
    const auto started = process_.Start({"/bin/sh", "-c", script}, {}, {});
    EXPECT_TRUE(started.ok()) << started;
    AwaitEnd(P_PID, process_.pid());
    EXPECT_TRUE(process_.Reap().has_value());
    return process_.peak_rss_bytes();
  };
  // A buffer for a block, which is filled.
  EXPECT_GE(peak_of("dd if=/dev/zero of=/dev/null bs=64M count=1 2>/dev/null; true"), kMuch);
  const int64_t little = peak_of("true");
  EXPECT_GT(little, 0);
  EXPECT_LT(little, kMuch);
}

TEST_F(RankProcessTest, WhatLeftTheGroupIsNotWaitedFor) {
  Start("setsid sh -c 'echo ready >$DIR/ready; read go <$DIR/never' & wait");
  const pid_t shell = process_.pid();
  process_.Terminate();
  AwaitEnd(P_PID, shell);
  EXPECT_TRUE(process_.Reap().has_value());
  EXPECT_TRUE(ChildProcesses().empty());
}

TEST_F(RankProcessTest, ACommandThatEndsByItselfTakesAllWithIt) {
  Start("(trap '' TERM; echo ready >$DIR/ready; read go <$DIR/never) & read go <$DIR/go; exit 7");
  Go();
  AwaitEnd(P_PID, process_.pid());
  const auto end = process_.Reap();
  ASSERT_TRUE(end.has_value());
  EXPECT_EQ(end->code, 7);
  EXPECT_TRUE(ChildProcesses().empty());
}

}  // namespace
}  // namespace lockstep::worker
