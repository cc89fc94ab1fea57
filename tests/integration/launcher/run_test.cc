// SPDX-License-Identifier: Apache-2.0
// The launcher's program from outside: whole runs with the real coordinator, kills and mistakes.
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launcher/local_run/stop_wishes.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr absl::Duration kPatience = absl::Seconds(60);
const std::string kBin = LOCKSTEP_BIN_DIR;  // NOLINT

// A folder of the test's own; everything runs in it.
class Folder {
 public:
  Folder() {
    char name[] = "/tmp/lockstep-run-test-XXXXXX";
    EXPECT_NE(::mkdtemp(name), nullptr);
    path = name;
  }
  ~Folder() { std::filesystem::remove_all(path); }
  void Write(const std::string& name, const std::string& text) const {
    std::ofstream(path + "/" + name) << text;
  }
  std::string path;
};

std::string JobText(int workers, const std::string& env) {
  return absl::StrCat(
      "name: fake\nresources: {nproc_per_node: ", workers,
      "}\n"
      "train:\n  model: {mlp: {hidden: [4]}}\n  data: {synthetic: {}}\n  global_batch: 60\n"
      "  steps: 5\n  optimizer: {sgd: {lr: 0.1}}\nrestart: {max_restarts: 0}\nenv: {",
      env, "}\n");
}

// A program that runs, its output in files of the folder.
class Program {
 public:
  Program(const Folder& folder, std::vector<std::string> arguments,
          const std::map<std::string, std::string>& env = {})
      : out_(folder.path + "/out"), err_(folder.path + "/err") {
    static int number = 0;
    out_ += std::to_string(number);
    err_ += std::to_string(number++);
    pid = ::fork();
    if (pid != 0) return;
    ::setenv("LOCKSTEP_WORKER", LOCKSTEP_FAKE_WORKER, 1);
    ::setenv("TMPDIR", folder.path.c_str(), 1);
    ::setenv("XDG_STATE_HOME", (folder.path + "/state").c_str(), 1);
    ::unsetenv("XDG_RUNTIME_DIR");
    for (const auto& [name, value] : env) ::setenv(name.c_str(), value.c_str(), 1);
    if (::chdir(folder.path.c_str()) != 0) ::_exit(99);
    ::dup2(::open(out_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0666), 1);
    ::dup2(::open(err_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0666), 2);
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    ::execv(argv[0], argv.data());
    ::_exit(98);
  }
  ~Program() {
    if (pid <= 0) return;
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
  }
  // The exit code, or 128 + signal; -1 after kPatience.
  int Wait() {
    const absl::Time deadline = absl::Now() + kPatience;
    int status = 0;
    while (::waitpid(pid, &status, WNOHANG) == 0) {
      if (absl::Now() > deadline) return -1;
      absl::SleepFor(absl::Milliseconds(2));
    }
    pid = -1;
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  }
  static std::string Read(const std::string& path) {
    std::ostringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
  }
  std::string out() const { return Read(out_); }
  std::string err() const { return Read(err_); }
  std::string LastLine() const {
    std::string text = out();
    if (!text.empty() && text.back() == '\n') text.pop_back();
    return text.substr(text.rfind('\n') + 1);
  }

  pid_t pid = -1;

 private:
  std::string out_, err_;
};

bool Eventually(const std::function<bool()>& holds) {
  const absl::Time deadline = absl::Now() + kPatience;
  while (!holds()) {
    if (absl::Now() > deadline) return false;
    absl::SleepFor(absl::Milliseconds(2));
  }
  return true;
}

bool Works(const Program& program) {
  return Eventually([&] { return program.out().find("works") != std::string::npos; });
}

// Processes whose working folder is the test's.
std::vector<pid_t> ProcessesOf(const Folder& folder) {
  std::vector<pid_t> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    char link[4096];
    const ssize_t n = ::readlink((entry.path() / "cwd").c_str(), link, sizeof(link));
    if (n > 0 && std::string(link, static_cast<size_t>(n)) == folder.path) {
      found.push_back(std::atoi(name.c_str()));
    }
  }
  return found;
}

