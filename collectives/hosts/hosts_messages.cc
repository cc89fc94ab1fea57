// SPDX-License-Identifier: Apache-2.0
// Send and Recv. Between ranks of one host they go through its memory; between hosts a message goes
// as frames that wait at their receiver, up to 512 KiB, until they are asked for.
#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "collectives/hosts/hosts_communicator.h"

namespace lockstep {
namespace {

constexpr size_t kFrame = 128 << 10;

class Sending : public MeshUser {
 public:
  Sending(const Mesh* mesh, const Operation& operation, const char* data, size_t bytes)
      : mesh_(mesh), operation_(operation), data_(data), bytes_(bytes) {}
  bool Next(int rank, OutgoingFrame* frame) override {
    if (rank != operation_.root || all_) return false;
    frame->header.kind = FrameKind::kMessage;
    frame->header.operation = operation_;
    frame->header.offset = sent_;
    frame->header.bytes = static_cast<uint32_t>(std::min(kFrame, bytes_ - sent_));
    frame->payload = data_ + sent_;
    sent_ += frame->header.bytes;
    all_ = sent_ == bytes_;
    return true;
  }
  absl::StatusOr<char*> Place(int /*rank*/, const FrameHeader& /*header*/) override {
    return nullptr;
  }
  absl::Status Arrived(int /*rank*/, const FrameHeader& /*header*/) override {
    return absl::OkStatus();
  }
  bool Done() const override { return all_ && !mesh_->link(operation_.root)->sending(); }
  bool WaitsFor(int rank) const override { return rank == operation_.root && !Done(); }

 private:
  const Mesh* const mesh_;
  const Operation operation_;
  const char* const data_;
  const size_t bytes_;
  size_t sent_ = 0;
  bool all_ = false;
};

// Waits for the next frame of a message.
class Receiving : public MeshUser {
 public:
  Receiving(const Link* link, int rank) : link_(link), rank_(rank) {}
  bool Next(int /*rank*/, OutgoingFrame* /*frame*/) override { return false; }
  absl::StatusOr<char*> Place(int /*rank*/, const FrameHeader& /*header*/) override {
    return nullptr;
  }
  absl::Status Arrived(int /*rank*/, const FrameHeader& /*header*/) override {
    return absl::OkStatus();
  }
  bool Done() const override { return !link_->inbox.empty() && link_->inbox.front().whole; }
  bool WaitsFor(int rank) const override { return rank == rank_ && !Done(); }

 private:
  const Link* const link_;
  const int rank_;
};

}  // namespace

absl::Status HostsCommunicator::CheckPeer(const Operation& operation, int rank) const {
  if (rank >= 0 && rank < world_size() && rank != this->rank()) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(ToString(operation), ": no peer"));
}

absl::Status HostsCommunicator::Send(const void* data, int64_t count, DType dtype, int to,
                                     absl::Time deadline) {
  Operation operation = NewOperation(OpKind::kSend, count, dtype);
  operation.root = to;
  const bool valid = CheckPeer(operation, to).ok();
  if (valid && IsLocal(to)) {
    absl::Status status =
        group_.local->Send(data, count, dtype, group_.hosts.index_of(to), deadline);
    if (!status.ok()) context_.mesh->Leave(status);
    return status;
  }
  operation.sequence = valid ? ++sent_[static_cast<size_t>(to)] : 0;
  const size_t bytes = static_cast<size_t>(count) * SizeOf(dtype);
  return Run(operation, static_cast<int64_t>(bytes), [&]() -> absl::Status {
    LS_RETURN_IF_ERROR(CheckPeer(operation, to));
    Sending sending(context_.mesh, operation, static_cast<const char*>(data), bytes);
    return Drive(&sending, deadline);
  });
}

absl::Status HostsCommunicator::Recv(void* data, int64_t count, DType dtype, int from,
                                     absl::Time deadline) {
  Operation operation = NewOperation(OpKind::kRecv, count, dtype);
  operation.root = from;
  const bool valid = CheckPeer(operation, from).ok();
  if (valid && IsLocal(from)) {
    absl::Status status =
        group_.local->Recv(data, count, dtype, group_.hosts.index_of(from), deadline);
    if (!status.ok()) context_.mesh->Leave(status);
    return status;
  }
  operation.sequence = valid ? ++received_[static_cast<size_t>(from)] : 0;
  const size_t bytes = static_cast<size_t>(count) * SizeOf(dtype);
  return Run(operation, static_cast<int64_t>(bytes), [&]() -> absl::Status {
    LS_RETURN_IF_ERROR(CheckPeer(operation, from));
    Link* const link = context_.mesh->link(from);
    size_t got = 0;
    do {
      Receiving receiving(link, from);
      LS_RETURN_IF_ERROR(Drive(&receiving, deadline));
      context_.recorder->Started();
      const Link::Message message = std::move(link->inbox.front());
      link->inbox.pop_front();
      link->inbox_bytes -= message.header.bytes;
      const Operation& sent = message.header.operation;
      if (sent.dtype != dtype || sent.count != count || sent.sequence != operation.sequence ||
          message.header.offset != got || message.header.bytes > bytes - got) {
        return CallsDiffer(from, sent, rank(), operation);
      }
      if (message.header.bytes > 0) {
        std::memcpy(static_cast<char*>(data) + got, message.payload.data(), message.header.bytes);
      }
      got += message.header.bytes;
    } while (got < bytes);
    return absl::OkStatus();
  });
}

}  // namespace lockstep
