// SPDX-License-Identifier: Apache-2.0
#include "tests/simulation/agent_process.h"

#include <signal.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/simulation/world.h"

namespace lockstep::simulation {
namespace {

// In which it says how its workers ended.
constexpr absl::Duration kLastWords = absl::Seconds(2);

// Some keep nobody.
absl::Duration GraceOf(uint64_t seed, int life) {
  Random random(seed * 7368787 + static_cast<uint64_t>(life));
  return random.Chance(0.25) ? absl::ZeroDuration()
                             : random.Between(absl::Seconds(2), absl::Seconds(30));
}

launcher::AgentMachineOptions OptionsWith(absl::Duration grace) {
  launcher::AgentMachineOptions options;
  options.leave_grace = grace;
  return options;
}

}  // namespace

AgentProcess::AgentProcess(World* world, Host* host, int slots, int life)
    : AgentShell(&world->timeline, host, OptionsWith(GraceOf(world->options.seed, life)),
                 world->DialAgent()),
      world_(world),
      slots_(slots),
      life_(absl::StrCat(host->name, "-", life)),
      grace_(GraceOf(world->options.seed, life)) {}

void AgentProcess::Start() { OpenSession(); }

void AgentProcess::DieAlone() {
  alone_ = true;
  Die();
}

void AgentProcess::Adopt(const AgentProcess& before) {
  const AgentHello known = before.machine().Hello();
  deaths_ = before.deaths_;
  obeyed_epoch_ = before.obeyed_epoch_;
  asked_ = before.asked_;
  for (const auto& [incarnation, worker] : before.workers_) {
    workers_[incarnation] = worker;
    launcher::agent_event::Adopted adopted;
    adopted.assignment = worker->assignment();
    adopted.cluster = known.cluster_id();
    adopted.epoch = {known.epoch(), known.epoch_proof()};
    adopted.pid = world_->NextPid();
    adopted.wanted_end = before.asked_.count(incarnation) != 0;
    machine().Step(adopted, Now());
    const auto end = before.ends_.find(incarnation);
    if (end == before.ends_.end()) continue;
    ends_.insert(*end);
    launcher::agent_event::Exited exited;
    exited.incarnation = incarnation;
    exited.order = end->second.order;
    exited.signal = end->second.signal;
    exited.exit_code = worker->exit_code();
    machine().Step(exited, Now());  // said when it is connected
  }
}

AgentHello AgentProcess::Hello() const {
  AgentHello hello = machine().Hello();
  hello.set_node_id(host()->name);
  hello.set_host(host()->name);
  hello.set_incarnation(life_);
  hello.set_slots(slots_);
  hello.set_protocol_version(1);
  return hello;
}

void AgentProcess::OnNewSession() { unwritten_.clear(); }

void AgentProcess::OnWritten(const AgentMessage& message) {
  if (message.has_log()) unwritten_.erase(message.log().lines().slot());
}

void AgentProcess::Leave(absl::Duration away) {
  leaving_since_ = Now();
  away_ = away;
  Feed(launcher::agent_event::Stop{});
}

void AgentProcess::AfterStep() {
  if (!leaves() || through_ || !machine().stopped()) return;
  through_ = true;
  world_->Say(absl::StrCat("the agent of ", host()->name, " has left after ",
                           absl::FormatDuration(Now() - leaving_since_)));
  After(absl::ZeroDuration(), [this] { session().Close(kLastWords); });
  After(kLastWords, [this] {
    world_->timeline.In(away_, [world = world_, index = static_cast<size_t>(host()->number)] {
      world->StartAgent(index);
    });
    Die();
  });
}

void AgentProcess::OnLine(const WorkerProcess& worker) {
  if (!alive()) return;
  unwritten_.insert(++lines_);
  AgentMessage message;
  message.mutable_log()->set_job_id(worker.job_id());
  message.mutable_log()->set_worker_incarnation(worker.incarnation());
  LogLines& lines = *message.mutable_log()->mutable_lines();
  lines.set_slot(static_cast<int>(lines_));  // which one it is
  session().Send(std::move(message));
}

bool AgentProcess::HasWrittenBefore(int64_t line) const {
  return unwritten_.empty() || *unwritten_.begin() >= line;
}

void AgentProcess::OnCommand(const AgentCommand& command) {
  const bool old = command.epoch() < obeyed_epoch_ && !command.has_rejected();
  obeyed_epoch_ = std::max<int64_t>(obeyed_epoch_, command.epoch());
  world_->checker.BeginCommand(old);
  Feed(launcher::agent_event::Command{command});
  world_->checker.EndCommand();
}

void AgentProcess::OnStart(const launcher::agent_action::Start& start) {
  const std::string& incarnation = start.assignment.incarnation();
  world_->checker.OnAgentActs("starts a worker");
  world_->Say(absl::StrCat(host()->name, " starts ", incarnation));
  const auto worker = std::make_shared<WorkerProcess>(world_, host(), start);
  workers_[incarnation] = worker;
  world_->checker.OnStart(*worker);
  world_->queue_checker.OnProcess(*this);
  // Its supervisor starts it, whatever becomes of the agent.
  worker->After(random().Between(absl::Milliseconds(2), absl::Milliseconds(50)),
                [this, worker, weak = weak_from_this()] {
                  if (const auto self = weak.lock(); self != nullptr && alive()) {
                    Feed(launcher::agent_event::Started{worker->incarnation(), world_->NextPid()});
                  }
                  worker->Start();
                });
}

void AgentProcess::OnTerminate(const launcher::agent_action::Terminate& terminate) {
  world_->checker.OnAgentActs("ends a worker");
  const std::shared_ptr<WorkerProcess> worker = workers_[terminate.incarnation];
  if (worker == nullptr || !worker->alive()) return;
  asked_.insert(worker->incarnation());
  if (!leaves()) world_->checker.OnEndedByAgent(*worker);
  worker->After(absl::Milliseconds(5), [worker] { worker->Terminate(); });
}

void AgentProcess::OnKill(const launcher::agent_action::Kill& kill) {
  world_->checker.OnAgentActs("kills a worker");
  const std::shared_ptr<WorkerProcess> worker = workers_[kill.incarnation];
  if (worker == nullptr || !worker->alive()) return;
  asked_.insert(worker->incarnation());
  if (!leaves()) world_->checker.OnEndedByAgent(*worker);
  worker->NoteKilled();
  After(absl::Milliseconds(1), [this, worker] {
    if (!worker->alive()) return;
    worker->Die();
    OnWorkerDeath(*worker, SIGKILL);
  });
}

void AgentProcess::OnWorkerDeath(WorkerProcess& worker, int signal) {
  world_->checker.OnDeath(worker);
  const int64_t order = ++deaths_;
  ends_[worker.incarnation()] = {signal, order};
  const std::string incarnation = worker.incarnation();
  const int code = worker.exit_code();
  After(absl::Microseconds(200), [this, incarnation, order] {
    Feed(launcher::agent_event::Died{incarnation, order, absl::Microseconds(100)});
  });
  After(random().Between(absl::Milliseconds(10), absl::Milliseconds(100)),
        [this, incarnation, order, signal, code] {
          launcher::agent_event::Exited exited;
          exited.incarnation = incarnation;
          exited.order = order;
          exited.signal = signal;
          exited.exit_code = code;
          Feed(exited);
        });
}

void AgentProcess::OnForget(const launcher::agent_action::Forget& forget) {
  world_->checker.OnForgotten(forget.incarnation);
  workers_.erase(forget.incarnation);
  ends_.erase(forget.incarnation);
}

void AgentProcess::OnDeath() {
  AgentShell::OnDeath();
  if (!alone_) EndWorkers();
}

void AgentProcess::EndWorkers() {
  alone_ = false;  // nothing is left to adopt
  for (const auto& [incarnation, worker] : workers_) {
    if (!worker->alive()) continue;
    worker->Die();
    world_->checker.OnDeath(*worker);
  }
}

}  // namespace lockstep::simulation
