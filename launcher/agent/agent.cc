// SPDX-License-Identifier: Apache-2.0
#include "launcher/agent/agent.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "common/available_cpus.h"
#include "common/clock.h"
#include "common/cpu_list.h"
#include "common/limits.h"
#include "common/log.h"
#include "common/protocol_version.h"
#include "common/status.h"
#include "coordinator/client/packages.h"
#include "launcher/agent/agent_impl.h"
#include "launcher/agent/devices.h"
#include "launcher/agent/gpu_trial.h"
#include "launcher/agent/kept_token.h"
#include "launcher/agent/numa.h"
#include "launcher/cli/version.h"

namespace lockstep::launcher {
namespace {

constexpr int kHeartbeatKind = 1;
// A host that is well says so in milliseconds.
constexpr absl::Duration kFirstLook = absl::Seconds(2);
// A coordinator that is there takes them at once.
constexpr absl::Duration kLastWords = absl::Seconds(2);
// How long an agent that ends waits for disks that are slow, and for what else is under way there.
constexpr absl::Duration kDisksSettle = absl::Seconds(10);

}  // namespace

absl::Status AgentImpl::Init() {
  file_limit_ = RaiseFileLimit();
  LS_RETURN_IF_ERROR(Identify());
  options_.coordinator.renewed = std::make_shared<coordinator::RenewedToken>();
  if (!options_.private_agent) {  // nobody watches a run's own coordinator
    std::vector<std::string> uuids;
    for (const Gpu& gpu : gpus_) uuids.push_back(gpu.uuid);
    usage_ = std::make_unique<UsageSampler>(std::move(uuids));
  }
  machine_ = std::make_unique<AgentMachine>(MachineOptions());
  LS_ASSIGN_OR_RETURN(loop_, EventLoop::Create());
  life_watch_ = std::make_unique<LifeWatch>([this](uint64_t id) {
    const absl::Time seen = Clock::Real()->Now();
    loop_->Post([this, id, seen] { OnDied(id, seen); });
  });
  SetUpNode();
  if (!options_.interfaces.empty()) FindDataAddresses("");  // says at once that there is none
  FileSender::Settings files{.run_dir = options_.run_dir, .runs_dir = options_.runs_dir};
  files.as_users = options_.as_users;
  files.allow_root = options_.allow_root;
  files.open = [this] { return coordinator::FileStream::Open(options_.coordinator); };
  files_ = std::make_unique<FileSender>(std::move(files));
  WatchHealth();
  Workdirs::Settings workdirs;
  workdirs.client = coordinator::PackagesClient::Create(options_.coordinator);
  if (!state_folder_.empty()) workdirs.folder = absl::StrCat(state_folder_, "/packages");
  workdirs.own_run_folder = node_.own_run_folder;
  workdirs.as_users = options_.as_users;
  workdirs.allow_root = options_.allow_root;
  workdirs_ = std::make_unique<Workdirs>(std::move(workdirs));
  LS_RETURN_IF_ERROR(AdoptWorkers());
  OpenSession();
  loop_->Start("agent", [this] { return AfterEvents(); });
  return absl::OkStatus();
}

absl::Status AgentImpl::Identify() {
  if (options_.private_agent) {
    identity_.node_id = absl::StrCat(host_, "-", incarnation_);
    return absl::OkStatus();
  }
  std::string folder = options_.state_dir;
  if (folder.empty()) {
    LS_ASSIGN_OR_RETURN(folder, DefaultStateFolder(host_, ::geteuid() == 0, [](const char* name) {
                          const char* value = std::getenv(name);
                          return std::string(value == nullptr ? "" : value);
                        }));
  }
  LS_ASSIGN_OR_RETURN(identity_, OpenNodeIdentity(folder, host_));
  state_folder_ = folder;
  options_.coordinator.token = NewerToken(folder, options_.coordinator.token);
  return absl::OkStatus();
}

void AgentImpl::WatchHealth() {
  if (options_.private_agent) return;
  HealthWatch::Options watch;
  watch.folders.push_back(state_folder_);
  if (!options_.runs_dir.empty()) watch.folders.push_back(options_.runs_dir);
  struct stat began {};
  const bool known = ::stat(state_folder_.c_str(), &began) == 0;
  watch.examine_disk = [own = state_folder_, began, known](const std::string& folder) {
    struct stat now {};
    const bool same = folder != own || !known ||
                      (::stat(folder.c_str(), &now) == 0
                           ? now.st_ino == began.st_ino && now.st_dev == began.st_dev
                           : errno != ENOENT);
    if (same) return ExamineDisk(folder, /*own=*/true);
    return absl::StrCat("the agent's folder ", folder,
                        " was removed: start the agent again, with the token it had at first");
  };
  watch.again = options_.health_again;
  watch.examine_gpus = GpuTrial(gpus_, options_.spawner, options_.worker_program);
  health_ = std::make_unique<HealthWatch>(std::move(watch));
  health_->AwaitFirst(kFirstLook);
}

AgentMachineOptions AgentImpl::MachineOptions() const {
  AgentMachineOptions options;
  options.orphan_grace = options_.orphan_grace;
  options.announce_leaving = !options_.private_agent;
  options.leave_grace = options_.leave_grace;
  if (!identity_.file.empty()) {
    options.taken_advice =
        absl::StrCat("if this host is a copy of another one, stop this agent and remove ",
                     identity_.file, ": the next one makes an id of its own");
  }
  options.wall = [](absl::Time time) { return absl::Now() + (time - Clock::Real()->Now()); };
  return options;
}

void AgentImpl::SetUpNode() {
  node_.starter =
      [this](const std::string& job_id) -> absl::StatusOr<std::shared_ptr<ProcessStarter>> {
    if (supervisors_ != nullptr) return supervisors_->Of(job_id);
    return std::shared_ptr<ProcessStarter>(options_.spawner, [](ProcessStarter*) {});
  };
  node_.program = options_.worker_program;
  node_.coordinator_address = options_.coordinator.address;
  node_.token = options_.coordinator.token;
  node_.node_id = identity_.node_id;
  node_.host = host_;
  node_.as_users = options_.as_users;
  node_.allow_root = options_.allow_root;
  node_.is_private = options_.private_agent;
  node_.own_run_folder = !options_.run_dir.empty() || !options_.runs_dir.empty();
  node_.post = [this](std::function<void()> function) { loop_->Post(std::move(function)); };
  node_.on_started = [this](WorkerProcess* worker, pid_t pid) { OnStarted(worker, pid); };
  node_.on_exit = [this](WorkerProcess* w, const ProcessStarter::Exit& exit) { OnExit(w, exit); };
  node_.on_start_failed = [this](WorkerProcess* w, const absl::Status& s) { OnStartFailed(w, s); };
  node_.on_lines = [this](WorkerProcess* worker, bool is_stderr,
                          const std::vector<std::string>& lines) {
    OnLines(worker, is_stderr, lines);
  };
  node_.disk = [this](const std::string& job_id) { return DiskOf(job_id); };
  node_.open_log = options_.open_log;
  node_.on_warning = [this](const absl::Status& status) {
    WarnOnce(std::string(status.message()));
  };
}

void AgentImpl::OpenSession() {
  const int number = ++session_number_;
  // What a closed session has said is not heard any more.
  const auto post = [this, number](AgentEvent event) {
    loop_->Post([this, number, event = std::move(event)]() mutable {
      if (number == session_number_) Feed(std::move(event));
    });
  };
  coordinator::AgentSession::Callbacks callbacks;
  callbacks.hello = [this] { return Hello(); };
  callbacks.on_command = [post](const AgentCommand& c) { post(agent_event::Command{c}); };
  callbacks.on_connection = [post](bool connected, const std::string& reason) {
    post(connected ? AgentEvent(agent_event::Connected{}) : agent_event::Disconnected{reason});
  };
  callbacks.on_renewed = [this](const std::string& token) {
    loop_->Post([this, token] { node_.token = token; });
    if (state_folder_.empty()) return;
    if (absl::Status kept = KeepToken(state_folder_, token); !kept.ok()) {
      LS_LOG_WARNING << "the token's new certificate is lost with this process: " << kept.message();
    }
  };
  session_ = options_.open_session(options_.coordinator, std::move(callbacks));
  for (const AgentMessage& message : std::exchange(early_, {})) session_->Send(message);
}

AgentImpl::~AgentImpl() {
  if (loop_ == nullptr || machine_ == nullptr) return;  // Init failed
  if (!detached_) {
    Stop(/*kill=*/true);
    // The exits come as soon as the kernel is done with the processes.
    const absl::Time give_up = Clock::Real()->Now() + absl::Seconds(10);
    while (!WaitStopped(absl::Milliseconds(100)) && Clock::Real()->Now() < give_up) {
      if (options_.spawner->lost()) break;
    }
  }
  loop_->Stop();
  if (!detached_) {
    for (const auto& [incarnation, worker] : workers_) worker->Forget();  // nobody comes for them
  }
  // That it leaves, and how its workers ended, saves their jobs a wait; a run's own are through.
  const bool has_last_words = !detached_ && !options_.private_agent;
  if (session_ != nullptr) session_->Close(has_last_words ? kLastWords : absl::ZeroDuration());
  // Nobody calls back after this.
  workers_.clear();
  supervisors_.reset();
  if (!options_.on_hung_disk) return;
  std::string hung = AwaitDisks(options_.private_agent ? kLastWords : kDisksSettle);
  for (; !hung.empty(); hung = AwaitDisks(absl::ZeroDuration())) {
    // A thread that waits in the kernel may keep it after all others are gone.
    identity_.lock.reset();
    options_.on_hung_disk(hung);
  }
}

void AgentImpl::Detach() {
  detached_ = true;
  loop_->Stop();
  for (const auto& [incarnation, worker] : workers_) worker->LeavePartial();
  SettleDisks();
  // What waits for a disk that does not answer comes into the logs from the supervisors, as does
  // what is printed next.
  for (const auto& [incarnation, worker] : workers_) worker->StopLogging();
  SettleDisks();  // what is being written
  for (const auto& [incarnation, worker] : workers_) worker->LeaveUnlogged();
}

std::vector<std::string> AgentImpl::SettleDisks() {
  std::vector<std::string> hung;
  const absl::Time until = Clock::Real()->Now() + kDisksSettle;
  for (const auto& [job_id, disk] : disks_) {
    bool done = disk->Settle(kLastWords);
    while (!done && !disk->stands(kLastWords) && Clock::Real()->Now() < until) {
      done = disk->Settle(kLastWords);  // it is slow
    }
    if (!done) hung.push_back(job_id);
  }
  return hung;
}

std::string AgentImpl::AwaitDisks(absl::Duration patience) {
  const auto stop = [this](absl::Time until) {
    const auto left = [&] { return std::max(absl::ZeroDuration(), until - Clock::Real()->Now()); };
    std::vector<std::string> hung;
    const std::string look = health_ == nullptr ? "" : health_->Stop(left());
    if (!look.empty()) hung.push_back(absl::StrCat("a look at ", look, " does not come back"));
    std::vector<std::string> jobs;
    if (workdirs_ != nullptr) jobs = workdirs_->Stop(left());
    if (!jobs.empty()) {
      hung.push_back(absl::StrCat("the workdir of job ", absl::StrJoin(jobs, ", "),
                                  " is being unpacked still"));
    }
    const std::string job = files_ == nullptr ? "" : files_->Stop(left());
    if (!job.empty()) {
      hung.push_back(
          absl::StrCat("the files of job ", job, ", which are fetched, are being read still"));
    }
    return hung;
  };
  stop(absl::InfinitePast());  // all of them
  const std::vector<std::string> jobs = SettleDisks();
  std::vector<std::string> hung = stop(Clock::Real()->Now() + patience);
  if (!jobs.empty()) {
    hung.insert(hung.begin(),
                absl::StrCat("a run's disk does not answer (job ", absl::StrJoin(jobs, ", "),
                             "), and its logs may lack what came last"));
  }
  return absl::StrJoin(hung, "; ");
}

void AgentImpl::Stop(bool kill) {
  loop_->Post([this, kill] { Feed(agent_event::Stop{kill}); });
}

void AgentImpl::SaveAndStop() {
  loop_->Post([this] {
    saving_ = true;
    Feed(agent_event::Stop{.save = true});
  });
}

Farewell AgentImpl::farewell() {
  absl::MutexLock lock(&mu_);
  return farewell_;
}

bool AgentImpl::WaitStopped(absl::Duration timeout) {
  absl::MutexLock lock(&mu_);
  return changed_.AwaitFor(&mu_, timeout,
                           [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return stopped_; });
}

AgentMessage AgentImpl::Hello() {
  AgentMessage message;
  AgentHello* hello = message.mutable_hello();
  {
    absl::MutexLock lock(&mu_);
    *hello = known_;
  }
  hello->set_node_id(identity_.node_id);
  hello->set_incarnation(incarnation_);
  hello->set_host(host_);
  hello->set_slots(options_.slots);
  hello->mutable_labels()->insert(options_.labels.begin(), options_.labels.end());
  hello->set_cores(AvailableCpus());
  hello->set_memory(TotalMemory());
  AddDevices(gpus_, hello);
  for (NumaNode& node : NumaNodes("/sys", CpusOfThread().value_or(CpuList{}), gpus_)) {
    *hello->add_numa() = std::move(node);
  }
  if (health_ != nullptr) hello->mutable_health()->set_problem(health_->problem());
  hello->set_protocol_version(SpokenProtocolVersion());
  hello->set_version(kVersion);
  hello->set_private_agent(options_.private_agent);
  return message;
}

absl::Time AgentImpl::AfterEvents() {
  const absl::Time now = Clock::Real()->Now();
  const absl::Time late = TellLateEnds(now);
  if (now >= next_) Feed(agent_event::Tick{});
  if (machine_->connected()) forwarder_.Fill(now);
  return std::min(next_, late);
}

void AgentImpl::Feed(AgentEvent event) {
  events_.push_back(std::move(event));
  if (feeding_) return;
  feeding_ = true;
  while (!events_.empty()) {
    const AgentMachine::Output output = machine_->Step(events_.front(), Clock::Real()->Now());
    events_.pop_front();
    next_ = output.next;
    Publish();
    for (const AgentAction& action : output.actions) {
      std::visit([this](const auto& a) { Do(a); }, action);
    }
  }
  feeding_ = false;
}

void AgentImpl::Do(const agent_action::Heartbeat&) {
  AgentMessage message;
  AgentHeartbeat* const heartbeat = message.mutable_heartbeat();
  if (usage_ != nullptr) {
    std::map<std::string, int64_t> pids;
    for (const auto& [incarnation, worker] : workers_) {
      if (worker->pid > 0 && !worker->ended) pids[incarnation] = worker->pid;
    }
    usage_->Watch(std::move(pids));
    *heartbeat = usage_->Latest();
  }
  LookAtDisks();
  if (health_ != nullptr) {
    const std::string problem = health_->problem();
    heartbeat->mutable_health()->set_problem(problem);
    if (std::exchange(problem_, problem) != problem) {
      Warn(problem.empty() ? "this node is well again and takes work"
                           : absl::StrCat("this node takes no work: ", problem));
      if (!problem.empty()) TellOfWait("", problem);
    }
  }
  if (session_ != nullptr) session_->SendLatest(kHeartbeatKind, message);
}

void AgentImpl::Do(const agent_action::CloseSession&) {
  ++session_number_;
  session_.reset();
}

void AgentImpl::Do(const agent_action::Report& action) {
  if (options_.on_connection) options_.on_connection(action.connected, action.reason);
}

void AgentImpl::Send(const AgentMessage& message) {
  if (session_number_ == 0) return early_.push_back(message);
  if (session_ != nullptr) session_->Send(message);
}

void AgentImpl::WarnOnce(const std::string& message) {
  if (warned_.insert(message).second) Warn(message);
}

void AgentImpl::Warn(const std::string& message) {
  if (options_.on_warning) {
    options_.on_warning(message);
  } else {
    LS_LOG_WARNING << message;
  }
}

void AgentImpl::Publish() {
  absl::MutexLock lock(&mu_);
  known_ = machine_->Hello();
  stopped_ = machine_->stopped();
  changed_.NotifyAll();
}

absl::StatusOr<std::unique_ptr<Agent>> Agent::Start(AgentOptions options) {
  auto agent = std::make_unique<AgentImpl>(std::move(options));
  LS_RETURN_IF_ERROR(agent->Init());
  return agent;
}

}  // namespace lockstep::launcher
