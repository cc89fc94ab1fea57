// SPDX-License-Identifier: Apache-2.0
#include "worker/command/keeper.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/fd.h"
#include "common/log.h"
#include "common/status.h"
#include "job/meaning/defaults.h"
#include "worker/command/error_file.h"
#include "worker/command/keeper_machine.h"
#include "worker/command/node_setup.h"
#include "worker/command/rank_place.h"
#include "worker/command/rank_process.h"
#include "worker/command/reserved_port.h"
#include "worker/control/control_link.h"
#include "worker/control/progress_board.h"
#include "worker/control/run_dir.h"
#include "worker/control/telemetry.h"

namespace lockstep::worker {
namespace {

constexpr absl::Duration kLongestBeat = absl::Milliseconds(200);
// What wakes the keeper while its command runs comes over descriptors; the rest is looked at so
// often.
constexpr absl::Duration kLookAgain = absl::Milliseconds(50);
// All wait for the last one to leave.
constexpr absl::Duration kLookForExit = absl::Milliseconds(10);
// As shells say it.
constexpr int kExitNotFound = 127;
constexpr int kExitNotExecutable = 126;

// Returns what is the cluster's and no command's.
const std::vector<std::string>& HiddenVariables() {
  static const auto* const names = new std::vector<std::string>{
      "LOCKSTEP_TOKEN", "LOCKSTEP_TOKEN_FILE", "TORCHELASTIC_USE_AGENT_STORE"};
  return *names;
}

class Keeper {
 public:
  Keeper(const WorkerBootstrap& bootstrap, Clock* clock)
      : bootstrap_(bootstrap),
        assignment_(bootstrap.assignment()),
        clock_(clock),
        parent_(::getppid()),
        machine_({.grace = job::CommandGrace(assignment_.spec()),
                  .lease = job::kCommandLease,
                  .lease_notice = job::kCommandLeaseNotice}),
        link_(bootstrap) {}

  [[noreturn]] void Run();

 private:
  void TakeSignals();
  // Runs the job's `setup` if this node has not done so. Ends the process when it fails.
  void Prepare();
  KeeperMachine::Seen Look();
  void CarryOut(const KeeperMachine::Actions& actions);
  absl::Status StartCommand();
  void SendReady();
  void SendFinished();
  [[noreturn]] void Leave(const ProcessEnd& end, bool failed);
  [[noreturn]] void GiveUp(const absl::Status& why, int code);
  // Until something happens, or `next`.
  void Poll(absl::Time next);
  void Wait(absl::Time next);
  void ReadSignals();

