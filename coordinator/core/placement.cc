// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/placement.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/core/natural_order.h"
#include "coordinator/core/nodes.h"
#include "job/meaning/defaults.h"
#include "job/meaning/workers.h"

namespace lockstep::coordinator {
namespace {

bool HostLess(const Node& a, const Node& b) {
  if (a.host != b.host) return NaturalLess(a.host, b.host);
  return NaturalLess(a.id, b.id);
}

// The nodes with room, and how much, in the order of their hosts; empty if all have less than
// `least`.
Placement Candidates(Context& context, const Job& job, bool empty, int least) {
  Placement all;
  int rooms = 0;
  for (auto& [id, node] : context.state.nodes) {
    const int room = Room(context.state, job, node, context.now, empty);
    if (room > 0) all.emplace_back(&node, room);
    rooms += room;
  }
  if (rooms < least) return {};  // to sort thousands of hosts takes long
  std::sort(all.begin(), all.end(),
            [](const auto& a, const auto& b) { return HostLess(*a.first, *b.first); });
  return all;
}

// Takes rank 0's node out of `from` and into `placement`, if the job names one. False: it names one
// that has no room for `workers`.
bool TakeRankZero(const Job& job, int workers, Placement& from, Placement& placement) {
  if (job.spec().resources().rank0_node().empty()) return true;
  const auto found = std::find_if(from.begin(), from.end(), [&](const auto& entry) {
    return IsRankZeroNode(job, entry.first->id, entry.first->host) && entry.second >= workers;
  });
  if (found == from.end()) return false;
  placement.push_back(*found);
  from.erase(found);
  return true;
}

// The same number on each node: the fullest, so that large holes are kept for large jobs.
Placement PlaceEvenly(const Job& job, Placement from, size_t nodes, int per_node) {
  Placement placement;
  if (!TakeRankZero(job, per_node, from, placement)) return {};
  std::erase_if(from, [&](const auto& entry) { return entry.second < per_node; });
  const size_t more = nodes - placement.size();
  if (from.size() < more) return {};
  std::stable_sort(from.begin(), from.end(),
                   [](const auto& a, const auto& b) { return a.second < b.second; });
  from.resize(more);
  std::sort(from.begin(), from.end(),
            [](const auto& a, const auto& b) { return HostLess(*a.first, *b.first); });
  placement.insert(placement.end(), from.begin(), from.end());
  for (auto& [node, workers] : placement) workers = per_node;
  return placement;
}

// Numbers of their own: each takes the first of `from` that has room, the numbers at `order` first.
// Empty: one finds none.
Placement TakeInOrder(const std::vector<int>& counts, const std::vector<size_t>& order,
                      Placement from) {
  Placement placement(counts.size());
  for (const size_t i : order) {
    const auto found = std::find_if(from.begin(), from.end(),
                                    [&](const auto& entry) { return entry.second >= counts[i]; });
    if (found == from.end()) return {};
    placement[i] = {found->first, counts[i]};
    from.erase(found);
  }
  return placement;
}

// The list's numbers as the hosts come; where that leaves one without a node, the largest first,
// each on the fullest node that holds it, which finds nodes for all if that can be.
Placement PlaceList(const Job& job, Placement from, std::vector<int> counts) {
  Placement first;
  if (!TakeRankZero(job, counts[0], from, first)) return {};
  if (!first.empty()) {
    first[0].second = counts[0];
    counts.erase(counts.begin());
  }
  std::vector<size_t> order(counts.size());
  std::iota(order.begin(), order.end(), size_t{0});
  Placement rest = TakeInOrder(counts, order, from);
  if (rest.empty() && !counts.empty()) {
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return counts[a] > counts[b]; });
    std::stable_sort(from.begin(), from.end(),
                     [](const auto& a, const auto& b) { return a.second < b.second; });
    rest = TakeInOrder(counts, order, std::move(from));
    if (rest.empty()) return {};
  }
  first.insert(first.end(), rest.begin(), rest.end());
  return first;
}

int CountGpus(const Node& node) {
  return static_cast<int>(std::count_if(node.devices.begin(), node.devices.end(),
                                        [](const Device& d) { return d.kind() == "cuda"; }));
}

