// SPDX-License-Identifier: Apache-2.0
#include "launcher/local_run/run_as_guest.h"

#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/clock.h"
#include "common/status.h"
#include "coordinator/client/client.h"
#include "job/meaning/defaults.h"
#include "launcher/agent/agent.h"
#include "launcher/agent/host.h"
#include "launcher/agent/limits.h"
#include "launcher/agent/run_folder.h"
#include "launcher/cli/exit_codes.h"
#include "launcher/follow/follow.h"
#include "launcher/follow/renderer.h"
#include "launcher/follow/result.h"
#include "launcher/local_run/hosts_of_run.h"
#include "launcher/local_run/stop_signals.h"
#include "launcher/local_run/submission.h"
#include "launcher/verbs/connect.h"

namespace lockstep::launcher {
namespace {

constexpr absl::Duration kCallTimeout = absl::Seconds(1);
constexpr absl::Duration kLookAgain = absl::Milliseconds(100);
// How long the coordinator's host may be away.
constexpr absl::Duration kGiveUpAfter = absl::Seconds(30);

// The newest checkpoint in a folder, or the folder.
std::string NewestIn(const std::string& folder) {
  std::error_code error;
  const std::filesystem::path newest =
      std::filesystem::read_symlink(std::filesystem::path(folder) / "last", error);
  return error ? folder : absl::StrCat(folder, "/", newest.string());
}

class Guest {
 public:
  Guest(const RunArgs& args, Spawner* spawner)
      : args_(args),
        spawner_(spawner),
        renderer_(Options(), Renderer::StandardSinks(), Clock::Real()) {}
  int Run();

 private:
  static RenderOptions Options() {
    RenderOptions options = RenderOptionsForStderr();
    options.progress = false;  // the host with rank 0 shows it
    return options;
  }
  absl::StatusOr<JobStatus> RunJob();
  absl::Status StartAgent(const coordinator::ClientOptions& coordinator, int slots);
  // The workers save what they have and leave; says what came of it.
  absl::Status SaveAndLeave(const JobSpec& spec);
  // The run's one job, as soon as its coordinator has it.
  absl::StatusOr<std::string> AwaitJob(coordinator::Client* client, absl::Duration patience);

  // On other threads.
  void OnSignal(int count);
  void OnLost();
  bool stopped() ABSL_LOCKS_EXCLUDED(mu_);
  void Stop(bool kill) ABSL_LOCKS_EXCLUDED(mu_);

  const RunArgs& args_;
  Spawner* const spawner_;
  Renderer renderer_;

