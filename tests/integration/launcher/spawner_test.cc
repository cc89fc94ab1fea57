// SPDX-License-Identifier: Apache-2.0
// The real spawner with small shell children.
#include "launcher/spawner/spawner.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "common/fd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::launcher {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kLong = absl::Seconds(60);

// What became of one process. It outlives the spawner, which may tell it of the process's end when
// the test has gone on already.
struct Outcome {
  absl::Notification done;
  pid_t pid = 0;
  absl::Status failed;
  bool of_folder = false;
  Spawner::Exit exit;

  Spawner::Callbacks Callbacks() {
    return {.on_started = [this](pid_t started) { pid = started; },
            .on_failed =
                [this](const Spawner::Failure& failure) {
                  failed = failure.why;
                  of_folder = failure.of_folder;
                  done.Notify();
                },
            .on_exit =
                [this](const Spawner::Exit& how) {
                  exit = how;
                  done.Notify();
                }};
  }
};

struct Pipe {
  Pipe() {
    int fds[2];
    EXPECT_EQ(::pipe2(fds, O_CLOEXEC), 0);
    read_end.reset(fds[0]);
    write_end.reset(fds[1]);
  }
  // Everything until all writers are gone, or for kLong.
  std::string ReadAll() {
    write_end.reset();
    std::string text;
    const absl::Time deadline = absl::Now() + kLong;
    char buffer[4096];
    while (true) {
      pollfd fd{read_end.get(), POLLIN, 0};
      const int64_t left = absl::ToInt64Milliseconds(deadline - absl::Now());
      if (left <= 0 || ::poll(&fd, 1, static_cast<int>(left)) <= 0) return text + "<timeout>";
      const ssize_t n = ::read(read_end.get(), buffer, sizeof(buffer));
      if (n <= 0) return text;
      text.append(buffer, static_cast<size_t>(n));
    }
  }
  std::string ReadLine() {
    std::string line;
    char c;
    pollfd fd{read_end.get(), POLLIN, 0};
    while (::poll(&fd, 1, static_cast<int>(absl::ToInt64Milliseconds(kLong))) > 0 &&
           ::read(read_end.get(), &c, 1) == 1 && c != '\n')
      line += c;
    return line;
  }
  UniqueFd read_end, write_end;
};

Spawner::Request Shell(const std::string& script) { return {.argv = {"/bin/sh", "-c", script}}; }

bool Exists(pid_t pid) { return ::kill(pid, 0) == 0; }

bool Eventually(const std::function<bool()>& holds) {
  const absl::Time deadline = absl::Now() + kLong;
  while (!holds()) {
    if (absl::Now() > deadline) return false;
    absl::SleepFor(absl::Milliseconds(2));
  }
  return true;
}

std::unique_ptr<Spawner> ForkSpawner() {
  auto spawner = Spawner::Fork();
  EXPECT_TRUE(spawner.ok()) << spawner.status();
  return *std::move(spawner);
}

TEST(SpawnerTest, ReportsExitCodesAndSignals) {
  Outcome seven, killed;
  auto spawner = ForkSpawner();
  ASSERT_TRUE(spawner->Spawn(Shell("exit 7"), seven.Callbacks()).ok());
  ASSERT_TRUE(spawner->Spawn(Shell("kill -SEGV $$"), killed.Callbacks()).ok());
  ASSERT_TRUE(seven.done.WaitForNotificationWithTimeout(kLong));
  ASSERT_TRUE(killed.done.WaitForNotificationWithTimeout(kLong));
  EXPECT_EQ(seven.exit.code, 7);
  EXPECT_EQ(seven.exit.signal, 0);
  EXPECT_EQ(killed.exit.signal, SIGSEGV);
  EXPECT_GT(killed.exit.peak_rss_bytes, 0);
  EXPECT_GT(seven.pid, 0);
}

TEST(SpawnerTest, SaysWhyAProcessCannotStart) {
  Outcome no_program, no_folder;
  auto spawner = ForkSpawner();
  ASSERT_TRUE(spawner->Spawn({.argv = {"/nonexistent/program"}}, no_program.Callbacks()).ok());
  Spawner::Request request = Shell("true");
  request.cwd = "/nonexistent";
  ASSERT_TRUE(spawner->Spawn(request, no_folder.Callbacks()).ok());
  ASSERT_TRUE(no_program.done.WaitForNotificationWithTimeout(kLong));
  ASSERT_TRUE(no_folder.done.WaitForNotificationWithTimeout(kLong));
  EXPECT_TRUE(absl::IsNotFound(no_program.failed)) << no_program.failed;
  EXPECT_THAT(std::string(no_program.failed.message()), HasSubstr("exec"));
  EXPECT_FALSE(no_program.of_folder);
  EXPECT_THAT(std::string(no_folder.failed.message()), HasSubstr("chdir"));
  EXPECT_TRUE(no_folder.of_folder);
}