pid_t FindProcess(const Folder& folder, const std::string& name) {
  for (const pid_t pid : ProcessesOf(folder)) {
    std::ifstream file(absl::StrCat("/proc/", pid, "/cmdline"));
    std::string command;
    std::getline(file, command, '\0');
    if (command.substr(command.rfind('/') + 1) == name) return pid;
  }
  return -1;
}

bool NothingLeft(const Folder& folder) {
  return Eventually([&] { return ProcessesOf(folder).empty(); });
}

int SocketFolders(const Folder& folder) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path)) {
    count += std::string(entry.path().filename()).starts_with("lockstep-") ? 1 : 0;
  }
  return count;
}

TEST(RunTest, AWholeRunEndsWithASummaryAndAFolder) {
  Folder folder;
  folder.Write("job.yaml", JobText(4, ""));
  Program launcher(folder, {kBin + "/launcher", "job.yaml"});
  EXPECT_EQ(launcher.Wait(), 0) << launcher.err();
  EXPECT_THAT(launcher.out(), AllOf(HasSubstr("succeeded"), HasSubstr(":2] slot 2 works"),
                                    HasSubstr("model/model.safetensors")));
  std::string run;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path + "/runs")) {
    run = entry.path();
  }
  EXPECT_THAT(Program::Read(run + "/job.yaml"), HasSubstr("global_batch: 60"));
  EXPECT_EQ(Program::Read(run + "/logs/3.log"), "slot 3 works\n");
  EXPECT_TRUE(NothingLeft(folder));
  EXPECT_EQ(SocketFolders(folder), 0);
}

TEST(RunTest, JsonIsTheLastLine) {
  Folder folder;
  folder.Write("job.yaml", JobText(2, ""));
  Program launcher(folder, {kBin + "/launcher", "-o", "json", "job.yaml"});
  EXPECT_EQ(launcher.Wait(), 0) << launcher.err();
  EXPECT_THAT(launcher.LastLine(),
              AllOf(::testing::StartsWith(R"({"schema":1,"job":")"),
                    HasSubstr(R"("state":"SUCCEEDED")"), HasSubstr(R"("exit_code":0,"workers":2)"),
                    HasSubstr(R"("sha256":"abc")"), ::testing::EndsWith("}")));
}

TEST(RunTest, TheFirstFailedRankIsNamedAndGivesTheExitCode) {
  Folder folder;
  folder.Write("job.yaml", JobText(3, "FAKE_FAIL: '1:exit7', FAKE_STEPS: '-1'"));
  Program launcher(folder, {kBin + "/launcher", "-o", "json", "job.yaml"});
  EXPECT_EQ(launcher.Wait(), 7) << launcher.err();
  EXPECT_THAT(launcher.err(), AllOf(HasSubstr("rank 1"), HasSubstr("exited with code 7"),
                                    HasSubstr("slot 1 is about to fail")));
  EXPECT_THAT(launcher.LastLine(), AllOf(HasSubstr(R"("state":"FAILED")"),
                                         HasSubstr(R"("exit_code":7)"), HasSubstr(R"("rank":1)")));
  EXPECT_TRUE(NothingLeft(folder));
}

TEST(RunTest, ASignalGives128PlusItsNumber) {
  Folder folder;
  folder.Write("job.yaml", JobText(2, "FAKE_FAIL: '0:signal11', FAKE_STEPS: '-1'"));
  Program launcher(folder, {kBin + "/launcher", "job.yaml"});
  EXPECT_EQ(launcher.Wait(), 128 + SIGSEGV) << launcher.err();
  EXPECT_THAT(launcher.err(), HasSubstr("SIGSEGV"));
}

TEST(RunTest, CtrlCDrains) {
  Folder folder;
  folder.Write("job.yaml", JobText(2, "FAKE_STEPS: '-1'"));
  Program launcher(folder, {kBin + "/launcher", "job.yaml"});
  ASSERT_TRUE(Works(launcher)) << launcher.err();
  ::kill(launcher.pid, SIGINT);
  EXPECT_EQ(launcher.Wait(), 130) << launcher.err();
  EXPECT_THAT(launcher.err(), HasSubstr("stopping"));
  EXPECT_THAT(launcher.out(), HasSubstr("model/model.safetensors"));
  EXPECT_TRUE(NothingLeft(folder));
}

