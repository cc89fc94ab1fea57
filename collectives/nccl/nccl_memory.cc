// SPDX-License-Identifier: Apache-2.0
#include "collectives/nccl/nccl_memory.h"

#include <algorithm>

#include "absl/time/clock.h"
#include "collectives/communicator.h"
#include "common/round_up.h"
#include "common/status.h"

namespace lockstep {
namespace {

// Slices are padded to the longest, by less than so many floats each: SliceOf's grain.
constexpr int64_t kPadding = 16;
constexpr int64_t kMostRanks = 1024;
constexpr absl::Duration kPoll = absl::Microseconds(20);

size_t VectorBytes(int64_t count) {
  return RoundUp(std::max<size_t>(static_cast<size_t>(count) * sizeof(float), 1),
                 kNcclWindowAlignment);
}

// Of reducing a vector of `count`.
int64_t ResultFloats(int64_t count) { return count + kPadding * kMostRanks; }

}  // namespace

int64_t StagingFloats(size_t summands, int world, int64_t count, int64_t piece) {
  if (summands < 2) return 0;
  const int64_t longest = SliceOf(count, world, 0).size() + kPadding;
  return static_cast<int64_t>(summands) * std::min(piece, longest);
}

size_t NcclMemoryBytes(int vectors, int64_t count, int64_t staging) {
  return static_cast<size_t>(vectors) * VectorBytes(count) +
         static_cast<size_t>(ResultFloats(count) + staging) * sizeof(float);
}

NcclMemory::~NcclMemory() {
  for (const Vector& vector : vectors_) {
    if (vector.of_nccl) {
      library_->api.mem_free(vector.memory);
    } else {
      queue_->Release(vector.memory);
    }
  }
  for (const Buffer& buffer : {result_, staging_}) {
    if (buffer.data != nullptr) queue_->Release(buffer.data);
  }
}

absl::StatusOr<float*> NcclMemory::Allocate(int64_t count, const std::string& what) {
  Vector vector;
  vector.bytes = VectorBytes(count);
  const bool has = library_ != nullptr && library_->api.mem_alloc != nullptr;
  vector.of_nccl = has && library_->api.mem_alloc(&vector.memory, vector.bytes) == kNcclSuccess;
  if (!vector.of_nccl) {
    LS_ASSIGN_OR_RETURN(vector.memory, queue_->Allocate(vector.bytes, what));
  }
  vectors_.push_back(vector);
  // What reducing it takes has its room from the start.
  LS_RETURN_IF_ERROR(Result(ResultFloats(count)).status());
  if (least_staging_ > 0) LS_RETURN_IF_ERROR(Staging(least_staging_).status());
  LS_RETURN_IF_ERROR(queue_->Clear(vector.memory, vector.bytes));
  LS_RETURN_IF_ERROR(Wait());  // others may write there from now on
  return static_cast<float*>(vector.memory);
}

absl::Status NcclMemory::Add(float* a, const float* b, int64_t count) {
  return queue_->Add(a, b, a, count);
}

absl::Status NcclMemory::Write(float* to, const float* from, int64_t count) {
  LS_RETURN_IF_ERROR(queue_->Copy(to, from, static_cast<size_t>(count) * sizeof(float)));
  return Wait();
}

absl::Status NcclMemory::Read(float* to, const float* from, int64_t count) {
  return Write(to, from, count);
}

absl::Status NcclMemory::Wait() {
  LS_RETURN_IF_ERROR(queue_->Mark());
  while (true) {
    LS_ASSIGN_OR_RETURN(const bool reached, queue_->Reached());
    if (reached) return absl::OkStatus();
    absl::SleepFor(kPoll);
  }
}

absl::StatusOr<float*> NcclMemory::Grow(Buffer* buffer, int64_t count, const std::string& what) {
  if (buffer->data != nullptr && count <= buffer->count) return buffer->data;
  if (buffer->data != nullptr) queue_->Release(buffer->data);
  *buffer = {};
  LS_ASSIGN_OR_RETURN(
      void* const memory,
      queue_->Allocate(static_cast<size_t>(std::max<int64_t>(count, 1)) * sizeof(float), what));
  *buffer = {static_cast<float*>(memory), count};
  return buffer->data;
}

absl::StatusOr<float*> NcclMemory::Result(int64_t count) {
  return Grow(&result_, count, "reduced gradients");
}

absl::StatusOr<float*> NcclMemory::Staging(int64_t count) {
  return Grow(&staging_, count, "gradients that are received");
}

bool NcclMemory::Holds(const void* data) const {
  if (queue_->Holds(data)) return true;
  const auto at = reinterpret_cast<uintptr_t>(data);
  return std::any_of(vectors_.begin(), vectors_.end(), [&](const Vector& vector) {
    const auto begin = reinterpret_cast<uintptr_t>(vector.memory);
    return begin <= at && at < begin + vector.bytes;
  });
}

size_t NcclMemory::bytes() const {
  size_t bytes =
      static_cast<size_t>(std::max<int64_t>(0, result_.count + staging_.count)) * sizeof(float);
  for (const Vector& vector : vectors_) bytes += vector.bytes;
  return bytes;
}

}  // namespace lockstep
