// SPDX-License-Identifier: Apache-2.0
#include "launcher/agent/agent.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <map>
#include <set>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/clock.h"
#include "common/cond_var.h"
#include "common/farewell.h"
#include "common/log.h"
#include "common/status.h"
#include "coordinator/client/default_address.h"
#include "coordinator/client/package_store.h"
#include "coordinator/client/packages.h"
#include "launcher/agent/data_addresses.h"
#include "launcher/agent/devices.h"
#include "launcher/agent/event_loop.h"
#include "launcher/agent/file_sender.h"
#include "launcher/agent/gpu_trial.h"
#include "launcher/agent/gpus.h"
#include "launcher/agent/health_watch.h"
#include "launcher/agent/host.h"
#include "launcher/agent/identity.h"
#include "launcher/agent/life_watch.h"
#include "launcher/agent/limits.h"
#include "launcher/agent/log_forwarder.h"
#include "launcher/agent/machine.h"
#include "launcher/agent/run_folder.h"
#include "launcher/agent/start_gate.h"
#include "launcher/agent/usage.h"
#include "launcher/agent/workdirs.h"
#include "launcher/agent/worker_process.h"

namespace lockstep::launcher {
namespace {

constexpr int kHeartbeatKind = 1;
constexpr int kProtocolVersion = 1;
// A host that is well says so in milliseconds.
constexpr absl::Duration kFirstLook = absl::Seconds(2);

class AgentImpl : public Agent {
 public:
  explicit AgentImpl(AgentOptions options)
      : options_(std::move(options)), incarnation_(RandomId()) {}
  ~AgentImpl() override;
  absl::Status Init();

  void Stop(bool kill) override;
  bool WaitStopped(absl::Duration timeout) override;
  void SaveAndStop() override;
  Farewell farewell() override;

 private:
  // On the session's thread.
  AgentMessage Hello();

  // On the loop's thread.
  absl::Status Identify();
  void WatchHealth();
  AgentMachineOptions MachineOptions() const;
  void SetUpNode();
  void OpenSession();
  absl::Time AfterEvents();
  // Steps the machine and carries out what it says; events that arise from that come after it.
  void Feed(AgentEvent event);
  void Do(const agent_action::Start& action);
  void Do(const agent_action::Terminate& action) { Signal(action.incarnation, SIGTERM); }
  void Do(const agent_action::SaveAndLeave& action) { Signal(action.incarnation, kFarewellSignal); }
  void Do(const agent_action::Kill& action) { Signal(action.incarnation, SIGKILL); }
  void Do(const agent_action::Forget& action) { workers_.erase(action.incarnation); }
  void Do(const agent_action::Send& action) { Send(action.message); }
  void Do(const agent_action::Heartbeat& action);
  void Do(const agent_action::CloseSession& action);
  void Do(const agent_action::OpenSession&) { OpenSession(); }
  void Do(const agent_action::Report& action);
  void Do(const agent_action::Warn& action) { Say(action.text); }

  void FindDataAddresses(const std::string& seen);
  // Whether the worker waits for a look at the host, as a job's first one does.
  bool AwaitsLook(const WorkerProcess& worker);
  void OnLooked(const std::string& job_id, const std::string& problem, bool of_node);
  // What it starts in is there, or cannot be had.
  void OnWorkdir(const std::string& incarnation, const absl::Status& made);
  void StartWhenWell(WorkerProcess* worker);
  void StartNow(WorkerProcess* worker, const absl::Status& checked);
  absl::Status StartWorker(WorkerProcess* worker, const absl::Status& checked);
  absl::StatusOr<std::shared_ptr<LifePage>> PageOf(const std::string& job_id);
  void Signal(const std::string& incarnation, int signal);
  void OnStarted(WorkerProcess* worker, pid_t pid);
  void OnDied(uint64_t id, absl::Time seen);
  void OnExit(WorkerProcess* worker, const Spawner::Exit& exit);
  void OnStartFailed(WorkerProcess* worker, const absl::Status& why, bool node_unfit = false);
  void OnLines(WorkerProcess* worker, bool is_stderr, const std::vector<std::string>& lines);
  // Closes what the worker has open. Returns its place among the deaths of its job here.
  int64_t Conclude(WorkerProcess* worker);
  void Send(const AgentMessage& message);
  // Said at most once.
  void WarnOnce(const std::string& message);
  void Say(const std::string& message);
  void Publish();
  // How a worker left that was told to save.
  void NoteFarewell(const WorkerProcess& worker, const Spawner::Exit& exit);

