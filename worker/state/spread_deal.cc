// SPDX-License-Identifier: Apache-2.0
#include "worker/state/spread_deal.h"

#include <algorithm>

#include "common/round_up.h"

namespace lockstep::worker {
namespace {

constexpr int64_t kLine = 16;  // ranges are cut at multiples of it

int SourceOf(const ShardHolders& holders, size_t shard) {
  const std::vector<int>& ranks = holders[shard];
  return ranks[shard % ranks.size()];
}

// From and to multiples of kLine or the end of the vector; neighbours become one.
std::vector<ElementRange> Merged(std::vector<ElementRange> ranges, int64_t count) {
  for (ElementRange& range : ranges) {
    range = {range.begin / kLine * kLine, std::min(count, RoundUp(range.end, kLine))};
  }
  std::sort(ranges.begin(), ranges.end(),
            [](const ElementRange& a, const ElementRange& b) { return a.begin < b.begin; });
  std::vector<ElementRange> merged;
  for (const ElementRange& range : ranges) {
    if (range.size() == 0) continue;
    if (!merged.empty() && range.begin <= merged.back().end) {
      merged.back().end = std::max(merged.back().end, range.end);
    } else {
      merged.push_back(range);
    }
  }
  return merged;
}

}  // namespace

GradientDeal DealGradients(absl::Span<const engine::GradientRange> blocks, int64_t tail_begin,
                           int64_t gradient_count, int64_t vector_count,
                           const ShardHolders& holders, int world) {
  const int shards = static_cast<int>(holders.size());
  GradientDeal deal;
  deal.wanted.resize(static_cast<size_t>(world));
  std::vector<int64_t> ends;
  for (int shard = 0; shard < shards; ++shard) {
    const ElementRange range = SliceOf(gradient_count, shards, shard);
    ends.push_back(range.end);
    for (const int rank : holders[static_cast<size_t>(shard)]) {
      deal.wanted[static_cast<size_t>(rank)].push_back(range);
    }
  }
  for (const engine::GradientRange& block : blocks) {
    // A holder of its first element, which has most of it unless shards are small.
    const auto shard = std::upper_bound(ends.begin(), ends.end(), block.begin) - ends.begin();
    const int rank = SourceOf(holders, static_cast<size_t>(shard));
    deal.summed_by.push_back(rank);
    deal.wanted[static_cast<size_t>(rank)].push_back({block.begin, block.end});
  }
  for (std::vector<ElementRange>& ranges : deal.wanted) {
    ranges.push_back({tail_begin, vector_count});
    ranges = Merged(std::move(ranges), vector_count);
  }
  return deal;
}

std::vector<RangeTransfer> WeightTransfers(int64_t gradient_count, const ShardHolders& holders,
                                           const std::vector<int>& takers,
                                           absl::Span<const int> hosts) {
  std::vector<RangeTransfer> transfers;
  for (size_t shard = 0; shard < holders.size(); ++shard) {
    AddTransfers(SliceOf(gradient_count, static_cast<int>(holders.size()), static_cast<int>(shard)),
                 holders[shard], shard, takers, hosts, &transfers);
  }
  return transfers;
}

int GiverTo(int taker, const std::vector<int>& holders, size_t turn, absl::Span<const int> hosts) {
  const auto host_of = [&](int rank) { return hosts[static_cast<size_t>(rank)]; };
  for (size_t i = 0; i < holders.size(); ++i) {
    const int holder = holders[(turn + i) % holders.size()];
    if (host_of(holder) == host_of(taker)) return holder;
  }
  return holders[turn % holders.size()];
}

void AddTransfers(ElementRange range, const std::vector<int>& holders, size_t turn,
                  const std::vector<int>& takers, absl::Span<const int> hosts,
                  std::vector<RangeTransfer>* transfers) {
  if (range.size() == 0) return;
  const size_t before = transfers->size();
  for (const int taker : takers) {
    if (std::find(holders.begin(), holders.end(), taker) != holders.end()) continue;
    const int from = GiverTo(taker, holders, turn, hosts);
    const auto same =
        std::find_if(transfers->begin() + static_cast<ptrdiff_t>(before), transfers->end(),
                     [from](const RangeTransfer& transfer) { return transfer.from == from; });
    if (same != transfers->end()) {
      same->to.push_back(taker);
    } else {
      transfers->push_back({range.begin, range.end, from, {taker}});
    }
  }
}

}  // namespace lockstep::worker
