// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/reachability.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/core/departures.h"
#include "coordinator/core/failures.h"
#include "coordinator/core/generation.h"
#include "coordinator/core/healing.h"
#include "coordinator/core/job_machine.h"
#include "coordinator/core/mesh.h"
#include "coordinator/core/nodes.h"

namespace lockstep::coordinator {
namespace {

// Between two tries of hosts without which the job cannot go on.
constexpr absl::Duration kFirstRetry = absl::Seconds(1);
constexpr absl::Duration kLastRetry = absl::Seconds(15);
// Generations without a step that end by the same silence, or by silences of the same host: it is
// no accident then.
constexpr int kMostSilences = 3;

std::string Advice(const Context& context) {
  return absl::StrCat(
      "let the hosts' workers make TCP connections to each other (any port), or name the network "
      "that joins them with ",
      InterfacesFlag(context.state.options.nodes_by));
}

// Returns whether it is a living member of the newest generation.
bool IsThere(const Job& job, const Worker& worker) {
  return IsMember(job, worker) && !worker.dead() && !Failed(worker);
}

// Those that are there, by node.
std::map<std::string, std::vector<Worker*>> MembersByNode(Job& job) {
  std::map<std::string, std::vector<Worker*>> nodes;
  for (Slot& slot : job.slots) {
    if (slot.vacant()) continue;
    Worker& worker = *slot.worker;
    if (IsThere(job, worker)) nodes[worker.node_id].push_back(&worker);
  }
  return nodes;
}

bool Holds(const Job& job, const Worker& worker) {
  const auto& members = job.generation.message.members();
  return std::any_of(members.begin(), members.end(), [&](const Member& member) {
    return member.incarnation() == worker.incarnation && member.has_committed_step() &&
           member.committed_step() > 0;
  });
}

std::set<std::string> NodesToGo(Job& job) {
  std::vector<MeshHost> hosts;
  for (const auto& [id, workers] : MembersByNode(job)) {
    MeshHost& host = hosts.emplace_back();
    host.id = id;
    host.workers = static_cast<int>(workers.size());
    host.holds = std::any_of(workers.begin(), workers.end(),
                             [&](const Worker* worker) { return Holds(job, *worker); });
  }
  std::set<CutPair> cuts;
  for (const Cut& cut : job.cuts) cuts.insert(MakeCut(cut.node, cut.peer));
  return HostsToGo(hosts, cuts);
}

// Returns whether the job has enough workers without the nodes `gone`: those that are left, and as
// many as other nodes have room for.
bool GoesOnWithout(Context& context, Job& job, const std::set<std::string>& gone) {
  int workers = 0;
  for (const auto& [id, members] : MembersByNode(job)) {
    if (gone.count(id) == 0) workers += static_cast<int>(members.size());
  }
  for (const auto& [id, node] : context.state.nodes) {
    if (gone.count(id) == 0) workers += Room(context.state, job, node, context.now);
  }
  return workers >= LeastMembers(job);
}

std::string SayCuts(const Job& job) {
  constexpr size_t kSaid = 3;
  std::vector<std::string> said;
  for (size_t i = 0; i < std::min(kSaid, job.cuts.size()); ++i) said.push_back(job.cuts[i].text);
  if (job.cuts.size() > kSaid) {
    const size_t more = job.cuts.size() - kSaid;
    said.push_back(absl::StrCat(more, more == 1 ? " more pair" : " more pairs"));
  }
  return absl::StrJoin(said, "; ");
}

void SendAway(Context& context, Job& job, const std::set<std::string>& gone) {
  for (auto& [id, workers] : MembersByNode(job)) {
    if (gone.count(id) == 0) continue;
    const auto cut = std::find_if(job.cuts.begin(), job.cuts.end(), [&, node = id](const Cut& c) {
      return c.node == node || c.peer == node;
    });
    const std::string why = cut == job.cuts.end() ? "out of reach of its peers" : cut->text;
    ExcludeNode(context, job, id, why);
    AppendNotice(context, job,
                 absl::StrCat(why, "; the job goes on without ", workers.front()->host, ": ",
                              Advice(context)));
    for (Worker* worker : workers) {
      Judge(context, job, *worker, why);
      worker->node_lost = true;  // nothing is said against the worker
    }
  }
  // The others were silent for want of these.
  job.silent_generations.clear();
}

Cut CutBetween(const Worker& worker, const Worker& peer, const PeerLost& lost) {
  return {worker.node_id, peer.node_id,
          absl::StrCat(worker.host, " cannot reach ", peer.host, ": ", lost.detail())};
}

void AddCut(Context& context, Job& job, Cut cut) {
  if (job.cuts.empty()) job.cuts_since = context.now;
  const CutPair pair = MakeCut(cut.node, cut.peer);
  const auto known = std::find_if(job.cuts.begin(), job.cuts.end(), [&](const Cut& other) {
    return MakeCut(other.node, other.peer) == pair;
  });
  if (known == job.cuts.end()) {
    job.cuts.push_back(std::move(cut));
  } else if (cut.text.size() > known->text.size()) {
    *known = std::move(cut);  // who waited to be reached knows less than who tried
  }
  context.touched_jobs.insert(job.id);
}

}  // namespace

void NoteUnreachable(Context& context, Job& job, const Worker& worker, const PeerLost& lost) {
  const Generation& generation = job.generation.message;
  if (job.generation.cuts_decided) return;
  if (lost.rank() < 0 || lost.rank() >= generation.members_size()) return;
  const Worker* peer = FindWorker(job, generation.members(lost.rank()).incarnation());
  if (peer == nullptr || peer->node_id == worker.node_id) return;
  AddCut(context, job, CutBetween(worker, *peer, lost));
}

void NoteHearsay(Context& context, Job& job, std::string said) {
  if (AwaitsFirstHand(job)) return;
  job.generation.hearsay_since = context.now;
  job.generation.hearsay = std::move(said);
}

bool AwaitsFirstHand(const Job& job) {
  return HasActiveGeneration(job) && job.generation.hearsay_since != absl::InfiniteFuture();
}

void EndHearsay(Context& context, Job& job) {
  if (!AwaitsFirstHand(job) || HasCuts(job) || context.state.held_since) return;
  const absl::Time since = std::max(job.generation.hearsay_since, job.forgiven);
  if (context.now < since + context.state.options.settle) return;
  AbortCurrentGeneration(context, job, job.generation.hearsay);
}

bool HasCuts(Job& job) {
  if (job.cuts.empty() || HasActiveGeneration(job)) return !job.cuts.empty();
  // Once it has ended only those between hosts that are still there are of matter.
  const auto nodes = MembersByNode(job);
  return std::any_of(job.cuts.begin(), job.cuts.end(), [&](const Cut& cut) {
    return nodes.count(cut.node) > 0 && nodes.count(cut.peer) > 0;
  });
}

void NoteSilences(Context& context, Job& job) {
  if (!job.generation.aborted || job.generation.silences_noted) return;
  job.generation.silences_noted = true;
  if (!job.cuts.empty() || job.generation.cuts_decided) return;  // who gives up falls silent
  std::set<CutPair> noted;
  std::set<std::string> nodes_noted;
  bool no_accident = false;
  for (const Slot& slot : job.slots) {
    if (slot.vacant() || !slot.worker->peer_lost || !IsThere(job, *slot.worker)) continue;
    const Worker& worker = *slot.worker;
    if (worker.peer_lost->kind() != PeerLost::SILENT) continue;
    const Worker* peer = FindWorker(job, worker.lost_peer);
    if (peer == nullptr || !IsThere(job, *peer) || peer->node_id == worker.node_id) continue;
    const CutPair pair = MakeCut(worker.node_id, peer->node_id);
    Job::Silence& silence = job.silences[pair];
    if (noted.insert(pair).second) ++silence.generations;
    silence.newest = CutBetween(worker, *peer, *worker.peer_lost);
    no_accident |= silence.generations >= kMostSilences;
    for (const std::string& node : {pair.first, pair.second}) {
      int& generations = job.silent_generations[node];
      if (nodes_noted.insert(node).second) ++generations;
      no_accident |= generations >= kMostSilences;
    }
  }
  if (!no_accident) return;
  // No pair of them has made a step since. One host may be out of reach of all, who hear it in
  // turn.
  const auto nodes = MembersByNode(job);
  for (const auto& [pair, silence] : job.silences) {
    if (nodes.count(pair.first) == 0 || nodes.count(pair.second) == 0) continue;
    AddCut(context, job, silence.newest);
  }
}

void ForgetSilences(Job& job) {
  if (job.silences.empty()) return;
  std::set<std::string> stepped;
  for (const auto& [id, workers] : MembersByNode(job)) {
    const bool steps = std::any_of(workers.begin(), workers.end(), [&](const Worker* worker) {
      return worker->progress.step() > job.generation.message.start_step();
    });
    if (steps) stepped.insert(id);
  }
  for (const std::string& node : stepped) job.silent_generations.erase(node);
  std::erase_if(job.silences, [&](const auto& silence) {
    return stepped.count(silence.first.first) > 0 && stepped.count(silence.first.second) > 0;
  });
}

void DecideCuts(Context& context, Job& job) {
  if (!HasCuts(job) || context.state.held_since) return;
  // Others who cannot reach their peers may be on their way back to this coordinator.
  const absl::Time since = std::max(job.cuts_since, job.forgiven);
  if (context.now < since + context.state.options.settle) return;
  job.generation.cuts_decided = true;
  const std::set<std::string> gone = NodesToGo(job);
  const std::string said = SayCuts(job);
  AbortCurrentGeneration(context, job, said);
  if (gone.empty()) return job.cuts.clear();  // they are gone already
  if (GoesOnWithout(context, job, gone)) {
    SendAway(context, job, gone);
    job.reach_tries = 0;
  } else {
    const int doublings = std::min(job.reach_tries++, 8);
    job.reach_again = context.now + std::min(kLastRetry, kFirstRetry * (int64_t{1} << doublings));
    job.reach_text = absl::StrCat(said, "; the hosts try again: ", Advice(context));
    WaitsForReach(context, job);
  }
  job.cuts.clear();
}

bool WaitsForReach(Context& context, Job& job) {
  if (context.now >= job.reach_again) return false;
  const bool began = job.stepped || job.generation.message.start_step() > 0;
  SetState(context, job, began ? RECOVERING : STARTING, job.reach_text);
  return true;
}

}  // namespace lockstep::coordinator
