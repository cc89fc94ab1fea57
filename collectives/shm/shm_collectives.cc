// SPDX-License-Identifier: Apache-2.0
// The collectives on buffers anywhere. Up to kSmallBytes the data goes with the announcement, in
// one exchange. Larger buffers that lie in the arenas are read in place; others pass through the
// chunks of the arenas, one tick a chunk (the copy of one overlaps the reduction of the one
// before).
#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "collectives/reduce.h"
#include "collectives/shm/shm_communicator.h"
#include "common/check.h"

namespace lockstep {
namespace {

void Copy(void* to, const void* from, size_t bytes) {
  if (bytes > 0 && to != from) std::memcpy(to, from, bytes);
}

}  // namespace

absl::Status ShmCommunicator::Announce(const Operation& operation, const void* mine, size_t size,
                                       void* all, absl::Time deadline) {
  static_assert(kAnnouncedBytes <= kSmallBytes);
  LS_CHECK_LE(size, kAnnouncedBytes);
  Copy(NextChunk(), mine, size);
  LS_RETURN_IF_ERROR(Enter(NewCall(operation, nullptr, 0), deadline));
  for (int r = 0; r < world_size(); ++r) Copy(static_cast<char*>(all) + r * size, Chunk(r), size);
  return absl::OkStatus();
}

absl::Status ShmCommunicator::AllReduce(void* data, int64_t count, DType dtype, ReduceOp op,
                                        ReduceOrder order, absl::Time deadline) {
  Operation operation = NewOperation(OpKind::kAllReduce, count, dtype);
  operation.reduce = op;
  operation.order = order;
  const size_t bytes = count * SizeOf(dtype);
  return Run(operation, bytes, [&]() -> absl::Status {
    const bool small = bytes <= kSmallBytes;
    if (small) Copy(NextChunk(), data, bytes);
    LS_RETURN_IF_ERROR(Enter(NewCall(operation, small ? nullptr : data, bytes), deadline));
    if (!small) {
      LS_ASSIGN_OR_RETURN(const bool in_arenas, AllInArenas(bytes));
      return in_arenas ? AllReduceInArenas(data, operation, deadline)
                       : AllReduceByChunks(data, operation, deadline);
    }
    const void* inputs[kMaxRanksOfHost];
    for (int r = 0; r < world_size(); ++r) inputs[r] = Chunk(r);
    ReduceInOrder(absl::MakeConstSpan(inputs, world_size()), data, count, dtype, op);
    return absl::OkStatus();
  });
}

absl::Status ShmCommunicator::AllReduceInArenas(void* data, const Operation& operation,
                                                absl::Time deadline) {
  const size_t size = SizeOf(operation.dtype);
  const ElementRange mine = SliceOf(operation.count, world_size(), rank());
  const auto buffer = [&](int r) { return base(r) + CallOf(r).buffer; };
  const void* inputs[kMaxRanksOfHost];
  for (int r = 0; r < world_size(); ++r) inputs[r] = buffer(r) + mine.begin * size;
  char* own = static_cast<char*>(data);
  ReduceInOrder(absl::MakeConstSpan(inputs, world_size()), own + mine.begin * size, mine.size(),
                operation.dtype, operation.reduce);
  LS_RETURN_IF_ERROR(Tick(deadline));
  for (int r = 0; r < world_size(); ++r) {
    const ElementRange slice = SliceOf(operation.count, world_size(), r);
    if (r != rank()) {
      Copy(own + slice.begin * size, buffer(r) + slice.begin * size, slice.size() * size);
    }
  }
  return Tick(deadline);  // nobody changes its buffer while others read it
}

absl::Status ShmCommunicator::AllReduceByChunks(void* data, const Operation& operation,
                                                absl::Time deadline) {
  const size_t size = SizeOf(operation.dtype);
  const int64_t per_chunk = static_cast<int64_t>(kChunkBytes / size);
  const int64_t chunks = (operation.count + per_chunk - 1) / per_chunk;
  const auto elements = [&](int64_t chunk) {
    return std::min(per_chunk, operation.count - chunk * per_chunk);
  };
  const auto place = [&](int64_t chunk) {
    return static_cast<char*>(data) + chunk * per_chunk * static_cast<int64_t>(size);
  };
  for (int64_t k = 0; k <= chunks; ++k) {
    if (k < chunks) Copy(NextChunk(), place(k), elements(k) * size);
    if (k > 0) {  // everyone's chunk k - 1 is there: this rank adds its slice of it, in place
      const ElementRange mine = SliceOf(elements(k - 1), world_size(), rank());
      const void* inputs[kMaxRanksOfHost];
      for (int r = 0; r < world_size(); ++r) inputs[r] = Chunk(r) + mine.begin * size;
      ReduceInOrder(absl::MakeConstSpan(inputs, world_size()), OwnChunk() + mine.begin * size,
                    mine.size(), operation.dtype, operation.reduce);
    }
    LS_RETURN_IF_ERROR(Tick(deadline));
    for (int r = 0; k > 0 && r < world_size(); ++r) {
      const ElementRange slice = SliceOf(elements(k - 1), world_size(), r);
      Copy(place(k - 1) + slice.begin * size, Chunk(r, 1) + slice.begin * size,
           slice.size() * size);
    }
  }
  return absl::OkStatus();
}

absl::Status ShmCommunicator::ReduceScatter(const void* input, void* output, int64_t count,
                                            DType dtype, ReduceOp op, absl::Time deadline) {
  Operation operation = NewOperation(OpKind::kReduceScatter, count, dtype);
  operation.reduce = op;
  const size_t part = count * SizeOf(dtype);
  const size_t bytes = part * world_size();
  return Run(operation, bytes, [&]() -> absl::Status {
    const bool small = bytes <= kSmallBytes;
    if (small) Copy(NextChunk(), input, bytes);
    LS_RETURN_IF_ERROR(Enter(NewCall(operation, small ? nullptr : input, bytes), deadline));
    LS_ASSIGN_OR_RETURN(const bool in_arenas, AllInArenas(bytes));
    if (!small && !in_arenas) return ReduceScatterByChunks(input, output, operation, deadline);
    const void* inputs[kMaxRanksOfHost];
    for (int r = 0; r < world_size(); ++r) {
      inputs[r] = (small ? Chunk(r) : base(r) + CallOf(r).buffer) + rank() * part;
    }
    ReduceInOrder(absl::MakeConstSpan(inputs, world_size()), output, count, dtype, op);
    return small ? absl::OkStatus() : Tick(deadline);
  });
}

absl::Status ShmCommunicator::ReduceScatterByChunks(const void* input, void* output,
                                                    const Operation& operation,
                                                    absl::Time deadline) {
  const size_t size = SizeOf(operation.dtype);
  // A chunk holds the same piece of every rank's part.
  const int64_t per_part = static_cast<int64_t>(kChunkBytes / size) / world_size();
  const char* from = static_cast<const char*>(input);
  for (int64_t begin = 0; begin < operation.count; begin += per_part) {
    const int64_t elements = std::min(per_part, operation.count - begin);
    for (int r = 0; r < world_size(); ++r) {
      Copy(NextChunk() + r * per_part * size, from + (r * operation.count + begin) * size,
           elements * size);
    }
    LS_RETURN_IF_ERROR(Tick(deadline));
    const void* inputs[kMaxRanksOfHost];
    for (int r = 0; r < world_size(); ++r) inputs[r] = Chunk(r) + rank() * per_part * size;
    ReduceInOrder(absl::MakeConstSpan(inputs, world_size()),
                  static_cast<char*>(output) + begin * size, elements, operation.dtype,
                  operation.reduce);
  }
  return absl::OkStatus();
}

absl::Status ShmCommunicator::AllGather(const void* input, void* output, int64_t count, DType dtype,
                                        absl::Time deadline) {
  const Operation operation = NewOperation(OpKind::kAllGather, count, dtype);
  const size_t bytes = count * SizeOf(dtype);
  return Run(operation, bytes * world_size(), [&]() -> absl::Status {
    const bool small = bytes <= kSmallBytes;
    if (small) Copy(NextChunk(), input, bytes);
    LS_RETURN_IF_ERROR(Enter(NewCall(operation, small ? nullptr : input, bytes), deadline));
    LS_ASSIGN_OR_RETURN(const bool in_arenas, AllInArenas(bytes));
    if (!small && !in_arenas) return AllGatherByChunks(input, output, bytes, deadline);
    for (int r = 0; r < world_size(); ++r) {
      Copy(static_cast<char*>(output) + r * bytes, small ? Chunk(r) : base(r) + CallOf(r).buffer,
           bytes);
    }
    return small ? absl::OkStatus() : Tick(deadline);
  });
}

absl::Status ShmCommunicator::AllGatherByChunks(const void* input, void* output, size_t bytes,
                                                absl::Time deadline) {
  for (size_t begin = 0; begin < bytes; begin += kChunkBytes) {
    const size_t size = std::min(kChunkBytes, bytes - begin);
    Copy(NextChunk(), static_cast<const char*>(input) + begin, size);
    LS_RETURN_IF_ERROR(Tick(deadline));
    for (int r = 0; r < world_size(); ++r) {
      Copy(static_cast<char*>(output) + r * bytes + begin, Chunk(r), size);
    }
  }
  return absl::OkStatus();
}

absl::Status ShmCommunicator::Broadcast(void* data, int64_t count, DType dtype, int root,
                                        absl::Time deadline) {
  Operation operation = NewOperation(OpKind::kBroadcast, count, dtype);
  operation.root = root;
  const size_t bytes = count * SizeOf(dtype);
  return Run(operation, bytes, [&]() -> absl::Status {
    if (root < 0 || root >= world_size()) {
      return absl::InternalError(absl::StrCat(ToString(operation), ": no such rank"));
    }
    const bool small = bytes <= kSmallBytes;
    if (small && root == rank()) Copy(NextChunk(), data, bytes);
    LS_RETURN_IF_ERROR(Enter(NewCall(operation, small ? nullptr : data, bytes), deadline));
    if (small) {
      Copy(data, Chunk(root), bytes);
      return absl::OkStatus();
    }
    const uint64_t offset = CallOf(root).buffer;
    if (offset == CallSlot::kForeign) return BroadcastByChunks(data, bytes, root, deadline);
    if (offset > arena_bytes(root) || bytes > arena_bytes(root) - offset) {
      return absl::InternalError(
          absl::StrCat("rank ", root, " announced a buffer outside its arena"));
    }
    if (root != rank()) Copy(data, base(root) + offset, bytes);
    return Tick(deadline);
  });
}

absl::Status ShmCommunicator::BroadcastByChunks(void* data, size_t bytes, int root,
                                                absl::Time deadline) {
  for (size_t begin = 0; begin < bytes; begin += kChunkBytes) {
    const size_t size = std::min(kChunkBytes, bytes - begin);
    char* place = static_cast<char*>(data) + begin;
    if (root == rank()) Copy(NextChunk(), place, size);
    LS_RETURN_IF_ERROR(Tick(deadline));
    if (root != rank()) Copy(place, Chunk(root), size);
  }
  return absl::OkStatus();
}

}  // namespace lockstep