  absl::Mutex mu_;
  int signals_ ABSL_GUARDED_BY(mu_) = 0;
  bool lost_ ABSL_GUARDED_BY(mu_) = false;
  std::shared_ptr<coordinator::Client> client_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<Agent> agent_ ABSL_GUARDED_BY(mu_);
};

int Guest::Run() {
  StopSignals signals([this](int count) { OnSignal(count); });
  spawner_->SetOnLost([this] { OnLost(); });
  const absl::StatusOr<JobStatus> ended = RunJob();
  std::shared_ptr<Agent> agent;
  int count;
  bool lost;
  {
    absl::MutexLock lock(&mu_);
    agent = std::move(agent_);
    count = signals_;
    lost = lost_;
  }
  if (count > 0 && agent != nullptr) {
    while (!agent->WaitStopped(kLookAgain)) {
      absl::MutexLock lock(&mu_);
      if (signals_ > 1) break;
    }
  }
  agent.reset();  // the last worker is gone after this
  if (count > 0) return renderer_.Finish("", kExitInterrupted);
  if (ended.ok()) {
    renderer_.Message(absl::StrCat("the job has ended: ", JobState_Name(ended->state())));
    return renderer_.Finish("", ExitCodeOfJob(*ended));
  }
  std::string why(ended.status().message());
  if (lost) why = "the spawner process was killed; its workers were ended";
  if (ended.status().code() == absl::StatusCode::kInvalidArgument) {
    renderer_.Plain(why);  // diagnostics of the job file, formatted
  } else {
    renderer_.Error(why);
  }
  return renderer_.Finish("", lost ? kExitFailure : ExitCodeOf(ended.status()));
}

absl::StatusOr<JobStatus> Guest::RunJob() {
  coordinator::ClientOptions options;
  options.address = args_.rendezvous->endpoint;
  LS_ASSIGN_OR_RETURN(const RunTokens tokens,
                      TokensOfRun(args_.coordinator, args_.rendezvous->plaintext));
  options.token = tokens.shown;
  LS_ASSIGN_OR_RETURN(const SubmitJobRequest request, MakeSubmission(args_.job));
  const int slots = SlotsOfHost(request.spec(), /*over_hosts=*/true);
  LS_RETURN_IF_ERROR(CheckLimits(CurrentLimits(), slots, /*local_run=*/true));
  std::shared_ptr<coordinator::Client> client = coordinator::Client::Create(options);
  {
    absl::MutexLock lock(&mu_);
    client_ = client;
  }
  LS_ASSIGN_OR_RETURN(const std::string job,
                      AwaitJob(client.get(), job::StartTimeout(request.spec())));
  LS_RETURN_IF_ERROR(StartAgent(options, slots));
  renderer_.SetTee("none");
  absl::StatusOr<JobStatus> ended = FollowToEnd(client.get(), job, &renderer_, kGiveUpAfter);
  if (absl::IsUnavailable(ended.status())) return SaveAndLeave(request.spec());
  return ended;
}

absl::Status Guest::SaveAndLeave(const JobSpec& spec) {
  const std::string gone =
      absl::StrCat("the run's coordinator at ", args_.rendezvous->endpoint, " is gone");
  if (spec.checkpoint().dir().empty()) {
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
      "; the same command on the hosts that are left (--nnodes, --node-rank and --rdzv-endpoint "
      "are theirs) goes on from there with checkpoint.resume: auto";
  const std::string folder = ResolvePath(left.folder, spec.checkpoint().dir());
  if (left.saved > 0) {
    return absl::UnavailableError(absl::StrCat(
        gone, "; the state of this host's workers is saved as ", NewestIn(folder), kGoOn));
  }
  return absl::UnavailableError(
      absl::StrCat(gone, "; this host's workers had nothing new to save",
                   left.last_line.empty() ? "" : absl::StrCat(" (", left.last_line, ")"),
                   ": the newest checkpoint is that in ", folder, kGoOn));
}

absl::Status Guest::StartAgent(const coordinator::ClientOptions& coordinator, int slots) {
  AgentOptions options;
  options.coordinator = coordinator;
  LS_ASSIGN_OR_RETURN(options.worker_program, FindProgram("worker", "LOCKSTEP_WORKER"));
  LS_ASSIGN_OR_RETURN(options.interfaces, InterfaceFilter::Parse(args_.interfaces));
  options.spawner = spawner_;
  options.slots = slots;
  options.private_agent = true;
  options.run_dir = args_.job.run_dir;
  options.runs_dir = args_.job.runs_dir;
  options.on_warning = [this](const std::string& text) {
    renderer_.Message(absl::StrCat("warning: ", text));
  };
  LS_ASSIGN_OR_RETURN(std::shared_ptr<Agent> agent, Agent::Start(std::move(options)));
  absl::MutexLock lock(&mu_);
  agent_ = std::move(agent);
  if (signals_ > 0) agent_->Stop(/*kill=*/signals_ > 1);
  return absl::OkStatus();
}

absl::StatusOr<std::string> Guest::AwaitJob(coordinator::Client* client, absl::Duration patience) {
  const absl::Time deadline = Clock::Real()->Now() + patience;
  bool said = false;
  while (!stopped()) {
    const absl::StatusOr<ListJobsResponse> jobs = client->ListJobs({}, kCallTimeout);
    if (jobs.ok() && jobs->jobs_size() > 0) return jobs->jobs(0).job_id();
    const bool away = absl::IsUnavailable(jobs.status()) || absl::IsDeadlineExceeded(jobs.status());
    if (!jobs.ok() && !away) return jobs.status();
    if (Clock::Real()->Now() > deadline) {
      return absl::UnavailableError(
          absl::StrCat("no run appeared at ", args_.rendezvous->endpoint, " within ",
                       absl::FormatDuration(patience),
                       " (start_timeout): start the same command "
                       "with --node-rank=0 on the host of that address",
                       jobs.ok() ? "" : absl::StrCat("; ", std::string(jobs.status().message()))));
    }
    if (!std::exchange(said, true)) {
      renderer_.Message(
          absl::StrCat("waiting for the host with --node-rank=0 at ", args_.rendezvous->endpoint));
    }
    Clock::Real()->Sleep(kLookAgain);
  }
  return absl::CancelledError("interrupted");
}

bool Guest::stopped() {
  absl::MutexLock lock(&mu_);
  return signals_ > 0 || lost_;
}

void Guest::OnSignal(int count) {
  {
    absl::MutexLock lock(&mu_);
    signals_ = count;
  }
  if (count == 1)
    renderer_.Message("leaving: the workers get their grace (Ctrl-C again kills them)");
  Stop(/*kill=*/count > 1);
}

void Guest::OnLost() {
  {
    absl::MutexLock lock(&mu_);
    lost_ = true;
  }
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

}  // namespace

int RunAsGuest(const RunArgs& args, Spawner* spawner) { return Guest(args, spawner).Run(); }

}  // namespace lockstep::launcher
