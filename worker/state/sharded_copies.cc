// SPDX-License-Identifier: Apache-2.0
// What others than the update want of ShardedState: the state of all ranks, for a checkpoint, and
// whether what several have is the same.
#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "common/check.h"
#include "common/hash_bytes.h"
#include "common/status.h"
#include "worker/state/replica_check.h"
#include "worker/state/sharded_state.h"

namespace lockstep::worker {
namespace {

// Returns whether one of `ranges`, which are ascending, has a byte of [begin, end).
bool Overlaps(const std::vector<engine::StateRange>& ranges, size_t begin, size_t end) {
  const auto next =
      std::upper_bound(ranges.begin(), ranges.end(), begin,
                       [](size_t at, const engine::StateRange& range) { return at < range.end; });
  return next != ranges.end() && next->begin < end;
}

}  // namespace

absl::Status ShardedState::Publish(Communicator* communicator, absl::Time deadline) {
  LS_RETURN_IF_ERROR(parts_.executor->PublishState());
  if (parts_.apart) return Borrow(communicator, deadline);
  if (plan().spec().device == engine::DeviceKind::kCpu) return absl::OkStatus();
  return communicator->Barrier(deadline);
}

absl::Status ShardedState::Borrow(Communicator* communicator, absl::Time deadline) {
  const int64_t step = parts_.executor->committed_step();
  if (all_held_ || parts_.copies == nullptr || borrowed_step_ == step) return absl::OkStatus();
  const std::vector<std::vector<engine::StateRange>> copies =
      parts_.copies(communicator->world_size());
  if (copies.empty()) return absl::OkStatus();
  std::vector<RangeTransfer> transfers;
  std::vector<engine::StateRange> mine;
  std::vector<bool> borrowed(places_.size(), false);
  for (size_t i = 0; i < places_.size(); ++i) {
    const Place& place = places_[i];
    const auto shard = static_cast<size_t>(place.shard);
    std::vector<int> takers;
    for (size_t rank = 0; rank < copies.size(); ++rank) {
      if (Overlaps(copies[rank], place.begin, place.end)) takers.push_back(static_cast<int>(rank));
    }
    AddTransfers(InFloats({place.begin, place.end}), holders_[shard], shard, takers, hosts_,
                 &transfers);
    borrowed[i] = !Holds(place.shard) && absl::c_linear_search(takers, rank_);
    if (borrowed[i]) mine.push_back({place.begin, place.end});
  }
  LS_RETURN_IF_ERROR(TakeMoments(mine));
  if (!mine.empty()) parts_.executor->BeginLoad();
  const absl::Status sent = SendState(communicator, transfers, deadline);
  if (!mine.empty()) parts_.executor->EndBorrow();
  LS_RETURN_IF_ERROR(sent);
  borrowed_ = std::move(borrowed);
  borrowed_step_ = step;
  return absl::OkStatus();
}

absl::Status ShardedState::SendState(Communicator* communicator,
                                     const std::vector<RangeTransfer>& transfers,
                                     absl::Time deadline) {
  return communicator->ExchangeRanges(reinterpret_cast<float*>(parts_.state),
                                      static_cast<int64_t>(moments_end_ / sizeof(float)), transfers,
                                      deadline);
}

const char* ShardedState::Locate(size_t offset, size_t* bytes) const {
  if (offset < moments_begin_ || offset >= moments_end_) return parts_.state + offset;
  const auto next =
      std::upper_bound(places_.begin(), places_.end(), offset,
                       [](size_t at, const Place& place) { return at < place.begin; });
  LS_CHECK(next != places_.begin());
  const Place& place = *std::prev(next);
  LS_CHECK_LT(offset, place.end);
  *bytes = std::min(*bytes, place.end - offset);
  if (Holds(place.shard)) return parts_.state + offset;
  if (parts_.apart) {
    LS_CHECK(borrowed_[static_cast<size_t>(std::prev(next) - places_.begin())])
        << "byte " << offset << " of the state was not brought here";
    return parts_.state + offset;
  }
  const int from = holders_[static_cast<size_t>(place.shard)].front();
  return shared_[static_cast<size_t>(from)][0] + offset;
}

uint64_t ShardedState::HashOf(int shard, const char* base) const {
  uint64_t hash = 0;
  for (const engine::StateRange& range : moments_[static_cast<size_t>(shard)]) {
    hash = hash * 31 + HashBytes(base + range.begin, range.end - range.begin);
  }
  return hash;
}

absl::Status ShardedState::CheckReplicas(Communicator* communicator, int64_t step,
                                         absl::Time deadline) const {
  // Returns what all have, then each shard that this rank holds.
  std::vector<uint64_t> mine(static_cast<size_t>(parts_.shards) + 1, 0);
  mine[0] = HashBytes(parts_.state, moments_begin_) * 31 +
            HashBytes(parts_.state + moments_end_, plan().state_bytes() - moments_end_);
  for (int shard = 0; shard < parts_.shards; ++shard) {
    if (Holds(shard)) mine[static_cast<size_t>(shard) + 1] = HashOf(shard, parts_.state);
  }
  std::vector<uint64_t> all(mine.size() * static_cast<size_t>(communicator->world_size()));
  LS_RETURN_IF_ERROR(communicator->AllGather(mine.data(), all.data(),
                                             static_cast<int64_t>(mine.size() * sizeof(uint64_t)),
                                             DType::kUInt8, deadline));
  const auto hash = [&](int rank, size_t at) {
    return all[static_cast<size_t>(rank) * mine.size() + at];
  };
  std::vector<uint64_t> column;
  for (int rank = 0; rank < communicator->world_size(); ++rank) column.push_back(hash(rank, 0));
  std::vector<int> ranks = RanksThatDiffer(column);
  if (!ranks.empty()) {
    return ReplicasDiffer(ranks, ranks.size() < column.size(), communicator->rank(), step);
  }
  for (size_t shard = 0; shard < holders_.size(); ++shard) {
    column.clear();
    for (const int rank : holders_[shard]) column.push_back(hash(rank, shard + 1));
    const std::vector<int> differ = RanksThatDiffer(column);
    if (differ.empty()) continue;
    ranks.clear();
    for (const int index : differ) ranks.push_back(holders_[shard][static_cast<size_t>(index)]);
    return ReplicasDiffer(ranks, differ.size() < column.size(), communicator->rank(), step);
  }
  return absl::OkStatus();
}

}  // namespace lockstep::worker