// The shell sends one SIGHUP, and the kernel another to the foreground group.
TEST(RunTest, ATerminalThatGoesAwayDrains) {
  Folder folder;
  folder.Write("job.yaml", JobText(2, "FAKE_STEPS: '-1'"));
  Program launcher(folder, {kBin + "/launcher", "job.yaml"});
  ASSERT_TRUE(Works(launcher)) << launcher.err();
  ::kill(launcher.pid, SIGHUP);
  // Two that come at once may be one to the kernel.
  ASSERT_TRUE(Eventually([&] { return launcher.err().find("stopping") != std::string::npos; }));
  ::kill(launcher.pid, SIGHUP);
  EXPECT_EQ(launcher.Wait(), 130) << launcher.err();
  EXPECT_THAT(launcher.err(), AllOf(HasSubstr("stopping"), Not(HasSubstr("killing"))));
  EXPECT_THAT(launcher.out(), HasSubstr("model/model.safetensors"));
  EXPECT_TRUE(NothingLeft(folder));
}

TEST(RunTest, ASecondCtrlCKills) {
  Folder folder;
  folder.Write("job.yaml", JobText(2, "FAKE_STEPS: '-1', FAKE_STUBBORN: '1'"));
  Program launcher(folder, {kBin + "/launcher", "job.yaml"});
  ASSERT_TRUE(Works(launcher)) << launcher.err();
  ::kill(launcher.pid, SIGINT);
  ASSERT_TRUE(Eventually([&] { return launcher.err().find("stopping") != std::string::npos; }));
  absl::SleepFor(3 * launcher::StopWishes::kSentTwice);  // what comes at once is the same wish
  ::kill(launcher.pid, SIGINT);
  EXPECT_EQ(launcher.Wait(), 130) << launcher.err();
  EXPECT_THAT(launcher.err(), HasSubstr("killing"));
  EXPECT_TRUE(NothingLeft(folder));
}

TEST(RunTest, NothingOutlivesAKilledLauncher) {
  Folder folder;
  folder.Write("job.yaml", JobText(3, "FAKE_STEPS: '-1', FAKE_STUBBORN: '1'"));
  Program launcher(folder, {kBin + "/launcher", "job.yaml"});
  ASSERT_TRUE(Works(launcher)) << launcher.err();
  ::kill(launcher.pid, SIGKILL);
  EXPECT_EQ(launcher.Wait(), 128 + SIGKILL);
  EXPECT_TRUE(NothingLeft(folder));
  EXPECT_TRUE(Eventually([&] { return SocketFolders(folder) == 0; }));
}

TEST(RunTest, ADeadCoordinatorEndsTheRunAndIsNamed) {
  Folder folder;
  folder.Write("job.yaml", JobText(2, "FAKE_STEPS: '-1', FAKE_STUBBORN: '1'"));
  Program launcher(folder, {kBin + "/launcher", "-o", "json", "job.yaml"});
  ASSERT_TRUE(Works(launcher)) << launcher.err();
  const pid_t coordinator = FindProcess(folder, "coordinator");
  ASSERT_GT(coordinator, 1);
  ::kill(coordinator, SIGKILL);
  EXPECT_EQ(launcher.Wait(), 4) << launcher.err();
  EXPECT_THAT(launcher.err(), HasSubstr("coordinator was killed by SIGKILL"));
  EXPECT_THAT(launcher.LastLine(), HasSubstr(R"("state":"FAILED")"));
  EXPECT_TRUE(NothingLeft(folder));
}

