// SPDX-License-Identifier: Apache-2.0
// Replicate: two ticks. With the first every rank says where its bytes lie, or that it has none;
// who has none takes a slice from each of the others; with the second all know that it is done.
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
    if (slice.size() == 0) continue;
    std::memcpy(data + slice.begin, base(r) + offset + slice.begin,
                static_cast<size_t>(slice.size()));
  }
  return absl::OkStatus();
}

}  // namespace lockstep
