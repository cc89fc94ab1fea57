// SPDX-License-Identifier: Apache-2.0
// Share: one tick, with which every rank says where its pieces lie.
// Replicate: two ticks. With the first every rank says where its bytes lie, or that it has none;
// who has none takes a slice from each of the others; with the second all know that it is done.
// ExchangeRanges: the same, each receiver taking its ranges.
#include <algorithm>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "collectives/shm/shm_communicator.h"

namespace lockstep {

absl::Status ShmCommunicator::Replicate(void* data, int64_t bytes, bool have, absl::Time deadline) {
  const Operation operation = NewOperation(OpKind::kReplicate, bytes, DType::kUInt8);
  return Run(operation, bytes, [&]() -> absl::Status {
    const CallSlot call = NewCall(operation, have ? data : nullptr, static_cast<size_t>(bytes));
    if (have && call.buffer == CallSlot::kForeign) {
      return absl::InternalError(
          absl::StrCat("rank ", rank(), ": what it gives does not lie in the arena"));
    }
    LS_RETURN_IF_ERROR(Enter(call, deadline));
    if (!have) LS_RETURN_IF_ERROR(TakeSlices(static_cast<char*>(data), bytes));
    return Tick(deadline);
  });
}

// A large state takes longer than a worker may stand still, so each piece says that it moves on.
void ShmCommunicator::CopyInPieces(const char* from, char* to, size_t bytes) const {
  constexpr size_t kPiece = size_t{16} << 20;
  for (size_t at = 0; at < bytes; at += kPiece) {
    std::memcpy(to + at, from + at, std::min(kPiece, bytes - at));
    group_.recorder->Moved();
  }
}

absl::Status ShmCommunicator::TakeSlices(char* data, int64_t bytes) const {
  std::vector<int> holders;
  for (int r = 0; r < world_size(); ++r) {
    if (CallOf(r).buffer != CallSlot::kForeign) holders.push_back(r);
  }
  if (holders.empty()) return absl::InternalError("replicate: no rank has the bytes");
  for (size_t i = 0; i < holders.size(); ++i) {
    const int r = holders[i];
    const uint64_t offset = CallOf(r).buffer;
    if (offset > arena_bytes(r) || static_cast<uint64_t>(bytes) > arena_bytes(r) - offset) {
      return absl::InternalError(absl::StrCat("rank ", r, " announced bytes outside its arena"));
    }
    const ElementRange slice =
        SliceOf(bytes, static_cast<int>(holders.size()), static_cast<int>(i));
    CopyInPieces(base(r) + offset + slice.begin, data + slice.begin,
                 static_cast<size_t>(slice.size()));
  }
  return absl::OkStatus();
}

absl::Status ShmCommunicator::ExchangeRanges(float* data, int64_t count,
                                             absl::Span<const RangeTransfer> transfers,
                                             absl::Time deadline) {
  Operation operation = NewOperation(OpKind::kExchange, count, DType::kFloat32);
  operation.layout = LayoutOf(transfers);
  const size_t bytes = static_cast<size_t>(count) * sizeof(float);
  return Run(operation, static_cast<int64_t>(bytes), [&]() -> absl::Status {
    const CallSlot call = NewCall(operation, data, bytes);
    if (count > 0 && call.buffer == CallSlot::kForeign) {
      return absl::InternalError(
          absl::StrCat("rank ", rank(), ": the vector does not lie in the arena"));
    }
    LS_RETURN_IF_ERROR(Enter(call, deadline));
    LS_RETURN_IF_ERROR(TakeRanges(reinterpret_cast<char*>(data), bytes, transfers));
    return Tick(deadline);
  });
}

absl::Status ShmCommunicator::TakeRanges(char* data, size_t bytes,
                                         absl::Span<const RangeTransfer> transfers) const {
  for (const RangeTransfer& transfer : transfers) {
    if (std::find(transfer.to.begin(), transfer.to.end(), rank()) == transfer.to.end()) continue;
    const uint64_t offset = CallOf(transfer.from).buffer;
    if (offset > arena_bytes(transfer.from) || bytes > arena_bytes(transfer.from) - offset) {
      return absl::InternalError(
          absl::StrCat("rank ", transfer.from, " announced a vector outside its arena"));
    }
    const auto begin = static_cast<size_t>(transfer.begin) * sizeof(float);
    CopyInPieces(base(transfer.from) + offset + begin, data + begin,
                 static_cast<size_t>(transfer.end - transfer.begin) * sizeof(float));
  }
  return absl::OkStatus();
}

absl::StatusOr<Communicator::SharedPieces> ShmCommunicator::Share(
    absl::Span<const SharedPiece> pieces, absl::Time deadline) {
  int64_t bytes = 0;
  for (const SharedPiece& piece : pieces) bytes += static_cast<int64_t>(piece.bytes);
  const Operation operation = NewOperation(OpKind::kShare, bytes, DType::kUInt8);
  SharedPieces all;
  LS_RETURN_IF_ERROR(Run(operation, 0, [&]() -> absl::Status {
    CallSlot call = NewCall(operation, nullptr, 0);
    if (pieces.size() > kMostShared) return absl::InternalError("share: too many pieces");
    for (const SharedPiece& piece : pieces) {
      const uint64_t offset = group_.own->OffsetOf(piece.data, piece.bytes);
      if (offset == CallSlot::kForeign) {
        return absl::InternalError(
            absl::StrCat("rank ", rank(), ": what it shares does not lie in the arena"));
      }
      call.nodes[call.node_count++] = {0, 0, offset};
    }
    LS_RETURN_IF_ERROR(Enter(call, deadline));
    return FindShared(pieces, &all);
  }));
  return all;
}

absl::Status ShmCommunicator::FindShared(absl::Span<const SharedPiece> pieces,
                                         SharedPieces* all) const {
  all->resize(static_cast<size_t>(world_size()));
  for (int r = 0; r < world_size(); ++r) {
    const CallSlot& call = CallOf(r);
    if (call.node_count != pieces.size()) {
      return absl::InternalError(absl::StrCat("rank ", r, " shares ", call.node_count,
                                              " pieces, rank ", rank(), " ", pieces.size()));
    }
    for (size_t i = 0; i < pieces.size(); ++i) {
      const uint64_t offset = call.nodes[i].offset;
      if (offset > arena_bytes(r) || pieces[i].bytes > arena_bytes(r) - offset) {
        return absl::InternalError(
            absl::StrCat("rank ", r, " announced a piece outside its arena"));
      }
      (*all)[static_cast<size_t>(r)].push_back(base(r) + offset);
    }
  }
  return absl::OkStatus();
}

}  // namespace lockstep
