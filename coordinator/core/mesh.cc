// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/mesh.h"

#include <algorithm>
#include <bit>
#include <cstdint>

#include "coordinator/core/natural_order.h"

namespace lockstep::coordinator {
namespace {

// So many hosts in cuts are tried in all combinations.
constexpr size_t kExact = 16;

struct Graph {
  std::vector<MeshHost> hosts;                   // in cuts, by id in natural order
  std::vector<std::pair<size_t, size_t>> edges;  // indices into them
  bool others_hold = false;                      // somebody outside of all cuts has the state
  bool anybody_holds = false;
};

Graph MakeGraph(const std::vector<MeshHost>& hosts, const std::set<CutPair>& cuts) {
  Graph graph;
  const auto known = [&](const std::string& id) {
    return std::any_of(hosts.begin(), hosts.end(), [&](const MeshHost& h) { return h.id == id; });
  };
  std::set<std::string> inside;
  std::set<CutPair> pairs;
  for (const CutPair& cut : cuts) {
    if (cut.first == cut.second || !known(cut.first) || !known(cut.second)) continue;
    pairs.insert(cut);
    inside.insert({cut.first, cut.second});
  }
  for (const MeshHost& host : hosts) {
    graph.anybody_holds |= host.holds;
    if (inside.count(host.id) != 0) {
      graph.hosts.push_back(host);
    } else {
      graph.others_hold |= host.holds;
    }
  }
  std::sort(graph.hosts.begin(), graph.hosts.end(),
            [](const MeshHost& a, const MeshHost& b) { return NaturalLess(a.id, b.id); });
  const auto index = [&](const std::string& id) {
    const auto at = std::find_if(graph.hosts.begin(), graph.hosts.end(),
                                 [&](const MeshHost& host) { return host.id == id; });
    return static_cast<size_t>(at - graph.hosts.begin());
  };
  for (const CutPair& cut : pairs) graph.edges.emplace_back(index(cut.first), index(cut.second));
  return graph;
}

bool Cuts(const Graph& graph, uint32_t gone) {
  return std::all_of(graph.edges.begin(), graph.edges.end(), [gone](const auto& edge) {
    return (gone >> edge.first & 1) != 0 || (gone >> edge.second & 1) != 0;
  });
}

bool KeepsAHolder(const Graph& graph, uint32_t gone) {
  if (graph.others_hold || !graph.anybody_holds) return true;
  for (size_t i = 0; i < graph.hosts.size(); ++i) {
    if ((gone >> i & 1) == 0 && graph.hosts[i].holds) return true;
  }
  return false;
}

int WorkersOf(const Graph& graph, uint32_t gone) {
  int workers = 0;
  for (size_t i = 0; i < graph.hosts.size(); ++i) {
    if ((gone >> i & 1) != 0) workers += graph.hosts[i].workers;
  }
  return workers;
}

// Returns whether `a` is the better set to go. A bit for each host: the higher ids are the higher
// bits.
bool Better(const Graph& graph, uint32_t a, uint32_t b) {
  if (KeepsAHolder(graph, a) != KeepsAHolder(graph, b)) return KeepsAHolder(graph, a);
  const int lost_a = WorkersOf(graph, a), lost_b = WorkersOf(graph, b);
  if (lost_a != lost_b) return lost_a < lost_b;
  if (std::popcount(a) != std::popcount(b)) return std::popcount(a) < std::popcount(b);
  return a > b;
}

std::set<std::string> Exact(const Graph& graph) {
  const uint32_t all = (uint32_t{1} << graph.hosts.size()) - 1;
  uint32_t best = all;
  for (uint32_t gone = 0; gone <= all; ++gone) {
    if (Cuts(graph, gone) && Better(graph, gone, best)) best = gone;
  }
  std::set<std::string> ids;
  for (size_t i = 0; i < graph.hosts.size(); ++i) {
    if ((best >> i & 1) != 0) ids.insert(graph.hosts[i].id);
  }
  return ids;
}

// The host with the most cuts that are left goes, the lighter of equals, then the higher id.
std::set<std::string> Greedy(const Graph& graph) {
  std::set<std::string> gone;
  for (;;) {
    std::vector<int> cuts(graph.hosts.size());
    for (const auto& [a, b] : graph.edges) {
      if (gone.count(graph.hosts[a].id) != 0 || gone.count(graph.hosts[b].id) != 0) continue;
      ++cuts[a], ++cuts[b];
    }
    size_t worst = 0;
    for (size_t i = 1; i < cuts.size(); ++i) {
      const MeshHost& host = graph.hosts[i];
      const MeshHost& other = graph.hosts[worst];
      if (cuts[i] > cuts[worst] || (cuts[i] == cuts[worst] && host.workers <= other.workers)) {
        worst = i;
      }
    }
    if (cuts[worst] == 0) return gone;
    gone.insert(graph.hosts[worst].id);
  }
}

}  // namespace

CutPair MakeCut(const std::string& a, const std::string& b) {
  return NaturalLess(b, a) ? CutPair{b, a} : CutPair{a, b};
}

std::set<std::string> HostsToGo(const std::vector<MeshHost>& hosts, const std::set<CutPair>& cuts) {
  const Graph graph = MakeGraph(hosts, cuts);
  if (graph.hosts.empty()) return {};
  return graph.hosts.size() <= kExact ? Exact(graph) : Greedy(graph);
}

}  // namespace lockstep::coordinator
