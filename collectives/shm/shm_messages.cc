// SPDX-License-Identifier: Apache-2.0
// Send and Recv: chunks lie in one of the sender's places until their receiver has acknowledged
// them in its own header.
#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "collectives/shm/shm_communicator.h"

namespace lockstep {
namespace {

constexpr uint64_t kIndexMask = (uint64_t{1} << 28) - 1;

uint64_t MessageStamp(int64_t generation, int receiver, uint64_t index) {
  return PackStamp(generation, static_cast<uint64_t>(receiver) << 28 | (index & kIndexMask));
}

size_t ChunkCount(size_t bytes) {
  return std::max<size_t>(1, (bytes + kChunkBytes - 1) / kChunkBytes);
}

}  // namespace

absl::Status ShmCommunicator::Send(const void* data, int64_t count, DType dtype, int to,
                                   absl::Time deadline) {
  Operation operation = NewOperation(OpKind::kSend, count, dtype);
  if (IsPeer(to)) operation.root = NameOf(to);
  operation.sequence = IsPeer(to) ? static_cast<int64_t>(sent_[to]) + 1 : 0;
  const size_t bytes = count * SizeOf(dtype);
  return Run(operation, bytes, [&]() -> absl::Status {
    if (!IsPeer(to)) return absl::InternalError(absl::StrCat(ToString(operation), ": no peer"));
    return SendChunks(static_cast<const char*>(data), bytes, to, operation, deadline);
  });
}

absl::Status ShmCommunicator::Recv(void* data, int64_t count, DType dtype, int from,
                                   absl::Time deadline) {
  Operation operation = NewOperation(OpKind::kRecv, count, dtype);
  if (IsPeer(from)) operation.root = NameOf(from);
  operation.sequence = IsPeer(from) ? static_cast<int64_t>(received_[from]) + 1 : 0;
  const size_t bytes = count * SizeOf(dtype);
  return Run(operation, bytes, [&]() -> absl::Status {
    if (!IsPeer(from)) return absl::InternalError(absl::StrCat(ToString(operation), ": no peer"));
    return RecvChunks(static_cast<char*>(data), bytes, from, operation, deadline);
  });
}

absl::Status ShmCommunicator::SendChunks(const char* data, size_t bytes, int to,
                                         const Operation& operation, absl::Time deadline) {
  for (size_t k = 0; k < ChunkCount(bytes); ++k) {
    const int place = next_place_;
    Outstanding& outstanding = outstanding_[place];
    if (outstanding.receiver >= 0) {
      LS_RETURN_IF_ERROR(
          WaitAcknowledged(outstanding.receiver, outstanding.index, operation, deadline));
    }
    const size_t begin = k * kChunkBytes;
    const size_t size = std::min(kChunkBytes, bytes - begin);
    if (size > 0) {
      std::memcpy(group_.own->base() + kMessagesOffset + place * kChunkBytes, data + begin, size);
    }
    own_->messages[place].operation = operation;
    own_->messages[place].chunk_bytes = size;
    outstanding = {to, ++sent_[to]};
    own_->message_stamp[place].store(MessageStamp(generation(), to, outstanding.index),
                                     std::memory_order_release);
    waiter_.Ring();
    next_place_ = (next_place_ + 1) % kMessagePlaces;
  }
  return absl::OkStatus();
}

absl::Status ShmCommunicator::WaitAcknowledged(int receiver, uint64_t index,
                                               const Operation& operation, absl::Time deadline) {
  const auto acknowledged = [&](const RankHeader& peer) {
    const uint64_t word = peer.acknowledged[rank()].load(std::memory_order_acquire);
    // kRefused is the largest value, so it counts as acknowledged here.
    return StampGeneration(word) == generation() && StampValue(word) >= index;
  };
  LS_RETURN_IF_ERROR(WaitPeer(receiver, deadline, acknowledged));
  const RankHeader& peer = header(receiver);
  const uint64_t word = peer.acknowledged[rank()].load(std::memory_order_acquire);
  if (StampValue(word) != RankHeader::kRefused) return absl::OkStatus();
  return CallsDiffer(NameOf(rank()), operation, NameOf(receiver), peer.refused);
}

absl::StatusOr<int> ShmCommunicator::WaitMessage(int sender, uint64_t index, absl::Time deadline) {
  const uint64_t stamp = MessageStamp(generation(), rank(), index);
  int place = -1;
  LS_RETURN_IF_ERROR(WaitPeer(sender, deadline, [&](const RankHeader& peer) {
    for (int i = 0; i < kMessagePlaces; ++i) {
      if (peer.message_stamp[i].load(std::memory_order_acquire) == stamp) place = i;
    }
    return place >= 0;
  }));
  return place;
}

absl::Status ShmCommunicator::RecvChunks(char* data, size_t bytes, int from,
                                         const Operation& operation, absl::Time deadline) {
  for (size_t k = 0; k < ChunkCount(bytes); ++k) {
    LS_ASSIGN_OR_RETURN(const int place, WaitMessage(from, received_[from] + 1, deadline));
    if (k == 0) group_.recorder->Started();
    const MessageSlot& message = header(from).messages[place];
    const size_t size = std::min(kChunkBytes, bytes - k * kChunkBytes);
    if (message.operation.dtype != operation.dtype || message.operation.count != operation.count ||
        message.chunk_bytes != size) {
      own_->refused = operation;
      own_->acknowledged[from].store(PackStamp(generation(), RankHeader::kRefused),
                                     std::memory_order_release);
      waiter_.Ring();
      return CallsDiffer(NameOf(from), message.operation, NameOf(rank()), operation);
    }
    if (size > 0) {
      std::memcpy(data + k * kChunkBytes, base(from) + kMessagesOffset + place * kChunkBytes, size);
    }
    own_->acknowledged[from].store(PackStamp(generation(), ++received_[from]),
                                   std::memory_order_release);
    waiter_.Ring();
  }
  return absl::OkStatus();
}

}  // namespace lockstep
