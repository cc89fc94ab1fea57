// SPDX-License-Identifier: Apache-2.0
#include "launcher/local_run/private_coordinator.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "common/clock.h"
#include "common/cond_var.h"
#include "common/fd.h"
#include "common/signal_name.h"
#include "common/status.h"
#include "coordinator/client/private_file.h"
#include "launcher/agent/host.h"
#include "launcher/follow/text.h"

namespace lockstep::launcher {
namespace {

constexpr size_t kMaxFolder = 80;  // a Unix socket's path has 107 characters
// After the end of its process's pipe, the spawner tells how that ended.
constexpr absl::Duration kEndIsTold = absl::Seconds(10);

constexpr absl::Duration kBetweenQuestions = absl::Seconds(1);

constexpr const char* kSocketFolder = "/s";  // the coordinator locks it to listen in it
constexpr const char* kPipe = "/pipe";
constexpr const char* kPackages = "/packages";
constexpr const char* kJournalLock = "/journal.lock";

// Locks the folder, which keeps systemd-tmpfiles from what it takes for old. Not valid, with errno:
// its file system has no locks, which the coordinator needs there too.
UniqueFd LockFolder(const std::string& folder) {
  UniqueFd held(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!held.valid() || ::flock(held.get(), LOCK_SH | LOCK_NB) == 0) return held;
  const int why = errno;
  held.reset();
  errno = why;
  return held;
}

// A new folder of mode 0700 for the socket and the journal, and its lock. XDG_RUNTIME_DIR goes when
// its user logs out, which a run may outlive, so it is the last choice.
absl::StatusOr<std::string> MakeSocketFolder(UniqueFd* lock) {
  int why = 0;
  std::string tried;
  for (const char* variable : {"TMPDIR", "", "XDG_RUNTIME_DIR"}) {
    const char* value = variable[0] == '\0' ? "/tmp" : std::getenv(variable);
    if (value == nullptr || value[0] != '/') continue;
    std::string folder = absl::StrCat(value, "/lockstep-XXXXXX");
    if (folder.size() > kMaxFolder) continue;
    const bool made = ::mkdtemp(folder.data()) != nullptr;
    if (made) *lock = LockFolder(folder);
    if (made && lock->valid()) return folder;
    why = errno;
    if (made) ::rmdir(folder.c_str());
    absl::StrAppend(&tried, tried.empty() ? "" : ", ", value);
  }
  return ErrnoStatus(why, absl::StrCat("cannot make a folder for the coordinator's socket in ",
                                       tried, " (set TMPDIR to one that you may write to)"));
}

}  // namespace

std::string HowItEnded(const Spawner::Exit& exit) {
  if (exit.signal != 0) return absl::StrCat("was killed by ", SignalName(exit.signal));
  return absl::StrCat("exited with code ", exit.code);
}

// What outlives the owner: a process may end after it.
struct PrivateCoordinator::Life : std::enable_shared_from_this<Life> {
  Spawner* spawner = nullptr;
  Callbacks callbacks;
  std::string program, address, folder, journal;
  UniqueFd folder_lock;
  std::vector<std::string> network;  // flags about other hosts

  absl::Mutex mu;
  CondVar changed;
  bool over ABSL_GUARDED_BY(mu) = false;
  uint64_t id ABSL_GUARDED_BY(mu) = 0;                // the spawner's, of the process; 0: none runs
  std::string killed_since ABSL_GUARDED_BY(mu) = {};  // why it was killed here, until it has ended
  bool ready ABSL_GUARDED_BY(mu) = false;
  bool restarts ABSL_GUARDED_BY(mu) = true;
  std::deque<absl::Time> restarted ABSL_GUARDED_BY(mu);
  int telling ABSL_GUARDED_BY(mu) = 0;  // calls of OnEnd that look to its owner

