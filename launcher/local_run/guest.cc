// SPDX-License-Identifier: Apache-2.0
#include "launcher/local_run/guest.h"

#include <unistd.h>

#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/clock.h"
#include "common/limits.h"
#include "common/status.h"
#include "launcher/agent/data_addresses.h"
#include "launcher/agent/host.h"
#include "launcher/agent/run_folder.h"
#include "launcher/cli/exit_codes.h"
#include "launcher/follow/follow.h"
#include "launcher/follow/result.h"
#include "launcher/follow/standard_streams.h"
#include "launcher/local_run/stop_signals.h"
#include "launcher/local_run/submission.h"

namespace lockstep::launcher {
namespace {

constexpr absl::Duration kCallTimeout = absl::Seconds(1);
constexpr absl::Duration kLookAgain = absl::Milliseconds(100);
// How long the coordinator's host may be away, and how long when its owner is gone already.
constexpr absl::Duration kGiveUpAfter = absl::Seconds(30);
constexpr absl::Duration kGiveUpReleased = absl::Seconds(5);
constexpr absl::Duration kStay = absl::Minutes(1);

RenderOptions Options() {
  RenderOptions options = RenderOptionsForStderr();
  options.progress = false;  // the host with the coordinator shows it
  return options;
}

// The newest checkpoint in a folder, or the folder.
std::string NewestIn(const std::string& folder) {
  std::error_code error;
  const std::filesystem::path newest =
      std::filesystem::read_symlink(std::filesystem::path(folder) / "last", error);
  return error ? folder : absl::StrCat(folder, "/", newest.string());
}

bool IsAway(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
}

}  // namespace

Guest::Guest(Planner planner, Spawner* spawner)
    : planner_(std::move(planner)),
      spawner_(spawner),
      renderer_(Options(), std::make_unique<StandardStreams>(), Clock::Real()) {}

int Guest::Run() {
  StopSignals signals([this](int count) { OnSignal(count); });
  spawner_->SetOnLost([this] { OnLost(); });
  ended_ = RunJob();
  std::shared_ptr<Agent> agent;
  int count;
  bool lost;
  {
    absl::MutexLock lock(&mu_);
    agent = std::move(agent_);
    ending_ = true;
    count = signals_;
    lost = lost_;
  }
  if (count > 0 && agent != nullptr) {
    while (!agent->WaitStopped(kLookAgain)) {
      absl::MutexLock lock(&mu_);
      if (signals_ > 1 || lost_) break;  // nobody tells of ends any more
    }
  }
  agent.reset();  // the last worker is gone after this
  return Finish(ended_, count, lost);
}

void Guest::OnHungDisk(const std::string& what) {
  int signals;
  bool lost, waits;
  {
    absl::MutexLock lock(&mu_);
    signals = signals_;
    lost = lost_;
    // Whoever began the run waits for this host, and nobody is here who could end it.
    const bool late = released_ && hung_disk_.waited() > kGiveUpReleased;
    waits = !hurried_ && !lost && !late;
  }
  if (hung_disk_.Wait(what, waits)) return;
  ::_exit(Finish(ended_, signals, lost));  // with the threads that wait for the disk
}

int Guest::Finish(const absl::StatusOr<JobStatus>& ended, int signals, bool lost) {
  if (signals > 0) return renderer_.Finish("", kExitInterrupted);
  if (ended.ok()) {
    // Where somebody else began this part, he says so himself.
    if (!stays_) {
      renderer_.Message(absl::StrCat("the job has ended: ", JobState_Name(ended->state())));
    }
    return renderer_.Finish("", ExitCodeOfJob(*ended));
  }
  std::string why(ended.status().message());
  if (lost) why = "the spawner process was killed; its workers were ended";
  if (!lost && IsDiagnostics(ended.status())) {
    renderer_.Plain(why);
  } else {
    renderer_.Error(why);
  }
  return renderer_.Finish("", lost ? kExitFailure : ExitCodeOf(ended.status(), Input::kJobFile));
}

absl::StatusOr<JobStatus> Guest::RunJob() {
  LS_ASSIGN_OR_RETURN(const GuestPlan plan, planner_());
  stays_ = plan.stays;
  LS_RETURN_IF_ERROR(CheckLimits(CurrentLimits(), plan.slots, /*local_run=*/true));
  coordinator::ClientOptions coordinator;
  LS_ASSIGN_OR_RETURN(const std::string job, AwaitJob(plan, &coordinator));
  LS_RETURN_IF_ERROR(StartAgent(plan, coordinator));
  if (plan.on_ready != nullptr) plan.on_ready();
  std::shared_ptr<coordinator::Client> client;
  {
    absl::MutexLock lock(&mu_);
    client = client_;
  }
  renderer_.SetTee("none");
  absl::StatusOr<JobStatus> ended = FollowToEnd(client.get(), job, &renderer_, kGiveUpAfter);
  bool gone;
  {
    absl::MutexLock lock(&mu_);
    over_ = true;
    gone = signals_ == 0 && !lost_ && (gone_ || absl::IsUnavailable(ended.status()));
  }
  if (ended.ok() && plan.stays) AwaitRelease();
  if (!ended.ok() && gone) return SaveAndLeave(plan, coordinator.address);
  return ended;
}

void Guest::AwaitRelease() {
  absl::MutexLock lock(&mu_);
  const auto leaves = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return released_ || signals_ > 0 || lost_;
  };
  changed_.AwaitFor(&mu_, kStay, leaves);
}

