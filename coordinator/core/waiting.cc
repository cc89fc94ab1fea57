// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/waiting.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/core/accounting.h"
#include "coordinator/core/context.h"
#include "coordinator/core/nodes.h"

namespace lockstep::coordinator {
namespace {

// "4 slots on 2 nodes (2 on each)", "4 slots on 2 nodes (3, 1)": what the file asks for.
std::string SayWanted(const Job& job) {
  const Resources& resources = job.spec().resources();
  std::string text;
  if (job::IsUncounted(job.spec())) {
    const std::string& by = resources.nproc_by();
    text =
        absl::StrCat("all ",
                     by == "gpu"   ? "GPUs"
                     : by == "cpu" ? "slots"
                                   : "GPUs or slots",
                     " of ", Count(resources.nodes(), "node"), ", ", Count(job.ask->most, "worker"),
                     " at most", job.spec().has_train() ? " (train.shards)" : "");
  } else if (job.ask->anywhere) {
    text = absl::StrCat(Count(job.wanted_workers(), "slot"), " on any nodes");
  } else {
    const std::vector<int>& counts = job.ask->counts;
    const bool even = std::all_of(counts.begin(), counts.end(),
                                  [&](int count) { return count == counts.front(); });
    text = absl::StrCat(Count(job.wanted_workers(), "slot"), " on ",
                        Count(static_cast<int64_t>(counts.size()), "node"));
    if (counts.size() > 1 && (resources.ranks_per_node_size() > 0 || !even)) {
      absl::StrAppend(&text, " (", absl::StrJoin(counts, ", "), ")");
    } else if (counts.size() > 1) {
      absl::StrAppend(&text, " (", counts.front(), " on each)");
    }
  }
  if (job.ask->labels.empty()) return text;
  return absl::StrCat(text, " with ",
                      absl::StrJoin(job.ask->labels, ", ", absl::PairFormatter("=")));
}

// Returns what would let the job start, when no node that is there could ever hold it; empty: its
// user cannot do it.
std::string WhatWouldHelp(NodesBy by, const Job& job, int nodes, int largest) {
  const std::string starter = NodesStarter(by);
  if (starter.empty()) return "";
  const Resources& resources = job.spec().resources();
  const int per_node = resources.nproc_per_node();
  if (nodes == 0) {
    const std::map<std::string, std::string>& labels = job.ask->labels;
    if (labels.empty()) return absl::StrCat("start one with ", starter);
    return absl::StrCat("start one with 'launcher join --label ",
                        absl::StrJoin(labels, " --label ", absl::PairFormatter("=")), "'");
  }
  if (job::IsUncounted(job.spec())) {
    return absl::StrCat(
        "start another with ", starter, resources.nproc_by() == "gpu" ? " on a host with GPUs" : "",
        ", or submit with ", job.spec().has_train() ? "more train.shards or with " : "",
        "a number of workers");
  }
  if (job.ask->anywhere) return absl::StrCat("start another with ", starter);
  std::string text;
  if (largest < per_node && by == NodesBy::kJoin) {
    absl::StrAppend(&text, "no node has ", Count(per_node, "slot"),
                    ": 'launcher join --slots=", per_node, "' makes one that has");
  } else {
    absl::StrAppend(&text, "start another with ", starter);
  }
  if (resources.nodes() == 1 && largest > 0) {
    absl::StrAppend(&text, "; or submit with --nproc-per-node=", largest,
                    ", or set elastic.min_workers");
  }
  return text;
}

// "a, b, c and 97 more": an array may have very many.
std::string SayIds(const std::vector<std::string>& ids) {
  constexpr size_t kNamed = 3;
  if (ids.size() <= kNamed + 1) return absl::StrJoin(ids, ", ");
  return absl::StrCat(absl::StrJoin(ids.begin(), ids.begin() + kNamed, ", "), " and ",
                      ids.size() - kNamed, " more");
}

// Returns why the job cannot start on the nodes that are known, whoever ends; empty: it could, or
// there is no node.
std::string WhyNever(const QueueRules& rules, NodePool cluster, const Waiting& waiting) {
  Ask ask = *waiting.ask;
  if (ask.gpus == Ask::Gpus::kWhereEnough) ask.gpus = Ask::Gpus::kNever;
  if (ask.counted.empty() && !WhyOverQuota(rules, {}, ask).empty()) {
    return absl::StrCat("it asks for more than the quota of ", ask.user, " allows at all");
  }
  ask = *waiting.ask;
  const std::vector<Free> whole = Whole(cluster);
  if (cluster.nodes.empty() ||
      !PlaceLeast(ask, {cluster, whole, nullptr, waiting.barred}).empty()) {
    return "";
  }
  const Offer all{cluster, whole, nullptr, BarredByLabels(cluster, ask)};
  for (NodeFacts& node : cluster.nodes) node.open = true;
  if (!PlaceLeast(ask, all).empty()) return "the nodes that could hold it take no work now";
  const std::string labels = absl::StrJoin(ask.labels, ", ", absl::PairFormatter("="));
  if (all.barred && std::find(all.barred->begin(), all.barred->end(), false) == all.barred->end()) {
    return absl::StrCat("no node of this cluster has ", labels);
  }
  const auto is_rank_zero = [&](const NodeFacts& node) { return IsRankZero(ask, node); };
  if (!ask.rank_zero.empty() &&
      std::none_of(cluster.nodes.begin(), cluster.nodes.end(), is_rank_zero)) {
    return absl::StrCat("rank 0 is to be on ", ask.rank_zero, ", which is no node of this cluster");
  }
  int largest = 0;
  for (size_t i = 0; i < cluster.nodes.size(); ++i) {
    largest = std::max(largest, RoomOn(ask, all, static_cast<int>(i)));
  }
  const int most = *std::max_element(ask.counts.begin(), ask.counts.end());
  if (largest >= most || ask.least < ask.wanted || !ask.counted.empty()) {
    return "the nodes of this cluster cannot hold it, even when all are free";
  }
  return absl::StrCat("no node of this cluster", labels.empty() ? "" : " with ", labels, " has ",
                      Count(most, ask.gpus == Ask::Gpus::kAlways ? "GPU" : "slot"));
}

std::string SayAfter(const Job& job) {
  std::vector<std::string> said;
  if (!job.after.empty()) said.push_back(absl::StrCat("the success of ", SayIds(job.after)));
  if (!job.after_any.empty()) said.push_back(absl::StrCat("the end of ", SayIds(job.after_any)));
  return absl::StrCat("waits for ", absl::StrJoin(said, " and "));
}

}  // namespace

WaitingTexts::WaitingTexts(const State& state, const QueueView& view, const Decisions& decisions)
    : state_(state), view_(view), decisions_(decisions), whole_(Whole(view.queue.cluster)) {
  ranks_.resize(view.waiting.size());
  for (size_t i = 0; i < decisions.order.size(); ++i) {
    ranks_[static_cast<size_t>(decisions.order[i])] = static_cast<int>(i);
  }
  for (const auto& [id, node] : state.nodes) {
    const bool in_sight = InSight(state, node, view.queue.now);
    if (node.session != 0 && !in_sight) ++silent_;
    const std::string why = WhyNoWork(node, view.queue.now);
    if (in_sight && !why.empty()) ++closed_count_;
    if (!why.empty()) absl::StrAppend(&closed_, "; not on ", id, ": ", why);
  }
}

const WaitingTexts::Counts& WaitingTexts::CountsOf(const Waiting& waiting) {
  Counts* counts = &special_;
  if (waiting.special) {
    special_ = Counts{};
  } else {
    const auto [found, fresh] = counts_.try_emplace(waiting.ask->shape);
    if (!fresh) return found->second;
    counts = &found->second;
  }
  Ask ask = *waiting.ask;
  if (!ask.counted.empty()) ask.per_node = 1;  // any node with something may be one of its
  const NodePool& cluster = view_.queue.cluster;
  const Offer whole{cluster, whole_, nullptr, waiting.barred};
  const Offer now{cluster, cluster.free, nullptr, waiting.barred};
  for (int node = 0; node < static_cast<int>(cluster.nodes.size()); ++node) {
    const int room = RoomOn(ask, whole, node);
    if (room == 0) continue;
    ++counts->nodes;
    counts->slots += room;
    counts->largest = std::max(counts->largest, room);
    counts->free += RoomOn(ask, now, node);
    counts->gpus |= UsesGpus(ask, cluster.nodes[static_cast<size_t>(node)].gpus);
  }
  return *counts;
}

// Why the node that rank 0 is to be on does not take it; empty: it does, or the job names none.
std::string WaitingTexts::WhyNotRankZero(const Job& job, const Waiting& waiting) const {
  const std::string& wanted = job.ask->rank_zero;
  if (wanted.empty()) return "";
  std::string why = "is not connected";
  const NodePool& cluster = view_.queue.cluster;
  const Offer now{cluster, cluster.free, nullptr, waiting.barred};
  for (size_t i = 0; i < cluster.nodes.size(); ++i) {
    const NodeFacts& node = cluster.nodes[i];
    if (!IsRankZero(*waiting.ask, node)) continue;
    if (RoomOn(*waiting.ask, now, static_cast<int>(i)) > 0) return "";
    if (InSight(state_, state_.nodes.at(node.id), view_.queue.now)) why = "has no room";
  }
  return absl::StrCat("; rank 0 is to be on ", wanted, ", which ", why);
}

std::string WaitingTexts::OfNodes(const Job& job, const Waiting& waiting) {
  const Counts& counts = CountsOf(waiting);
  std::string text = absl::StrCat("needs ", SayWanted(job));
  if (waiting.ask->least < waiting.ask->wanted) {
    absl::StrAppend(&text, ", at least ", Count(waiting.ask->least, "slot"));
  }
  if (counts.nodes == 0) {
    absl::StrAppend(&text, closed_count_ > 0 ? "; no node takes work"
                           : silent_ > 0     ? "; no node answers"
                           : job.ask->labels.empty() || state_.nodes.empty()
                               ? "; no node is connected"
                               : "; no node with these labels is connected");
  } else {
    absl::StrAppend(&text, "; ", Count(counts.nodes, "node"), " with ", Count(counts.slots, "slot"),
                    counts.nodes == 1 ? " is" : " are", " connected");
    if (counts.free < counts.slots) absl::StrAppend(&text, ", ", counts.free, " free");
  }
  for (const auto& [node_id, exclusion] : job.excluded) {
    if (!IsExcluded(job, node_id, view_.queue.now)) continue;
    absl::StrAppend(&text, "; not on ", node_id, ": ", exclusion.reason);
  }
  return absl::StrCat(text, closed_, WhyNotRankZero(job, waiting));
}

// A job that has GPUs where there are enough asks for none where no node of it has. One whose
// workers are as many as its nodes have asks for those of empty nodes.
std::string WaitingTexts::WhyNotWithinQuota(const Waiting& waiting) {
  const QueueRules rules = RulesOf(state_.options);
  const Quota& quota = QuotaOf(rules, waiting.ask->user);
  if (quota.slots == 0 && quota.gpus == 0 && quota.jobs == 0) return "";
  Ask ask = *waiting.ask;
  if (!ask.counted.empty()) {
    const Offer whole{view_.queue.cluster, whole_, nullptr, waiting.barred};
    ask.wanted = std::max(ask.wanted, Workers(Place(ask, whole)));
    ask.gpus = CountedDevice(ask, whole) == "cuda" ? Ask::Gpus::kAlways : Ask::Gpus::kNever;
  }
  std::string why = WhyOverQuota(rules, view_.queue.running, ask);
  if (why.empty() || ask.gpus != Ask::Gpus::kWhereEnough || CountsOf(waiting).gpus) return why;
  ask.gpus = Ask::Gpus::kNever;
  return WhyOverQuota(rules, view_.queue.running, ask);
}

std::string WaitingTexts::Of(int place) {
  const Job& job = *view_.waiting[static_cast<size_t>(place)];
  const Waiting& waiting = view_.queue.waiting[static_cast<size_t>(place)];
  std::string text = OfNodes(job, waiting);
  const std::string quota = WhyNotWithinQuota(waiting);
  if (!quota.empty()) return absl::StrCat(text, "; quota: ", quota);
  if (waiting.array >= 0 && view_.queue.array_left[static_cast<size_t>(waiting.array)] <= 0) {
    return absl::StrCat(text, "; its array runs ", job.request.array().at_once(), " at once");
  }
  const auto& reservation = decisions_.reservation;
  const int ahead = reservation ? reservation->waiting : -1;
  const Offer whole{view_.queue.cluster, whole_, nullptr, waiting.barred};
  const bool fits = !PlaceLeast(*waiting.ask, whole).empty();
  if (ahead == place && !fits) {
    return absl::StrCat(text, "; waits ", DurationText(state_.options.node_lost_after),
                        " for nodes that are out of sight");
  }
  if (ahead != place && WhyNotRankZero(job, waiting).empty() && !fits) {
    const Counts& counts = CountsOf(waiting);
    const std::string help =
        WhatWouldHelp(state_.options.nodes_by, job, counts.nodes, counts.largest);
    return help.empty() ? text : absl::StrCat(text, "; ", help);
  }
  if (ahead >= 0 && ahead != place &&
      ranks_[static_cast<size_t>(place)] > ranks_[static_cast<size_t>(ahead)]) {
    const std::string& id = view_.waiting[static_cast<size_t>(ahead)]->id;
    return absl::StrCat(text, "; waits behind job ", id);
  }
  if (ahead != place) return text;
  for (size_t i = 0; i < view_.running.size(); ++i) {
    const Job& other = *view_.running[i];
    if (view_.queue.running[i].part || !other.preempted) continue;
    absl::StrAppend(&text, "; job ", other.id, " stops for it");
  }
  return text;
}

std::string WaitingTexts::Of(const Job& job) {
  if (job.held || !job.after.empty() || !job.after_any.empty()) return WhyNotReady(job);
  if (places_.empty()) {  // the front of the queue is told without
    for (size_t i = 0; i < view_.waiting.size(); ++i) {
      places_[view_.waiting[i]] = static_cast<int>(i);
    }
  }
  const auto place = places_.find(&job);
  return place == places_.end() ? job.reason : Of(place->second);
}

std::string WhyNotReady(const Job& job) {
  return job.held ? "held; 'launcher release' lets it start" : SayAfter(job);
}

QueueStatus QueueStatusOf(const Job& job, absl::Time now) {
  QueueStatus status;
  status.set_priority(job.spec().priority());
  status.set_held(job.held);
  status.mutable_after()->Assign(job.after.begin(), job.after.end());
  status.mutable_after_any()->Assign(job.after_any.begin(), job.after_any.end());
  if (job.request.has_array()) *status.mutable_array() = job.request.array();
  status.set_preemptions(job.preemptions);
  const Meter meter = UseOf(job, now);
  status.set_slot_seconds(meter.slot_seconds);
  status.set_gpu_seconds(meter.gpu_seconds);
  return status;
}

void AddEstimate(const State& state, const Job& job, absl::Time now, QueueStatus* status) {
  if (job.state != PENDING) return;
  if (!IsReady(job)) {
    status->set_no_estimate(job.held ? "it is held" : "it waits for other jobs");
    return;
  }
  QueueView view = ViewQueue(state, now);
  const QueueRules rules = RulesOf(state.options);
  Queue tried = view.queue;
  const Decisions decisions = RunPass(rules, tried);
  // Those that come before it, and itself.
  Queue before = view.queue;
  before.waiting.clear();
  for (const int place : decisions.order) {
    before.waiting.push_back(view.queue.waiting[static_cast<size_t>(place)]);
    if (view.waiting[static_cast<size_t>(place)] == &job) break;
  }
  const int own = static_cast<int>(before.waiting.size()) - 1;
  status->set_ahead(own);
  std::string why = WhyNever(rules, view.queue.cluster, before.waiting.back());
  if (!why.empty()) {
    status->set_no_estimate(why);
    return;
  }
  const absl::Time starts = Forecast(rules, std::move(before), own, &why);
  if (starts == absl::InfiniteFuture()) {
    status->set_no_estimate(why);
  } else {
    *status->mutable_starts() = ToProto(starts);
  }
}

}  // namespace lockstep::coordinator