TEST(SpawnerTest, ChildrenGetTheirDescriptorsAndNothingElse) {
  const UniqueFd leak(::open("/dev/null", O_RDONLY));  // inheritable
  ASSERT_EQ(::fcntl(leak.get(), F_DUPFD, 9), 9);       // also under a number that could collide
  Outcome outcome;
  auto spawner = ForkSpawner();
  Pipe out, err, extra;
  Spawner::Request request =
      Shell("echo o; echo e >&2; cat <&3; ls /proc/self/fd | tr '\\n' ' '; readlink /proc/$$/fd/0");
  request.stdout_fd = out.write_end.get();
  request.stderr_fd = err.write_end.get();
  request.fds = {extra.read_end.get()};
  ASSERT_EQ(::write(extra.write_end.get(), "x\n", 2), 2);
  extra.write_end.reset();
  ASSERT_TRUE(spawner->Spawn(request, outcome.Callbacks()).ok());
  // ls itself opens the folder as 4.
  EXPECT_EQ(out.ReadAll(), "o\nx\n0 1 2 3 4 /dev/null\n");
  EXPECT_EQ(err.ReadAll(), "e\n");
  ::close(9);
}

TEST(SpawnerTest, ChildrenStartWithTheirEnvironmentFolderAndSignals) {
  ::setenv("LOCKSTEP_TEST_KEPT", "kept", 1);
  ::setenv("LOCKSTEP_TEST_GONE", "x", 1);
  ::signal(SIGUSR1, SIG_IGN);
  Outcome outcome;
  auto spawner = ForkSpawner();
  ::signal(SIGUSR1, SIG_DFL);
  Pipe out;
  Spawner::Request request = Shell(
      "echo $LOCKSTEP_TEST_KEPT $LOCKSTEP_TEST_SET ${LOCKSTEP_TEST_GONE-unset} $(pwd); "
      "grep -E 'Sig(Blk|Ign)' /proc/self/status");
  request.set_env = {"LOCKSTEP_TEST_SET=a b"};
  request.unset_env = {"LOCKSTEP_TEST_GONE"};
  request.cwd = "/usr";
  request.stdout_fd = request.stderr_fd = out.write_end.get();
  ASSERT_TRUE(spawner->Spawn(request, outcome.Callbacks()).ok());
  // SIGXFSZ alone is ignored.
  EXPECT_EQ(out.ReadAll(),
            "kept a b unset /usr\nSigBlk:\t0000000000000000\nSigIgn:\t0000000001000000\n");
}

TEST(SpawnerTest, ChildrenMayOpenAsManyFilesAsTheHardLimitSays) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit low{64, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &low), 0);
  Outcome outcome;
  auto spawner = ForkSpawner();
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  Pipe out;
  Spawner::Request request = Shell("ulimit -Sn; ulimit -Hn");
  request.stdout_fd = request.stderr_fd = out.write_end.get();
  ASSERT_TRUE(spawner->Spawn(request, outcome.Callbacks()).ok());
  const std::string text = out.ReadAll();
  const std::string soft = text.substr(0, text.find('\n') + 1);
  EXPECT_EQ(text, soft + soft);
}

TEST(SpawnerTest, LongCommandsFit) {
  Outcome outcome;
  auto spawner = ForkSpawner();
  const std::string big(100000, 'x');
  Pipe out;
  Spawner::Request request = Shell("echo ${#LOCKSTEP_TEST_BIG}");
  request.set_env = {absl::StrCat("LOCKSTEP_TEST_BIG=", big)};
  request.stdout_fd = request.stderr_fd = out.write_end.get();
  ASSERT_TRUE(spawner->Spawn(request, outcome.Callbacks()).ok());
  EXPECT_EQ(out.ReadAll(), "100000\n");
}

TEST(SpawnerTest, ManyAtOnceDoNotBlock) {
  constexpr int kMany = 600;
  std::vector<std::unique_ptr<Outcome>> outcomes;
  auto spawner = ForkSpawner();
  for (int i = 0; i < kMany; ++i) {
    outcomes.push_back(std::make_unique<Outcome>());
    ASSERT_TRUE(spawner->Spawn({.argv = {"/bin/true"}}, outcomes.back()->Callbacks()).ok());
  }
  for (const auto& outcome : outcomes) {
    ASSERT_TRUE(outcome->done.WaitForNotificationWithTimeout(kLong));
    EXPECT_TRUE(outcome->failed.ok()) << outcome->failed;
  }
}

TEST(SpawnerTest, KillReachesTheWholeGroup) {
  Outcome outcome;
  auto spawner = ForkSpawner();
  Pipe out;
  Spawner::Request request = Shell("sleep 1000 & echo started; wait");
  request.stdout_fd = request.stderr_fd = out.write_end.get();
  const auto id = spawner->Spawn(request, outcome.Callbacks());
  ASSERT_TRUE(id.ok());
  out.write_end.reset();
  ASSERT_EQ(out.ReadLine(), "started");
  ASSERT_TRUE(spawner->Kill(*id, SIGTERM).ok());
  ASSERT_TRUE(outcome.done.WaitForNotificationWithTimeout(kLong));
  EXPECT_EQ(outcome.exit.signal, SIGTERM);
  EXPECT_EQ(out.ReadAll(), "");  // the sleep held the pipe too
}

