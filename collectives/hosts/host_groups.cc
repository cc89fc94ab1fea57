// SPDX-License-Identifier: Apache-2.0
#include "collectives/hosts/host_groups.h"

#include <algorithm>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "collectives/tree_sum.h"

namespace lockstep {
namespace {

using Input = TreeDeal::Input;
using Partial = TreeDeal::Partial;

// What one host holds, by first shard.
using Held = std::map<int, std::pair<ShardRange, Input>>;

bool IsWhole(ShardRange node, const Held& held, Partial* partial) {
  const auto it = held.find(node.begin);
  if (it == held.end()) return false;
  if (it->second.first == node) {
    partial->inputs.push_back(it->second.second);
    partial->input_nodes.push_back(node);
    return true;
  }
  if (node.size() < 2) return false;
  const int middle = TreeSplit(node);
  return IsWhole({node.begin, middle}, held, partial) && IsWhole({middle, node.end}, held, partial);
}

void Collect(ShardRange node, const Held& held, std::vector<Partial>* partials) {
  const auto it = held.lower_bound(node.begin);
  if (it == held.end() || it->first >= node.end) return;
  Partial partial{node, {}, {}};
  if (IsWhole(node, held, &partial)) {
    partials->push_back(std::move(partial));
    return;
  }
  if (node.size() < 2) return;
  const int middle = TreeSplit(node);
  Collect({node.begin, middle}, held, partials);
  Collect({middle, node.end}, held, partials);
}

}  // namespace

int HostGroups::most() const {
  int most = 0;
  for (int h = 0; h < hosts(); ++h) most = std::max(most, size(h));
  return most;
}

HostGroups GroupByHost(absl::Span<const GroupMember> members) {
  HostGroups groups;
  std::map<std::string, int> known;
  for (const GroupMember& member : members) {
    const auto [it, is_new] = known.try_emplace(member.node, groups.hosts());
    if (is_new) groups.ranks.emplace_back();
    std::vector<int>& ranks = groups.ranks[static_cast<size_t>(it->second)];
    groups.host.push_back(it->second);
    groups.index.push_back(static_cast<int>(ranks.size()));
    ranks.push_back(member.rank);
  }
  return groups;
}

int TreeDeal::most_partials() const {
  size_t most = 0;
  for (const std::vector<Partial>& each : partials) most = std::max(most, each.size());
  return static_cast<int>(most);
}

absl::StatusOr<TreeDeal> DealTree(absl::Span<const GroupMember> members, const HostGroups& hosts) {
  TreeDeal deal;
  for (const GroupMember& member : members) {
    deal.shards = std::max(deal.shards, member.shards.end);
  }
  std::vector<ShardRange> all;
  for (const GroupMember& member : members) {
    deal.nodes.push_back(WholeNodes(deal.shards, member.shards));
    all.insert(all.end(), deal.nodes.back().begin(), deal.nodes.back().end());
  }
  std::sort(all.begin(), all.end(),
            [](const ShardRange& a, const ShardRange& b) { return a.begin < b.begin; });
  const absl::StatusOr<TreeSum> sum = TreeSum::Create(deal.shards, all);
  if (!sum.ok()) {
    return absl::InternalError(absl::StrCat("the ranks' nodes do not make the tree over ",
                                            deal.shards, " shards: ", sum.status().message()));
  }
  for (int h = 0; h < hosts.hosts(); ++h) {
    Held held;
    for (const int rank : hosts.ranks[static_cast<size_t>(h)]) {
      const std::vector<ShardRange>& nodes = deal.nodes[static_cast<size_t>(rank)];
      for (size_t i = 0; i < nodes.size(); ++i) {
        held[nodes[i].begin] = {nodes[i], {rank, static_cast<int>(i)}};
      }
    }
    deal.partials.emplace_back();
    Collect({0, deal.shards}, held, &deal.partials.back());
  }
  return deal;
}

ChunkGrid::ChunkGrid(std::vector<ElementRange> slices, int pieces, int64_t chunk)
    : slices_(std::move(slices)), pieces_(pieces), chunk_(chunk), first_(1, 0) {
  for (size_t slice = 0; slice < slices_.size(); ++slice) {
    int64_t most = 0;
    for (int g = 0; g < pieces_; ++g) most = std::max(most, range(slice, g).size());
    first_.push_back(first_.back() + (most + chunk_ - 1) / chunk_ * pieces_);
  }
}

size_t ChunkGrid::SliceAt(int64_t k) const {
  if (slices_.size() <= 1) return 0;
  const auto next = std::upper_bound(first_.begin(), first_.end(), k);
  return static_cast<size_t>(next - first_.begin()) - 1;
}

ElementRange ChunkGrid::range(size_t slice, int piece) const {
  const ElementRange& of = slices_[slice];
  const ElementRange within = SliceOf(of.size(), pieces_, piece);
  return {of.begin + within.begin, of.begin + within.end};
}

ElementRange ChunkGrid::chunk(int64_t k) const {
  const size_t slice = SliceAt(k);
  const int64_t of_slice = k - first_[slice];
  const ElementRange whole = range(slice, static_cast<int>(of_slice % pieces_));
  const int64_t begin = std::min(whole.begin + of_slice / pieces_ * chunk_, whole.end);
  return {begin, std::min(begin + chunk_, whole.end)};
}

int64_t ChunkGrid::NextOf(int64_t k, int size, int index) const {
  while (k < count() && (piece(k) % size != index || chunk(k).size() == 0)) ++k;
  return k;
}

ScatterBlock FitScatterBlock(int64_t elements, int most) {
  const auto ranks = static_cast<int>(std::min<int64_t>(most, elements));
  return {ranks, elements / ranks};
}

}  // namespace lockstep
