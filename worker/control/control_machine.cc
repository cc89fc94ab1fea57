// SPDX-License-Identifier: Apache-2.0
#include "worker/control/control_machine.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/protocol_version.h"

namespace lockstep::worker {
namespace {

constexpr char kLost[] = "the coordinator is gone for good";

}  // namespace

ControlMachine::ControlMachine(const WorkerBootstrap& bootstrap, int64_t pid)
    : bootstrap_(bootstrap),
      pid_(pid),
      cluster_id_(bootstrap.cluster_id()),
      epoch_(bootstrap.epoch()) {}

WorkerMessage ControlMachine::NewMessage() const {
  WorkerMessage message;
  message.set_job_id(bootstrap_.assignment().job_id());
  message.set_incarnation(bootstrap_.assignment().incarnation());
  return message;
}

WorkerMessage ControlMachine::Hello() const {
  WorkerMessage message = NewMessage();
  WorkerHello* hello = message.mutable_hello();
  hello->set_pid(pid_);
  hello->set_host(bootstrap_.host());
  hello->set_slot(bootstrap_.assignment().slot());
  hello->set_node_id(bootstrap_.node_id());
  hello->set_protocol_version(SpokenProtocolVersion());
  hello->set_cluster_id(cluster_id_);
  hello->set_epoch(epoch_);
  return message;
}

ControlMachine::Effects ControlMachine::Connected() {
  Effects effects;
  if (connected_before_) effects.messages = lost_peers_;
  // Before the end, which says from where the job can go on.
  if (connected_before_ && offer_.has_value()) effects.messages.push_back(*offer_);
  if (connected_before_ && standing_.has_value()) effects.messages.push_back(*standing_);
  connected_ = connected_before_ = true;
  return effects;
}

std::string ControlMachine::WhyRefused(const WorkerCommand& command) const {
  if (cluster_id_.empty()) return "";
  if (command.cluster_id().empty()) {
    // Of a build that names it to workers' agents, and not to workers.
    if (bootstrap_.cluster_id().empty()) return "";
    return absl::StrCat(
        "a coordinator that does not name its cluster is not obeyed: this worker belongs to ",
        cluster_id_);
  }
  if (command.cluster_id() != cluster_id_) {
    return absl::StrCat("the coordinator of cluster ", command.cluster_id(),
                        " is not obeyed: this worker belongs to ", cluster_id_);
  }
  if (command.epoch() >= epoch_) return "";
  return absl::StrCat("a coordinator of epoch ", command.epoch(),
                      " is not obeyed: there is one of epoch ", epoch_);
}

ControlMachine::Effects ControlMachine::Command(const WorkerCommand& command) {
  Effects effects;
  effects.refused = WhyRefused(command);
  if (!effects.refused.empty()) return effects;
  if (!command.cluster_id().empty()) {
    cluster_id_ = command.cluster_id();
    epoch_ = command.epoch();
  }
  switch (command.command_case()) {
    case WorkerCommand::kGeneration: {
      const Generation& generation = command.generation();
      if (newest_.has_value() && newest_->generation() >= generation.generation()) break;
      newest_ = generation;
      End(generation.generation() - 1, "a newer generation began", &effects);
      break;
    }
    case WorkerCommand::kAbort:
      End(command.abort().generation(), command.abort().reason(), &effects);
      break;
    case WorkerCommand::kDrain:
      drain_ = true;
      break;
    case WorkerCommand::kRegroup:
      // One of a generation before this is of a coordinator whose journal does not know this one.
      regroup_ = std::max(command.regroup().generation(), watched_);
      break;
    case WorkerCommand::kExit:
      if (!exit_.has_value()) exit_ = command.exit();
      if (watched_ != 0) effects.abort = exit_->reason();
      break;
    case WorkerCommand::kCheckpoint: {
      const CheckpointMark& mark = command.checkpoint().mark();
      if (!offer_.has_value()) break;
      const CheckpointMark& offered = offer_->checkpoint().mark();
      if (mark.generation() != offered.generation() || mark.step() != offered.step()) break;
      verdict_ = command.checkpoint();
      offer_.reset();
      break;
    }
    case WorkerCommand::COMMAND_NOT_SET:
      break;
  }
  return effects;
}

void ControlMachine::End(int64_t generation, const std::string& reason, Effects* effects) {
  if (generation > ended_through_) {
    ended_through_ = generation;
    end_reason_ = reason;
  }
  if (watched_ != 0 && watched_ <= generation) effects->abort = reason;
}

ControlMachine::Effects ControlMachine::LostPeer(const PeerLost& lost) {
  WorkerMessage message = NewMessage();
  *message.mutable_peer_lost() = lost;
  lost_peers_.push_back(message);
  Effects effects;
  effects.messages.push_back(std::move(message));
  return effects;
}

ControlMachine::Effects ControlMachine::Ready(const WorkerReady& ready) {
  standing_ = NewMessage();
  *standing_->mutable_ready() = ready;
  Effects effects;
  effects.messages.push_back(*standing_);
  return effects;
}

ControlMachine::Effects ControlMachine::Finished(const WorkerFinished& finished) {
  standing_ = NewMessage();
  *standing_->mutable_finished() = finished;
  Effects effects;
  effects.messages.push_back(*standing_);
  return effects;
}

ControlMachine::Effects ControlMachine::Offer(const CheckpointOffer& offer) {
  verdict_.reset();
  offer_ = NewMessage();
  *offer_->mutable_checkpoint() = offer;
  Effects effects;
  effects.messages.push_back(*offer_);
  return effects;
}

ControlMachine::Effects ControlMachine::LoseCoordinator() {
  lost_ = drain_ = true;
  Effects effects;
  if (watched_ != 0 && connecting_) effects.abort = kLost;
  return effects;
}

ControlMachine::Effects ControlMachine::Watch(int64_t generation, bool connecting) {
  watched_ = generation;
  connecting_ = connecting;
  heard_ = connected_;
  Effects effects;
  if (exit_.has_value()) {
    effects.abort = exit_->reason();
  } else if (HasEnded(generation)) {
    effects.abort = end_reason_;
  } else if (lost_ && connecting) {
    effects.abort = kLost;
  }
  return effects;
}

bool ControlMachine::HasGeneration(int64_t after) const {
  return ended_through_ > after || (newest_.has_value() && newest_->generation() > after);
}

Generation ControlMachine::TakeGeneration(int64_t after) {
  LS_CHECK(HasGeneration(after)) << after;
  lost_peers_.clear();
  standing_.reset();
  if (newest_.has_value() && newest_->generation() > ended_through_) return *newest_;
  Generation ended;
  ended.set_generation(ended_through_);
  return ended;
}

}  // namespace lockstep::worker
