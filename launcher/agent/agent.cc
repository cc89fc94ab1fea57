// SPDX-License-Identifier: Apache-2.0
#include "launcher/agent/agent.h"

#include <signal.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/life.h"
#include "common/log.h"
#include "common/status.h"
#include "google/protobuf/util/time_util.h"
#include "launcher/agent/event_loop.h"
#include "launcher/agent/gpus.h"
#include "launcher/agent/host.h"
#include "launcher/agent/life_watch.h"
#include "launcher/agent/output.h"
#include "launcher/agent/reconcile.h"
#include "launcher/agent/run_folder.h"
#include "launcher/agent/usage.h"
#include "launcher/agent/worker_process.h"

namespace lockstep::launcher {
namespace {

using google::protobuf::util::TimeUtil;

constexpr absl::Duration kHeartbeatEvery = absl::Seconds(1);
constexpr absl::Duration kDefaultGrace = absl::Seconds(10);
constexpr int kHeartbeatKind = 1;
constexpr int kProtocolVersion = 1;
// Log lines that may wait to be forwarded, and go on doing so.
constexpr int64_t kForwardBytes = 16 << 20;
constexpr int64_t kForwardBytesPerSecond = 8 << 20;
// Descriptors: two pipes and a log each, two more while starting; the rest of the program.
constexpr int64_t kFdsPerWorker = 3;
constexpr int64_t kFdsOfProgram = 128;

google::protobuf::Timestamp ToProto(absl::Time time) {
  return TimeUtil::NanosecondsToTimestamp(absl::ToUnixNanos(time));
}

absl::Duration Grace(const JobSpec& spec) {
  if (!spec.has_preemption() || !spec.preemption().has_grace()) return kDefaultGrace;
  return absl::Nanoseconds(TimeUtil::DurationToNanoseconds(spec.preemption().grace()));
}

class AgentImpl : public Agent {
 public:
  explicit AgentImpl(AgentOptions options)
      : options_(std::move(options)),
        budget_(kForwardBytes, kForwardBytesPerSecond),
        incarnation_(RandomId()) {}
  ~AgentImpl() override;
  absl::Status Init();

  void Stop(bool kill) override;
  bool WaitStopped(absl::Duration timeout) override;

 private:
  // On the session's thread.
  AgentMessage Hello();
  void OnCommand(const AgentCommand& command);

  // On the loop's thread.
  void SetUpNode();
  absl::Time AfterEvents();
  void HandleCommand(const AgentCommand& command);
  void StartWorker(WorkerAssignment assignment);
  void OnStarted(WorkerProcess* worker, pid_t pid);
  void OnDied(int life_slot);
  void OnExit(WorkerProcess* worker, const Spawner::Exit& exit);
  void OnStartFailed(WorkerProcess* worker, const absl::Status& why);
  void OnLines(WorkerProcess* worker, bool is_stderr, std::vector<std::string> lines);
  void Exited(WorkerProcess* worker);
  void CloseOutput(WorkerProcess* worker);
  void Terminate(WorkerProcess* worker);
  void KillNow(WorkerProcess* worker);
  void ResendExits();
  void Warn(const std::string& message);
  void PublishState();
  WorkerProcess* Find(const std::string& incarnation);
  // Among the deaths of this node, of a worker whose process has ended.
  int64_t DeathOrder(const WorkerProcess& worker);
  // Its word may say so before the watch does.
  bool DiedByItself(const WorkerProcess& worker) const;

  const AgentOptions options_;
  const std::string host_ = HostName();
  const std::vector<Gpu> gpus_ = UsableGpus();
  int64_t file_limit_ = 0;
  std::unique_ptr<LifePage> life_;
  std::unique_ptr<LifeWatch> life_watch_;
  std::unique_ptr<EventLoop> loop_;
  std::unique_ptr<coordinator::AgentSession> session_;
  WorkerProcess::Node node_;
  std::unique_ptr<UsageSampler> usage_;

