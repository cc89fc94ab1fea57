// SPDX-License-Identifier: Apache-2.0
// ShardedState::Agree: how the members of a generation come to have the same state when each has a
// part of the moments. All of them see the same rows, so all decide alike.
#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/check.h"
#include "common/log.h"
#include "common/status.h"
#include "worker/state/sharded_state.h"

namespace lockstep::worker {
ShardedState::Row ShardedState::MyRow(int64_t evaluated_step) const {
  Row row{};
  row.committed = parts_.executor->committed_step();
  row.begun = parts_.halves->begun_step();
  row.evaluated = evaluated_step;
  row.tracking = parts_.executor->tracking();
  row.own_begin = own_.begin;
  row.own_end = own_.end;
  for (int shard = 0; shard < parts_.shards; ++shard) {
    if (Holds(shard)) row.holds[shard / 64] |= uint64_t{1} << shard % 64;
  }
  return row;
}

ShardHolders ShardedState::HoldersIn(const std::vector<Row>& rows, int64_t start_step) const {
  ShardHolders holders(static_cast<size_t>(parts_.shards));
  for (size_t rank = 0; rank < rows.size(); ++rank) {
    if (rows[rank].begun != start_step) continue;
    for (int shard = 0; shard < parts_.shards; ++shard) {
      const bool holds = (rows[rank].holds[shard / 64] >> shard % 64 & 1) != 0;
      if (holds) holders[static_cast<size_t>(shard)].push_back(static_cast<int>(rank));
    }
  }
  return holders;
}

absl::Status ShardedState::ShareMemory(Communicator* communicator, absl::Time deadline) {
  std::vector<Communicator::SharedPiece> pieces = {{parts_.state, plan().state_bytes()}};
  if (spread()) {
    pieces.push_back({parts_.sums, plan().SumBlocks().size() * sizeof(double)});
  } else {
    LS_CHECK(communicator->abilities().results_with_owners);
    pieces.push_back({parts_.gradients, static_cast<size_t>(parts_.vector_count) * sizeof(float)});
    pieces.push_back({parts_.spill, SpillBytes(parts_.vector_count)});
  }
  LS_ASSIGN_OR_RETURN(shared_, communicator->Share(pieces, deadline));
  return absl::OkStatus();
}

absl::Status ShardedState::Agree(Communicator* communicator, int64_t start_step,
                                 StateAgreement* agreement, absl::Time deadline) {
  if (!parts_.apart) LS_RETURN_IF_ERROR(ShareMemory(communicator, deadline));
  const Row mine = MyRow(agreement->evaluated_step);
  std::vector<Row> rows(static_cast<size_t>(communicator->world_size()));
  LS_RETURN_IF_ERROR(
      communicator->AllGather(&mine, rows.data(), sizeof(Row), DType::kUInt8, deadline));

  std::vector<int> bound;
  bool half_done = false;
  for (size_t rank = 0; rank < rows.size(); ++rank) {
    if (rows[rank].begun != start_step) continue;
    bound.push_back(static_cast<int>(rank));
    half_done |= rows[rank].committed != start_step;
  }
  if (bound.empty()) {
    return absl::InternalError(absl::StrCat("no member of generation ", communicator->generation(),
                                            " has the state after step ", start_step,
                                            ", where it is to go on"));
  }
  agreement->holders = bound;
  agreement->copied = !absl::c_linear_search(bound, communicator->rank());
  if (start_step == 0) return BeginFresh(communicator);
  const ShardHolders before = HoldersIn(rows, start_step);
  std::vector<size_t> missing;
  for (size_t shard = 0; shard < before.size(); ++shard) {
    const bool needed = half_done || !moments_[shard].empty();
    if (before[shard].empty() && needed) missing.push_back(shard + 1);
  }
  if (!missing.empty()) {
    return GiveUp(start_step,
                  absl::StrCat("both holders of part ", absl::StrJoin(missing, ", part "), " of ",
                               before.size(), " of the optimizer's state after step ", start_step,
                               " are gone"));
  }
  if (half_done) {
    LS_RETURN_IF_ERROR(FinishHalfDone(communicator, rows, before, start_step, deadline));
  }
  // Where all have everything a survivor may be a step behind, as in a job without shards.
  const bool survives = agreement->copied && mine.committed > 0 && mine.begun == mine.committed &&
                        std::count(held_.begin(), held_.end(), false) == 0;
  if (survives) old_.emplace(*communicator, *parts_.executor, parts_.state, plan().state_bytes());
  bool has_its_part = false;
  absl::Status brought = Bring(communicator, rows, before, agreement, &has_its_part, deadline);
  // With its part of the newer state, which the others may rely on, it keeps both until it knows
  // that all have theirs.
  if (!brought.ok() && survives && !has_its_part && PutOldBack()) {
    agreement->evaluated_step = mine.evaluated;
  }
  return brought;
}

absl::Status ShardedState::Bring(Communicator* communicator, const std::vector<Row>& rows,
                                 const ShardHolders& before, StateAgreement* agreement,
                                 bool* has_its_part, absl::Time deadline) {
  LS_RETURN_IF_ERROR(AgreeOnShared(communicator, rows, agreement, deadline));
  ShardHolders after = DealOverHosts(before, communicator->hosts());
  LS_RETURN_IF_ERROR(Transfer(communicator, before, after, has_its_part, deadline));
  old_.reset();
  return SetHolders(*communicator, std::move(after));
}

absl::Status ShardedState::BeginFresh(Communicator* communicator) {
  const ShardHolders nobody(static_cast<size_t>(parts_.shards));
  ShardHolders holders = DealOverHosts(nobody, communicator->hosts());
  std::vector<engine::StateRange> ranges;
  for (size_t shard = 0; shard < holders.size(); ++shard) {
    if (!absl::c_linear_search(holders[shard], communicator->rank())) continue;
    ranges.insert(ranges.end(), moments_[shard].begin(), moments_[shard].end());
  }
  // Those of a generation that ended before its first step do not count twice.
  std::fill(held_.begin(), held_.end(), false);
  DropMoments();
  LS_RETURN_IF_ERROR(TakeMoments(ranges));
  parts_.executor->BeginLoad();
  for (const engine::StateRange& range : ranges) {
    std::memset(parts_.state + range.begin, 0, range.end - range.begin);
  }
  parts_.executor->EndLoad();
  return SetHolders(*communicator, std::move(holders));
}

bool ShardedState::PutOldBack() {
  const bool kept = old_.has_value() && old_->PutBack(parts_.executor);
  if (kept) std::fill(held_.begin(), held_.end(), true);
  old_.reset();
  return kept;
}

absl::Status ShardedState::GiveUp(int64_t step, const std::string& why) {
  // One that has put its old state back in a generation before this stands there.
  const bool stands = step > 1 && parts_.executor->committed_step() == step - 1 &&
                      parts_.halves->begun_step() == step - 1 &&
                      std::count(held_.begin(), held_.end(), false) == 0;
  if (stands || (old_.has_value() && old_->step() + 1 == step && PutOldBack())) {
    LS_LOG_WARNING << why << ": goes back to step " << step - 1
                   << ", after which this rank has all";
  } else {
    old_.reset();
    parts_.executor->InitState();
    std::fill(held_.begin(), held_.end(), false);
    LS_LOG_WARNING << why << ": goes back to the newest checkpoint, or to the start without one, "
                   << "unless another has all after the step before";
  }
  LS_RETURN_IF_ERROR(parts_.halves->HoldMoments({}));
  return absl::AbortedError(absl::StrCat(why, ": all go back"));
}

absl::Status ShardedState::FinishHalfDone(Communicator* communicator, const std::vector<Row>& rows,
                                          const ShardHolders& holders, int64_t step,
                                          absl::Time deadline) {
  std::vector<int> late;
  for (size_t rank = 0; rank < rows.size(); ++rank) {
    const Row& row = rows[rank];
    if (row.begun == step && row.committed != step) late.push_back(static_cast<int>(rank));
  }
  if (spread()) {
    LS_RETURN_IF_ERROR(communicator->ExchangeRanges(
        parts_.gradients, parts_.vector_count,
        WeightTransfers(plan().gradient_count(), holders, late, communicator->hosts()), deadline));
  }
  if (absl::c_linear_search(late, communicator->rank())) {
    LS_RETURN_IF_ERROR(FinishFrom(rows, holders, step));
    LS_RETURN_IF_ERROR(parts_.executor->PublishState());  // who is new may copy them
  }
  // Nobody's new weights go before all have taken them.
  return communicator->Barrier(deadline);
}

absl::Status ShardedState::FinishFrom(const std::vector<Row>& rows, const ShardHolders& holders,
                                      int64_t step) {
  if (spread()) return parts_.halves->FinishUpdate(step, {Vector()});
  std::vector<engine::GradientSlice> weights;
  for (int shard = 0; shard < parts_.shards; ++shard) {
    const int from = holders[static_cast<size_t>(shard)].front();
    const Row& row = rows[static_cast<size_t>(from)];
    for (const Piece& piece : PiecesOf(shard, row.own_begin, row.own_end)) {
      weights.push_back({piece.begin, piece.end, NewWeights(from, piece, row.own_begin)});
    }
  }
  return parts_.halves->FinishUpdate(step, weights);
}

absl::Status ShardedState::AgreeOnShared(Communicator* communicator, const std::vector<Row>& rows,
                                         StateAgreement* agreement, absl::Time deadline) {
  const std::vector<int>& bound = agreement->holders;
  const bool have = !agreement->copied;
  const Row& least = LeastEvaluated(rows, bound);
  if (have) {
    parts_.executor->SetTracking(least.tracking);
    agreement->evaluated_step = least.evaluated;
  }
  if (bound.size() == rows.size()) return absl::OkStatus();
  if (!have) parts_.executor->BeginLoad();
  absl::Status copied = CopyState(communicator, parts_.state, static_cast<int64_t>(moments_begin_),
                                  bound, have, deadline);
  if (copied.ok()) {
    copied =
        CopyState(communicator, parts_.state + moments_end_,
                  static_cast<int64_t>(plan().state_bytes() - moments_end_), bound, have, deadline);
  }
  if (have) return copied;
  parts_.executor->EndLoad();
  // What this rank held, if it held anything, is of another step.
  std::fill(held_.begin(), held_.end(), false);
  if (copied.ok()) {
    agreement->evaluated_step = least.evaluated;
  } else {
    parts_.executor->InitState();
  }
  return copied;
}

absl::Status ShardedState::TakeMoments(std::vector<engine::StateRange> ranges) {
  // The space of neighbours in one go.
  constexpr size_t kNear = 4096;
  std::sort(
      ranges.begin(), ranges.end(),
      [](const engine::StateRange& a, const engine::StateRange& b) { return a.begin < b.begin; });
  for (size_t i = 0; i < ranges.size();) {
    engine::StateRange all = ranges[i];
    for (++i; i < ranges.size() && ranges[i].begin <= all.end + kNear; ++i) all.end = ranges[i].end;
    LS_RETURN_IF_ERROR(parts_.transport->CommitPages(parts_.state + all.begin, all.end - all.begin,
                                                     "a part of the optimizer's state"));
  }
  return absl::OkStatus();
}

absl::Status ShardedState::Transfer(Communicator* communicator, const ShardHolders& before,
                                    const ShardHolders& after, bool* has_its_part,
                                    absl::Time deadline) {
  const int me = communicator->rank();
  const std::vector<int> hosts = communicator->hosts();
  std::vector<uint64_t> hashes(after.size(), 0);
  std::vector<Copied> copies;
  std::vector<RangeTransfer> transfers;  // of all ranks
  bool any = false;
  for (size_t shard = 0; shard < after.size(); ++shard) {
    for (const engine::StateRange& range : moments_[shard]) {
      if (!parts_.apart) break;
      AddTransfers(InFloats(range), before[shard], shard, after[shard], hosts, &transfers);
    }
    for (const int to : after[shard]) {
      if (absl::c_linear_search(before[shard], to) || moments_[shard].empty()) continue;
      any = true;
      const int from = GiverTo(to, before[shard], shard, hosts);
      if (from == me) hashes[shard] = HashOf(static_cast<int>(shard), parts_.state);
      if (to == me) copies.push_back({static_cast<int>(shard), from});
    }
  }
  if (!any) return absl::OkStatus();
  std::vector<engine::StateRange> ranges;
  for (const Copied& copy : copies) {
    const auto& moments = moments_[static_cast<size_t>(copy.shard)];
    ranges.insert(ranges.end(), moments.begin(), moments.end());
  }
  absl::Status status = TakeMoments(std::move(ranges));
  // Others send them to this rank and wait for it, until it leaves.
  if (parts_.apart) LS_RETURN_IF_ERROR(status);
  if (status.ok()) status = Copy(communicator, copies, transfers, deadline);
  std::vector<uint64_t> all(hashes.size() * static_cast<size_t>(communicator->world_size()));
  LS_RETURN_IF_ERROR(communicator->AllGather(hashes.data(), all.data(),
                                             static_cast<int64_t>(hashes.size() * sizeof(uint64_t)),
                                             DType::kUInt8, deadline));
  for (const Copied& copy : copies) {
    if (!status.ok()) break;
    const size_t at =
        static_cast<size_t>(copy.from) * hashes.size() + static_cast<size_t>(copy.shard);
    if (HashOf(copy.shard, parts_.state) == all[at]) {
      // From here on, not from the deal's end: whoever gave them may let go before this rank hears
      // that all have theirs. One holder more is nothing: the next deal trims them.
      held_[static_cast<size_t>(copy.shard)] = true;
      continue;
    }
    status = absl::UnavailableError(absl::StrCat("rank ", me, ": the moments copied from rank ",
                                                 copy.from, " are not what that rank has"));
  }
  *has_its_part = status.ok();
  // Who held them lets go of nothing before all have theirs.
  int32_t good = status.ok() ? 1 : 0;
  LS_RETURN_IF_ERROR(communicator->AllReduce(&good, 1, DType::kInt32, ReduceOp::kMin,
                                             ReduceOrder::kFixed, deadline));
  if (good == 0 && status.ok()) status = absl::AbortedError("a member could not copy its moments");
  return status;
}

absl::Status ShardedState::Copy(Communicator* communicator, const std::vector<Copied>& copies,
                                const std::vector<RangeTransfer>& transfers, absl::Time deadline) {
  if (parts_.apart) {
    if (!copies.empty()) parts_.executor->BeginLoad();
    absl::Status sent = SendState(communicator, transfers, deadline);
    if (!copies.empty()) parts_.executor->EndLoad();
    return sent;
  }
  parts_.executor->BeginLoad();
  for (const Copied& copy : copies) {
    const char* const from = shared_[static_cast<size_t>(copy.from)][0];
    for (const engine::StateRange& range : moments_[static_cast<size_t>(copy.shard)]) {
      std::memcpy(parts_.state + range.begin, from + range.begin, range.end - range.begin);
    }
  }
  parts_.executor->EndLoad();
  return absl::OkStatus();
}

}  // namespace lockstep::worker
