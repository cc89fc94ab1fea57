// SPDX-License-Identifier: Apache-2.0
#include "worker/state/sharded_state.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status.h"

namespace lockstep::worker {
namespace {

// With fewer ranks everybody holds everything, and there are no new weights beside the weights.
constexpr int kLeastRanks = 3;

// The moments lie together: from the first to the end of the last.
engine::StateRange MomentsIn(const engine::Plan& plan) {
  engine::StateRange moments;
  for (const engine::StateEntry& entry : plan.state()) {
    if (entry.role != engine::StateEntry::Role::kMoment) continue;
    if (moments.end == 0) moments.begin = entry.offset;
    moments.end = entry.offset + entry.bytes;
  }
  return moments;
}

}  // namespace

size_t ShardedState::SpillBytes(int64_t vector_count) {
  int64_t most = 0;
  for (int rank = 0; rank < kLeastRanks; ++rank) {
    most = std::max(most, SliceOf(vector_count, kLeastRanks, rank).size());
  }
  return static_cast<size_t>(std::max<int64_t>(most, 1)) * sizeof(float);
}

absl::Status ShardedState::HoldShared(const engine::Plan& plan, Transport* transport, char* state) {
  const engine::StateRange moments = MomentsIn(plan);
  LS_RETURN_IF_ERROR(transport->CommitPages(state, moments.begin, "the weights"));
  return transport->CommitPages(state + moments.end, plan.state_bytes() - moments.end,
                                "averages and counters");
}

ShardedState::ShardedState(const Parts& parts) : parts_(parts) {
  LS_CHECK_LE(parts.shards, kMostShards);
  const int kinds =
      (parts.spill != nullptr ? 1 : 0) + (parts.sums != nullptr ? 1 : 0) + (parts.apart ? 1 : 0);
  LS_CHECK_EQ(kinds, 1);
  LS_CHECK_EQ(parts.spill == nullptr, parts.spread != nullptr);
  const engine::StateRange moments = MomentsIn(plan());
  moments_begin_ = moments.begin;
  moments_end_ = moments.end;
  held_.resize(static_cast<size_t>(parts.shards), false);
  for (int shard = 0; shard < parts.shards; ++shard) {
    const ElementRange range = Range(shard);
    moments_.push_back(plan().MomentsOf(range.begin, range.end));
    for (const engine::StateRange& place : moments_.back()) {
      places_.push_back({place.begin, place.end, shard});
    }
  }
  std::sort(places_.begin(), places_.end(),
            [](const Place& a, const Place& b) { return a.begin < b.begin; });
  borrowed_.resize(places_.size(), false);
  if (own_sums()) sums_.resize(plan().SumBlocks().size(), 0);
}

std::vector<ShardedState::Piece> ShardedState::PiecesOf(int shard, int64_t own_begin,
                                                        int64_t own_end) const {
  const ElementRange range = Range(shard);
  std::vector<Piece> pieces;
  const auto add = [&](int64_t begin, int64_t end, bool in_slice) {
    begin = std::max(begin, range.begin);
    end = std::min(end, range.end);
    if (begin < end) pieces.push_back({begin, end, in_slice});
  };
  add(range.begin, own_begin, false);
  add(own_begin, own_end, true);
  add(own_end, range.end, false);
  return pieces;
}

const float* ShardedState::NewWeights(int rank, const Piece& piece, int64_t own_begin) const {
  const std::vector<const char*>& shared = shared_[static_cast<size_t>(rank)];
  if (piece.in_slice) return reinterpret_cast<const float*>(shared[2]) + (piece.begin - own_begin);
  return reinterpret_cast<const float*>(shared[1]) + piece.begin;
}

absl::Status ShardedState::SetHolders(const Communicator& communicator, ShardHolders holders) {
  const int world = communicator.world_size();
  rank_ = communicator.rank();
  all_held_ = world < kLeastRanks;
  own_ = spread() ? ElementRange{} : SliceOf(parts_.vector_count, world, rank_);
  holders_ = std::move(holders);
  hosts_ = communicator.hosts();
  summed_step_ = 0;
  if (!spread()) parts_.transport->ReleasePages(parts_.spill, SpillBytes(parts_.vector_count));
  std::vector<engine::HeldRange> ranges;
  gathered_.clear();
  for (int shard = 0; shard < parts_.shards; ++shard) {
    const std::vector<int>& ranks = holders_[static_cast<size_t>(shard)];
    const bool mine = std::find(ranks.begin(), ranks.end(), rank_) != ranks.end();
    held_[static_cast<size_t>(shard)] = mine;
    for (const Piece& piece : PiecesOf(shard, own_.begin, own_.end)) {
      if (!mine) break;
      float* weights = parts_.gradients + piece.begin;
      if (piece.in_slice && !all_held_) {
        weights = parts_.spill + (piece.begin - own_.begin);
        LS_RETURN_IF_ERROR(parts_.transport->CommitPages(
            weights, static_cast<size_t>(piece.end - piece.begin) * sizeof(float), "new weights"));
      }
      ranges.push_back({piece.begin, piece.end, weights});
    }
    if (spread()) continue;
    // From this rank itself if it can be, else from either holder.
    const int from = mine ? rank_ : ranks[static_cast<size_t>(shard + rank_) % ranks.size()];
    const ElementRange slice = SliceOf(parts_.vector_count, world, from);
    for (const Piece& piece : PiecesOf(shard, slice.begin, slice.end)) {
      gathered_.push_back({piece.begin, piece.end, NewWeights(from, piece, slice.begin)});
    }
  }
  DropMoments();
  LS_RETURN_IF_ERROR(parts_.halves->HoldMoments(std::move(ranges)));
  return spread() ? DealSpread(world) : absl::OkStatus();
}

std::vector<engine::StateRange> ShardedState::present() const {
  std::vector<engine::StateRange> ranges = {{0, moments_begin_}};
  for (const Place& place : places_) {
    if (Holds(place.shard)) ranges.push_back({place.begin, place.end});
  }
  ranges.push_back({moments_end_, plan().state_bytes()});
  return ranges;
}

void ShardedState::DropMoments() {
  std::fill(borrowed_.begin(), borrowed_.end(), false);
  borrowed_step_ = -1;
  // Stretches that nobody here holds, whole: neighbours may share a page.
  size_t gone = moments_begin_;
  for (const Place& place : places_) {
    if (!Holds(place.shard)) continue;
    if (gone < place.begin) parts_.transport->ReleasePages(parts_.state + gone, place.begin - gone);
    gone = place.end;
  }
  if (gone < moments_end_) parts_.transport->ReleasePages(parts_.state + gone, moments_end_ - gone);
}

absl::Status ShardedState::DealSpread(int world) {
  deal_ = {};
  transfers_.clear();
  gathered_ = {Vector()};
  std::vector<int> sums;
  if (!all_held_) {
    deal_ = DealGradients(plan().SumBlocks(), plan().TailBegin(), plan().gradient_count(),
                          parts_.vector_count, holders_, world);
    std::vector<int> all(static_cast<size_t>(world));
    std::iota(all.begin(), all.end(), 0);
    transfers_ = WeightTransfers(plan().gradient_count(), holders_, all, hosts_);
  }
  for (size_t block = 0; block < deal_.summed_by.size(); ++block) {
    if (deal_.summed_by[block] == rank_) sums.push_back(static_cast<int>(block));
  }
  return parts_.spread->HoldSums(std::move(sums));
}

absl::Status ShardedState::ShareSums(Communicator* communicator, int64_t step,
                                     absl::Span<const engine::GradientSlice> reduced,
                                     absl::Time deadline) {
  if (!spread() || all_held_) return absl::OkStatus();
  if (own_sums()) {
    const engine::GradientSlice own = Vector();
    // A device takes them into memory of its own.
    if (plan().spec().device == engine::DeviceKind::kCpu) {
      TakeWanted(reduced);
      reduced = absl::MakeConstSpan(&own, 1);
    }
    std::fill(sums_.begin(), sums_.end(), 0);
    LS_RETURN_IF_ERROR(parts_.spread->SumSquares(step, reduced, absl::MakeSpan(sums_)));
    // Each block is one rank's, and zero with the others.
    LS_RETURN_IF_ERROR(communicator->AllReduce(sums_.data(), static_cast<int64_t>(sums_.size()),
                                               DType::kFloat64, ReduceOp::kSum, ReduceOrder::kFixed,
                                               deadline));
    summed_step_ = step;
    return communicator->Barrier(deadline);
  }
  LS_RETURN_IF_ERROR(parts_.spread->SumSquares(
      step, reduced, absl::MakeSpan(parts_.sums, deal_.summed_by.size())));
  return communicator->Barrier(deadline);
}

void ShardedState::TakeWanted(absl::Span<const engine::GradientSlice> reduced) {
  for (const ElementRange& wanted : deal_.wanted[static_cast<size_t>(rank_)]) {
    for (const engine::GradientSlice& slice : reduced) {
      const int64_t begin = std::max(wanted.begin, slice.begin);
      const int64_t end = std::min(wanted.end, slice.end);
      const float* const from = slice.data + (begin - slice.begin);
      if (begin < end && from != parts_.gradients + begin) {
        std::copy(from, from + (end - begin), parts_.gradients + begin);
      }
    }
  }
}

absl::StatusOr<engine::StepResult> ShardedState::Begin(
    int64_t step, absl::Span<const engine::GradientSlice> reduced) {
  if (borrowed_step_ >= 0) DropMoments();  // the copy is made
  if (all_held_) return parts_.executor->Update(step, reduced);
  if (!spread()) return parts_.halves->BeginUpdate(step, reduced);
  if (own_sums()) {
    if (summed_step_ == step) return parts_.spread->BeginUpdateWith(step, sums_);
    // Whoever begins a step has seen all others come to the end of its sums.
    return absl::InternalError(
        absl::StrCat("step ", step, " was begun by others before this rank had its sums"));
  }
  std::vector<double> sums;
  for (const int rank : deal_.summed_by) {
    const char* const of_rank = shared_[static_cast<size_t>(rank)][1];
    sums.push_back(reinterpret_cast<const double*>(of_rank)[sums.size()]);
  }
  return parts_.spread->BeginUpdateWith(step, sums);
}

absl::Status ShardedState::Finish(Communicator* communicator, int64_t step, absl::Time deadline) {
  LS_RETURN_IF_ERROR(spread() ? communicator->ExchangeRanges(parts_.gradients, parts_.vector_count,
                                                             transfers_, deadline)
                              : communicator->Barrier(deadline));
  return parts_.halves->FinishUpdate(step, gathered_);
}

}  // namespace lockstep::worker
