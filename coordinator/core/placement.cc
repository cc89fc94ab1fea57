// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/placement.h"

#include <algorithm>
#include <map>
#include <numeric>

namespace lockstep::coordinator {
namespace {

// The nodes with room for `each` workers, and how much; empty if all have less than `least`.
Placement Candidates(const Ask& ask, const Offer& offer, int each, int least) {
  Placement all;
  int64_t rooms = 0;
  const int nodes = static_cast<int>(offer.cluster.nodes.size());
  for (int node = 0; node < nodes; ++node) {
    const int room = RoomOn(ask, offer, node);
    if (room < each) continue;
    all.emplace_back(node, room);
    rooms += room;
  }
  if (rooms < least) all.clear();
  return all;
}

// Takes rank 0's node out of `from` and into `placement`, if the job names one. False: it names one
// that has no room for `workers`.
bool TakeRankZero(const Ask& ask, const Offer& offer, int workers, Placement& from,
                  Placement& placement) {
  if (ask.rank_zero.empty()) return true;
  const auto found = std::find_if(from.begin(), from.end(), [&](const auto& entry) {
    return IsRankZero(ask, offer.cluster.nodes[static_cast<size_t>(entry.first)]) &&
           entry.second >= workers;
  });
  if (found == from.end()) return false;
  placement.push_back(*found);
  from.erase(found);
  return true;
}

int RackOf(const Offer& offer, int node) {
  return offer.cluster.nodes[static_cast<size_t>(node)].rack;
}

// The candidates by racks: that of `first` before others, then the smallest one that has `nodes` of
// them, so that large ones are kept whole; where none has, the largest first.
std::vector<Placement> ByRack(const Offer& offer, const Placement& from, size_t nodes, int first) {
  std::map<int, Placement> racks;
  for (const auto& entry : from) racks[RackOf(offer, entry.first)].push_back(entry);
  std::vector<Placement> order;
  for (auto& [rack, entries] : racks) order.push_back(std::move(entries));
  std::stable_sort(order.begin(), order.end(), [&](const Placement& a, const Placement& b) {
    const bool a_first = RackOf(offer, a[0].first) == first && first != 0;
    const bool b_first = RackOf(offer, b[0].first) == first && first != 0;
    if (a_first != b_first) return a_first;
    const bool a_fits = a.size() >= nodes, b_fits = b.size() >= nodes;
    if (a_fits != b_fits) return a_fits;
    return a_fits ? a.size() < b.size() : a.size() > b.size();
  });
  return order;
}

// The same number on each node: of few racks, the fullest, so that large holes are kept for large
// jobs.
Placement PlaceEvenly(const Ask& ask, const Offer& offer) {
  const size_t nodes = ask.counts.size();
  const int per_node = ask.counts.front();
  Placement from = Candidates(ask, offer, per_node, ask.wanted);
  Placement placement;
  if (!TakeRankZero(ask, offer, per_node, from, placement)) return {};
  const size_t more = nodes - placement.size();
  if (from.size() < more) return {};
  const int first = placement.empty() ? 0 : RackOf(offer, placement[0].first);
  Placement rest;
  for (Placement& rack : ByRack(offer, from, more, first)) {
    std::stable_sort(rack.begin(), rack.end(),
                     [](const auto& a, const auto& b) { return a.second < b.second; });
    rack.resize(std::min(rack.size(), more - rest.size()));
    rest.insert(rest.end(), rack.begin(), rack.end());
    if (rest.size() == more) break;
  }
  std::sort(rest.begin(), rest.end());
  placement.insert(placement.end(), rest.begin(), rest.end());
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
Placement TakeList(const std::vector<int>& counts, Placement from) {
  std::vector<size_t> order(counts.size());
  std::iota(order.begin(), order.end(), size_t{0});
  Placement placement = TakeInOrder(counts, order, from);
  if (!placement.empty() || counts.empty()) return placement;
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return counts[a] > counts[b]; });
  std::stable_sort(from.begin(), from.end(),
                   [](const auto& a, const auto& b) { return a.second < b.second; });
  return TakeInOrder(counts, order, std::move(from));
}

Placement PlaceList(const Ask& ask, const Offer& offer) {
  Placement from = Candidates(ask, offer, 1, ask.wanted);
  std::vector<int> counts = ask.counts;
  Placement placement;
  if (!TakeRankZero(ask, offer, counts[0], from, placement)) return {};
  if (!placement.empty()) {
    placement[0].second = counts[0];
    counts.erase(counts.begin());
  }
  const int first = placement.empty() ? 0 : RackOf(offer, placement[0].first);
  Placement rest;
  for (const Placement& rack : ByRack(offer, from, counts.size(), first)) {
    rest = TakeList(counts, rack);
    if (!rest.empty()) break;
  }
  if (rest.empty()) rest = TakeList(counts, from);
  if (rest.empty() && !counts.empty()) return {};
  placement.insert(placement.end(), rest.begin(), rest.end());
  return placement;
}

// As many workers as there is room for, on few nodes, with that of rank 0.
Placement PlaceSome(const Ask& ask, const Offer& offer) {
  Placement from = Candidates(ask, offer, 1, 1);
  Placement some;
  if (!TakeRankZero(ask, offer, 1, from, some)) return {};
  const size_t pinned = some.size();
  std::stable_sort(from.begin(), from.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  some.insert(some.end(), from.begin(), from.end());
  int left = ask.wanted;
  for (auto& [node, workers] : some) {
    workers = std::min(workers, left);
    left -= workers;
  }
  std::erase_if(some, [](const auto& entry) { return entry.second == 0; });
  std::sort(some.begin() + static_cast<long>(pinned), some.end());
  return some;
}

// A worker for each GPU or slot of `device`, on nodes of which all are free: of more slots than it
// can have workers there, as many.
Placement CountOn(const Ask& ask, const Offer& offer, const std::string& device) {
  Ask one = ask;
  one.per_node = 1;
  one.gpus = device == "cuda" ? Ask::Gpus::kAlways : Ask::Gpus::kNever;
  Placement from = Candidates(one, offer, 1, 1);
  const bool spare_gpus = device == "cpu" && ask.counted == "auto";
  std::erase_if(from, [&](auto& entry) {
    const NodeFacts& node = offer.cluster.nodes[static_cast<size_t>(entry.first)];
    const int all = std::min(device == "cuda" ? node.gpus : node.slots, ask.most_of_node);
    const bool fits = all > 0 && entry.second >= all && !(spare_gpus && node.gpus > 0);
    entry.second = all;
    return !fits;
  });
  Placement placement;
  if (!TakeRankZero(ask, offer, 1, from, placement)) return {};
  int left = ask.most - Workers(placement);
  for (const auto& [node, workers] : from) {
    if (placement.size() >= ask.counts.size()) break;
    if (workers > left) continue;
    placement.emplace_back(node, workers);
    left -= workers;
  }
  return placement.size() == ask.counts.size() && left >= 0 ? placement : Placement{};
}

Placement PlaceCounted(const Ask& ask, const Offer& offer) {
  const std::vector<Free> whole = Whole(offer.cluster);
  const std::string device = CountedDevice(ask, {offer.cluster, whole, nullptr, offer.barred});
  return device.empty() ? Placement{} : CountOn(ask, offer, device);
}

}  // namespace

bool IsRankZero(const Ask& ask, const NodeFacts& node) {
  return !ask.rank_zero.empty() && (ask.rank_zero == node.id || ask.rank_zero == node.host);
}

int RoomOn(const Ask& ask, const Offer& offer, int node) {
  const auto i = static_cast<size_t>(node);
  if (offer.barred && (*offer.barred)[i]) return 0;
  const NodeFacts& facts = offer.cluster.nodes[i];
  const int room = Room(ask, facts, offer.free[i]);
  if (room == 0 || offer.leave == nullptr) return room;
  return std::min(room, Room(ask, facts, (*offer.leave)[i]));
}

std::string CountedDevice(const Ask& ask, const Offer& whole) {
  const bool may_be_gpu = ask.counted != "cpu" && ask.gpus != Ask::Gpus::kNever;
  const bool gpus = may_be_gpu && (ask.counted == "gpu" || !CountOn(ask, whole, "cuda").empty());
  if (gpus) return "cuda";
  return ask.gpus == Ask::Gpus::kAlways ? "" : "cpu";
}

int Workers(const Placement& placement) {
  int count = 0;
  for (const auto& [node, workers] : placement) count += workers;
  return count;
}

Placement Place(const Ask& ask, const Offer& offer) {
  if (!ask.counted.empty()) return PlaceCounted(ask, offer);
  const bool even = std::all_of(ask.counts.begin(), ask.counts.end(),
                                [&](int count) { return count == ask.counts.front(); });
  return even ? PlaceEvenly(ask, offer) : PlaceList(ask, offer);
}

Placement PlaceLeast(const Ask& ask, const Offer& offer) {
  Placement placement = Place(ask, offer);
  if (!placement.empty() || !ask.counted.empty()) return placement;
  if (ask.least >= ask.wanted && !ask.anywhere) return placement;
  placement = PlaceSome(ask, offer);
  return Workers(placement) >= ask.least ? placement : Placement{};
}

}  // namespace lockstep::coordinator