  const AgentOptions options_;
  const std::string incarnation_;
  const std::string host_ = HostName();
  const std::vector<Gpu> gpus_ = UsableGpus();
  int64_t file_limit_ = 0;
  NodeIdentity identity_;
  std::unique_ptr<EventLoop> loop_;
  std::unique_ptr<LifeWatch> life_watch_;  // posts to the loop, so it goes first
  std::unique_ptr<FileSender> files_;
  WorkerProcess::Node node_;
  std::unique_ptr<UsageSampler> usage_;
  std::string state_folder_;

  // The loop's.
  std::unique_ptr<AgentMachine> machine_;
  std::deque<AgentEvent> events_;
  bool feeding_ = false;
  bool saving_ = false;  // SaveAndStop was called
  absl::Time next_ = absl::InfinitePast();
  std::unique_ptr<coordinator::AgentSession> session_;  // null: closed
  int session_number_ = 0;
  std::map<std::string, std::unique_ptr<WorkerProcess>> workers_;  // by incarnation
  std::map<std::string, std::weak_ptr<LifePage>> pages_;           // by job
  uint64_t next_worker_id_ = 1;
  LogForwarder forwarder_{host_};
  std::set<std::string> warned_;
  StartGate gate_;
  std::set<std::string> preparing_;  // incarnations that wait for their workdir
  std::string problem_;              // of the host, as it was said last

