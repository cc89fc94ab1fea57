// SPDX-License-Identifier: Apache-2.0
#include "launcher/local_run/run_here.h"

#include <unistd.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/clock.h"
#include "common/limits.h"
#include "common/status.h"
#include "coordinator/client/client.h"
#include "job/meaning/defaults.h"
#include "launcher/agent/agent.h"
#include "launcher/agent/host.h"
#include "launcher/agent/run_folder.h"
#include "launcher/cli/exit_codes.h"
#include "launcher/follow/follow.h"
#include "launcher/follow/renderer.h"
#include "launcher/follow/result.h"
#include "launcher/follow/standard_streams.h"
#include "launcher/local_run/hosts_of_run.h"
#include "launcher/local_run/hosts_plan.h"
#include "launcher/local_run/local_run.h"
#include "launcher/local_run/private_coordinator.h"
#include "launcher/local_run/remote_hosts.h"
#include "launcher/local_run/run_end.h"
#include "launcher/local_run/run_lock.h"
#include "launcher/local_run/scale_faults.h"
#include "launcher/local_run/ship_workdir.h"
#include "launcher/local_run/stop_call.h"
#include "launcher/local_run/stop_signals.h"
#include "launcher/local_run/submission.h"
#include "launcher/verbs/connect.h"

namespace lockstep::launcher {
namespace {

constexpr absl::Duration kReadyTimeout = absl::Seconds(30);
// From when its connection is dead until a coordinator that stands still is killed, and the next
// one serves. One that is lost for good is told of at once.
constexpr absl::Duration kGiveUpAfter = absl::Seconds(30);

}  // namespace

int LocalRun::Run() {
  StopSignals signals([this](int count, int) { OnSignal(count); }, [this] { stop_.GiveUp(); });
  spawner_->SetOnLost([this] { OnLost("the spawner process was killed"); });
  ended_ = RunJob();
  std::shared_ptr<Agent> agent;
  {
    absl::MutexLock lock(&mu_);
    over_ = true;
    agent = std::move(agent_);
  }
  stop_.GiveUp();
  agent.reset();  // the last worker is gone after this
  remote_.reset();
  return Finish(ended_);
}

void LocalRun::OnHungDisk(const std::string& what) {
  {
    absl::MutexLock lock(&mu_);
    disk_hangs_ = hurried_ || !lost_.empty();
  }
  if (hung_disk_.Wait(what, /*waits=*/!disk_hangs_)) return;
  remote_.reset();
  ::_exit(Finish(ended_));  // with the threads that wait for the disk
}

PrivateCoordinator::Callbacks LocalRun::CoordinatorCallbacks() {
  return {
      .on_restart =
          [this](const std::string& how) {
            renderer_.Message(
                absl::StrCat("warning: the run's coordinator ", how,
                             "; it is started again, and the workers go on meanwhile"));
          },
      .on_lost =
          [this](const std::string& how) { OnLost(absl::StrCat("the run's coordinator ", how)); }};
}

absl::StatusOr<JobStatus> LocalRun::RunJob() {
  // The coordinator starts while the job is read.
  LS_ASSIGN_OR_RETURN(const auto network, NetworkOfRun());
  LS_ASSIGN_OR_RETURN(const std::unique_ptr<PrivateCoordinator> coordinator,
                      PrivateCoordinator::Start(spawner_, CoordinatorCallbacks(), network));
  LS_ASSIGN_OR_RETURN(
      SubmitJobRequest request,
      MakeSubmission(job_, plan_.has_value() ? Counted::kByCoordinator : Counted::kHere));
  const JobSpec& spec = request.spec();
  known_.set_name(spec.name());
  LS_RETURN_IF_ERROR(PrepareHosts(request.mutable_spec()));
  if (!args_.job.run_dir.empty()) {
    LS_ASSIGN_OR_RETURN(run_lock_, RunLock::Take(args_.job.run_dir));
  }
  // A job that survives no failure ends with its coordinator, too; a command goes on without it.
  const bool restarts = job::MaxRestarts(spec) > 0 || spec.has_run();
  coordinator->SetRestarts(restarts);
  LS_RETURN_IF_ERROR(PrepareFaults(*coordinator, request.mutable_spec()));
  LS_RETURN_IF_ERROR(coordinator->WaitReady(kReadyTimeout, interrupt_.get()));
  coordinator::ClientOptions reached;
  reached.address =
      plan_.has_value() ? AddressHere(*plan_, coordinator->address()) : coordinator->address();
  if (network.has_value()) reached.token = network->tokens.shown;
  const std::shared_ptr<coordinator::Client> client = coordinator::Client::Create(reached);
  coordinator::ClientOptions watched = reached;
  watched.warns_of_unsaved = false;  // nothing of what it hears is shown
  coordinator->Watch(coordinator::Client::Create(watched));
  stop_.Reach(watched);
  renderer_.SetTee(spec.logs().tee());
  {
    absl::MutexLock lock(&mu_);
    client_ = client;
    runs_command_ = spec.has_run();
    stop_patience_ = restarts ? kGiveUpAfter : kCallTimeout;
  }
  if (!plan_.has_value()) LS_RETURN_IF_ERROR(StartAgent(spec, reached));
  if (network.has_value()) {
    const std::string& own = args_.job.run_dir;
    const std::string& runs = own.empty() ? args_.job.runs_dir : own;
    LS_RETURN_IF_ERROR(workdir_.Send(reached, runs, &request, [&](const std::string& package) {
      return coordinator->HasPackage(package);
    }));
  }
  LS_RETURN_IF_ERROR(Submit(request));
  if (plan_.has_value()) LS_RETURN_IF_ERROR(EnterHosts(spec, coordinator->address()));
  if (scaler_ != nullptr) scaler_->Start(client, known_.job_id(), faults_);
  auto ended = FollowToEnd(client.get(), known_.job_id(), &renderer_, kGiveUpAfter);
  {
    absl::MutexLock lock(&mu_);
    leaving_ = true;
  }
  if (plan_.has_value()) {
    LeaveHosts(ended, reached);
  } else if (network.has_value()) {
    AwaitGuestsEnd(client.get());
  }
  if (scaler_ != nullptr) scaler_->Stop();
  return ended;
}

absl::Status LocalRun::StartAgent(const JobSpec& spec,
                                  const coordinator::ClientOptions& coordinator) {
  const int workers = SlotsOfHost(spec, args_.rendezvous.has_value());
  LS_RETURN_IF_ERROR(CheckMemory(spec, workers));
  LS_RETURN_IF_ERROR(CheckLimits(CurrentLimits(), workers, /*local_run=*/true));
  AgentOptions options;
  LS_ASSIGN_OR_RETURN(options.worker_program, FindProgram("worker", "LOCKSTEP_WORKER"));
  options.coordinator = coordinator;
  LS_ASSIGN_OR_RETURN(options.interfaces, InterfaceFilter::Parse(args_.interfaces));
  options.spawner = spawner_;
  options.slots = workers;
  options.private_agent = true;
  options.run_dir = args_.job.run_dir;
  options.runs_dir = args_.job.runs_dir;
  options.on_hung_disk = [this](const std::string& what) { OnHungDisk(what); };
  options.on_warning = [this](const std::string& text) {
    renderer_.Message(absl::StrCat("warning: ", text));
  };
  LS_ASSIGN_OR_RETURN(std::shared_ptr<Agent> agent, Agent::Start(std::move(options)));
  absl::MutexLock lock(&mu_);
  agent_ = std::move(agent);
  return absl::OkStatus();
}

absl::Status LocalRun::PrepareFaults(const PrivateCoordinator& coordinator, JobSpec* spec) {
  LS_ASSIGN_OR_RETURN(faults_, FaultsOf(args_.job, *spec));
  if (faults_.empty()) return absl::OkStatus();
  (*spec->mutable_env())[chaos::kJournalVariable] = coordinator.journal();
  const bool scales = std::any_of(
      faults_.begin(), faults_.end(),
      [](const chaos::Injection& fault) { return fault.action == chaos::Action::kScale; });
  if (!scales) return absl::OkStatus();
  (*spec->mutable_env())[chaos::kScaleVariable] = coordinator.pipe();
  LS_ASSIGN_OR_RETURN(scaler_,
                      ScaleFaults::Create(coordinator.pipe(), [this](const std::string& why) {
                        renderer_.Message(absl::StrCat("warning: chaos: ", why));
                      }));
  return absl::OkStatus();
}

absl::Status LocalRun::Submit(const SubmitJobRequest& request) {
  std::shared_ptr<coordinator::Client> client;
  {
    absl::MutexLock lock(&mu_);
    client = client_;
  }
  profiled_ = !request.spec().profile().steps().empty();
  // What another run has measured in this folder is not this one's.
  const std::string& own = args_.job.run_dir;
  if (profiled_ && !own.empty()) ::unlink((own + "/profile.txt").c_str());
  if (plan_.has_value() && !own.empty()) logs_before_ = LogsIn(own);
  LS_ASSIGN_OR_RETURN(const SubmitJobResponse response, client->SubmitJob(request, kCallTimeout));
  known_.set_job_id(response.job_id());
  run_lock_.Name(response.job_id());
  known_.set_run_dir(ChosenRunFolder(args_.job.run_dir, args_.job.runs_dir, response.run_dir()));
  absl::MutexLock lock(&mu_);
  job_id_ = response.job_id();
  if (signals_ > 0) return absl::CancelledError("interrupted");
  return absl::OkStatus();
}

void LocalRun::OnSignal(int count) {
  std::shared_ptr<coordinator::Client> client;
  CancelJobRequest request;
  bool runs_command;
  absl::Duration patience;
  {
    absl::MutexLock lock(&mu_);
    runs_command = runs_command_;
    patience = stop_patience_;
    signals_ = count;
    hurried_ = over_ || leaving_ || count > 1;
    changed_.NotifyAll();
    if (hurried_) renderer_.Hurry();
    if (files_ != nullptr) files_->Stop();
    if (over_ || leaving_) return;  // nothing is left to be saved
    client = client_;
    request.set_job_id(job_id_);
  }
  EndWaits();
  if (request.job_id().empty()) return;  // nothing runs yet: RunJob sees it
  if (count == 1) {
    renderer_.Message(runs_command
                          ? "stopping: the ranks get SIGTERM (Ctrl-C again kills them)"
                          : "stopping: the workers finish their step, save and leave (Ctrl-C again "
                            "kills them)");
    const absl::Status asked = stop_.Ask(request.job_id(), patience);
    // By the next wish, which kills, or there is nobody left to ask.
    if (asked.ok() || absl::IsCancelled(asked)) return;
    StopEverything();
    return renderer_.Error(
        absl::StrCat("cannot stop the job politely, killing it: ", asked.message()));
  }
  // On other hosts it is their agents that do so.
  request.set_kill(true);
  const bool stops =
      plan_.has_value() && count == 2 && client->CancelJob(request, kCallTimeout).ok();
  if (!stops) StopEverything();
  renderer_.Message("killing the workers");
}

void LocalRun::OnLost(const std::string& what) {
  {
    absl::MutexLock lock(&mu_);
    if (over_ || !lost_.empty()) return;
    lost_ = what;
  }
  stop_.GiveUp();
  EndWaits();
  StopEverything();
}

void LocalRun::EndWaits() {
  const uint64_t one = 1;
  (void)!::write(interrupt_.get(), &one, sizeof(one));
  workdir_.Stop();
}

void LocalRun::StopEverything() {
  std::shared_ptr<coordinator::Client> client;
  {
    absl::MutexLock lock(&mu_);
    if (agent_ != nullptr) agent_->Stop(/*kill=*/true);
    client = client_;
  }
  if (client != nullptr) client->StopFollowing();
}

int LocalRun::Finish(const absl::StatusOr<JobStatus>& ended) {
  int signals;
  bool served;  // the run had its coordinator
  std::string lost, host_failure;
  {
    absl::MutexLock lock(&mu_);
    signals = signals_;
    served = client_ != nullptr;
    lost = lost_;
    host_failure = host_failure_;
  }
  if (ended.ok()) {
    JobStatus status = *ended;
    status.set_run_dir(known_.run_dir());
    if (!host_failure.empty() && status.state() != SUCCEEDED) {
      renderer_.Error(host_failure);
      status.set_state(FAILED);
      status.set_reason(host_failure);
      status.mutable_result()->set_exit_code(kExitNotAdmitted);
      return ShowEnd(status, kExitNotAdmitted);
    }
    // What came once all was done stopped nothing.
    if (signals > 0 && (status.state() != SUCCEEDED || cut_short_ || disk_hangs_)) {
      status.mutable_result()->set_exit_code(kExitInterrupted);
    }
    return ShowEnd(status, ExitCodeOfJob(status));
  }
  renderer_.Finish("", kExitOk);
  int code = ExitCodeOf(ended.status(), Input::kJobFile);
  std::string why(ended.status().message());
  if (signals > 0) {
    code = kExitInterrupted;
    why = "interrupted";
  } else if (!lost.empty()) {
    code = served ? kExitNoCoordinator : kExitFailure;
    why = absl::StrCat(lost, served ? "; its workers were ended" : " before the run had begun");
  }
  const bool plain = lost.empty() && IsDiagnostics(ended.status());
  if (signals == 0) plain ? renderer_.Plain(why) : renderer_.Error(why);
  if (known_.job_id().empty()) {
    if (signals > 0) renderer_.Message("interrupted before the job was handed in: nothing has run");
    return code;
  }
  JobStatus status = known_;
  status.set_state(signals > 0 ? CANCELLED : FAILED);
  status.set_reason(why);
  status.mutable_result()->set_exit_code(code);
  return ShowEnd(status, code);
}

int LocalRun::ShowEnd(const JobStatus& status, int code) {
  RunRecord record{.json = args_.common.output == Output::kJson, .disk_hangs = disk_hangs_};
  record.logs_before = logs_before_;
  if (!disk_hangs_) {
    record.profiled = profiled_;
    record.faults = faults_;
    if (scaler_ != nullptr) record.refused = scaler_->refused();
  }
  return renderer_.Finish(ResultText(status, record), code);
}

int RunHere(const RunArgs& args, Spawner* spawner) {
  // Before any thread: what even one worker needs.
  const absl::Status enough = CheckLimits(CurrentLimits(), /*workers=*/1, /*local_run=*/true);
  return enough.ok() ? LocalRun(args, spawner).Run() : Complain(enough);
}

}  // namespace lockstep::launcher