  // `ready_fd`: what the process says that it serves on; -1: nobody waits for it.
  absl::Status Spawn(int ready_fd);
  void OnEnd(const std::string& how) ABSL_LOCKS_EXCLUDED(mu);
  // Starts it again, or tells why it is lost.
  void GoOn(bool again, std::string why) ABSL_LOCKS_EXCLUDED(mu);
  bool IsSilent() const ABSL_SHARED_LOCKS_REQUIRED(mu) { return telling == 0; }
  uint64_t running() ABSL_LOCKS_EXCLUDED(mu);
  // Kills this process, unless it is another one that runs by now.
  void KillToRestart(uint64_t process, const std::string& since) ABSL_LOCKS_EXCLUDED(mu);
  bool TakeRestart() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
};

absl::Status PrivateCoordinator::Life::Spawn(int ready_fd) {
  Spawner::Request request;
  // The journal has to outlive this process alone: with the machine the whole run ends.
  request.argv = {program, "--listen",     address, "--state-dir",
                  folder,  "--state-sync", "off",   "--parent-death"};
  request.argv.insert(request.argv.end(), network.begin(), network.end());
  if (ready_fd >= 0) {
    request.argv.insert(request.argv.end(), {"--ready-fd", "3"});
    request.fds = {ready_fd};
  }
  // Its messages are the launcher's; what it says while all is well is not for the user.
  if (std::getenv("LOCKSTEP_LOG") == nullptr) request.set_env = {"LOCKSTEP_LOG=warning"};
  request.stdout_fd = STDERR_FILENO;
  request.stderr_fd = STDERR_FILENO;
  Spawner::Callbacks told;
  const std::shared_ptr<Life> self = shared_from_this();
  told.on_exit = [self](const Spawner::Exit& exit) { self->OnEnd(HowItEnded(exit)); };
  told.on_failed = [self](const Spawner::Failure& failure) {
    self->OnEnd(absl::StrCat("could not be started: ", std::string(failure.why.message())));
  };
  LS_ASSIGN_OR_RETURN(const uint64_t spawned, spawner->Spawn(request, std::move(told)));
  absl::MutexLock lock(&mu);
  id = spawned;
  return absl::OkStatus();
}

uint64_t PrivateCoordinator::Life::running() {
  absl::MutexLock lock(&mu);
  return id;
}

void PrivateCoordinator::Life::KillToRestart(uint64_t process, const std::string& since) {
  {
    absl::MutexLock lock(&mu);
    if (over || !ready || !restarts || id != process) return;
    killed_since = since;
  }
  // A spawner that is gone takes it along.
  spawner->Kill(process, SIGKILL).IgnoreError();
}

bool PrivateCoordinator::Life::TakeRestart() {
  const absl::Time now = Clock::Real()->Now();
  while (!restarted.empty() && restarted.front() < now - absl::Minutes(1)) restarted.pop_front();
  if (!ready || !restarts || restarted.size() >= kRestarts) return false;
  restarted.push_back(now);
  return true;
}

void PrivateCoordinator::Life::OnEnd(const std::string& how) {
  bool again;
  std::string why = how;
  {
    absl::MutexLock lock(&mu);
    if (over) return;
    ++telling;
    id = 0;
    if (!killed_since.empty()) why = std::exchange(killed_since, "");
    again = TakeRestart();
    if (!again && restarted.size() >= kRestarts) {
      absl::StrAppend(&why, " (for the ", kRestarts + 1, "th time within a minute)");
    }
  }
  GoOn(again, std::move(why));
  absl::MutexLock lock(&mu);
  --telling;
}

void PrivateCoordinator::Life::GoOn(bool again, std::string why) {
  if (again) {
    const absl::Status spawned = Spawn(-1);
    if (spawned.ok()) return callbacks.on_restart(why);
    absl::StrAppend(&why, " and cannot be started again: ", std::string(spawned.message()));
  }
  callbacks.on_lost(why);
}

absl::StatusOr<std::unique_ptr<PrivateCoordinator>> PrivateCoordinator::Start(
    Spawner* spawner, Callbacks callbacks, const std::optional<Network>& network) {
  auto life = std::make_shared<Life>();
  life->spawner = spawner;
  life->callbacks = std::move(callbacks);
  LS_ASSIGN_OR_RETURN(life->program, FindProgram("coordinator", "LOCKSTEP_COORDINATOR_BIN"));
  LS_ASSIGN_OR_RETURN(life->folder, MakeSocketFolder(&life->folder_lock));
  const std::string socket_folder = life->folder + kSocketFolder;
  const std::string socket = absl::StrCat(socket_folder, "/sock");
  const std::string token = absl::StrCat(life->folder, "/token");
  life->address = network.has_value() ? network->endpoint : absl::StrCat("unix:", socket);
  life->journal = absl::StrCat(life->folder, "/journal.db");
  LS_RETURN_IF_ERROR(spawner->RemoveDirAtEnd(life->folder + kPackages));  // before what it is in
  LS_RETURN_IF_ERROR(spawner->RemoveDirAtEnd(socket_folder));
  LS_RETURN_IF_ERROR(spawner->RemoveDirAtEnd(life->folder));
  if (::mkdir(socket_folder.c_str(), 0700) != 0) return ErrnoStatus(errno, socket_folder);
  for (const std::string& file :
       {socket, token, life->journal, life->journal + "-wal", life->journal + "-shm",
        life->journal + "-journal", life->folder + kJournalLock, life->folder + kPipe}) {
    LS_RETURN_IF_ERROR(spawner->RemoveFileAtEnd(file));
  }
  const bool guests_come = network.has_value() && network->guests_come;
  life->network = {"--nodes-by", guests_come ? "command" : "nobody"};
  if (network.has_value()) {
    LS_RETURN_IF_ERROR(coordinator::WritePrivateFile(
        token, "token file", absl::StrCat(network->tokens.shared, "\n"), /*replace=*/false));
    life->network.insert(
        life->network.end(),
        {"--token-file", token, network->plaintext ? "--plaintext" : "--tls-of-token"});
  }
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC) != 0) return ErrnoStatus(errno, "pipe for the coordinator");
  UniqueFd write_end(fds[1]);
  std::unique_ptr<PrivateCoordinator> coordinator(new PrivateCoordinator());
  coordinator->ready_.reset(fds[0]);
  coordinator->life_ = std::move(life);
  LS_RETURN_IF_ERROR(coordinator->life_->Spawn(write_end.get()));
  return coordinator;
}