TEST(RunTest, MistakesHaveClearMessagesAndCodes) {
  Folder folder;
  folder.Write("job.yaml", JobText(2, ""));
  folder.Write("bad.yaml", "nome: x\n");
  {
    Program launcher(folder, {kBin + "/launcher", "bad.yaml"});
    EXPECT_EQ(launcher.Wait(), 3);
    EXPECT_THAT(launcher.err(), HasSubstr("bad.yaml:1:1: error"));
  }
  {
    Program launcher(folder, {kBin + "/launcher", "job.yaml"}, {{"LOCKSTEP_WORKER", "/nowhere"}});
    EXPECT_EQ(launcher.Wait(), 1);
    EXPECT_THAT(launcher.err(), HasSubstr("the program 'worker' is not at /nowhere"));
  }
  {
    Program launcher(folder, {kBin + "/launcher", "job.yaml"},
                     {{"LOCKSTEP_COORDINATOR_BIN", "/bin/false"}});
    EXPECT_EQ(launcher.Wait(), 1) << "it never served, and is not one that is away";
    EXPECT_THAT(launcher.err(), HasSubstr("coordinator exited with code 1"));
  }
  {
    // Not a folder, so that root cannot write there either.
    Program launcher(folder, {kBin + "/launcher", "--runs-dir=/dev/null/runs", "job.yaml"});
    EXPECT_GT(launcher.Wait(), 0);
    EXPECT_THAT(launcher.err(), HasSubstr("cannot make the run's folder /dev/null/runs"));
  }
  {
    Program launcher(folder, {kBin + "/launcher", "list", "--coordinator=unix:/nowhere/sock"});
    EXPECT_EQ(launcher.Wait(), 4);
  }
  EXPECT_TRUE(NothingLeft(folder));
}

TEST(RunTest, JoinSubmitFollowCancelOnADaemon) {
  Folder folder;
  folder.Write("job.yaml", JobText(2, ""));
  folder.Write("long.yaml", JobText(2, "FAKE_STEPS: '-1'"));
  const std::string address = absl::StrCat("unix:", folder.path, "/daemon");
  Program daemon(folder, {kBin + "/coordinator", "--listen", address});
  ASSERT_TRUE(Eventually([&] { return std::filesystem::exists(folder.path + "/daemon"); }));
  const std::map<std::string, std::string> env = {{"LOCKSTEP_COORDINATOR", address}};
  Program node(folder, {kBin + "/launcher", "join", "--slots=2"}, env);
  Program first(folder, {kBin + "/launcher", "submit", "job.yaml"}, env);
  EXPECT_EQ(first.Wait(), 0) << first.err();
  EXPECT_THAT(first.out(), AllOf(HasSubstr("slot 1 works"), HasSubstr("succeeded")));

  Program second(folder, {kBin + "/launcher", "submit", "long.yaml"}, env);
  ASSERT_TRUE(Eventually([&] { return second.out().find("slot 1 works") != std::string::npos; }))
      << second.err() << node.err();
  ::kill(second.pid, SIGINT);  // only stops following
  EXPECT_EQ(second.Wait(), 130);
  const std::string err = second.err();
  EXPECT_THAT(err, HasSubstr("the job goes on"));
  const size_t at = err.find("submitted as ") + 13;
  const std::string job = err.substr(at, err.find('\n', at) - at);
  const auto listed = [&] {
    Program list(folder, {kBin + "/launcher", "list"}, env);
    EXPECT_EQ(list.Wait(), 0);
    return list.out();
  };
  EXPECT_THAT(listed(), AllOf(HasSubstr(job), HasSubstr("RUNNING"), HasSubstr("SUCCEEDED")));
  Program describe(folder, {kBin + "/launcher", "describe", job, "-o", "json"}, env);
  EXPECT_EQ(describe.Wait(), 0);
  EXPECT_THAT(describe.out(), HasSubstr(R"("state":"RUNNING")"));
  Program logs(folder, {kBin + "/launcher", "logs", job, "--rank=1"}, env);
  EXPECT_EQ(logs.Wait(), 0);
  EXPECT_THAT(logs.out(), AllOf(HasSubstr(":1] slot 1 works"), Not(HasSubstr("slot 0"))));
  Program cancel(folder, {kBin + "/launcher", "cancel", job}, env);
  EXPECT_EQ(cancel.Wait(), 0) << cancel.err();
  EXPECT_TRUE(Eventually([&] { return listed().find("CANCELLED") != std::string::npos; }));
  ::kill(node.pid, SIGTERM);
  EXPECT_EQ(node.Wait(), 130) << node.err();
}

}  // namespace
}  // namespace lockstep
