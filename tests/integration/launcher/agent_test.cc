// SPDX-License-Identifier: Apache-2.0
// The agent with a real spawner and real processes, and a coordinator that is the test's own. The
// workers are this program itself (see WorkerMain).
#include "launcher/agent/agent.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "common/cond_var.h"
#include "common/thread.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launcher/agent/run_folder.h"
#include "launcher/supervisor/supervisor_process.h"
#include "launcher/supervisor/wire.h"

namespace lockstep::launcher {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr absl::Duration kPatience = absl::Seconds(20);
Spawner* spawner = nullptr;
// More than a pipe and what waits for a disk take (bytes with the line's end).
constexpr size_t kTalkLine = 1024;
constexpr int kTalkLines = 8192;
constexpr int kMurmuredLines = 32;  // more than a small pipe takes

// Takes its life slot and does what its environment says: WORKER=stay lives until it is killed,
// WORKER=tell writes what it was given to its folder, WORKER=talk prints kTalkLines, WORKER=murmur
// kMurmuredLines.
int WorkerMain(int argc, char** argv) {
  WorkerBootstrap bootstrap;
  auto life = LifePage::Open(UniqueFd(4));
  if (!life.ok() || !bootstrap.ParseFromFileDescriptor(3)) return 65;
  if (!(*life)->Take(bootstrap.life_slot()).ok()) return 66;
  const char* what = std::getenv("WORKER");
  const std::string todo = what == nullptr ? "" : what;
  while (todo == "stay") ::pause();
  if (todo == "talk") {
    for (int i = 0; i < kTalkLines; ++i) std::puts(std::string(kTalkLine - 1, 'x').c_str());
  }
  if (todo == "murmur") {
    for (int i = 0; i < kMurmuredLines; ++i) std::puts(std::string(kTalkLine - 1, 'x').c_str());
  }
  if (todo == "tell") {
    std::ofstream file("told");
    file << "token=" << bootstrap.token() << "\n";
    file << "of " << bootstrap.cluster_id() << ", epoch " << bootstrap.epoch() << "\n";
    for (int i = 0; i < argc; ++i) file << "argument " << argv[i] << "\n";
    for (char** entry = environ; *entry != nullptr; ++entry) file << *entry << "\n";
  }
  return 0;
}

// The coordinator's end of the agent's session.
class FakeCoordinator {
 public:
  class FakeSession : public coordinator::AgentSession {
   public:
    FakeSession(FakeCoordinator* coordinator, Callbacks callbacks) : coordinator_(coordinator) {
      absl::MutexLock lock(&coordinator_->mu_);
      coordinator_->callbacks_ = std::move(callbacks);
      ++coordinator_->sessions_;
      coordinator_->changed_.NotifyAll();
    }
    ~FakeSession() override {
      absl::MutexLock lock(&coordinator_->mu_);
      coordinator_->callbacks_ = {};
    }
    void Send(const AgentMessage& message) override {
      absl::MutexLock lock(&coordinator_->mu_);
      coordinator_->got_.push_back(message);
      coordinator_->changed_.NotifyAll();
    }
    void SendLatest(int, const AgentMessage&) override {}
    bool Flush(absl::Duration) override { return true; }
    void Close(absl::Duration) override {}

   private:
    FakeCoordinator* const coordinator_;
  };