TEST(SpawnerTest, WhatAnEndedProcessLeavesInItsGroupIsKilled) {
  Outcome outcome;
  auto spawner = ForkSpawner();
  Pipe out;
  Spawner::Request request = Shell("sleep 1000 & exit 0");
  request.stdout_fd = request.stderr_fd = out.write_end.get();
  ASSERT_TRUE(spawner->Spawn(request, outcome.Callbacks()).ok());
  EXPECT_EQ(out.ReadAll(), "");
}

// A stand-in for a launcher in a process of its own: a spawner, and a child that leaves a daemon in
// its own session. The test holds the read end of the pipe that all of them inherit.
pid_t ForkLauncher(Pipe* out, const std::string& script, const std::string& folder) {
  const pid_t pid = ::fork();
  if (pid != 0) return pid;
  auto spawner = Spawner::Fork();
  if (!spawner.ok()) ::_exit(1);
  if (!folder.empty()) {
    (*spawner)->RemoveDirAtEnd(folder).IgnoreError();
    (*spawner)->RemoveFileAtEnd(folder + "/sock").IgnoreError();
  }
  Spawner::Request request = Shell(script);
  request.stdout_fd = request.stderr_fd = out->write_end.get();
  (*spawner)->Spawn(request, {}).IgnoreError();
  while (true) ::pause();
}

TEST(SpawnerTest, NothingOutlivesAKilledLauncher) {
  char folder[] = "/tmp/lockstep-test-XXXXXX";
  ASSERT_NE(::mkdtemp(folder), nullptr);
  std::ofstream(std::string(folder) + "/sock") << "x";
  Pipe out;
  const pid_t launcher = ForkLauncher(
      &out, "setsid sh -c 'trap \"\" TERM HUP; echo $$; exec sleep 1000' & wait", folder);
  out.write_end.reset();
  const pid_t daemon = static_cast<pid_t>(std::atoi(out.ReadLine().c_str()));
  ASSERT_GT(daemon, 1);
  ASSERT_TRUE(Exists(daemon));
  ::kill(launcher, SIGKILL);
  ::waitpid(launcher, nullptr, 0);
  EXPECT_EQ(out.ReadAll(), "");  // every process that held the pipe is gone
  EXPECT_TRUE(Eventually([&] { return !Exists(daemon); }));
  struct stat info {};
  EXPECT_TRUE(Eventually([&] { return ::stat(folder, &info) != 0; }))
      << "the folder was not removed";
}

// As a service manager or a user may send to all processes of a session: the launcher decides.
TEST(SpawnerTest, ASigtermOfSomebodyElseEndsNothing) {
  auto spawner = ForkSpawner();
  Outcome before, after;
  ASSERT_TRUE(spawner->Spawn(Shell("exit 3"), before.Callbacks()).ok());
  ASSERT_TRUE(before.done.WaitForNotificationWithTimeout(kLong));
  ::kill(spawner->pid(), SIGTERM);
  ASSERT_TRUE(spawner->Spawn(Shell("exit 4"), after.Callbacks()).ok());
  ASSERT_TRUE(after.done.WaitForNotificationWithTimeout(kLong));
  EXPECT_EQ(after.exit.code, 4);
  EXPECT_FALSE(spawner->lost());
}

TEST(SpawnerTest, ChildrenDieWithAKilledSpawner) {
  auto spawner = ForkSpawner();
  absl::Notification lost;
  spawner->SetOnLost([&lost] { lost.Notify(); });
  Pipe out;
  Spawner::Request request = Shell("trap '' TERM; echo started; exec sleep 1000");
  request.stdout_fd = request.stderr_fd = out.write_end.get();
  ASSERT_TRUE(spawner->Spawn(request, {}).ok());
  out.write_end.reset();
  ASSERT_EQ(out.ReadLine(), "started");
  ::kill(spawner->pid(), SIGKILL);
  EXPECT_EQ(out.ReadAll(), "");
  EXPECT_TRUE(lost.WaitForNotificationWithTimeout(kLong));
  EXPECT_TRUE(spawner->lost());
  EXPECT_FALSE(spawner->Spawn(Shell("true"), {}).ok());
}

TEST(SpawnerTest, TheEndOfTheSpawnerKillsAtOnce) {
  auto spawner = ForkSpawner();
  Pipe out;
  Spawner::Request request = Shell("trap '' TERM; echo started; exec sleep 1000");
  request.stdout_fd = request.stderr_fd = out.write_end.get();
  ASSERT_TRUE(spawner->Spawn(request, {}).ok());
  out.write_end.reset();
  ASSERT_EQ(out.ReadLine(), "started");
  spawner.reset();
  EXPECT_EQ(out.ReadAll(), "");
}

}  // namespace
}  // namespace lockstep::launcher
