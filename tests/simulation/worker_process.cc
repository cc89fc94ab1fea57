// SPDX-License-Identifier: Apache-2.0
#include "tests/simulation/worker_process.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/simulation/group.h"
#include "tests/simulation/world.h"

namespace lockstep::simulation {
namespace {

constexpr int64_t kLineEvery = 10;  // steps

void SetDuration(absl::Duration duration, google::protobuf::Duration* proto) {
  proto->set_seconds(absl::IDivDuration(duration, absl::Seconds(1), &duration));
  proto->set_nanos(static_cast<int32_t>(absl::ToInt64Nanoseconds(duration)));
}

}  // namespace

WorkerProcess::WorkerProcess(World* world, Host* host, const launcher::agent_action::Start& start)
    : WorkerShell(&world->timeline, host, start, world->NextPid(), world->DialWorker()),
      world_(world) {}

void WorkerProcess::Start() {
  OpenSession();
  After(random().Between(absl::Milliseconds(200), absl::Seconds(2)), [this] { SayReady(); });
  After(world_->options.worker_beat, [this] { Beat(); });
}

void WorkerProcess::OnDeath() {
  if (group_ != nullptr) std::exchange(group_, nullptr)->Gone(this);
  WorkerShell::OnDeath();
}

void WorkerProcess::Terminate() { Exit(143); }

void WorkerProcess::Exit(int code) {
  exit_code_ = code;
  world_->Say(absl::StrCat(incarnation(), " exits with code ", code,
                           machine().exit() ? ": " + machine().exit()->reason() : ""));
  Die();
  world_->OnWorkerDeath(*this);
}

void WorkerProcess::OnAbort(const std::string& reason) {
  if (group_ != nullptr) group_->LeaveWhenUpdated(this, -1, reason);
}

void WorkerProcess::OnCommand(const WorkerCommand& command) {
  const worker::ControlMachine::Effects effects = machine().Command(command);
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
  if (machine().exit()) return Exit(machine().exit()->code());
  if (finished_ && machine().HasEnded(highest_generation_)) {
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
  CarryOut(machine().Ready(ready));
  if (highest_generation_ == 0) {
    world_->OnFirstReady(std::static_pointer_cast<WorkerProcess>(shared_from_this()));
  }
  LookForGeneration();
}

void WorkerProcess::LookForGeneration() {
  if (!ready_ || group_ != nullptr || !machine().HasGeneration(highest_generation_)) return;
  const Generation generation = machine().TakeGeneration(highest_generation_);
  ready_ = false;
  highest_generation_ = generation.generation();
  if (generation.members().empty()) return SayReady();
  restored_ = first_commit_ = absl::InfinitePast();
  group_ = world_->GroupOf(job_id(), highest_generation_);
  group_->Join(std::static_pointer_cast<WorkerProcess>(shared_from_this()));
  if (group_ != nullptr) CarryOut(machine().Watch(highest_generation_));
}

void WorkerProcess::Enter(int64_t step, bool resumed) {
  if (world_->options.verbose) {
    world_->Say(absl::StrCat(incarnation(), " enters generation ", highest_generation_,
                             " after step ", step));
  }
  committed_ = step;
  if (resumed) resumed_step_ = step;
  restored_ = Now();
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
  BeatNow();
}

void WorkerProcess::LeaveGroup(int lost_rank, const std::string& why) {
  group_ = nullptr;
  world_->Say(absl::StrCat(incarnation(), " leaves generation ", highest_generation_, " with step ",
                           committed_, ": ", why));
  machine().Unwatch();
  SayLine();
  if (machine().exit()) return Exit(machine().exit()->code());
  PeerLost lost;
  lost.set_generation(highest_generation_);
  lost.set_rank(lost_rank);
  lost.set_detail(why);
  CarryOut(machine().LostPeer(lost));
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

bool WorkerProcess::IsGivenUp() const {
  const absl::Time now = timeline().now();
  return stopped() || hangs_ || now <= impaired_ || now <= host()->given_up;
}

void WorkerProcess::RegroupNow() {
  group_ = nullptr;
  machine().Unwatch();
  SayReady();
}

void WorkerProcess::FinishTraining(bool drained) {
  group_ = nullptr;
  machine().Unwatch();
  finished_ = true;
  drained_ = drained;
  WorkerFinished finished;
  finished.set_generation(highest_generation_);
  finished.set_steps(committed_);
  finished.set_drained(drained);
  CarryOut(machine().Finished(finished));
  if (machine().HasEnded(highest_generation_)) {
    finished_ = false;
    SayReady();
  }
  if (machine().exit()) Exit(machine().exit()->code());
}

void WorkerProcess::Beat() {
  // A step that waits for others moves nothing.
  if (group_ == nullptr || group_->WaitsFor(this) < 0) ++moves_;
  BeatNow();
  After(world_->options.worker_beat, [this] { Beat(); });
}

void WorkerProcess::BeatNow() {
  WorkerMessage message = machine().NewMessage();
  WorkerHeartbeat& beat = *message.mutable_heartbeat();
  beat.set_generation(group_ != nullptr || finished_ ? highest_generation_ : 0);
  beat.set_progress_counter(moves_);
  beat.mutable_progress()->set_step(std::max<int64_t>(0, committed_));
  beat.mutable_progress()->set_phase(TRAINING);
  beat.set_resumed_step(resumed_step_);
  if (group_ != nullptr) beat.set_waiting_for(group_->WaitsFor(this) + 1);
  if (restored_ != absl::InfinitePast()) {
    SetDuration(Now() - restored_, beat.mutable_since_restored());
  }
  if (first_commit_ != absl::InfinitePast()) {
    SetDuration(Now() - first_commit_, beat.mutable_since_first_commit());
  }
  WorkerShell::SendBeat(std::move(message));
}

}  // namespace lockstep::simulation
