// SPDX-License-Identifier: Apache-2.0
#include "worker/state/replica_check.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/hash_bytes.h"
#include "common/status.h"

namespace lockstep::worker {

std::vector<int> RanksThatDiffer(const std::vector<uint64_t>& hashes) {
  const auto has_majority = [&](uint64_t hash) {
    return 2 * std::count(hashes.begin(), hashes.end(), hash) >
           static_cast<std::ptrdiff_t>(hashes.size());
  };
  const auto right = std::find_if(hashes.begin(), hashes.end(), has_majority);
  std::vector<int> ranks;
  for (size_t r = 0; r < hashes.size(); ++r) {
    if (right == hashes.end() || hashes[r] != *right) ranks.push_back(static_cast<int>(r));
  }
  return ranks;
}

absl::Status CheckReplicas(Communicator* communicator, const void* state, size_t bytes,
                           int64_t step, absl::Time deadline) {
  const uint64_t mine = HashBytes(state, bytes);
  std::vector<uint64_t> hashes(static_cast<size_t>(communicator->world_size()));
  LS_RETURN_IF_ERROR(
      communicator->AllGather(&mine, hashes.data(), sizeof(mine), DType::kUInt8, deadline));
  const std::vector<int> ranks = RanksThatDiffer(hashes);
  if (ranks.empty()) return absl::OkStatus();
  return ReplicasDiffer(ranks, ranks.size() < hashes.size(), communicator->rank(), step);
}

absl::Status ReplicasDiffer(const std::vector<int>& ranks, bool majority, int rank, int64_t step) {
  const std::string who =
      absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ", absl::StrJoin(ranks, ", "));
  const bool named = std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
  if (named && !majority) {
    return absl::DataLossError(absl::StrCat(
        "silent corruption: after step ", step, " the training states of ", who,
        " differ, and no majority says whose is right; test the memory and CPUs of their hosts"));
  }
  if (!named) {
    return absl::AbortedError(
        absl::StrCat("after step ", step, " the training state of ", who, " is not ours"));
  }
  return absl::DataLossError(
      absl::StrCat("silent corruption: after step ", step, " the training state of rank ", rank,
                   " is not that of the other ranks; test the memory and CPU of its host"));
}

}  // namespace lockstep::worker