absl::Status Guest::SaveAndLeave(const GuestPlan& plan, const std::string& endpoint) {
  const std::string gone = absl::StrCat("the run's coordinator at ", endpoint, " is gone");
  if (plan.checkpoint_dir.empty()) {
    return absl::UnavailableError(
        absl::StrCat(gone,
                     "; this host's workers were ended, and nothing was saved, since the job "
                     "has no 'checkpoint' section"));
  }
  std::shared_ptr<Agent> agent;
  {
    absl::MutexLock lock(&mu_);
    agent = agent_;
  }
  renderer_.Message(absl::StrCat(gone, ": this host's workers save their state and leave"));
  agent->SaveAndStop();
  while (!agent->WaitStopped(kLookAgain)) {
    absl::MutexLock lock(&mu_);
    if (signals_ > 1 || lost_) return absl::CancelledError("interrupted");
  }
  const Farewell left = agent->farewell();
  constexpr char kGoOn[] =
      "; the same command on the hosts that are left (--hosts; or --nnodes, --node-rank and "
      "--rdzv-endpoint) goes on from there with checkpoint.resume: auto";
  const std::string folder = ResolvePath(left.folder, plan.checkpoint_dir);
  if (left.saved > 0) {
    return absl::UnavailableError(absl::StrCat(
        gone, "; the state of this host's workers is saved as ", NewestIn(folder), kGoOn));
  }
  return absl::UnavailableError(
      absl::StrCat(gone, "; this host's workers saved nothing",
                   left.last_line.empty() ? "" : absl::StrCat(" (", left.last_line, ")"),
                   ": the newest checkpoint is that in ", folder, kGoOn));
}

absl::Status Guest::StartAgent(const GuestPlan& plan,
                               const coordinator::ClientOptions& coordinator) {
  AgentOptions options;
  options.coordinator = coordinator;
  LS_ASSIGN_OR_RETURN(options.worker_program, FindProgram("worker", "LOCKSTEP_WORKER"));
  LS_ASSIGN_OR_RETURN(options.interfaces, InterfaceFilter::Parse(plan.interfaces));
  options.spawner = spawner_;
  options.slots = plan.slots;
  options.private_agent = true;
  options.run_dir = plan.run_dir;
  options.runs_dir = plan.runs_dir;
  options.on_hung_disk = [this](const std::string& what) { OnHungDisk(what); };
  options.on_warning = [this](const std::string& text) {
    renderer_.Message(absl::StrCat("warning: ", text));
  };
  LS_ASSIGN_OR_RETURN(std::shared_ptr<Agent> agent, Agent::Start(std::move(options)));
  absl::MutexLock lock(&mu_);
  agent_ = std::move(agent);
  if (signals_ > 0) agent_->Stop(/*kill=*/signals_ > 1);
  return absl::OkStatus();
}

