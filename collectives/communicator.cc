// SPDX-License-Identifier: Apache-2.0
#include "collectives/communicator.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "common/check.h"

namespace lockstep {

absl::Status Communicator::BeginPart(const TreeReduceArgs& args, absl::Time /*deadline*/) {
  return absl::InternalError(
      absl::StrCat("step ", args.step, ": this transport does not reduce parts"));
}

// All ranks walk the transfers in one order, so a receiver's turn comes when its sender's does.
absl::Status Communicator::ExchangeRanges(float* data, int64_t /*count*/,
                                          absl::Span<const RangeTransfer> transfers,
                                          absl::Time deadline) {
  for (const RangeTransfer& transfer : transfers) {
    float* const at = data + transfer.begin;
    const int64_t floats = transfer.end - transfer.begin;
    for (const int to : transfer.to) {
      absl::Status status;
      if (transfer.from == rank()) status = Send(at, floats, DType::kFloat32, to, deadline);
      if (to == rank()) status = Recv(at, floats, DType::kFloat32, transfer.from, deadline);
      if (!status.ok()) return status;
    }
  }
  return absl::OkStatus();
}

absl::Status CheckResult(const TreeReduceArgs& args) {
  const auto result = reinterpret_cast<uintptr_t>(args.result);
  const auto bytes = static_cast<uintptr_t>(args.count) * sizeof(float);
  for (const NodeBuffer& node : args.nodes) {
    const auto data = reinterpret_cast<uintptr_t>(node.data);
    if (result == data || result + bytes <= data || data + bytes <= result) continue;
    return absl::InternalError("the result overlaps a node at another place than its own");
  }
  return absl::OkStatus();
}

ElementRange SliceOf(int64_t count, int world_size, int rank) {
  LS_CHECK(count >= 0 && 0 <= rank && rank < world_size)
      << count << " elements, rank " << rank << " of " << world_size;
  constexpr int64_t kLine = 16;
  const int64_t lines = (count + kLine - 1) / kLine;
  const auto boundary = [&](int64_t r) {
    // lines * r / world_size without overflow.
    const int64_t line = lines / world_size * r + lines % world_size * r / world_size;
    return std::min(count, line * kLine);
  };
  return {boundary(rank), boundary(rank + 1)};
}

}  // namespace lockstep
