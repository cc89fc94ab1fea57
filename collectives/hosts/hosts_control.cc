// SPDX-License-Identifier: Apache-2.0
// One call and its record: those of this communicator, and those of another (NCCL) that announces
// them here and moves data by other means.
#include <cstring>
#include <utility>

#include "collectives/hosts/hosts_communicator.h"

namespace lockstep {

Operation HostsCommunicator::NewOperation(OpKind kind, int64_t count, DType dtype) const {
  return {.kind = kind,
          .dtype = dtype,
          .generation = generation(),
          .sequence = sequence_ + 1,
          .count = count};
}

absl::Status HostsCommunicator::BeginCall(const Operation& operation, int64_t bytes) {
  TakeBack();
  if (absl::Status begun = group_.local->BeginCall(operation, bytes); !begun.ok()) {
    context_.mesh->Leave(begun);
    return begun;
  }
  if (IsNumbered(operation.kind)) ++sequence_;
  current_ = operation;
  told_waiting_ = -1;
  return absl::OkStatus();
}

absl::Status HostsCommunicator::Announce(const Operation& operation, const void* mine, size_t size,
                                         void* all, absl::Time deadline) {
  Given given;
  LS_RETURN_IF_ERROR(MoveSmall(operation, mine, size, &given, deadline));
  for (size_t r = 0; size > 0 && r < given.size(); ++r) {
    std::memcpy(static_cast<char*>(all) + r * size, given[r], size);
  }
  return absl::OkStatus();
}

absl::Status HostsCommunicator::EndCall(const Operation& operation, absl::Status status) {
  status = group_.local->EndCall(operation, std::move(status));
  if (!status.ok()) {
    context_.mesh->Leave(status);
    return status;
  }
  for (const int rank : context_.mesh->ranks()) {
    Link* const link = context_.mesh->link(rank);
    if (link->heard.sequence <= sequence_) link->completed = link->heard;
  }
  context_.mesh->NoteCompleted(sequence_);
  return status;
}

void HostsCommunicator::RestartNumbering() {
  group_.local->RestartNumbering();
  sequence_ = 0;
  context_.mesh->NoteCompleted(0);
  // What peers told of calls with the numbers that come again.
  for (const int rank : context_.mesh->ranks()) {
    Link* const link = context_.mesh->link(rank);
    link->heard = link->completed = Operation{};
    link->waiting_for = -1;
    link->waiting_call = 0;
  }
}

absl::Status HostsCommunicator::CheckAlive() const {
  LS_RETURN_IF_ERROR(group_.local->CheckAlive());
  TakeBack();
  absl::Status status = context_.mesh->Poll();
  // Whoever has completed the call at hand has given its part of it: its leaving ends the next one.
  if (context_.mesh->LeftAfter(status, sequence_)) return absl::OkStatus();
  return status;
}

}  // namespace lockstep
