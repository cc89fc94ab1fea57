// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/first_start.h"

#include <algorithm>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/core/failures.h"
#include "coordinator/core/healing.h"
#include "coordinator/core/job_machine.h"
#include "coordinator/core/nodes.h"
#include "coordinator/core/placement.h"

namespace lockstep::coordinator {
namespace {

// So many different nodes are tried: a mistake in the job is to show soon, and two of them may be
// ill for one reason.
constexpr size_t kMostNodes = 3;

// Returns whether the worker could not begin for want of what another node may have.
bool LacksSomething(const Worker& worker) {
  if (worker.refused || !IsForGood(worker)) return false;
  if (!worker.failed) return true;  // it was not started
  switch (static_cast<absl::StatusCode>(worker.failed->code())) {
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kResourceExhausted:
      return true;
    default:
      return false;
  }
}

// Returns whether the job has begun nowhere yet, and all its workers are on the node.
bool BeginsOn(const Job& job, const std::string& node_id) {
  if (job.stepped || job.generation.message.generation() != 0) return false;
  return std::all_of(job.slots.begin(), job.slots.end(), [&](const Slot& slot) {
    if (slot.vacant() || slot.unplaced()) return true;
    return slot.worker->node_id == node_id;
  });
}

// Nodes where the job could not begin, without that one.
std::vector<std::string> SuspectedBut(const Job& job, const std::string& node_id) {
  std::vector<std::string> nodes;
  for (const auto& [id, exclusion] : job.excluded) {
    if (exclusion.suspected && id != node_id) nodes.push_back(id);
  }
  return nodes;
}

// Returns whether nodes that take work, without `but` and that one, could hold the whole job. One
// that has not been heard of for a moment may.
bool CouldBeElsewhere(const Context& context, const Job& job, const std::vector<std::string>& but,
                      const std::string& node_id) {
  const State& state = context.state;
  NodePool cluster;
  for (const auto& [id, node] : state.nodes) {
    if (id == node_id || std::find(but.begin(), but.end(), id) != but.end()) continue;
    if (!IsFor(job, node)) continue;
    const bool away = context.now - node.last_contact > state.options.node_lost_after;
    NodeFacts facts = FactsOf(state, node, context.now);
    facts.open = WhyNoWork(node, context.now).empty() && !away;
    cluster.nodes.push_back(std::move(facts));
  }
  const std::vector<Free> whole = Whole(cluster);
  return !PlaceLeast(*job.ask, Offer{cluster, whole}).empty();
}

}  // namespace

bool TryElsewhere(Context& context, Job& job, const Worker& worker) {
  if (job.drain || !LacksSomething(worker) || !BeginsOn(job, worker.node_id)) return false;
  const std::vector<std::string> before = SuspectedBut(job, worker.node_id);
  if (before.size() + 1 >= kMostNodes) return false;
  if (!CouldBeElsewhere(context, job, before, worker.node_id)) return false;
  const std::string failed = SayFailed(worker);
  const absl::Duration span = ExcludeNode(context, job, worker.node_id, Cause(worker));
  job.excluded[worker.node_id].suspected = true;
  AppendNotice(context, job,
               absl::StrCat(failed, "; another node is tried, and for ", DurationText(span),
                            " not ", worker.host));
  BeginEnding(context, job, PENDING, absl::StrCat(failed, "; another node is tried"),
              /*exit_code=*/0, /*kill=*/true);
  return true;
}

std::string SayWhereElse(const State& state, const Job& job, const Worker& worker) {
  std::vector<std::string> hosts;
  for (const std::string& id : SuspectedBut(job, worker.node_id)) {
    const auto node = state.nodes.find(id);
    hosts.push_back(node == state.nodes.end() ? id : node->second.host);
  }
  return hosts.empty() ? "" : absl::StrCat("nor could it begin on ", absl::StrJoin(hosts, ", "));
}

void BlameNodes(Context& context, Job& job) {
  for (auto& [id, exclusion] : job.excluded) {
    if (!exclusion.suspected) continue;
    bool here = false, elsewhere = false;
    for (const Slot& slot : job.slots) {
      if (!slot.worker || !slot.worker->ready || Failed(*slot.worker)) continue;
      (slot.worker->node_id == id ? here : elsewhere) = true;
    }
    if (!here && !elsewhere) continue;
    exclusion.suspected = false;
    if (here) continue;  // it has by now what it lacked
    // What one user's jobs want may be on one node alone by that user's mistake.
    const std::string& user = job.request.user();
    NoteNodeFailure(context, id,
                    absl::StrCat("job ", job.id, " could not begin there, and did elsewhere"),
                    user.empty() ? job.id : absl::StrCat("jobs of ", user));
  }
}

}  // namespace lockstep::coordinator