  absl::Mutex mu_;
  CondVar changed_;
  AgentHello known_ ABSL_GUARDED_BY(mu_);  // the machine's part of the hello
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  Farewell farewell_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<HealthWatch> health_;  // null: nobody looks; posts to the loop
  std::unique_ptr<Workdirs> workdirs_;   // posts to the loop
};

absl::Status AgentImpl::Init() {
  file_limit_ = RaiseFileLimit();
  LS_RETURN_IF_ERROR(Identify());
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
  FileSender::Settings files{.run_dir = options_.run_dir, .runs_dir = options_.runs_dir};
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
  return absl::OkStatus();
}

void AgentImpl::WatchHealth() {
  if (options_.private_agent) return;
  HealthWatch::Options watch;
  watch.folders.push_back(state_folder_);
  if (!options_.runs_dir.empty()) watch.folders.push_back(options_.runs_dir);
  watch.again = options_.health_again;
  watch.examine_gpus = GpuTrial(gpus_, options_.spawner, options_.worker_program);
  health_ = std::make_unique<HealthWatch>(std::move(watch));
  health_->AwaitFirst(kFirstLook);
}

AgentMachineOptions AgentImpl::MachineOptions() const {
  AgentMachineOptions options;
  options.orphan_grace = options_.orphan_grace;
  if (!identity_.file.empty()) {
    options.taken_advice =
        absl::StrCat("if this host is a copy of another one, stop this agent and remove ",
                     identity_.file, ": the next one makes an id of its own");
  }
  options.wall = [](absl::Time time) { return absl::Now() + (time - Clock::Real()->Now()); };
  return options;
}

void AgentImpl::SetUpNode() {
  node_.spawner = options_.spawner;
  node_.program = options_.worker_program;
  node_.coordinator_address = options_.coordinator.address;
  node_.token = options_.coordinator.token;
  node_.node_id = identity_.node_id;
  node_.host = host_;
  node_.as_users = options_.as_users;
  node_.allow_root = options_.allow_root;
  node_.own_run_folder = !options_.run_dir.empty() || !options_.runs_dir.empty();
  node_.post = [this](std::function<void()> function) { loop_->Post(std::move(function)); };
  node_.on_started = [this](WorkerProcess* worker, pid_t pid) { OnStarted(worker, pid); };
  node_.on_exit = [this](WorkerProcess* w, const Spawner::Exit& exit) { OnExit(w, exit); };
  node_.on_start_failed = [this](WorkerProcess* w, const absl::Status& s) { OnStartFailed(w, s); };
  node_.on_lines = [this](WorkerProcess* worker, bool is_stderr,
                          const std::vector<std::string>& lines) {
    OnLines(worker, is_stderr, lines);
  };
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
  callbacks.on_command = [this, post](const AgentCommand& c) {
    if (c.has_send_files()) {
      files_->Send(c.send_files());
    } else {
      post(agent_event::Command{c});
    }
  };
  callbacks.on_connection = [post](bool connected, const std::string& reason) {
    post(connected ? AgentEvent(agent_event::Connected{}) : agent_event::Disconnected{reason});
  };
  session_ = options_.open_session(options_.coordinator, std::move(callbacks));
}

AgentImpl::~AgentImpl() {
  if (loop_ == nullptr || machine_ == nullptr) return;  // Init failed
  Stop(/*kill=*/true);
  // The exits come as soon as the kernel is done with the processes.
  const absl::Time give_up = Clock::Real()->Now() + absl::Seconds(10);
  while (!WaitStopped(absl::Milliseconds(100)) && Clock::Real()->Now() < give_up) {
    if (options_.spawner->lost()) break;
  }
  loop_->Stop();
  if (session_ != nullptr) session_->Close(absl::ZeroDuration());
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

void AgentImpl::NoteFarewell(const WorkerProcess& worker, const Spawner::Exit& exit) {
  absl::MutexLock lock(&mu_);
  ++farewell_.workers;
  farewell_.folder = WorkFolder(worker.assignment());
  if (exit.signal == 0 && exit.code == kFarewellSaved) {
    ++farewell_.saved;
  } else if (const std::vector<std::string> lines = worker.LastOutput(); !lines.empty()) {
    farewell_.last_line = lines.back();
  }
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
  if (health_ != nullptr) hello->mutable_health()->set_problem(health_->problem());
  hello->set_protocol_version(kProtocolVersion);
  hello->set_private_agent(options_.private_agent);
  return message;
}

absl::Time AgentImpl::AfterEvents() {
  const absl::Time now = Clock::Real()->Now();
  if (now >= next_) Feed(agent_event::Tick{});
  if (machine_->connected()) forwarder_.Fill(now);
  return next_;
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
  if (health_ != nullptr) {
    const std::string problem = health_->problem();
    heartbeat->mutable_health()->set_problem(problem);
    if (std::exchange(problem_, problem) != problem) {
      Say(problem.empty() ? "this node is well again and takes work"
                          : absl::StrCat("this node takes no work: ", problem));
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
  if (session_ != nullptr) session_->Send(message);
}

void AgentImpl::Do(const agent_action::Start& action) {
  WorkerAssignment assignment = action.assignment;
  const absl::Status checked = CheckAssignment(assignment);
  if (checked.ok()) {
    assignment.set_run_dir(
        ChosenRunFolder(options_.run_dir, options_.runs_dir, assignment.run_dir()));
  }
  FindDataAddresses(action.seen_address);
  auto owned = std::make_unique<WorkerProcess>(&node_, assignment, next_worker_id_++);
  WorkerProcess* worker = owned.get();
  workers_[assignment.incarnation()] = std::move(owned);
  if (!checked.ok()) return StartNow(worker, checked);
  if (coordinator::PackageOf(assignment.spec().workdir()).empty()) return StartWhenWell(worker);
  preparing_.insert(worker->incarnation());
  workdirs_->Prepare(worker->assignment(),
                     [this, incarnation = worker->incarnation()](const absl::Status& made) {
                       loop_->Post([=, this] { OnWorkdir(incarnation, made); });
                     });
}

void AgentImpl::OnWorkdir(const std::string& incarnation, const absl::Status& made) {
  if (preparing_.erase(incarnation) == 0) return;  // it was ended meanwhile
  WorkerProcess* const worker = workers_.at(incarnation).get();
  if (!made.ok()) return OnStartFailed(worker, made);
  StartWhenWell(worker);
}

void AgentImpl::StartWhenWell(WorkerProcess* worker) {
  if (!AwaitsLook(*worker)) StartNow(worker, absl::OkStatus());
}

void AgentImpl::StartNow(WorkerProcess* worker, const absl::Status& checked) {
  if (absl::Status started = StartWorker(worker, checked); !started.ok()) {
    OnStartFailed(worker, started);
  }
}

bool AgentImpl::AwaitsLook(const WorkerProcess& worker) {
  if (health_ == nullptr) return false;
  const std::string& job_id = worker.assignment().job_id();
  const bool others_run = std::any_of(workers_.begin(), workers_.end(), [&](const auto& entry) {
    const WorkerProcess& other = *entry.second;
    return &other != &worker && !other.ended && other.assignment().job_id() == job_id;
  });
  const StartGate::Answer answer = gate_.Add(job_id, worker.incarnation(), others_run);
  if (answer != StartGate::Answer::kAsk) return answer == StartGate::Answer::kWait;
  health_->Ask(RunFolder(worker.assignment()),
               [this, job_id](const std::string& problem, bool of_node) {
                 loop_->Post([=, this] { OnLooked(job_id, problem, of_node); });
               });
  return true;
}

void AgentImpl::OnLooked(const std::string& job_id, const std::string& problem, bool of_node) {
  for (const std::string& incarnation : gate_.Open(job_id)) {
    const auto found = workers_.find(incarnation);
    if (found == workers_.end() || found->second->ended) continue;
    if (problem.empty()) {
      StartNow(found->second.get(), absl::OkStatus());
    } else {
      OnStartFailed(found->second.get(), absl::UnavailableError(problem), of_node);
    }
  }
}

// Anew for each worker: networks come and go.
void AgentImpl::FindDataAddresses(const std::string& seen) {
  // Of several coordinators any one: all are reached the same way, or the coordinator's word
  // counts.
  const std::string address = coordinator::AddressesOf(options_.coordinator.address).front();
  if (!coordinator::IsTcpAddress(address)) {
    if (options_.private_agent) return;
    // All agents of a Unix socket are on this machine.
    if (options_.interfaces.empty()) {
      node_.data_addresses = {"127.0.0.1"};
      return;
    }
  }
  node_.data_addresses =
      ChooseDataAddresses(SystemAddresses(), options_.interfaces, OwnEndTowards(address), seen);
  if (!node_.data_addresses.empty() || options_.interfaces.empty()) return;
  WarnOnce(
      "no address of this host is among --interfaces: its workers join no job of several hosts");
}

absl::Status AgentImpl::StartWorker(WorkerProcess* worker, const absl::Status& checked) {
  LS_RETURN_IF_ERROR(checked);
  LS_RETURN_IF_ERROR(CheckOpenFiles(static_cast<int>(workers_.size()), file_limit_));
  LS_RETURN_IF_ERROR(CheckDevice(worker->assignment(), gpus_));
  std::vector<const WorkerAssignment*> others;
  for (const auto& [incarnation, other] : workers_) {
    if (!other->ended) others.push_back(&other->assignment());
  }
  if (const std::string shared = SharedWithAnotherJob(worker->assignment(), others);
      !shared.empty()) {
    WarnOnce(shared);
  }
  LS_ASSIGN_OR_RETURN(std::shared_ptr<LifePage> page, PageOf(worker->assignment().job_id()));
  LS_RETURN_IF_ERROR(worker->Start(page));
  life_watch_->Add(worker->id(), page, worker->life_slot());
  for (int stream = 0; stream < 2; ++stream) {
    const int fd = worker->output_fd(stream);
    const absl::Status watched = loop_->Watch(fd, [this, worker, stream, fd] {
      // Forgotten first: the descriptor is closed at the stream's end.
      if (!worker->ReadOutput(stream)) loop_->Forget(fd);
    });
    if (!watched.ok()) {
      WarnOnce(absl::StrCat("cannot read a worker's output: ", watched.message()));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<LifePage>> AgentImpl::PageOf(const std::string& job_id) {
  std::erase_if(pages_, [](const auto& entry) { return entry.second.expired(); });
  if (std::shared_ptr<LifePage> page = pages_[job_id].lock()) return page;
  LS_ASSIGN_OR_RETURN(std::shared_ptr<LifePage> page, LifePage::Create(options_.life_words));
  pages_[job_id] = page;
  return page;
}

void AgentImpl::Signal(const std::string& incarnation, int signal) {
  if (preparing_.erase(incarnation) > 0 || gate_.Leave(incarnation)) {
    return OnStartFailed(workers_.at(incarnation).get(),
                         absl::CancelledError("it was ended before it was started"));
  }
  if (const auto it = workers_.find(incarnation); it != workers_.end()) it->second->Signal(signal);
}

void AgentImpl::OnStarted(WorkerProcess* worker, pid_t pid) {
  worker->pid = pid;
  Feed(agent_event::Started{worker->incarnation(), pid});
}

void AgentImpl::OnDied(uint64_t id, absl::Time seen) {
  for (const auto& [incarnation, worker] : workers_) {
    if (worker->id() != id || worker->page() == nullptr) continue;
    return Feed(agent_event::Died{incarnation, worker->page()->DeathOrder(worker->life_slot()),
                                  Clock::Real()->Now() - seen});
  }
}

int64_t AgentImpl::Conclude(WorkerProcess* worker) {
  for (int stream = 0; stream < 2; ++stream) {
    if (const int fd = worker->output_fd(stream); fd >= 0) loop_->Forget(fd);
  }
  worker->FinishOutput();
  worker->ended = true;
  life_watch_->Remove(worker->id());
  return worker->EndLife();
}

void AgentImpl::OnExit(WorkerProcess* worker, const Spawner::Exit& exit) {
  agent_event::Exited event;
  event.incarnation = worker->incarnation();
  event.order = Conclude(worker);
  event.exit_code = exit.code;
  event.signal = exit.signal;
  event.peak_rss_bytes = exit.peak_rss_bytes;
  event.ago = std::max(absl::ZeroDuration(), absl::Now() - exit.time);
  event.last_lines = worker->LastOutput();
  event.died_before_signal = worker->died_before_signal();
  if (saving_) NoteFarewell(*worker, exit);
  Feed(std::move(event));
}

void AgentImpl::OnStartFailed(WorkerProcess* worker, const absl::Status& why, bool node_unfit) {
  agent_event::StartFailed event;
  event.node_unfit = node_unfit;
  event.incarnation = worker->incarnation();
  event.order = Conclude(worker);
  event.why = ExplainStartFailure(why);
  event.last_lines = worker->LastOutput();
  Feed(std::move(event));
}

void AgentImpl::OnLines(WorkerProcess* worker, bool is_stderr,
                        const std::vector<std::string>& lines) {
  const auto message = forwarder_.Forward(worker->assignment(), is_stderr, lines);
  if (message.has_value()) Send(*message);
}

void AgentImpl::WarnOnce(const std::string& message) {
  if (warned_.insert(message).second) Say(message);
}

void AgentImpl::Say(const std::string& message) {
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

}  // namespace

absl::StatusOr<std::unique_ptr<Agent>> Agent::Start(AgentOptions options) {
  auto agent = std::make_unique<AgentImpl>(std::move(options));
  LS_RETURN_IF_ERROR(agent->Init());
  return agent;
}

}  // namespace lockstep::launcher
