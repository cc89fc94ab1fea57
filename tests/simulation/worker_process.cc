// SPDX-License-Identifier: Apache-2.0
#include "tests/simulation/worker_process.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/simulation/group.h"
#include "tests/simulation/world.h"

namespace lockstep::simulation {
namespace {

constexpr int kHeartbeatKind = 1;
constexpr int64_t kLineEvery = 10;  // steps

WorkerBootstrap Bootstrap(const Host& host, const launcher::agent_action::Start& start) {
  WorkerBootstrap bootstrap;
  *bootstrap.mutable_assignment() = start.assignment;
  bootstrap.set_node_id(host.name);
  bootstrap.set_host(host.name);
  bootstrap.set_cluster_id(start.cluster);
  bootstrap.set_epoch(start.epoch);
  return bootstrap;
}

}  // namespace

WorkerProcess::WorkerProcess(World* world, Host* host, const launcher::agent_action::Start& start)
    : Process(&world->timeline, host),
      world_(world),
      assignment_(start.assignment),
      machine_(Bootstrap(*host, start), world->NextPid()) {}

void WorkerProcess::Start() {
  Session::Callbacks callbacks;
  callbacks.hello = [this] { return machine_.Hello(); };
  callbacks.on_command = [this](const WorkerCommand& command) { OnCommand(command); };
  callbacks.on_connection = [this](bool connected, const std::string&) {
    if (connected) CarryOut(machine_.Connected());
  };
  const auto self = std::static_pointer_cast<WorkerProcess>(shared_from_this());
  session_ = std::make_shared<Session>(self, world_->DialWorker(), std::move(callbacks));
  session_->Begin();
  After(random().Between(absl::Milliseconds(200), absl::Seconds(2)), [this] { SayReady(); });
  After(world_->options.worker_beat, [this] { Beat(); });
}

void WorkerProcess::OnDeath() {
  if (group_ != nullptr) std::exchange(group_, nullptr)->Gone(this);
  if (session_ != nullptr) session_->Abandon();
}

void WorkerProcess::Terminate() { Exit(143); }

void WorkerProcess::Exit(int code) {
  exit_code_ = code;
  world_->Say(absl::StrCat(incarnation(), " exits with code ", code,
                           machine_.exit() ? ": " + machine_.exit()->reason() : ""));
  Die();
  world_->OnWorkerDeath(*this);
}

void WorkerProcess::CarryOut(const worker::ControlMachine::Effects& effects) {
  for (const WorkerMessage& message : effects.messages) session_->Send(message);
  if (effects.abort && group_ != nullptr) group_->LeaveWhenUpdated(this, -1, *effects.abort);
}

void WorkerProcess::OnCommand(const WorkerCommand& command) {
  const worker::ControlMachine::Effects effects = machine_.Command(command);
  const bool obeyed = effects.refused.empty();
  if (obeyed) {
    world_->checker.OnObeyed(incarnation(), obeyed_epoch_, command.epoch());
    obeyed_epoch_ = std::max<int64_t>(obeyed_epoch_, command.epoch());
    if (command.has_abort()) {
      world_->checker.OnAbortTold(job_id(), command.abort().generation());
    }
    if (command.has_generation())
      world_->checker.OnGenerationTold(job_id(), command.generation().generation());
  }
  CarryOut(effects);
  // The main thread looks when it is not within a generation.
  if (group_ != nullptr && !finished_) return;
  if (machine_.exit()) return Exit(machine_.exit()->code());
  if (finished_ && machine_.HasEnded(highest_generation_)) {
    finished_ = false;  // the result did not get safe: the work is not done
    SayReady();
  }
  const absl::Duration longest = LongestLook();
  if (longest == absl::ZeroDuration()) return LookForGeneration();
  After(random().Between(absl::ZeroDuration(), longest), [this] { LookForGeneration(); });
}

absl::Duration WorkerProcess::LongestLook() const {
  const uint64_t seed = world_->options.seed;
  if (seed % 11 == 0 || seed % 23 == 10 || seed % 23 == 11) return absl::Seconds(3);
  return seed % 11 == 1 ? absl::Milliseconds(100) : absl::ZeroDuration();
}

void WorkerProcess::SayReady() {
  ready_ = true;
  WorkerReady ready;
  ready.set_highest_generation(highest_generation_);
  if (has_state()) ready.set_committed_step(committed_);
  ready.set_plan_hash("plan");
  ready.set_device_hash("device");
  CarryOut(machine_.Ready(ready));
  if (highest_generation_ == 0) {
    world_->OnFirstReady(std::static_pointer_cast<WorkerProcess>(shared_from_this()));
  }
  LookForGeneration();
}

void WorkerProcess::LookForGeneration() {
  if (!ready_ || group_ != nullptr || !machine_.HasGeneration(highest_generation_)) return;
  const Generation generation = machine_.TakeGeneration(highest_generation_);
  ready_ = false;
  highest_generation_ = generation.generation();
  if (generation.members().empty()) return SayReady();
  first_commit_ = absl::InfinitePast();
  group_ = world_->GroupOf(job_id(), highest_generation_);
  group_->Join(std::static_pointer_cast<WorkerProcess>(shared_from_this()));
  if (group_ != nullptr) CarryOut(machine_.Watch(highest_generation_));
}

void WorkerProcess::Enter(int64_t step, bool resumed) {
  if (world_->options.verbose) {
    world_->Say(absl::StrCat(incarnation(), " enters generation ", highest_generation_,
                             " after step ", step));
  }
  committed_ = step;
  if (resumed) resumed_step_ = step;
  ++moves_;
  SayLine();
}

void WorkerProcess::SayLine() {
  const auto& agent = world_->agents[static_cast<size_t>(host()->number)];
  if (agent != nullptr && !world_->IsLarge()) agent->OnLine(*this);
}

void WorkerProcess::Commit(int64_t step) {
  world_->checker.OnCommit(*this, highest_generation_, committed_, step);
  committed_ = step;
  ++moves_;
  if (step % kLineEvery == 0) SayLine();
  if (first_commit_ != absl::InfinitePast()) return;
  first_commit_ = Now();
  SendBeat();
}

void WorkerProcess::LeaveGroup(int lost_rank, const std::string& why) {
  group_ = nullptr;
  world_->Say(absl::StrCat(incarnation(), " leaves generation ", highest_generation_, " with step ",
                           committed_, ": ", why));
  machine_.Unwatch();
  SayLine();
  if (machine_.exit()) return Exit(machine_.exit()->code());
  WorkerMessage message = machine_.NewMessage();
  message.mutable_peer_lost()->set_generation(highest_generation_);
  message.mutable_peer_lost()->set_rank(lost_rank);
  message.mutable_peer_lost()->set_detail(why);
  session_->Send(std::move(message));
  SayReady();
}

bool WorkerProcess::Hangs() {
  SimulatedJob& job = world_->JobOf(job_id());
  if (hangs_ || world_->options.seed % 11 != 0 || job.own_failures > 0) return hangs_;
  hangs_ = random().Chance(0.2);
  if (!hangs_) return false;
  world_->Say(absl::StrCat(incarnation(), " hangs, and its heartbeats go on"));
  ++job.own_failures;
  job.disturbed = std::max(job.disturbed, timeline().now() + absl::Seconds(60));
  return true;
}

bool WorkerProcess::Ails() const {
  const absl::Time now = timeline().now();
  return !alive() || stopped() || hangs_ || now <= impaired_ || now <= host()->impaired;
}

void WorkerProcess::RegroupNow() {
  group_ = nullptr;
  machine_.Unwatch();
  SayReady();
}

void WorkerProcess::FinishTraining(bool drained) {
  group_ = nullptr;
  machine_.Unwatch();
  finished_ = true;
  drained_ = drained;
  WorkerFinished finished;
  finished.set_generation(highest_generation_);
  finished.set_steps(committed_);
  finished.set_drained(drained);
  CarryOut(machine_.Finished(finished));
  if (machine_.HasEnded(highest_generation_)) {
    finished_ = false;
    SayReady();
  }
  if (machine_.exit()) Exit(machine_.exit()->code());
}

void WorkerProcess::Beat() {
  // A step that waits for others moves nothing.
  if (group_ == nullptr || group_->WaitsFor(this) < 0) ++moves_;
  SendBeat();
  After(world_->options.worker_beat, [this] { Beat(); });
}

void WorkerProcess::SendBeat() {
  WorkerMessage message = machine_.NewMessage();
  WorkerHeartbeat& beat = *message.mutable_heartbeat();
  beat.set_generation(group_ != nullptr || finished_ ? highest_generation_ : 0);
  beat.set_progress_counter(moves_);
  beat.mutable_progress()->set_step(std::max<int64_t>(0, committed_));
  beat.mutable_progress()->set_phase(TRAINING);
  beat.set_resumed_step(resumed_step_);
  if (group_ != nullptr) beat.set_waiting_for(group_->WaitsFor(this) + 1);
  if (first_commit_ != absl::InfinitePast()) {
    const absl::Duration since = Now() - first_commit_;
    beat.mutable_since_first_commit()->set_seconds(absl::ToInt64Seconds(since));
  }
  session_->Send(std::move(message), kHeartbeatKind);
}

}  // namespace lockstep::simulation