  // The loop's.
  DesiredWorkers desired_;
  std::map<std::string, std::unique_ptr<WorkerProcess>> workers_;
  int next_life_slot_ = 0;
  int64_t deaths_without_word_ = 0;
  bool connected_ = false;
  bool stopping_ = false;
  ForwardBudget budget_;
  int64_t lines_dropped_ = 0;
  std::set<std::string> warned_;
  absl::Time next_heartbeat_ = absl::InfinitePast();

  const std::string incarnation_;
  absl::Mutex mu_;
  std::vector<WorkerStarted> running_ ABSL_GUARDED_BY(mu_);
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
};

absl::Status AgentImpl::Init() {
  file_limit_ = RaiseFileLimit();
  if (!options_.private_agent) {  // nobody watches a run's own coordinator
    std::vector<std::string> uuids;
    for (const Gpu& gpu : gpus_) uuids.push_back(gpu.uuid);
    usage_ = std::make_unique<UsageSampler>(std::move(uuids));
  }
  LS_ASSIGN_OR_RETURN(life_, LifePage::Create());
  LS_ASSIGN_OR_RETURN(loop_, EventLoop::Create());
  life_watch_ = std::make_unique<LifeWatch>(
      life_.get(), [this](int slot) { loop_->Post([this, slot] { OnDied(slot); }); });
  SetUpNode();
  coordinator::AgentSession::Callbacks callbacks;
  callbacks.hello = [this] { return Hello(); };
  callbacks.on_command = [this](const AgentCommand& command) { OnCommand(command); };
  callbacks.on_connection = [this](bool connected, const std::string& reason) {
    loop_->Post([this, connected] {
      connected_ = connected;
      if (connected) ResendExits();
    });
    if (options_.on_connection) options_.on_connection(connected, reason);
  };
  session_ = coordinator::OpenAgentSession(options_.coordinator, std::move(callbacks));
  loop_->Start("agent", [this] { return AfterEvents(); });
  return absl::OkStatus();
}

void AgentImpl::SetUpNode() {
  node_.spawner = options_.spawner;
  node_.life = life_.get();
  node_.program = options_.worker_program;
  node_.coordinator_address = options_.coordinator.address;
  node_.node_id = absl::StrCat(host_, "-", incarnation_);
  node_.host = host_;
  node_.post = [this](std::function<void()> function) { loop_->Post(std::move(function)); };
  node_.on_started = [this](WorkerProcess* worker, pid_t pid) { OnStarted(worker, pid); };
  node_.on_exit = [this](WorkerProcess* w, const Spawner::Exit& exit) { OnExit(w, exit); };
  node_.on_start_failed = [this](WorkerProcess* w, const absl::Status& s) { OnStartFailed(w, s); };
  node_.on_lines = [this](WorkerProcess* worker, bool is_stderr, std::vector<std::string> lines) {
    OnLines(worker, is_stderr, std::move(lines));
  };
  node_.on_warning = [this](const absl::Status& status) { Warn(std::string(status.message())); };
}

AgentImpl::~AgentImpl() {
  Stop(/*kill=*/true);
  // The exits come as soon as the kernel is done with the processes.
  const absl::Time give_up = absl::Now() + absl::Seconds(10);
  while (!WaitStopped(absl::Milliseconds(100)) && absl::Now() < give_up) {
    if (options_.spawner->lost()) break;
  }
  session_->Close(absl::ZeroDuration());
  loop_->Stop();
}

void AgentImpl::Stop(bool kill) {
  loop_->Post([this, kill] {
    stopping_ = true;
    desired_.clear_workers();
    if (!kill) return;
    for (const auto& [incarnation, worker] : workers_) {
      if (worker->view.phase < WorkerView::Phase::kKilled) KillNow(worker.get());
    }
  });
}

bool AgentImpl::WaitStopped(absl::Duration timeout) {
  {
    absl::MutexLock lock(&mu_);
    if (!mu_.AwaitWithTimeout(absl::Condition(&stopped_), timeout)) return false;
  }
  return true;
}

AgentMessage AgentImpl::Hello() {
  AgentMessage message;
  AgentHello* hello = message.mutable_hello();
  hello->set_node_id(node_.node_id);
  hello->set_incarnation(incarnation_);
  hello->set_host(host_);
  hello->set_slots(options_.slots);
  hello->add_devices()->set_kind("cpu");
  std::set<std::string> uuids;
  for (const Gpu& gpu : gpus_) uuids.insert(gpu.uuid);
  const bool shared = uuids.size() < gpus_.size();
  for (const Gpu& gpu : gpus_) {
    Device* device = hello->add_devices();
    device->set_kind("cuda");
    device->set_uuid(gpu.uuid);
    device->set_name(gpu.name);
    device->set_memory(gpu.memory);
    device->set_shared(shared);
    device->set_cpus(gpu.cpus);
  }
  hello->set_token(options_.coordinator.token);
  hello->set_protocol_version(kProtocolVersion);
  hello->set_private_agent(options_.private_agent);
  absl::MutexLock lock(&mu_);
  for (const WorkerStarted& worker : running_) *hello->add_running() = worker;
  return message;
}

void AgentImpl::OnCommand(const AgentCommand& command) {
  if (command.has_rejected() && options_.on_rejected) {
    options_.on_rejected(command.rejected().reason());
  }
  loop_->Post([this, command] { HandleCommand(command); });
}

void AgentImpl::HandleCommand(const AgentCommand& command) {
  if (command.has_desired() && !stopping_) desired_ = command.desired();
  if (!command.has_acknowledged()) return;
  for (const std::string& incarnation : command.acknowledged().worker_incarnations()) {
    if (WorkerProcess* worker = Find(incarnation)) worker->view.acknowledged = true;
  }
}

WorkerProcess* AgentImpl::Find(const std::string& incarnation) {
  const auto it = workers_.find(incarnation);
  return it == workers_.end() ? nullptr : it->second.get();
}

absl::Time AgentImpl::AfterEvents() {
  const absl::Time now = absl::Now();
  std::vector<WorkerView> views;
  for (const auto& [incarnation, worker] : workers_) views.push_back(worker->view);
  const ReconcileActions actions = Reconcile(desired_, views, now);
  for (const std::string& incarnation : actions.forget) workers_.erase(incarnation);
  for (const std::string& incarnation : actions.terminate) Terminate(Find(incarnation));
  for (const std::string& incarnation : actions.kill) KillNow(Find(incarnation));
  for (const int i : actions.start) StartWorker(desired_.workers(i));
  PublishState();
  if (now >= next_heartbeat_) {
    AgentMessage message;
    AgentHeartbeat* const heartbeat = message.mutable_heartbeat();
    if (usage_ != nullptr) {
      std::map<std::string, int64_t> pids;
      for (const auto& [incarnation, worker] : workers_) {
        if (worker->pid > 0) pids[incarnation] = worker->pid;
      }
      usage_->Watch(std::move(pids));
      *heartbeat = usage_->Latest();
    }
    if (connected_) session_->SendLatest(kHeartbeatKind, message);
    next_heartbeat_ = now + kHeartbeatEvery;
  }
  if (connected_) budget_.Fill(now);
  // A SIGTERM sent above has set a new time to look again.
  absl::Time next = std::min(actions.next, next_heartbeat_);
  if (!actions.terminate.empty()) {
    for (const auto& [incarnation, worker] : workers_) next = std::min(next, worker->view.kill_at);
  }
  return next;
}

void AgentImpl::StartWorker(WorkerAssignment assignment) {
  assignment.set_run_dir(
      ChosenRunFolder(options_.run_dir, options_.runs_dir, assignment.run_dir()));
  const int life_slot = next_life_slot_++;
  auto owned = std::make_unique<WorkerProcess>(&node_, assignment, life_slot);
  WorkerProcess* worker = owned.get();
  worker->view.incarnation = assignment.incarnation();
  worker->view.job_id = assignment.job_id();
  workers_[assignment.incarnation()] = std::move(owned);

  const int64_t fds = static_cast<int64_t>(workers_.size()) * kFdsPerWorker + kFdsOfProgram;
  if (life_slot >= LifePage::kSlots) {
    return OnStartFailed(worker, absl::ResourceExhaustedError(
                                     absl::StrCat("this agent has started ", LifePage::kSlots,
                                                  " workers, all that it can: start it again")));
  }
  if (fds > file_limit_) {
    return OnStartFailed(worker, absl::ResourceExhaustedError(absl::StrCat(
                                     workers_.size(), " workers need ", fds, " open files and ",
                                     file_limit_, " are allowed: raise the limit (ulimit -n)")));
  }
  if (absl::Status started = worker->Start(); !started.ok()) {
    return OnStartFailed(worker, started);
  }
  life_watch_->Add(life_slot);
  for (int stream = 0; stream < 2; ++stream) {
    const int fd = worker->output_fd(stream);
    const absl::Status watched = loop_->Watch(fd, [this, worker, stream, fd] {
      // Forgotten first: the descriptor is closed at the stream's end.
      if (!worker->ReadOutput(stream)) loop_->Forget(fd);
    });
    if (!watched.ok()) Warn(absl::StrCat("cannot read a worker's output: ", watched.message()));
  }
}

void AgentImpl::OnStarted(WorkerProcess* worker, pid_t pid) {
  worker->pid = pid;
  AgentMessage message;
  WorkerStarted* started = message.mutable_started();
  started->set_job_id(worker->assignment().job_id());
  started->set_worker_incarnation(worker->incarnation());
  started->set_pid(pid);
  PublishState();
  session_->Send(message);
}

void AgentImpl::OnDied(int life_slot) {
  for (const auto& [incarnation, worker] : workers_) {
    if (worker->life_slot() != life_slot || worker->death_order != 0) continue;
    worker->death_order = life_->DeathOrder(life_slot);
    AgentMessage message;
    WorkerDied* died = message.mutable_died();
    died->set_job_id(worker->assignment().job_id());
    died->set_worker_incarnation(incarnation);
    *died->mutable_time() = ToProto(absl::Now());
    died->set_order(worker->death_order);
    session_->Send(message);
  }
}

void AgentImpl::OnExit(WorkerProcess* worker, const Spawner::Exit& exit) {
  CloseOutput(worker);
  life_watch_->End(worker->life_slot());
  worker->record.set_exit_code(exit.code);
  worker->record.set_signal(exit.signal);
  worker->record.set_peak_rss_bytes(exit.peak_rss_bytes);
  *worker->record.mutable_time() = ToProto(exit.time);
  Exited(worker);
}

void AgentImpl::OnStartFailed(WorkerProcess* worker, const absl::Status& why) {
  CloseOutput(worker);
  if (worker->life_slot() < LifePage::kSlots) life_watch_->End(worker->life_slot());
  std::string text(why.message());
  if (worker->pid == 0 && text.starts_with("vfork")) {
    absl::StrAppend(&text, " (the number of processes or the memory is at its limit: ulimit -u)");
  }
  worker->record.set_start_error(text);
  worker->record.set_exit_code(1);
  *worker->record.mutable_time() = ToProto(absl::Now());
  Exited(worker);
}

void AgentImpl::CloseOutput(WorkerProcess* worker) {
  for (int stream = 0; stream < 2; ++stream) {
    if (const int fd = worker->output_fd(stream); fd >= 0) loop_->Forget(fd);
  }
  worker->FinishOutput();
}

void AgentImpl::Exited(WorkerProcess* worker) {
  worker->view.phase = WorkerView::Phase::kExited;
  worker->view.kill_at = absl::InfiniteFuture();
  if (worker->death_order == 0) worker->death_order = DeathOrder(*worker);
  WorkerExited& record = worker->record;
  record.set_job_id(worker->assignment().job_id());
  record.set_worker_incarnation(worker->incarnation());
  record.set_order(worker->death_order);
  record.set_wanted(worker->wanted_end);
  record.set_pid(worker->pid);
  for (std::string& line : worker->LastOutput()) record.add_last_lines(std::move(line));
  AgentMessage message;
  *message.mutable_exited() = record;
  session_->Send(message);
}

int64_t AgentImpl::DeathOrder(const WorkerProcess& worker) {
  if (worker.life_slot() < LifePage::kSlots) {
    if (const int64_t order = life_->DeathOrder(worker.life_slot()); order != 0) return order;
  }
  return LifePage::kSlots + ++deaths_without_word_;
}

bool AgentImpl::DiedByItself(const WorkerProcess& worker) const {
  return worker.death_order != 0 || (worker.life_slot() < LifePage::kSlots &&
                                     life_->Get(worker.life_slot()) == LifePage::State::kDead);
}

void AgentImpl::ResendExits() {
  for (const auto& [incarnation, worker] : workers_) {
    if (worker->view.phase != WorkerView::Phase::kExited || worker->view.acknowledged) continue;
    AgentMessage message;
    *message.mutable_exited() = worker->record;
    session_->Send(message);
  }
}

void AgentImpl::OnLines(WorkerProcess* worker, bool is_stderr, std::vector<std::string> lines) {
  AgentMessage message;
  LogChunk* chunk = message.mutable_log();
  chunk->set_job_id(worker->assignment().job_id());
  chunk->set_worker_incarnation(worker->incarnation());
  LogLines* out = chunk->mutable_lines();
  out->set_slot(worker->assignment().slot());
  out->set_host(host_);
  out->set_is_stderr(is_stderr);
  for (const std::string& line : lines) {
    if (!budget_.Take(static_cast<int64_t>(line.size()) + 16)) {
      ++lines_dropped_;
      continue;
    }
    if (lines_dropped_ > 0) {
      out->add_lines(absl::StrCat("[", lines_dropped_, " lines are not shown here, they came too ",
                                  "fast; the log files have all of them]"));
      lines_dropped_ = 0;
    }
    out->add_lines(ToUtf8(line));
  }
  if (out->lines_size() > 0) session_->Send(message);
}

void AgentImpl::Terminate(WorkerProcess* worker) {
  worker->view.phase = WorkerView::Phase::kEnding;
  worker->view.kill_at = absl::Now() + Grace(worker->assignment().spec());
  worker->wanted_end |= !DiedByItself(*worker);
  worker->Kill(SIGTERM);
}

void AgentImpl::KillNow(WorkerProcess* worker) {
  worker->view.phase = WorkerView::Phase::kKilled;
  worker->wanted_end |= !DiedByItself(*worker);
  worker->Kill(SIGKILL);
}

void AgentImpl::Warn(const std::string& message) {
  if (!warned_.insert(message).second) return;
  if (options_.on_warning) {
    options_.on_warning(message);
  } else {
    LS_LOG_WARNING << message;
  }
}

void AgentImpl::PublishState() {
  absl::MutexLock lock(&mu_);
  running_.clear();
  bool any = false;
  for (const auto& [incarnation, worker] : workers_) {
    if (worker->view.phase == WorkerView::Phase::kExited) continue;
    any = true;
    WorkerStarted& started = running_.emplace_back();
    started.set_job_id(worker->assignment().job_id());
    started.set_worker_incarnation(incarnation);
    started.set_pid(worker->pid);
  }
  stopped_ = stopping_ && !any;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Agent>> Agent::Start(AgentOptions options) {
  auto agent = std::make_unique<AgentImpl>(std::move(options));
  LS_RETURN_IF_ERROR(agent->Init());
  return agent;
}

}  // namespace lockstep::launcher
