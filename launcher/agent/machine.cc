// SPDX-License-Identifier: Apache-2.0
#include "launcher/agent/machine.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/printable.h"
#include "google/protobuf/util/time_util.h"

namespace lockstep::launcher {
namespace {

using google::protobuf::util::TimeUtil;
using Phase = WorkerView::Phase;

// A large state takes a slow disk so long.
constexpr absl::Duration kSaveGrace = absl::Minutes(10);
constexpr absl::Duration kFirstRetry = absl::Seconds(1);
constexpr absl::Duration kLongestRetry = absl::Seconds(30);
// Exit records that are kept for coordinators which may never come back.
constexpr size_t kMostForeignRecords = 256;
// Deaths that nobody has put in order come after all others.
constexpr int64_t kNoOrder = int64_t{1} << 40;

google::protobuf::Duration ToProto(absl::Duration duration) {
  return TimeUtil::NanosecondsToDuration(absl::ToInt64Nanoseconds(duration));
}

std::string Count(size_t n, const std::string& what) {
  return absl::StrCat(n, " ", what, n == 1 ? "" : "s");
}

}  // namespace

AgentMachine::Output AgentMachine::Step(const AgentEvent& event, absl::Time now) {
  now_ = now;
  out_ = Output();
  std::visit([this](const auto& e) { Handle(e); }, event);
  Settle();
  return std::move(out_);
}

AgentHello AgentMachine::Hello() const {
  AgentHello hello;
  for (const auto& [incarnation, worker] : workers_) {
    if (worker.view.phase == Phase::kExited) {
      if (!worker.view.acknowledged) hello.add_ended(incarnation);
      continue;
    }
    WorkerStarted* started = hello.add_running();
    started->set_job_id(worker.view.job_id);
    started->set_worker_incarnation(incarnation);
    started->set_pid(worker.pid);
  }
  hello.set_cluster_id(cluster_);
  if (const auto it = epochs_.find(cluster_); it != epochs_.end()) {
    hello.set_epoch(it->second.number);
    hello.set_epoch_proof(it->second.proof);
  }
  return hello;
}

void AgentMachine::Handle(const agent_event::Connected&) {
  connected_ = true;
  next_heartbeat_ = now_;
  if (stopping_) AnnounceLeaving();
  // What was said before may be lost with the connection or with the coordinator. The first death
  // is said first.
  std::vector<const Worker*> dead;
  for (const auto& [incarnation, worker] : workers_) {
    if (worker.order != 0 && !worker.view.acknowledged) dead.push_back(&worker);
  }
  std::stable_sort(dead.begin(), dead.end(),
                   [](const Worker* a, const Worker* b) { return a->order < b->order; });
  for (const Worker* worker : dead) {
    if (worker->view.phase == Phase::kExited) {
      SendRecord(*worker);
    } else {
      SendDeath(*worker);
    }
  }
}

void AgentMachine::Handle(const agent_event::Disconnected& event) {
  connected_ = announced_ = false;
  if (event.reason == last_trouble_) return;
  last_trouble_ = event.reason;
  out_.actions.push_back(agent_action::Report{false, event.reason});
}

void AgentMachine::Handle(const agent_event::Command& event) {
  const AgentCommand& command = event.command;
  if (command.has_rejected()) return OnRejected(command.rejected());
  if (!Accept(command)) return;
  if (command.has_send_files()) {
    out_.actions.push_back(agent_action::SendFiles{command.send_files()});
  }
  if (command.has_desired()) OnDesired(command.desired());
  if (!command.has_acknowledged()) return;
  for (const std::string& incarnation : command.acknowledged().worker_incarnations()) {
    // Another cluster's coordinator acknowledges what it does not know.
    Worker* worker = Find(incarnation);
    if (worker != nullptr && worker->cluster == cluster_) worker->view.acknowledged = true;
  }
}

// Who does not prove the epoch takes no proof of it away: an earlier version has none.
void AgentMachine::NoteEpoch(const std::string& cluster, const Epoch& epoch) {
  Epoch& newest = epochs_[cluster];
  if (epoch.number > newest.number || (epoch.number == newest.number && newest.proof.empty())) {
    newest = epoch;
  }
}

bool AgentMachine::Accept(const AgentCommand& command) {
  const Epoch& newest = epochs_[command.cluster_id()];
  if (command.epoch() < newest.number) {
    if (ignored_.insert(absl::StrCat(command.cluster_id(), "/", command.epoch())).second) {
      Warn(absl::StrCat("an older life of the coordinator (epoch ", command.epoch(), ", ",
                        newest.number,
                        " is known) still gives commands: they are ignored; end that process"));
    }
    return false;
  }
  NoteEpoch(command.cluster_id(), {command.epoch(), command.epoch_proof()});
  cluster_ = command.cluster_id();
  return true;
}

void AgentMachine::OnRejected(const Rejected& rejected) {
  connected_ = announced_ = false;
  retry_backoff_ = std::clamp(retry_backoff_ * 2, kFirstRetry, kLongestRetry);
  retry_at_ = now_ + retry_backoff_;
  out_.actions.push_back(agent_action::CloseSession{});
  if (rejected.reason() == last_trouble_) return;
  last_trouble_ = rejected.reason();
  size_t alive = 0;
  for (const auto& [incarnation, worker] : workers_) alive += worker.view.phase != Phase::kExited;
  std::string text = absl::StrCat("the coordinator refuses this node: ", rejected.reason());
  if (rejected.kind() == Rejected::NODE_TAKEN && !options_.taken_advice.empty()) {
    absl::StrAppend(&text, "; ", options_.taken_advice);
  }
  Warn(absl::StrCat(text, " (",
                    alive == 0 ? ""
                               : Count(alive, "worker") + (alive == 1 ? " of this node goes on; "
                                                                      : " of this node go on; "),
                    "tried again every ", absl::FormatDuration(kFirstRetry), " to ",
                    absl::FormatDuration(kLongestRetry), ")"));
}

void AgentMachine::OnDesired(const DesiredWorkers& desired) {
  retry_backoff_ = absl::ZeroDuration();
  last_trouble_.clear();
  if (!announced_) {
    announced_ = true;
    out_.actions.push_back(agent_action::Report{true, ""});
  }
  if (stopping_) {
    // Nothing new, and of what runs what is still wanted.
    if (leave_by_ <= now_) return;
    desired_ = desired;
    auto* const wanted = desired_.mutable_workers();
    wanted->erase(std::remove_if(wanted->begin(), wanted->end(),
                                 [this](const WorkerAssignment& assignment) {
                                   return Find(assignment.incarnation()) == nullptr;
                                 }),
                  wanted->end());
    return;
  }
  desired_ = desired;
  for (auto& [incarnation, worker] : workers_) {
    if (std::exchange(worker.adopted, false)) worker.view.spared_until = absl::InfinitePast();
  }
  TellOfUnknown();
  SpareOrphans();
  for (const std::string& incarnation : desired.kill_workers()) {
    if (Find(incarnation) == nullptr) SayNeverStarted(incarnation);
  }
}

void AgentMachine::TellOfUnknown() {
  const int64_t epoch = epochs_[cluster_].number;
  std::set<std::string> known(desired_.kill_workers().begin(), desired_.kill_workers().end());
  for (const WorkerAssignment& assignment : desired_.workers()) {
    known.insert(assignment.incarnation());
    if (Worker* worker = Find(assignment.incarnation())) worker->epoch = epoch;
  }
  const std::set<std::string> kill_jobs(desired_.kill_jobs().begin(), desired_.kill_jobs().end());
  // By the life that knew them and what their job is called.
  std::map<std::pair<int64_t, std::string>, std::vector<std::string>> unknown;
  for (const auto& [incarnation, worker] : workers_) {
    const bool orphan = worker.view.spared_until != absl::InfinitePast();
    if (worker.view.phase != Phase::kRunning || worker.cluster != cluster_ || orphan) continue;
    if (known.contains(incarnation) || kill_jobs.contains(worker.view.job_id)) continue;
    if (worker.epoch >= epoch) continue;
    const std::string job = absl::StrCat("'", worker.job_name, "' (", worker.view.job_id, ")");
    unknown[{worker.epoch, job}].push_back(incarnation);
  }
  for (const auto& [life, names] : unknown) {
    Warn(absl::StrCat("the coordinator began anew (epoch ", epoch, ", before it ", life.first,
                      ") and says nothing of ", Count(names.size(), "worker"), " of job ",
                      life.second, ": ", absl::StrJoin(names, ", "),
                      names.size() == 1 ? " is" : " are",
                      " ended now; a journal that was restored does not know what came after its "
                      "backup"));
  }
}

void AgentMachine::SpareOrphans() {
  std::set<std::string> wanted;
  for (const WorkerAssignment& assignment : desired_.workers()) {
    wanted.insert(assignment.incarnation());
  }
  std::map<std::string, std::vector<std::string>> orphans, saved;  // by what their job is called
  for (auto& [incarnation, worker] : workers_) {
    const bool was_spared = worker.view.spared_until != absl::InfinitePast();
    const std::string job = absl::StrCat("'", worker.job_name, "' (", worker.view.job_id, ")");
    if (wanted.contains(incarnation) || worker.cluster == cluster_) {
      if (was_spared && worker.view.phase == Phase::kRunning) saved[job].push_back(incarnation);
      worker.view.spared_until = absl::InfinitePast();
      if (wanted.contains(incarnation)) worker.cluster = cluster_;
    } else if (!was_spared && worker.view.phase == Phase::kRunning) {
      worker.view.spared_until = now_ + options_.orphan_grace;
      orphans[job].push_back(incarnation);
    }
  }
  const std::string when = absl::FormatTime(
      "%Y-%m-%d %H:%M:%S %Z", options_.wall(now_ + options_.orphan_grace), absl::LocalTimeZone());
  for (const auto& [job, names] : orphans) {
    Warn(absl::StrCat(
        "this coordinator does not know job ", job, ", whose ", Count(names.size(), "worker"),
        " another one started here: ", absl::StrJoin(names, ", "), " go on and are ended at ", when,
        " (in ", absl::FormatDuration(options_.orphan_grace),
        ") unless a coordinator that knows them is back by then"));
  }
  for (const auto& [job, names] : saved) {
    Warn(absl::StrCat("the coordinator that knows job ", job, " is back: what it says about ",
                      absl::StrJoin(names, ", "), " is done"));
  }
}

void AgentMachine::Handle(const agent_event::Started& event) {
  Worker* worker = Find(event.incarnation);
  if (worker == nullptr) return;
  worker->pid = event.pid;
  AgentMessage message;
  WorkerStarted* started = message.mutable_started();
  started->set_job_id(worker->view.job_id);
  started->set_worker_incarnation(event.incarnation);
  started->set_pid(event.pid);
  Send(std::move(message));
}

void AgentMachine::Handle(const agent_event::Died& event) {
  Worker* worker = Find(event.incarnation);
  if (worker == nullptr || worker->order != 0) return;
  worker->order = event.order;
  worker->died_at = now_ - event.ago;
  SendDeath(*worker);
}

void AgentMachine::Handle(const agent_event::Exited& event) {
  Worker* worker = Find(event.incarnation);
  if (worker == nullptr || worker->view.phase == Phase::kExited) return;
  worker->record.set_exit_code(event.exit_code);
  worker->record.set_signal(event.signal);
  worker->record.set_peak_rss_bytes(event.peak_rss_bytes);
  worker->wanted_end &= !event.died_before_signal;
  if (worker->order == 0) worker->order = event.order;
  Exit(*worker, event.ago, event.last_lines);
}

void AgentMachine::Handle(const agent_event::StartFailed& event) {
  Worker* worker = Find(event.incarnation);
  if (worker == nullptr || worker->view.phase == Phase::kExited) return;
  worker->record.set_start_error(PrintableLines(event.why));
  worker->record.set_node_unfit(event.node_unfit);
  worker->record.set_may_pass(event.may_pass);
  worker->record.set_exit_code(event.exit_code);
  if (worker->order == 0) worker->order = event.order;
  Exit(*worker, event.ago, event.last_lines);
}

void AgentMachine::Exit(Worker& worker, absl::Duration ago,
                        const std::vector<std::string>& last_lines) {
  worker.view.phase = Phase::kExited;
  worker.view.kill_at = absl::InfiniteFuture();
  worker.ended_at = now_ - ago;
  if (worker.order == 0) worker.order = kNoOrder + ++deaths_without_order_;
  WorkerExited& record = worker.record;
  record.set_job_id(worker.view.job_id);
  record.set_worker_incarnation(worker.view.incarnation);
  record.set_order(worker.order);
  record.set_wanted(worker.wanted_end);
  record.set_pid(worker.pid);
  for (const std::string& line : last_lines) record.add_last_lines(line);
  SendRecord(worker);
}

void AgentMachine::SendDeath(const Worker& worker) {
  AgentMessage message;
  WorkerDied* died = message.mutable_died();
  died->set_job_id(worker.view.job_id);
  died->set_worker_incarnation(worker.view.incarnation);
  *died->mutable_ago() = ToProto(now_ - worker.died_at);
  died->set_order(worker.order);
  died->set_wanted(worker.wanted_end);
  Send(std::move(message));
}

void AgentMachine::SendRecord(const Worker& worker) {
  AgentMessage message;
  *message.mutable_exited() = worker.record;
  *message.mutable_exited()->mutable_ago() = ToProto(now_ - worker.ended_at);
  Send(std::move(message));
}

void AgentMachine::SayNeverStarted(const std::string& incarnation) {
  const size_t life = incarnation.rfind('.');
  const size_t place =
      life == std::string::npos || life == 0 ? life : incarnation.rfind('.', life - 1);
  if (place == std::string::npos) return;
  AgentMessage message;
  WorkerExited& record = *message.mutable_exited();
  record.set_job_id(incarnation.substr(0, place));
  record.set_worker_incarnation(incarnation);
  record.set_order(kNoOrder + ++deaths_without_order_);
  record.set_wanted(true);
  Send(std::move(message));
}

void AgentMachine::Handle(const agent_event::Adopted& event) {
  Worker& worker = Add(event.assignment, event.cluster);
  worker.epoch = event.epoch.number;
  worker.pid = event.pid;
  worker.wanted_end = event.wanted_end;
  worker.adopted = true;
  worker.view.spared_until = absl::InfiniteFuture();
  NoteEpoch(event.cluster, event.epoch);
  cluster_ = event.cluster;
}

// Heard before the deaths that follow.
void AgentMachine::AnnounceLeaving() {
  if (!options_.announce_leaving) return;
  AgentMessage message;
  *message.mutable_stopping()->mutable_grace() =
      ToProto(std::max(leave_by_ - now_, absl::ZeroDuration()));
  Send(std::move(message));
}

void AgentMachine::WantNone() {
  leave_by_ = now_;
  desired_.clear_workers();
  for (auto& [incarnation, worker] : workers_) worker.view.spared_until = absl::InfinitePast();
}

void AgentMachine::Handle(const agent_event::Stop& event) {
  const bool first = !std::exchange(stopping_, true);
  const bool waits = !event.kill && !event.save && options_.announce_leaving && connected_;
  if (first && waits && AnyAlive()) {
    leave_by_ = now_ + options_.leave_grace;
  } else if (!waits) {
    leave_by_ = now_;
  }
  if (first) AnnounceLeaving();
  if (leave_by_ <= now_) WantNone();
  for (auto& [incarnation, worker] : workers_) {
    if (event.kill && worker.view.phase < Phase::kKilled) Kill(worker);
    if (event.save && worker.view.phase == Phase::kRunning) {
      worker.view.phase = Phase::kEnding;
      worker.view.kill_at = now_ + kSaveGrace;
      worker.wanted_end |= worker.order == 0;
      out_.actions.push_back(agent_action::SaveAndLeave{incarnation});
    }
  }
}

void AgentMachine::Settle() {
  if (retry_at_ <= now_) {
    retry_at_ = absl::InfiniteFuture();
    out_.actions.push_back(agent_action::OpenSession{});
  }
  if (stopping_ && leave_by_ <= now_ && desired_.workers_size() > 0) WantNone();
  std::vector<WorkerView> views;
  for (const auto& [incarnation, worker] : workers_) views.push_back(worker.view);
  const ReconcileActions todo = Reconcile(desired_, views, now_);
  CarryOut(todo);
  DropOldOrphans();
  if (next_heartbeat_ <= now_) {
    if (connected_) out_.actions.push_back(agent_action::Heartbeat{});
    next_heartbeat_ = now_ + options_.heartbeat_every;
  }
  out_.next = std::min({todo.next, next_heartbeat_, retry_at_});
  if (stopping_ && leave_by_ > now_) out_.next = std::min(out_.next, leave_by_);
  for (const auto& [incarnation, worker] : workers_) {
    // A SIGTERM sent above has set a new time to look again.
    if (worker.view.phase == Phase::kEnding && worker.view.kill_at > now_) {
      out_.next = std::min(out_.next, worker.view.kill_at);
    }
  }
}

void AgentMachine::CarryOut(const ReconcileActions& todo) {
  for (const std::string& incarnation : todo.forget) {
    workers_.erase(incarnation);
    out_.actions.push_back(agent_action::Forget{incarnation});
  }
  for (const std::string& incarnation : todo.terminate) {
    Worker& worker = *Find(incarnation);
    if (worker.view.spared_until != absl::InfinitePast()) {
      Warn(absl::StrCat("no coordinator that knows worker ", incarnation, " of job '",
                        worker.job_name, "' came back: it is ended now"));
    }
    Terminate(worker);
  }
  for (const std::string& incarnation : todo.kill) Kill(*Find(incarnation));
  for (const int i : todo.start) {
    const WorkerAssignment& assignment = desired_.workers(i);
    Add(assignment, cluster_).epoch = epochs_[cluster_].number;
    out_.actions.push_back(
        agent_action::Start{assignment, desired_.seen_address(), cluster_, epochs_[cluster_]});
  }
}

AgentMachine::Worker& AgentMachine::Add(const WorkerAssignment& assignment,
                                        const std::string& cluster) {
  Worker& worker = workers_[assignment.incarnation()];
  worker.view.incarnation = assignment.incarnation();
  worker.view.job_id = assignment.job_id();
  worker.job_name = assignment.spec().name();
  worker.cluster = cluster;
  worker.grace = EndGrace(assignment.spec());
  return worker;
}

void AgentMachine::Terminate(Worker& worker) {
  worker.view.phase = Phase::kEnding;
  worker.view.kill_at = now_ + worker.grace;
  worker.wanted_end |= worker.order == 0;
  out_.actions.push_back(agent_action::Terminate{worker.view.incarnation});
}

void AgentMachine::Kill(Worker& worker) {
  worker.view.phase = Phase::kKilled;
  worker.wanted_end |= worker.order == 0;
  out_.actions.push_back(agent_action::Kill{worker.view.incarnation});
}

void AgentMachine::DropOldOrphans() {
  std::vector<std::pair<absl::Time, std::string>> foreign;
  for (const auto& [incarnation, worker] : workers_) {
    if (worker.view.phase != Phase::kExited || worker.cluster == cluster_) continue;
    foreign.emplace_back(worker.ended_at, incarnation);
  }
  if (foreign.size() <= kMostForeignRecords) return;
  std::sort(foreign.begin(), foreign.end());
  foreign.resize(foreign.size() - kMostForeignRecords);
  for (const auto& [time, incarnation] : foreign) {
    workers_.erase(incarnation);
    out_.actions.push_back(agent_action::Forget{incarnation});
  }
}

bool AgentMachine::AnyAlive() const {
  return std::any_of(workers_.begin(), workers_.end(),
                     [](const auto& entry) { return entry.second.view.phase != Phase::kExited; });
}

AgentMachine::Worker* AgentMachine::Find(const std::string& incarnation) {
  const auto it = workers_.find(incarnation);
  return it == workers_.end() ? nullptr : &it->second;
}

void AgentMachine::Send(AgentMessage message) {
  out_.actions.push_back(agent_action::Send{std::move(message)});
}

void AgentMachine::Warn(std::string text) {
  out_.actions.push_back(agent_action::Warn{std::move(text)});
}

}  // namespace lockstep::launcher
