// SPDX-License-Identifier: Apache-2.0
#include "tests/scenarios/scripted_worker.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/scenarios/effects_text.h"

namespace lockstep::coordinator {
namespace {

constexpr absl::Duration kBeat = absl::Milliseconds(500);

}  // namespace

void ScriptedWorker::Start() {
  OpenSession();
  BeatLater();
}

void ScriptedWorker::End(int exit_code, int signal) {
  if (!alive()) return;
  exit_code_ = exit_code;
  signal_ = signal;
  Die();
  on_end_(*this);
}

void ScriptedWorker::OnCommand(const WorkerCommand& command) {
  const worker::ControlMachine::Effects effects = machine().Command(command);
  say_(absl::StrCat(incarnation(), effects.refused.empty() ? " <- " : " refuses ",
                    SpeakerText(command), ": ",
                    effects.refused.empty() ? ToText(command) : effects.refused));
  CarryOut(effects);
  LeaveIfTold();
}

void ScriptedWorker::OnAbort(const std::string& reason) {
  say_(absl::StrCat(incarnation(), " leaves generation ", generation_, ": ", reason));
  generation_ = 0;
  machine().Unwatch();
}

void ScriptedWorker::OnConnection(bool connected, const std::string& reason) {
  if (!connected) say_(absl::StrCat(incarnation(), " is not connected: ", reason));
}

void ScriptedWorker::LeaveIfTold() {
  if (generation_ != 0 || !machine().exit()) return;
  say_(absl::StrCat(incarnation(), " exits with ", machine().exit()->code()));
  End(machine().exit()->code(), 0);
}

void ScriptedWorker::Enter() {
  if (!machine().HasGeneration(seen_)) {
    return say_(absl::StrCat(incarnation(), " has no generation to enter"));
  }
  const Generation generation = machine().TakeGeneration(seen_);
  seen_ = generation.generation();
  if (generation.members().empty()) {
    return say_(absl::StrCat(incarnation(), " finds generation ", seen_, " ended"));
  }
  generation_ = seen_;
  step_ = entered_ = generation.start_step();
  say_(absl::StrCat(incarnation(), " enters generation ", generation_));
  CarryOut(machine().Watch(generation_));
}

void ScriptedWorker::Report(const Command& command, WorkerMessage message) {
  WorkerMessage own = machine().NewMessage();
  own.MergeFrom(message);
  if (message.has_ready()) {
    generation_ = 0;
    machine().Unwatch();
    own.mutable_ready()->set_highest_generation(command.number("seen", seen_));
    if (seen_ > 0 && !command.has("step")) own.mutable_ready()->set_committed_step(step_);
    CarryOut(machine().Ready(own.ready()));
  } else if (message.has_finished()) {
    machine().Unwatch();
    generation_ = 0;
    own.mutable_finished()->set_generation(seen_);
    CarryOut(machine().Finished(own.finished()));
  } else if (message.has_peer_lost()) {
    CarryOut(machine().LostPeer(own.peer_lost()));
  } else if (message.has_checkpoint()) {
    CarryOut(machine().Offer(own.checkpoint()));
  } else {
    Send(std::move(own));
  }
  LeaveIfTold();
}

std::string ScriptedWorker::Standing() const {
  return absl::StrCat(incarnation(), ": ",
                      generation_ != 0
                          ? absl::StrCat("in generation ", generation_)
                          : absl::StrCat("between generations, the newest seen is ", seen_),
                      machine().drain() ? ", to drain" : "",
                      machine().verdict() == nullptr ? "" : ", has a verdict on its checkpoint");
}

void ScriptedWorker::BeatLater() {
  After(kBeat, [this] {
    if (generation_ != 0 && !stands_) ++step_;
    WorkerMessage message = machine().NewMessage();
    WorkerHeartbeat& beat = *message.mutable_heartbeat();
    beat.set_generation(generation_);
    beat.set_progress_counter(step_);
    beat.mutable_progress()->set_step(step_);
    beat.mutable_progress()->set_phase(TRAINING);
    if (step_ > entered_) beat.mutable_since_first_commit();
    SendBeat(std::move(message));
    BeatLater();
  });
}

}  // namespace lockstep::coordinator
