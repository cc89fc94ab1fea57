// SPDX-License-Identifier: Apache-2.0
#include "worker/step/non_finite_ranks.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace lockstep::worker {

bool GaveNonFinite(absl::Span<const NodeBuffer> given, int64_t count,
                   absl::Span<const Slice> reduced) {
  const auto any = [](const float* data, int64_t begin, int64_t end) {
    return std::any_of(data + begin, data + end, [](float x) { return !std::isfinite(x); });
  };
  return std::any_of(given.begin(), given.end(), [&](const NodeBuffer& node) {
    int64_t at = 0;
    for (const Slice& slice : reduced) {
      if (slice.data != node.data + slice.begin) continue;
      if (any(node.data, at, slice.begin)) return true;
      at = slice.end;
    }
    return any(node.data, at, count);
  });
}

absl::Status WithRanks(const absl::Status& why, bool own, Communicator* communicator,
                       absl::Time deadline) {
  std::vector<int32_t> all(static_cast<size_t>(communicator->world_size()));
  const int32_t mine = own ? 1 : 0;
  if (!communicator->AllGather(&mine, all.data(), 1, DType::kInt32, deadline).ok()) return why;
  std::vector<size_t> ranks;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank] != 0) ranks.push_back(rank);
  }
  if (ranks.empty()) return why;
  return absl::Status(
      why.code(),
      absl::StrCat(why.message(), "; it came from ",
                   ranks.size() == all.size() ? "all ranks"
                   : ranks.size() == 1        ? absl::StrCat("rank ", ranks[0], " alone")
                                       : absl::StrCat("ranks ", absl::StrJoin(ranks, ", "))));
}

}  // namespace lockstep::worker
