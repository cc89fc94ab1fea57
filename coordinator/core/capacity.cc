// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/capacity.h"

#include <algorithm>
#include <bit>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace lockstep::coordinator {
namespace {

constexpr int kGpusOfNode = 64;

uint64_t FirstGpus(int count) {
  return count >= kGpusOfNode ? ~uint64_t{0} : (uint64_t{1} << std::max(0, count)) - 1;
}

// From the `first` on.
uint64_t GpusFrom(uint64_t gpus, int first) { return gpus & ~FirstGpus(first); }

}  // namespace

void SetShape(Ask& ask) {
  ask.shape =
      absl::StrCat(absl::StrJoin(ask.counts, ","), " ", ask.least, ask.anywhere ? "+" : "", " ",
                   ask.per_node, " ", ask.most_of_node, " ", static_cast<int>(ask.gpus), " ",
                   ask.first_gpu, " ", ask.counted, " ", ask.most, " ", ask.rank_zero, "\n",
                   absl::StrJoin(ask.labels, "\n", absl::PairFormatter("\t")));
}

std::vector<Free> Whole(const NodePool& cluster) {
  std::vector<Free> whole;
  whole.reserve(cluster.nodes.size());
  for (const NodeFacts& node : cluster.nodes) whole.push_back({node.slots, FirstGpus(node.gpus)});
  return whole;
}

Barred BarredByLabels(const NodePool& cluster, const Ask& ask) {
  if (ask.labels.empty()) return nullptr;
  auto barred = std::make_shared<std::vector<bool>>();
  barred->reserve(cluster.nodes.size());
  for (const NodeFacts& node : cluster.nodes) {
    barred->push_back(!std::includes(node.labels.begin(), node.labels.end(), ask.labels.begin(),
                                     ask.labels.end()));
  }
  return barred;
}

bool UsesGpus(const Ask& ask, int gpus) {
  if (ask.gpus == Ask::Gpus::kWhereEnough) return gpus >= ask.per_node;
  return ask.gpus == Ask::Gpus::kAlways;
}

int Room(const Ask& ask, const NodeFacts& node, const Free& free) {
  if (!node.open || free.slots <= 0) return 0;
  const int room = std::min(free.slots, ask.most_of_node);
  if (!UsesGpus(ask, node.gpus)) return room;
  // A run on this machine alone does not wait for GPUs that will never be there.
  if (node.is_private && node.gpus < ask.first_gpu + std::max(1, ask.per_node)) return room;
  return std::min(room, std::popcount(GpusFrom(free.gpus, ask.first_gpu)));
}

void Join(const Taken& more, Taken& sum) {
  sum.slots += more.slots;
  sum.gpus += more.gpus;
  sum.gpu_places |= more.gpu_places;
}

Taken Take(const Ask& ask, const NodePool& cluster, int node, int workers,
           std::vector<Free>& free) {
  Free& left = free[static_cast<size_t>(node)];
  Taken hold{node, workers};
  left.slots -= workers;
  if (!UsesGpus(ask, cluster.nodes[static_cast<size_t>(node)].gpus)) return hold;
  for (; hold.gpus < workers; ++hold.gpus) {
    const uint64_t mine = GpusFrom(left.gpus, ask.first_gpu);
    if (mine == 0) break;
    hold.gpu_places |= mine & -mine;
    left.gpus &= ~(mine & -mine);
  }
  return hold;
}

void Give(const NodePool& cluster, const Taken& hold, std::vector<Free>& free) {
  Free& left = free[static_cast<size_t>(hold.node)];
  left.slots += hold.slots;
  left.gpus |= hold.gpu_places & FirstGpus(cluster.nodes[static_cast<size_t>(hold.node)].gpus);
}

}  // namespace lockstep::coordinator
