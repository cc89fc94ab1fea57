// SPDX-License-Identifier: Apache-2.0
#include "worker/control/control_link.h"

#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/printable.h"

namespace lockstep::worker {
namespace {
constexpr int kHeartbeatKind = 1;
constexpr absl::Duration kFarewell = absl::Seconds(1);
}  // namespace

ControlLink::ControlLink(const WorkerBootstrap& bootstrap, Open open)
    : options_{bootstrap.coordinator_address(), bootstrap.token()},
      open_(std::move(open)),
      machine_(bootstrap, ::getpid()) {}

ControlLink::~ControlLink() {
  if (session_ != nullptr) session_->Close(kFarewell);
}

void ControlLink::Start() {
  coordinator::WorkerSession::Callbacks callbacks;
  callbacks.hello = [this] {
    absl::MutexLock lock(&mu_);
    return machine_.Hello();
  };
  callbacks.on_command = [this](const WorkerCommand& command) { OnCommand(command); };
  callbacks.on_connection = [this](bool connected, const std::string&) { OnConnection(connected); };
  session_ = open_(options_, callbacks);
}

void ControlLink::OnConnection(bool connected) {
  connected_.store(connected, std::memory_order_relaxed);
  absl::MutexLock lock(&mu_);
  if (!connected) return machine_.Disconnected();
  CarryOut(machine_.Connected());
}

void ControlLink::OnCommand(const WorkerCommand& command) {
  {
    absl::MutexLock lock(&mu_);
    CarryOut(machine_.Command(command));
    drain_.store(machine_.drain(), std::memory_order_relaxed);
    regroup_.store(machine_.regroup(), std::memory_order_relaxed);
  }
  changed_.NotifyAll();
}

void ControlLink::CarryOut(const ControlMachine::Effects& effects) {
  for (const WorkerMessage& message : effects.messages) session_->Send(message);
  if (effects.abort.has_value() && abort_ != nullptr) abort_(*effects.abort);
  if (!effects.refused.empty()) {
    LS_LOG_WARNING << effects.refused;
  }
}

void ControlLink::SendReady(const WorkerReady& ready) {
  absl::MutexLock lock(&mu_);
  CarryOut(machine_.Ready(ready));
}

absl::StatusOr<std::optional<Generation>> ControlLink::WaitForGeneration(int64_t after,
                                                                         absl::Duration timeout) {
  absl::MutexLock lock(&mu_);
  changed_.AwaitFor(&mu_, timeout, [this, after]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return machine_.exit().has_value() || machine_.lost() || machine_.HasGeneration(after);
  });
  if (machine_.exit().has_value()) return absl::CancelledError(machine_.exit()->reason());
  if (machine_.lost()) return absl::CancelledError("the coordinator is gone for good");
  if (!machine_.HasGeneration(after)) return std::optional<Generation>();
  return std::make_optional(machine_.TakeGeneration(after));
}

void ControlLink::WatchGeneration(int64_t generation, std::function<void(const std::string&)> abort,
                                  bool connecting) {
  absl::MutexLock lock(&mu_);
  abort_ = std::move(abort);
  CarryOut(machine_.Watch(generation, connecting));
}

void ControlLink::UnwatchGeneration() {
  absl::MutexLock lock(&mu_);
  machine_.Unwatch();
  abort_ = nullptr;
}

bool ControlLink::heard() const {
  absl::MutexLock lock(&mu_);
  return machine_.heard();
}

std::optional<Exit> ControlLink::exit_requested() const {
  absl::MutexLock lock(&mu_);
  return machine_.exit();
}

void ControlLink::LoseCoordinator() {
  {
    absl::MutexLock lock(&mu_);
    CarryOut(machine_.LoseCoordinator());
    drain_.store(machine_.drain(), std::memory_order_relaxed);
    lost_.store(machine_.lost(), std::memory_order_relaxed);
  }
  changed_.NotifyAll();
}

void ControlLink::SendHeartbeat(const WorkerHeartbeat& heartbeat) {
  absl::MutexLock lock(&mu_);
  WorkerMessage message = machine_.NewMessage();
  *message.mutable_heartbeat() = heartbeat;
  session_->SendLatest(kHeartbeatKind, message);
}

void ControlLink::SendEval(const EvalResult& eval) {
  absl::MutexLock lock(&mu_);
  WorkerMessage message = machine_.NewMessage();
  *message.mutable_eval() = eval;
  session_->Send(message);
}

void ControlLink::SendPeerLost(const PeerLost& lost) {
  absl::MutexLock lock(&mu_);
  CarryOut(machine_.LostPeer(lost));
}

absl::Status ControlLink::OfferCheckpoint(const CheckpointMark& mark, absl::Duration timeout) {
  absl::MutexLock lock(&mu_);
  CheckpointOffer offer;
  *offer.mutable_mark() = mark;
  CarryOut(machine_.Offer(offer));
  changed_.AwaitFor(&mu_, timeout, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return machine_.exit().has_value() || machine_.lost() || machine_.verdict() != nullptr;
  });
  if (const CheckpointVerdict* verdict = machine_.verdict(); verdict != nullptr) {
    return verdict->refused().empty() ? absl::OkStatus() : absl::AbortedError(verdict->refused());
  }
  if (machine_.exit().has_value()) return absl::AbortedError(machine_.exit()->reason());
  // Without a coordinator nobody has gone on from here but who says so in the folder.
  if (machine_.lost() || !machine_.HasEnded(mark.generation())) return absl::OkStatus();
  return absl::AbortedError(absl::StrCat("generation ", mark.generation(),
                                         " is over, and no coordinator answers within ",
                                         absl::FormatDuration(timeout)));
}

void ControlLink::TellCheckpoint(const CheckpointMark& mark) {
  absl::MutexLock lock(&mu_);
  CheckpointOffer offer;
  *offer.mutable_mark() = mark;
  CarryOut(machine_.Offer(offer));
}

std::optional<Exit> ControlLink::FinishAndWait(const WorkerFinished& finished) {
  absl::MutexLock lock(&mu_);
  CarryOut(machine_.Finished(finished));
  const int64_t generation = finished.generation();
  const auto told = [this, generation]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return machine_.exit().has_value() || machine_.lost() || machine_.HasEnded(generation);
  };
  mu_.Await(absl::Condition(&told));
  return machine_.exit();
}

void ControlLink::SendFinished(const WorkerFinished& finished) {
  absl::MutexLock lock(&mu_);
  CarryOut(machine_.Finished(finished));
}

bool ControlLink::HasEnded(int64_t generation) const {
  absl::MutexLock lock(&mu_);
  return machine_.HasEnded(generation);
}

void ControlLink::SendFailed(int64_t generation, const absl::Status& status,
                             WorkerFailed::Kind kind) {
  {
    absl::MutexLock lock(&mu_);
    WorkerMessage message = machine_.NewMessage();
    message.mutable_failed()->set_generation(generation);
    message.mutable_failed()->set_code(static_cast<int>(status.code()));
    message.mutable_failed()->set_message(PrintableLines(std::string(status.message())));
    message.mutable_failed()->set_kind(kind);
    session_->Send(message);
  }
  session_->Flush(kFarewell);
}

}  // namespace lockstep::worker