PrivateCoordinator::~PrivateCoordinator() {
  {
    absl::MutexLock lock(&life_->mu);
    life_->over = true;
    // Who made it may be gone after this.
    life_->mu.Await(absl::Condition(life_.get(), &Life::IsSilent));
  }
  life_->changed.NotifyAll();
  if (asks_ != nullptr) asks_->StopCalls();
  watch_.Join();
}

void PrivateCoordinator::Watch(std::unique_ptr<coordinator::Client> client) {
  asks_ = std::move(client);
  watch_ = Thread("coordinator", [this] { AskOnAndOn(); });
}

void PrivateCoordinator::AskOnAndOn() {
  ListJobsRequest question;
  question.set_page_size(1);
  int unanswered = 0;
  uint64_t asked_last = 0;
  while (true) {
    {
      absl::MutexLock lock(&life_->mu);
      const auto over = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(life_->mu) { return life_->over; };
      if (life_->changed.AwaitFor(&life_->mu, kBetweenQuestions, over)) return;
    }
    const uint64_t process = life_->running();
    if (std::exchange(asked_last, process) != process) unanswered = 0;
    if (process == 0) continue;  // it is being started
    const absl::Time asked = Clock::Real()->Now();
    const bool answered =
        asks_->ListJobs(question, kAnswerTime).ok() || Clock::Real()->Now() - asked < kAnswerTime;
    unanswered = answered ? 0 : unanswered + 1;
    if (unanswered < kQuestions) continue;
    unanswered = 0;
    life_->KillToRestart(
        process, absl::StrCat("has answered nothing for ",
                              absl::FormatDuration(kQuestions * kAnswerTime), " and was killed"));
  }
}

absl::Status PrivateCoordinator::HasPackage(const std::string& id) {
  return life_->spawner->RemoveFileAtEnd(absl::StrCat(life_->folder, kPackages, "/", id));
}

void PrivateCoordinator::SetRestarts(bool restarts) {
  absl::MutexLock lock(&life_->mu);
  life_->restarts = restarts;
}

const std::string& PrivateCoordinator::address() const { return life_->address; }
const std::string& PrivateCoordinator::journal() const { return life_->journal; }
std::string PrivateCoordinator::pipe() const { return life_->folder + kPipe; }

absl::Status PrivateCoordinator::WaitReady(absl::Duration timeout, int interrupt_fd) {
  absl::Time deadline = Clock::Real()->Now() + timeout;
  while (true) {
    pollfd fds[2] = {{ready_.get(), POLLIN, 0}, {interrupt_fd, POLLIN, 0}};
    const int64_t left = absl::ToInt64Milliseconds(deadline - Clock::Real()->Now());
    if (left <= 0) {
      if (!ready_.valid()) {
        return absl::AbortedError("the private coordinator ended before it was ready");
      }
      return absl::DeadlineExceededError(absl::StrCat(
          "the private coordinator was not ready within ", absl::FormatDuration(timeout)));
    }
    if (::poll(fds, 2, static_cast<int>(left)) < 0 && errno != EINTR) {
      return ErrnoStatus(errno, "poll");
    }
    if (fds[1].revents != 0) return absl::CancelledError("interrupted");
    if (fds[0].revents == 0) continue;
    char line[256];
    const ssize_t n = ::read(ready_.get(), line, sizeof(line));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {  // on_lost says why, and the caller then makes `interrupt_fd` readable
      ready_.reset();
      deadline = Clock::Real()->Now() + kEndIsTold;
      continue;
    }
    absl::MutexLock lock(&life_->mu);
    // With the port that it was given, which the next one is to have again.
    life_->address = std::string(absl::StripTrailingAsciiWhitespace(absl::string_view(line, n)));
    life_->ready = true;
    return absl::OkStatus();
  }
}

}  // namespace lockstep::launcher
