// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/retention.h"

#include <algorithm>
#include <set>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "coordinator/core/accounting.h"
#include "coordinator/core/journal.h"
#include "coordinator/core/nodes.h"
#include "coordinator/core/queue_requests.h"
#include "coordinator/core/sessions.h"

namespace lockstep::coordinator {
namespace {

constexpr absl::Duration kLookEvery = absl::Seconds(1);

void ForgetJob(Context& context, const std::string& id) {
  State& state = context.state;
  const Job& job = state.jobs.at(id);
  for (const Slot& slot : job.slots) {
    if (slot.worker && slot.worker->session != 0) state.worker_sessions.erase(slot.worker->session);
  }
  EraseJobRows(context, job);
  context.effects.forgotten_jobs.push_back(id);
  state.unsettled.all_wishes = true;
  RemoveJob(state, id);
}

// Returns when the last job of each array ended; infinite: some of it have not. Who waits for all
// of it may ask for the first ones last.
std::unordered_map<std::string, absl::Time> EndsOfArrays(const State& state) {
  std::unordered_map<std::string, absl::Time> ends;
  for (const auto& [id, job] : state.jobs) {
    if (!job.request.has_array()) continue;
    absl::Time& end =
        ends.try_emplace(job.request.array().id(), absl::InfinitePast()).first->second;
    end = std::max(end, job.final() ? job.ended : absl::InfiniteFuture());
  }
  return ends;
}

void ForgetJobs(Context& context) {
  const Options& options = context.state.options;
  const std::unordered_map<std::string, absl::Time> arrays = EndsOfArrays(context.state);
  std::vector<std::tuple<absl::Time, int64_t, std::string>> ended;
  for (const auto& [id, job] : context.state.jobs) {
    if (!job.final()) continue;
    const auto array = arrays.find(job.request.array().id());
    const absl::Time since = array == arrays.end() ? job.ended : array->second;
    if (since != absl::InfiniteFuture()) ended.emplace_back(since, job.submit_order, id);
  }
  if (ended.size() <= options.keep_ended) return;
  std::sort(ended.begin(), ended.end());
  ended.resize(ended.size() - options.keep_ended);
  if (ended.empty() || context.now < std::get<0>(ended.front()) + options.keep_ended_for) return;
  // Else who waits for one of them would take it for one that has failed.
  LetGoOfEnded(context);
  for (const auto& [time, order, id] : ended) {
    if (context.now < time + options.keep_ended_for) return;
    ForgetJob(context, id);
  }
}

// Nobody waits for the end of lives on nodes that are forgotten. If one is still there, its agent
// is told to end it when it is back.
void EndLivesOn(Context& context, const std::set<std::string>& nodes) {
  const auto end = [&](Job& job, Worker& worker, const WorkerExited& record) {
    if (nodes.contains(worker.node_id)) MarkExited(context, job, worker, record);
  };
  WorkerExited failed;
  failed.set_exit_code(1);
  for (auto& [id, job] : context.state.jobs) {
    for (Slot& slot : job.slots) {
      if (slot.worker) end(job, *slot.worker, failed);
    }
    for (Worker& worker : job.former) end(job, worker, WorkerExited());
  }
}

bool IsDue(const Context& context) {
  return context.now >= context.state.looked_for_old + kLookEvery;
}

}  // namespace

void ForgetNodes(Context& context) {
  if (!IsDue(context)) return;
  State& state = context.state;
  std::set<std::string> gone;
  for (const auto& [id, node] : state.nodes) {
    if (node.session != 0 || context.now < node.last_contact + state.options.keep_node) continue;
    if (node.drain) continue;  // it may come back from its repair
    if (!HasWork(state, node)) gone.insert(id);
  }
  if (gone.empty()) return;
  EndLivesOn(context, gone);
  for (const std::string& id : gone) {
    EraseNodeRow(context, id);
    state.owed_nodes.erase(id);
    state.unsettled.nodes.erase(id);
    state.drained.erase(id);
    state.nodes.erase(id);
  }
}

void ForgetOld(Context& context) {
  if (!IsDue(context)) return;
  context.state.looked_for_old = context.now;
  ForgetJobs(context);
  ForgetOldUse(context);
}

}  // namespace lockstep::coordinator