  const WorkerBootstrap& bootstrap_;
  const WorkerAssignment& assignment_;
  Clock* const clock_;
  const pid_t parent_;
  KeeperMachine machine_;
  ProgressBoard board_;
  UniqueFd signals_;
  UniqueFd wake_{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  ControlLink link_;
  std::unique_ptr<Telemetry> telemetry_;
  RankProcess command_;
  std::optional<ReservedPort> port_;
  std::optional<Generation> generation_;
  std::string error_file_;
  int64_t peak_rss_bytes_ = 0;  // of the command, each time that it was started
  bool stop_ = false;
};

void Keeper::Run() {
  TakeSignals();
  RankProcess::BecomeReaper();
  link_.Start();
  const absl::Duration detection = job::FailureDetection(assignment_.spec());
  telemetry_ =
      std::make_unique<Telemetry>(&board_, &link_, clock_, std::min(detection / 5, kLongestBeat));
  board_.Enter(LOADING);
  Prepare();
  CarryOut(machine_.Begin(clock_->Now()));
  absl::Time next = absl::InfiniteFuture();
  while (true) {
    Wait(next);
    const KeeperMachine::Actions actions = machine_.Step(Look(), clock_->Now());
    next = actions.next;
    CarryOut(actions);
  }
}

// Before the first thread, which inherits what is blocked.
void Keeper::TakeSignals() {
  sigset_t handled;
  sigemptyset(&handled);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGCHLD}) sigaddset(&handled, signal);
  ::pthread_sigmask(SIG_BLOCK, &handled, nullptr);
  signals_.reset(::signalfd(-1, &handled, SFD_CLOEXEC | SFD_NONBLOCK));
}

void Keeper::ReadSignals() {
  signalfd_siginfo info;
  while (::read(signals_.get(), &info, sizeof(info)) == sizeof(info)) {
    stop_ |= info.ssi_signo != SIGCHLD;
  }
}

void Keeper::Prepare() {
  if (assignment_.spec().run().setup().empty()) return;
  NodeSetup setup(RunDir(assignment_), bootstrap_.node_id(), assignment_.spec().run().setup());
  while (true) {
    absl::StatusOr<bool> done = setup.Advance(&command_);
    if (!done.ok()) GiveUp(done.status(), 1);
    if (*done) return;
    Poll(clock_->Now() + kLookAgain);
    if (stop_ || link_.exit_requested().has_value() || ::getppid() != parent_) {
      command_.KillAll();
      ::_exit(0);
    }
  }
}

KeeperMachine::Seen Keeper::Look() {
  KeeperMachine::Seen seen;
  seen.ended = command_.Reap();
  if (seen.ended.has_value()) {
    peak_rss_bytes_ = std::max(peak_rss_bytes_, command_.peak_rss_bytes());
  }
  seen.orphaned = ::getppid() != parent_;
  seen.stop = stop_;
  seen.connected = link_.connected();
  if (const std::optional<Exit> exit = link_.exit_requested()) seen.exit = exit->code();
  if (machine_.waits()) {
    // Looked at here, where nothing else is awaited: it wakes at once.
    const auto news = link_.WaitForGeneration(machine_.generation(), kLookAgain);
    if (news.ok() && news->has_value()) {
      if ((*news)->members().empty()) {
        seen.missed = (*news)->generation();
      } else {
        generation_ = **news;
        seen.generation = generation_->generation();
      }
    }
    return seen;
  }
  seen.drain = link_.drain_requested();
  seen.aborted = link_.HasEnded(machine_.generation());
  seen.regroup = link_.regroup_requested(machine_.generation());
  return seen;
}

void Keeper::CarryOut(const KeeperMachine::Actions& actions) {
  if (actions.terminate) command_.Terminate();
  if (actions.kill) command_.Kill();
  if (actions.start) {
    if (const absl::Status started = StartCommand(); !started.ok()) {
      GiveUp(started, absl::IsNotFound(started) ? kExitNotFound : kExitNotExecutable);
    }
  }
  if (actions.ready) SendReady();
  if (actions.finished) SendFinished();
  if (actions.leave.has_value()) Leave(*actions.leave, actions.failed);
}

absl::Status Keeper::StartCommand() {
  const int64_t number = machine_.generation();
  LS_ASSIGN_OR_RETURN(const RankPlace place,
                      PlaceInGeneration(*generation_, assignment_.incarnation()));
  const std::string folder = absl::StrCat(RunDir(assignment_), "/errors");
  ::mkdir(folder.c_str(), 0700);  // without it the command cannot say why it fails, and may go on
  error_file_ = absl::StrCat(folder, "/", assignment_.slot(), "-", number, ".json");
  ::unlink(error_file_.c_str());  // a former job's with the same folder is no word of this one
  const auto& run = assignment_.spec().run();
  std::vector<std::string> argv(run.command().begin(), run.command().end());
  if (run.shell()) argv = {"/bin/sh", "-c", run.command(0)};
  const auto environment =
      RankEnvironment(place, assignment_, error_file_,
                      [](const std::string& name) { return std::getenv(name.c_str()) != nullptr; });
  if (place.rank == 0) {
    port_->Release();
  } else {
    port_.reset();
  }
  LS_RETURN_IF_ERROR(command_.Start(argv, environment, HiddenVariables()));
  board_.EnterGeneration(number);
  // It is the command's own to go on from what it has saved.
  const int64_t now = absl::ToUnixNanos(clock_->Now());
  board_.restored.store(now, std::memory_order_relaxed);
  board_.first_commit.store(now, std::memory_order_release);
  board_.Enter(TRAINING);
  link_.WatchGeneration(number, [this](const std::string&) {
    const uint64_t one = 1;
    (void)!::write(wake_.get(), &one, sizeof(one));
  });
  telemetry_->BeatSoon();
  return absl::OkStatus();
}

void Keeper::SendReady() {
  board_.Enter(WAITING);
  board_.first_commit.store(0, std::memory_order_relaxed);
  link_.UnwatchGeneration();
  port_.reset();
  absl::StatusOr<ReservedPort> port = ReservedPort::Take();
  if (!port.ok()) GiveUp(absl::UnavailableError(port.status().message()), 1);
  port_ = *std::move(port);
  WorkerReady ready;
  ready.set_highest_generation(machine_.generation());
  ready.set_device_uuid(assignment_.device().kind() == "cuda" ? assignment_.device().uuid() : "");
  ready.set_device_description(assignment_.device().name());
  DataPlaneAddress& address = *ready.mutable_address();
  address.set_node_id(bootstrap_.node_id());
  address.set_life_slot(bootstrap_.life_slot());
  for (const std::string& host : bootstrap_.data_addresses()) {
    const bool v6 = host.find(':') != std::string::npos;
    address.add_tcp(absl::StrCat(v6 ? "[" : "", host, v6 ? "]" : "", ":", port_->port()));
  }
  if (address.tcp().empty()) address.add_tcp(absl::StrCat("127.0.0.1:", port_->port()));
  link_.SendReady(ready);
}

void Keeper::SendFinished() {
  board_.Enter(FINISHED);
  WorkerFinished finished;
  finished.set_generation(machine_.generation());
  finished.set_peak_rss_bytes(peak_rss_bytes_);
  finished.set_drained(machine_.drained());
  link_.SendFinished(finished);
}

void Keeper::Leave(const ProcessEnd& end, bool failed) {
  command_.KillAll();
  if (failed) {
    const std::string why = ReadErrorFile(error_file_);
    if (!why.empty()) {
      const std::string how = end.signal != 0 ? absl::StrCat("killed by signal ", end.signal)
                                              : absl::StrCat("exited with code ", end.code);
      link_.SendFailed(machine_.generation(), absl::UnknownError(absl::StrCat(how, ": ", why)));
    }
  }
  EndLike(end);
}

// Another life would end the same way, unless the host lacked something for a while.
void Keeper::GiveUp(const absl::Status& why, int code) {
  command_.KillAll();
  LS_LOG_ERROR << why.message();
  const bool may_pass = absl::IsUnavailable(why) || absl::IsResourceExhausted(why);
  link_.SendFailed(machine_.generation(), may_pass ? absl::UnavailableError(why.message())
                                                   : absl::FailedPreconditionError(why.message()));
  EndLike({.code = code});
}

void Keeper::Poll(absl::Time next) {
  const absl::Duration most = machine_.finished() ? kLookForExit : kLookAgain;
  const absl::Duration left = std::clamp(next - clock_->Now(), absl::ZeroDuration(), most);
  pollfd fds[2] = {{signals_.get(), POLLIN, 0}, {wake_.get(), POLLIN, 0}};
  ::poll(fds, 2, static_cast<int>(absl::ToInt64Milliseconds(left)) + 1);
  uint64_t count = 0;
  (void)!::read(wake_.get(), &count, sizeof(count));
  ReadSignals();
}

// While it waits for a generation, Look() blocks.
void Keeper::Wait(absl::Time next) {
  if (!machine_.waits() || command_.running()) {
    Poll(next);
  } else {
    ReadSignals();
  }
}

}  // namespace

void RunKeeper(const WorkerBootstrap& bootstrap, Clock* clock) {
  auto* const keeper = new Keeper(bootstrap, clock);  // ends with the process
  keeper->Run();
}

}  // namespace lockstep::worker
