// SPDX-License-Identifier: Apache-2.0
// Which hosts of a job go when some of them cannot reach each other: a decision about a graph.
// Thread-safety: pure functions.
#ifndef LOCKSTEP_COORDINATOR_CORE_MESH_H_
#define LOCKSTEP_COORDINATOR_CORE_MESH_H_

#include <set>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::coordinator {

struct MeshHost {
  std::string id;  // unique
  int workers = 1;
  bool holds = false;  // somebody there has the job's state
};

// Two ids, the lower one in natural order first.
using CutPair = std::pair<std::string, std::string>;
CutPair MakeCut(const std::string& a, const std::string& b);

// The hosts that go so that all others reach each other. They leave as many workers as can be;
// where somebody holds the state, somebody who does stays. Of equals the fewest hosts go, and of
// these the ones with the highest ids. `cuts` are pairs of `hosts`; others are of no matter. Exact
// while at most 16 hosts are in cuts; with more, the host with the most cuts goes first.
std::set<std::string> HostsToGo(const std::vector<MeshHost>& hosts, const std::set<CutPair>& cuts);

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_CORE_MESH_H_