// A worker for each GPU or slot of `device`, on nodes of which all are free.
Placement CountOn(Context& context, const Job& job, const std::string& device, bool empty) {
  Job trial;  // as much of the job as room is asked for
  trial.id = job.id;
  trial.excluded = job.excluded;
  Resources& resources = *trial.request.mutable_spec()->mutable_resources();
  resources = job.spec().resources();
  resources.set_nproc_per_node(1);
  resources.set_device(device);
  Placement from = Candidates(context, trial, empty, 1);
  const bool spare_gpus = device == "cpu" && job.spec().resources().nproc_by() == "auto";
  std::erase_if(from, [&](auto& entry) {
    const int gpus = CountGpus(*entry.first);
    const int all = device == "cuda" ? gpus : entry.first->slots;
    const bool fits = all > 0 && entry.second >= all && !(spare_gpus && gpus > 0);
    entry.second = all;
    return !fits;
  });
  Placement placement;
  if (!TakeRankZero(job, 1, from, placement)) return {};
  int left = job::MostUsefulWorkers(job.spec()) - Workers(placement);
  for (const auto& [node, workers] : from) {
    if (static_cast<int>(placement.size()) >= job.spec().resources().nodes()) break;
    if (workers > left) continue;
    placement.emplace_back(node, workers);
    left -= workers;
  }
  const bool fits = static_cast<int>(placement.size()) == job.spec().resources().nodes();
  return fits && left >= 0 ? placement : Placement{};
}

}  // namespace

CountedPlacement PlaceCounted(Context& context, const Job& job, bool empty) {
  const std::string& by = job.spec().resources().nproc_by();
  const std::string& wish = job.spec().resources().device();
  const bool may_be_gpu = by != "cpu" && wish != "cpu";
  const bool gpus = may_be_gpu && (by == "gpu" || !CountOn(context, job, "cuda", true).empty());
  if (!gpus && absl::StartsWith(wish, "cuda")) return {};
  const std::string device = gpus ? "cuda" : "cpu";
  return {CountOn(context, job, device, empty), device};
}

int Workers(const Placement& placement) {
  int count = 0;
  for (const auto& [node, workers] : placement) count += workers;
  return count;
}

bool IsRankZeroNode(const Job& job, const std::string& node_id, const std::string& host) {
  const std::string& wanted = job.spec().resources().rank0_node();
  return !wanted.empty() && (wanted == node_id || wanted == host);
}

Placement Place(Context& context, const Job& job, bool empty) {
  const std::vector<int> counts = job::RanksPerNode(job.spec());
  const bool even =
      std::all_of(counts.begin(), counts.end(), [&](int count) { return count == counts.front(); });
  Placement from = Candidates(context, job, empty, job.wanted_workers());
  if (even) return PlaceEvenly(job, std::move(from), counts.size(), counts.front());
  return PlaceList(job, std::move(from), counts);
}

Placement PlaceSome(Context& context, const Job& job, bool empty) {
  Placement from = Candidates(context, job, empty, 1);
  Placement some;
  if (!TakeRankZero(job, 1, from, some)) return {};
  const size_t pinned = some.size();
  std::stable_sort(from.begin(), from.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  some.insert(some.end(), from.begin(), from.end());
  int left = job.wanted_workers();
  for (auto& [node, workers] : some) {
    workers = std::min(workers, left);
    left -= workers;
  }
  std::erase_if(some, [](const auto& entry) { return entry.second == 0; });
  std::sort(some.begin() + static_cast<long>(pinned), some.end(),
            [](const auto& a, const auto& b) { return HostLess(*a.first, *b.first); });
  return some;
}

std::string SayWanted(const Job& job) {
  if (job::IsUncounted(job.spec())) {
    const std::string& by = job.spec().resources().nproc_by();
    return absl::StrCat("all ",
                        by == "gpu"   ? "GPUs"
                        : by == "cpu" ? "slots"
                                      : "GPUs or slots",
                        " of ", Count(job.spec().resources().nodes(), "node"),
                        job.spec().has_train()
                            ? absl::StrCat(", ", Count(job.spec().train().shards(), "worker"),
                                           " at most (train.shards)")
                            : "");
  }
  const std::vector<int> counts = job::RanksPerNode(job.spec());
  std::string text = absl::StrCat(Count(job.wanted_workers(), "slot"), " on ",
                                  Count(static_cast<int64_t>(counts.size()), "node"));
  if (counts.size() < 2) return text;
  if (job.spec().resources().ranks_per_node_size() > 0) {
    return absl::StrCat(text, " (", absl::StrJoin(counts, ", "), ")");
  }
  return absl::StrCat(text, " (", counts.front(), " on each)");
}

}  // namespace lockstep::coordinator