absl::StatusOr<std::string> Guest::AwaitJob(const GuestPlan& plan,
                                            coordinator::ClientOptions* coordinator) {
  std::vector<std::shared_ptr<coordinator::Client>> clients;
  for (const std::string& endpoint : plan.endpoints) {
    clients.push_back(coordinator::Client::Create({endpoint, plan.token}));
  }
  const absl::Time deadline = Clock::Real()->Now() + plan.patience;
  const std::string where = absl::StrJoin(plan.endpoints, ", ");
  bool said = false;
  absl::Status last;
  ListJobsRequest first;
  first.set_page_size(1);
  while (!stopped()) {
    for (size_t i = 0; i < clients.size() && !stopped(); ++i) {
      const absl::StatusOr<ListJobsResponse> jobs = clients[i]->ListJobs(first, kCallTimeout);
      if (jobs.ok() && jobs->jobs_size() > 0) {
        *coordinator = {plan.endpoints[i], plan.token};
        absl::MutexLock lock(&mu_);
        client_ = clients[i];
        return jobs->jobs(0).job_id();
      }
      // Of several addresses one may be somebody else's in this host's networks.
      if (!jobs.ok() && !IsAway(jobs.status()) && clients.size() == 1) return jobs.status();
      if (!jobs.ok()) last = jobs.status();
    }
    if (Clock::Real()->Now() > deadline) {
      return absl::UnavailableError(absl::StrCat(
          "no run appeared at ", where, " within ", absl::FormatDuration(plan.patience), ": ",
          plan.advice, last.ok() ? "" : absl::StrCat("; ", std::string(last.message()))));
    }
    if (!std::exchange(said, true)) {
      renderer_.Message(absl::StrCat("waiting for ", plan.awaited, " at ", where));
    }
    Clock::Real()->Sleep(kLookAgain);
  }
  return absl::CancelledError("interrupted");
}

bool Guest::stopped() {
  absl::MutexLock lock(&mu_);
  return signals_ > 0 || lost_ || released_;
}

void Guest::Release() {
  std::shared_ptr<coordinator::Client> client;
  {
    absl::MutexLock lock(&mu_);
    released_ = true;
    client = client_;
  }
  changed_.NotifyAll();
  if (client == nullptr) return;
  const absl::Time deadline = Clock::Real()->Now() + kGiveUpReleased;
  while (Clock::Real()->Now() < deadline) {
    if (client->ListJobs({}, kCallTimeout).ok()) return;
    absl::MutexLock lock(&mu_);
    const auto over = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return over_; };
    if (changed_.AwaitFor(&mu_, kLookAgain, over)) return;
  }
  {
    absl::MutexLock lock(&mu_);
    gone_ = true;
  }
  client->StopFollowing();
}

void Guest::OnSignal(int count) {
  {
    absl::MutexLock lock(&mu_);
    signals_ = count;
    hurried_ = count > 1 || ending_;
  }
  changed_.NotifyAll();
  Stop(/*kill=*/count > 1);
  if (count > 1) return renderer_.Hurry();
  renderer_.Message("leaving: the workers get their grace (Ctrl-C again kills them)");
}

void Guest::OnLost() {
  {
    absl::MutexLock lock(&mu_);
    lost_ = true;
  }
  changed_.NotifyAll();
  Stop(/*kill=*/true);
}

void Guest::Stop(bool kill) {
  std::shared_ptr<coordinator::Client> client;
  {
    absl::MutexLock lock(&mu_);
    if (agent_ != nullptr) agent_->Stop(kill);
    client = client_;
  }
  if (client != nullptr) client->StopFollowing();
}

}  // namespace lockstep::launcher
