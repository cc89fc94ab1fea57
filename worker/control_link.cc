// SPDX-License-Identifier: Apache-2.0
#include "worker/control_link.h"

#include <unistd.h>

#include <utility>

#include "common/log.h"

namespace lockstep::worker {
namespace {
constexpr int kProtocolVersion = 1;
constexpr int kHeartbeatKind = 1;
constexpr absl::Duration kFarewell = absl::Seconds(1);
}  // namespace

ControlLink::ControlLink(const WorkerBootstrap& bootstrap) : bootstrap_(bootstrap) {}

ControlLink::~ControlLink() {
  if (session_ != nullptr) session_->Close(kFarewell);
}

void ControlLink::Start() {
  coordinator::WorkerSession::Callbacks callbacks;
  callbacks.hello = [this] { return Hello(); };
  callbacks.on_command = [this](const WorkerCommand& command) { OnCommand(command); };
  callbacks.on_connection = [this](bool connected, const std::string&) { OnConnection(connected); };
  session_ = coordinator::OpenWorkerSession({bootstrap_.coordinator_address(), ""}, callbacks);
}

WorkerMessage ControlLink::NewMessage() const {
  WorkerMessage message;
  message.set_job_id(bootstrap_.assignment().job_id());
  message.set_incarnation(bootstrap_.assignment().incarnation());
  return message;
}

WorkerMessage ControlLink::Hello() {
  WorkerMessage message = NewMessage();
  WorkerHello* hello = message.mutable_hello();
  hello->set_pid(::getpid());
  hello->set_host(bootstrap_.host());
  hello->set_slot(bootstrap_.assignment().slot());
  hello->set_node_id(bootstrap_.node_id());
  hello->set_protocol_version(kProtocolVersion);
  return message;
}

void ControlLink::OnConnection(bool connected) {
  if (!connected) return;
  std::optional<WorkerMessage> again;
  {
    absl::MutexLock lock(&mu_);
    if (connected_before_) again = standing_;
    connected_before_ = true;
  }
  if (again.has_value()) session_->Send(*again);
}

void ControlLink::OnCommand(const WorkerCommand& command) {
  switch (command.command_case()) {
    case WorkerCommand::kGeneration: {
      absl::MutexLock lock(&mu_);
      const Generation& generation = command.generation();
      if (newest_.has_value() && newest_->generation() >= generation.generation()) return;
      newest_ = generation;
      AbortWatched(generation.generation() - 1, "a newer generation began");
      return;
    }
    case WorkerCommand::kAbort: {
      absl::MutexLock lock(&mu_);
      AbortWatched(command.abort().generation(), command.abort().reason());
      return;
    }
    case WorkerCommand::kDrain:
      drain_.store(true, std::memory_order_relaxed);
      return;
    case WorkerCommand::kRegroup:
      regroup_.store(command.regroup().generation(), std::memory_order_relaxed);
      return;
    case WorkerCommand::kExit: {
      absl::MutexLock lock(&mu_);
      if (!exit_.has_value()) exit_ = command.exit();
      AbortWatched(watched_, command.exit().reason());
      return;
    }
    case WorkerCommand::COMMAND_NOT_SET:
      return;
  }
}

void ControlLink::AbortWatched(int64_t generation, const std::string& reason) {
  if (generation > aborted_through_) {
    aborted_through_ = generation;
    abort_reason_ = reason;
  }
  if (watched_ != 0 && watched_ <= generation && abort_ != nullptr) abort_(reason);
}

void ControlLink::SendReady(const WorkerReady& ready) {
  WorkerMessage message = NewMessage();
  *message.mutable_ready() = ready;
  {
    absl::MutexLock lock(&mu_);
    standing_ = message;
  }
  session_->Send(message);
}

absl::StatusOr<Generation> ControlLink::WaitForGeneration(int64_t after) {
  absl::MutexLock lock(&mu_);
  const auto there = [this, after]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return exit_.has_value() || (newest_.has_value() && newest_->generation() > after) ||
           aborted_through_ > after;
  };
  mu_.Await(absl::Condition(&there));
  if (exit_.has_value()) return absl::CancelledError(exit_->reason());
  standing_.reset();
  if (newest_.has_value() && newest_->generation() > aborted_through_) return *newest_;
  Generation ended;
  ended.set_generation(aborted_through_);
  return ended;
}

void ControlLink::WatchGeneration(int64_t generation,
                                  std::function<void(const std::string&)> abort) {
  absl::MutexLock lock(&mu_);
  watched_ = generation;
  abort_ = std::move(abort);
  if (exit_.has_value()) {
    abort_(exit_->reason());
  } else if (aborted_through_ >= generation) {
    abort_(abort_reason_);
  }
}

void ControlLink::UnwatchGeneration() {
  absl::MutexLock lock(&mu_);
  watched_ = 0;
  abort_ = nullptr;
}

std::optional<Exit> ControlLink::exit_requested() const {
  absl::MutexLock lock(&mu_);
  return exit_;
}

void ControlLink::SendHeartbeat(const WorkerHeartbeat& heartbeat) {
  WorkerMessage message = NewMessage();
  *message.mutable_heartbeat() = heartbeat;
  session_->SendLatest(kHeartbeatKind, message);
}

void ControlLink::SendEval(const EvalResult& eval) {
  WorkerMessage message = NewMessage();
  *message.mutable_eval() = eval;
  session_->Send(message);
}

void ControlLink::SendPeerLost(int64_t generation, int rank, const std::string& detail) {
  WorkerMessage message = NewMessage();
  message.mutable_peer_lost()->set_generation(generation);
  message.mutable_peer_lost()->set_rank(rank);
  message.mutable_peer_lost()->set_detail(detail);
  session_->Send(message);
}

std::optional<Exit> ControlLink::FinishAndWait(const WorkerFinished& finished) {
  WorkerMessage message = NewMessage();
  *message.mutable_finished() = finished;
  {
    absl::MutexLock lock(&mu_);
    standing_ = message;
  }
  session_->Send(message);
  absl::MutexLock lock(&mu_);
  const int64_t generation = finished.generation();
  const auto told = [this, generation]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return exit_.has_value() || aborted_through_ >= generation;
  };
  mu_.Await(absl::Condition(&told));
  return exit_;
}

void ControlLink::SendFailed(int64_t generation, const absl::Status& status) {
  WorkerMessage message = NewMessage();
  message.mutable_failed()->set_generation(generation);
  message.mutable_failed()->set_code(static_cast<int>(status.code()));
  message.mutable_failed()->set_message(std::string(status.message()));
  session_->Send(message);
  session_->Flush(kFarewell);
}

}  // namespace lockstep::worker