  void Say(const AgentCommand& command) {
    absl::MutexLock lock(&mu_);
    if (callbacks_.on_command) callbacks_.on_command(command);
  }
  void Connect() {
    absl::MutexLock lock(&mu_);
    callbacks_.on_connection(true, "");
  }
  AgentHello Hello() {
    absl::MutexLock lock(&mu_);
    return callbacks_.hello().hello();
  }
  void Warned(const std::string& text) {
    absl::MutexLock lock(&mu_);
    warnings_.push_back(text);
    changed_.NotifyAll();
  }
  std::vector<std::string> warnings() {
    absl::MutexLock lock(&mu_);
    return warnings_;
  }
  bool WaitForWarning(const std::string& part) {
    return Wait([&] {
      for (const std::string& text : warnings_) {
        if (absl::StrContains(text, part)) return true;
      }
      return false;
    });
  }
  bool WaitForSessions(int count) {
    return Wait([&] { return sessions_ >= count; });
  }
  // The first message about `worker` that `is` accepts.
  AgentMessage WaitFor(const std::function<bool(const AgentMessage&)>& is) {
    AgentMessage found;
    EXPECT_TRUE(Wait([&] {
      for (const AgentMessage& message : got_) {
        if (!is(message)) continue;
        found = message;
        return true;
      }
      return false;
    }));
    return found;
  }
  int64_t WaitForPid(const std::string& worker) {
    return WaitFor([&](const AgentMessage& m) {
             return m.has_started() && m.started().worker_incarnation() == worker;
           })
        .started()
        .pid();
  }
  WorkerExited WaitForExit(const std::string& worker) {
    return WaitFor([&](const AgentMessage& m) {
             return m.has_exited() && m.exited().worker_incarnation() == worker;
           })
        .exited();
  }

 private:
  bool Wait(const std::function<bool()>& condition) {
    absl::MutexLock lock(&mu_);
    return changed_.AwaitFor(&mu_, kPatience, condition);
  }

  absl::Mutex mu_;
  CondVar changed_;
  coordinator::AgentSession::Callbacks callbacks_;
  int sessions_ = 0;
  std::vector<AgentMessage> got_;
  std::vector<std::string> warnings_;
};

class AgentTest : public ::testing::Test {
 protected:
  AgentTest() {
    char name[] = "/tmp/lockstep-agent-test-XXXXXX";
    EXPECT_NE(::mkdtemp(name), nullptr);
    path_ = name;
    options_.spawner = spawner;
    options_.worker_program = std::filesystem::read_symlink("/proc/self/exe");
    options_.coordinator.token = "a-token-that-is-nobodys-business";
    options_.state_dir = path_ + "/state";
    options_.orphan_grace = absl::Hours(1);
    options_.on_warning = [this](const std::string& text) { coordinator_.Warned(text); };
    options_.open_session = [this](const coordinator::ClientOptions&,
                                   coordinator::AgentSession::Callbacks callbacks) {
      return std::make_unique<FakeCoordinator::FakeSession>(&coordinator_, std::move(callbacks));
    };
  }
  ~AgentTest() override {
    agent_.reset();
    std::filesystem::remove_all(path_);
  }
  void StartAgent() {
    auto agent = Agent::Start(options_);
    ASSERT_TRUE(agent.ok()) << agent.status();
    agent_ = *std::move(agent);
    coordinator_.Connect();
  }
  // A command of `cluster` that wants `workers`, each "<job>.<number>".
  AgentCommand Want(const std::string& cluster, const std::vector<std::string>& workers,
                    const std::string& todo) {
    AgentCommand command;
    command.set_cluster_id(cluster);
    command.set_epoch(1);
    command.mutable_desired();
    for (const std::string& worker : workers) {
      WorkerAssignment* assignment = command.mutable_desired()->add_workers();
      assignment->set_incarnation(worker);
      assignment->set_job_id(worker.substr(0, worker.find('.')));
      assignment->set_submit_dir(path_);
      assignment->set_run_dir(absl::StrCat("runs/job-", assignment->job_id()));
      (*assignment->mutable_spec()->mutable_env())["WORKER"] =
          absl::StrContains(worker, "stay") ? "stay" : todo;
    }
    return command;
  }
  static bool Lives(int64_t pid) { return pid > 1 && ::kill(static_cast<pid_t>(pid), 0) == 0; }

  std::string path_;
  FakeCoordinator coordinator_;
  AgentOptions options_;
  std::unique_ptr<Agent> agent_;
};

TEST_F(AgentTest, StartsMoreWorkersOfAJobThanItsLifePageHasWords) {
  constexpr int kStarts = 60;
  options_.life_words = 3;
  StartAgent();
  coordinator_.Say(Want("c", {"j.stay"}, ""));
  const int64_t pid = coordinator_.WaitForPid("j.stay");
  int64_t last_order = 0;
  for (int i = 0; i < kStarts; ++i) {
    const std::string worker = absl::StrCat("j.", i);
    coordinator_.Say(Want("c", {"j.stay", worker}, ""));
    const WorkerExited exited = coordinator_.WaitForExit(worker);
    ASSERT_EQ(exited.start_error(), "");
    ASSERT_EQ(exited.exit_code(), 0) << i;  // it has taken its slot
    ASSERT_GT(exited.order(), last_order);
    last_order = exited.order();
    AgentCommand acknowledged;
    acknowledged.set_cluster_id("c");
    acknowledged.set_epoch(1);
    acknowledged.mutable_acknowledged()->add_worker_incarnations(worker);
    coordinator_.Say(acknowledged);
  }
  EXPECT_TRUE(Lives(pid));
}

TEST_F(AgentTest, AJobHasItsOwnLifePage) {
  options_.life_words = 1;
  StartAgent();
  coordinator_.Say(Want("c", {"i.stay", "j.stay"}, ""));
  EXPECT_TRUE(Lives(coordinator_.WaitForPid("i.stay")));
  EXPECT_TRUE(Lives(coordinator_.WaitForPid("j.stay")));
  coordinator_.Say(Want("c", {"i.stay", "j.stay", "j.0"}, ""));
  EXPECT_THAT(coordinator_.WaitForExit("j.0").start_error(), HasSubstr("1 workers of the job"));
}

TEST_F(AgentTest, OrphansGoOnAndAreKeptWhenTheirCoordinatorIsBack) {
  StartAgent();
  coordinator_.Say(Want("old", {"j.stay"}, ""));
  const int64_t pid = coordinator_.WaitForPid("j.stay");
  coordinator_.Say(Want("empty", {}, ""));
  EXPECT_TRUE(coordinator_.WaitForWarning("j.stay go on and are ended at"));
  EXPECT_TRUE(Lives(pid));
  coordinator_.Say(Want("old", {"j.stay"}, ""));
  EXPECT_TRUE(coordinator_.WaitForWarning("is back"));
  EXPECT_TRUE(Lives(pid));
  coordinator_.Say(Want("old", {}, ""));  // its own coordinator is obeyed at once
  const WorkerExited exited = coordinator_.WaitForExit("j.stay");
  EXPECT_EQ(exited.signal(), SIGTERM);
  EXPECT_TRUE(exited.wanted());
}

TEST_F(AgentTest, OrphansAreEndedAfterTheGrace) {
  options_.orphan_grace = absl::Milliseconds(200);
  StartAgent();
  coordinator_.Say(Want("old", {"j.stay"}, ""));
  coordinator_.WaitForPid("j.stay");
  coordinator_.Say(Want("empty", {}, ""));
  EXPECT_EQ(coordinator_.WaitForExit("j.stay").signal(), SIGTERM);
  EXPECT_THAT(coordinator_.warnings(), Contains(HasSubstr("it is ended now")));
}

TEST_F(AgentTest, ARefusedAgentKeepsItsWorkersAndTriesAgain) {
  StartAgent();
  coordinator_.Say(Want("c", {"j.stay"}, ""));
  const int64_t pid = coordinator_.WaitForPid("j.stay");
  AgentCommand refusal;
  refusal.mutable_rejected()->set_kind(Rejected::NODE_TAKEN);
  refusal.mutable_rejected()->set_reason("another live agent is this node");
  coordinator_.Say(refusal);
  EXPECT_TRUE(coordinator_.WaitForWarning("another live agent is this node"));
  EXPECT_THAT(coordinator_.warnings(), Contains(HasSubstr(path_ + "/state/node-id")));
  EXPECT_TRUE(coordinator_.WaitForSessions(2));
  EXPECT_TRUE(Lives(pid));
  const AgentHello hello = coordinator_.Hello();
  ASSERT_EQ(hello.running_size(), 1);
  EXPECT_EQ(hello.running(0).pid(), pid);
}

TEST_F(AgentTest, TheNodeKeepsItsIdAndTheIncarnationChanges) {
  StartAgent();
  const AgentHello first = coordinator_.Hello();
  EXPECT_EQ(Agent::Start(options_).status().code(), absl::StatusCode::kFailedPrecondition);
  agent_.reset();
  StartAgent();
  const AgentHello second = coordinator_.Hello();
  EXPECT_EQ(second.node_id(), first.node_id());
  EXPECT_NE(second.incarnation(), first.incarnation());
}

TEST_F(AgentTest, AWorkerIsToldWhoseItIsAndItsTokenAndTheAgentsIsNowhere) {
  constexpr const char* kOwn = "worker.j.0.of-this-life";
  StartAgent();
  AgentCommand command = Want("c", {"j.0"}, "tell");
  command.set_epoch(7);
  command.mutable_desired()->mutable_workers(0)->set_token(kOwn);
  coordinator_.Say(command);
  EXPECT_EQ(coordinator_.WaitForExit("j.0").exit_code(), 0);
  std::ostringstream told;
  told << std::ifstream(path_ + "/told").rdbuf();
  const std::string first = absl::StrCat("token=", kOwn, "\n");
  ASSERT_TRUE(absl::StartsWith(told.str(), first)) << told.str();
  EXPECT_THAT(told.str().substr(first.size()), Not(HasSubstr(kOwn)));
  EXPECT_THAT(told.str(), Not(HasSubstr(options_.coordinator.token)));
  EXPECT_THAT(told.str(), HasSubstr("\nof c, epoch 7\n"));
}

TEST_F(AgentTest, ADiskThatOpensNothingHoldsUpItsJobAlone) {
  absl::Notification answers;
  options_.open_log = [&](const WorkerAssignment& assignment, bool own) {
    if (assignment.job_id() == "hung") answers.WaitForNotification();
    return OpenRunLog(assignment, own);
  };
  StartAgent();
  coordinator_.Say(Want("c", {"hung.0", "hung.1", "j.0"}, ""));
  EXPECT_EQ(coordinator_.WaitForExit("j.0").exit_code(), 0);
  coordinator_.Say(Want("c", {"hung.1", "j.0"}, ""));
  EXPECT_THAT(coordinator_.WaitForExit("hung.0").start_error(),
              HasSubstr("ended before it was started"));
  answers.Notify();
  EXPECT_EQ(coordinator_.WaitForExit("hung.1").exit_code(), 0);
}

TEST_F(AgentTest, ADiskThatIsLookedAtWithoutEndHoldsUpItsJobAlone) {
  absl::Notification answers;
  options_.examine_run_disk = [&](const std::string& folder) -> std::string {
    if (absl::StrContains(folder, "job-hung")) answers.WaitForNotification();
    return "";
  };
  StartAgent();
  coordinator_.Say(Want("c", {"hung.0"}, ""));
  coordinator_.Say(Want("c", {"hung.0", "j.0"}, ""));
  EXPECT_EQ(coordinator_.WaitForExit("j.0").exit_code(), 0);
  answers.Notify();
  EXPECT_EQ(coordinator_.WaitForExit("hung.0").exit_code(), 0) << "it has waited";
}

TEST_F(AgentTest, WhoHearsOfAnEndFindsTheWholeLog) {
  const std::string log = path_ + "/log";
  ASSERT_EQ(::mkfifo(log.c_str(), 0600), 0);
  const UniqueFd read_end(::open(log.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  options_.open_log = [&](const WorkerAssignment&, bool) -> absl::StatusOr<UniqueFd> {
    UniqueFd fd(::open(log.c_str(), O_WRONLY | O_CLOEXEC));
    ::fcntl(fd.get(), F_SETPIPE_SZ, 4096);
    return fd;
  };
  StartAgent();
  coordinator_.Say(Want("c", {"j.0"}, "murmur"));
  const int64_t pid = coordinator_.WaitForPid("j.0");
  while (Lives(pid)) absl::SleepFor(absl::Milliseconds(1));
  // The disk is slow, but it does answer.
  const absl::Time ended = absl::Now();
  absl::SleepFor(absl::Milliseconds(300));
  std::atomic<bool> told = false;
  Thread hears("hears", [&] {
    EXPECT_EQ(coordinator_.WaitForExit("j.0").exit_code(), 0);
    told = true;
  });
  absl::SleepFor(absl::Milliseconds(10));
  EXPECT_FALSE(told && absl::Now() - ended < absl::Milliseconds(800));
  size_t left = kTalkLine * kMurmuredLines;
  std::vector<char> buffer(kTalkLine * kMurmuredLines);
  pollfd come{read_end.get(), POLLIN, 0};
  while (left > 0) {
    ASSERT_EQ(::poll(&come, 1, 20'000), 1);
    const ssize_t n = ::read(read_end.get(), buffer.data(), buffer.size());
    ASSERT_GT(n, 0);
    left -= static_cast<size_t>(n);
  }
  hears.Join();
}

TEST_F(AgentTest, ADiskThatTakesNothingHoldsUpItsJobAloneAndLosesNothing) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd read_end(ends[0]), write_end(ends[1]);
  options_.open_log = [&](const WorkerAssignment& assignment,
                          bool own) -> absl::StatusOr<UniqueFd> {
    if (assignment.job_id() != "hung") return OpenRunLog(assignment, own);
    return UniqueFd(::fcntl(write_end.get(), F_DUPFD_CLOEXEC, 0));
  };
  StartAgent();
  coordinator_.Say(Want("c", {"hung.0"}, "talk"));
  coordinator_.WaitForPid("hung.0");
  coordinator_.Say(Want("c", {"hung.0", "j.0"}, "talk"));
  EXPECT_EQ(coordinator_.WaitForExit("j.0").exit_code(), 0);
  size_t left = kTalkLine * kTalkLines;
  std::vector<char> buffer(size_t{1} << 20);
  while (left > 0) {
    const ssize_t n = ::read(read_end.get(), buffer.data(), buffer.size());
    ASSERT_GT(n, 0);
    left -= static_cast<size_t>(n);
  }
  EXPECT_EQ(coordinator_.WaitForExit("hung.0").exit_code(), 0);
}

TEST_F(AgentTest, NamesAndPathsAreNotTakenOnTrust) {
  StartAgent();
  AgentCommand command = Want("c", {"j.0", "k.0"}, "");
  command.mutable_desired()->mutable_workers(0)->set_run_dir("../../../etc/lockstep-test");
  command.mutable_desired()->mutable_workers(1)->set_job_id("k\x1b[2J");
  coordinator_.Say(command);
  EXPECT_THAT(coordinator_.WaitForExit("j.0").start_error(), HasSubstr("outside the submitter's"));
  EXPECT_THAT(coordinator_.WaitForExit("k.0").start_error(), HasSubstr("other characters"));
}

}  // namespace
}  // namespace lockstep::launcher

int main(int argc, char** argv) {
  using namespace lockstep::launcher;  // NOLINT
  if (argc > 1 && std::string(argv[1]).starts_with("--bootstrap-fd")) return WorkerMain(argc, argv);
  if (argc > 1 && std::string(argv[1]) == kSupervisorFlag) return RunSupervisorProcess();
  // Before any thread.
  auto forked = Spawner::Fork();
  if (!forked.ok()) return 1;
  spawner = forked->get();
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
