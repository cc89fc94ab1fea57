// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/questions.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "coordinator/core/command.h"
#include "coordinator/core/context.h"
#include "coordinator/core/handover.h"
#include "coordinator/core/job_machine.h"
#include "coordinator/core/nodes.h"
#include "coordinator/core/trained.h"
#include "coordinator/core/waiting.h"

namespace lockstep::coordinator {
namespace {

bool SubmittedBefore(const Job* a, const Job* b) { return a->submit_order < b->submit_order; }

absl::Status SeveralMeant(const std::string& what, std::vector<const Job*> jobs) {
  constexpr size_t kListed = 10;
  std::sort(jobs.begin(), jobs.end(), SubmittedBefore);
  std::string text = absl::StrCat(what, " ", jobs.size(), " jobs; say which by its id:");
  for (size_t i = 0; i < std::min(jobs.size(), kListed); ++i) {
    absl::StrAppend(&text, i == 0 ? " " : ", ", jobs[i]->id);
  }
  if (jobs.size() > kListed) absl::StrAppend(&text, " and ", jobs.size() - kListed, " more");
  return absl::FailedPreconditionError(text);
}

// Returns what the worker's agent said last of its process; null: nothing.
const ProcessUsage* UsageOf(const State& state, const Worker& worker) {
  const auto node = state.nodes.find(worker.node_id);
  if (node == state.nodes.end() || worker.gone()) return nullptr;
  for (const ProcessUsage& usage : node->second.usage.workers()) {
    if (usage.worker_incarnation() == worker.incarnation) return &usage;
  }
  return nullptr;
}

// The queue as it is, and what a pass over it decides.
struct Look {
  Look(const State& state, absl::Time now) : view(ViewQueue(state, now)) {
    decisions = RunPass(RulesOf(state.options), view.queue);
  }
  QueueView view;
  Decisions decisions;
};

// Why the jobs of `statuses` that wait do so, as it is now, and which of them only wait for the end
// of their workers.
void SayWhy(const State& state, absl::Time now,
            google::protobuf::RepeatedPtrField<JobStatus>& statuses) {
  for (JobStatus& status : statuses) {
    const Job& job = state.jobs.at(status.job_id());
    if (job.final() || !job.ending) continue;
    status.set_reason(
        absl::StrCat("ends as ", JobState_Name(job.ending->target), ": ", job.ending->reason));
  }
  const bool any = std::any_of(statuses.begin(), statuses.end(),
                               [](const JobStatus& status) { return status.state() == PENDING; });
  if (!any) return;
  const Look look(state, now);
  WaitingTexts texts(state, look.view, look.decisions);
  for (JobStatus& status : statuses) {
    const Job& job = state.jobs.at(status.job_id());
    if (job.state == PENDING && !job.ending) status.set_reason(texts.Of(job));
  }
}

// The part of the time for which it has run in which it trained; of what a command does nothing is
// known.
void SetGoodput(const Job& job, absl::Time now, DescribeJobResponse& response) {
  if (IsCommand(job)) return;
  absl::Duration ran = job.ran;
  if (job.started != absl::InfinitePast()) ran += (job.final() ? job.ended : now) - job.started;
  if (ran <= absl::ZeroDuration()) return;
  const double trained =
      std::max({job.progress.train_seconds(), job.result.train_seconds(), TrainedSeconds(job)});
  response.set_goodput(std::clamp(trained / absl::ToDoubleSeconds(ran), 0.0, 1.0));
}

}  // namespace

absl::StatusOr<std::string> FindJobId(const State& state, const std::string& reference,
                                      const std::string& user) {
  const auto counts = [&](const Job& job) { return user.empty() || job.request.user() == user; };
  const auto exact = state.jobs.find(reference);
  if (exact != state.jobs.end() && counts(exact->second)) return reference;
  std::vector<const Job*> running, named, begin;
  for (const auto& [id, job] : state.jobs) {
    if (!counts(job)) continue;
    if (job.spec().name() == reference) (job.final() ? named : running).push_back(&job);
    if (!reference.empty() && absl::StartsWith(id, reference)) begin.push_back(&job);
  }
  if (running.size() == 1) return running.front()->id;
  if (running.size() > 1) {
    return SeveralMeant(absl::StrCat("'", reference, "' names"), std::move(running));
  }
  if (!named.empty()) {
    return (*std::max_element(named.begin(), named.end(), SubmittedBefore))->id;
  }
  if (begin.size() == 1) return begin.front()->id;
  if (begin.size() > 1) {
    return SeveralMeant(absl::StrCat("'", reference, "' begins the ids of"), std::move(begin));
  }
  return absl::NotFoundError(absl::StrCat("there is no job '", reference,
                                          "'; 'launcher list' shows the ids and names of "
                                          "all"));
}

absl::StatusOr<DescribeJobResponse> DescribeJob(const State& state, const std::string& reference,
                                                absl::Time now) {
  const absl::StatusOr<std::string> id = FindJobId(state, reference);
  if (!id.ok()) return id.status();
  const Job& job = state.jobs.at(*id);
  DescribeJobResponse response;
  google::protobuf::RepeatedPtrField<JobStatus> status;
  *status.Add() = StatusOf(job);
  SayWhy(state, now, status);
  *response.mutable_status() = std::move(status[0]);
  *response.mutable_status()->mutable_now() = ToProto(now);
  *response.mutable_status()->mutable_queue() = QueueStatusOf(job, now);
  AddEstimate(state, job, now, response.mutable_status()->mutable_queue());
  for (const Fault& fault : job.faults) *response.add_faults() = fault;
  SetGoodput(job, now, response);
  response.mutable_status()->set_moves(SayMoves(state, job, ""));
  *response.mutable_spec() = job.spec();
  for (auto& [name, secret] : *response.mutable_spec()->mutable_secrets()) secret = "***";
  for (const Slot& slot : job.slots) {
    if (slot.vacant() || slot.worker->leaving() || (!slot.wanted && slot.worker->gone())) continue;
    const Worker& worker = *slot.worker;
    MemberStatus& member = *response.add_members();
    member.set_rank(worker.slot);
    member.set_host(worker.host);
    member.set_pid(worker.pid);
    member.set_incarnation(worker.incarnation);
    member.set_standby(slot.aside());
    *member.mutable_progress() = worker.progress;
    member.set_node_id(worker.node_id);
    *member.mutable_device() = worker.device;
    *member.mutable_allocation() = worker.allocation;
    if (const ProcessUsage* usage = UsageOf(state, worker); usage != nullptr) {
      *member.mutable_usage() = *usage;
    }
  }
  return response;
}

absl::StatusOr<ListJobsResponse> ListJobs(const State& state, const ListJobsRequest& request,
                                          absl::Time now) {
  int64_t after = 0;  // this place in the order of submission
  if (!request.page_token().empty() && !absl::SimpleAtoi(request.page_token(), &after)) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", request.page_token(), "' is no page_token of a ListJobsResponse"));
  }
  const bool whole = request.page_size() <= 0;
  std::vector<const Job*> jobs;
  for (const auto& [id, job] : state.jobs) {
    if (!request.include_ended() && job.final()) continue;
    if (job.submit_order > after) jobs.push_back(&job);
  }
  const size_t page = whole ? jobs.size() : static_cast<size_t>(request.page_size());
  const auto end = jobs.begin() + static_cast<std::ptrdiff_t>(std::min(page, jobs.size()));
  std::partial_sort(jobs.begin(), end, jobs.end(), SubmittedBefore);
  ListJobsResponse response;
  size_t bytes = 0;
  for (auto job = jobs.begin(); job != end && (whole || bytes < kMostPageBytes); ++job) {
    JobStatus& status = *response.add_jobs();
    status = StatusOf(**job);
    *status.mutable_now() = ToProto(now);
    *status.mutable_queue() = QueueStatusOf(**job, now);
    bytes += status.ByteSizeLong();
    after = (*job)->submit_order;
  }
  if (static_cast<size_t>(response.jobs_size()) < jobs.size()) {
    response.set_next_page_token(absl::StrCat(after));
  }
  SayWhy(state, now, *response.mutable_jobs());
  return response;
}

namespace {

// By node, the jobs that have something to do with it, in the order of their ids: they have workers
// there, or have had and shun it.
std::map<std::string, std::vector<const Job*>> JobsByNode(const State& state) {
  std::map<std::string, std::vector<const Job*>> jobs;
  const auto add = [&jobs](const std::string& node, const Job& job) {
    std::vector<const Job*>& of_node = jobs[node];
    if (of_node.empty() || of_node.back() != &job) of_node.push_back(&job);
  };
  for (const auto& [id, job] : state.jobs) {
    for (const Slot& slot : job.slots) {
      if (slot.worker) add(slot.worker->node_id, job);
    }
    for (const auto& [node, exclusion] : job.excluded) add(node, job);
  }
  return jobs;
}

// Those of `jobs` that have workers on the node, and those that start none there for a while.
void AddJobs(const State& state, const Node& node, const std::vector<const Job*>& jobs,
             absl::Time now, NodeStatus& status) {
  for (const Job* const one : jobs) {
    const Job& job = *one;
    const std::string& id = job.id;
    const bool here = std::any_of(job.slots.begin(), job.slots.end(), [&](const Slot& slot) {
      return slot.worker && slot.worker->node_id == node.id && !slot.worker->gone();
    });
    if (here) status.add_jobs(id);
    if (here && node.drain) {
      const std::string moves = SayMoves(state, job, node.id);
      if (!moves.empty()) status.add_moves(absl::StrCat("job ", id, ": ", moves));
    }
    if (job.final() || !IsExcluded(job, node.id, now)) continue;
    const Exclusion& exclusion = job.excluded.at(node.id);
    NodeExclusion& entry = *status.add_exclusions();
    entry.set_job_id(id);
    entry.set_reason(exclusion.reason);
    *entry.mutable_until() = ToProto(exclusion.until);
  }
}

// Adds whether it gets work, and why not.
void AddState(const State& state, const Node& node, absl::Time now, NodeStatus& status) {
  const bool away = !InSight(state, node, now);
  status.set_reason(WhyNoWork(node, now));
  if (node.drain) {
    *status.mutable_drain() = ToProto(*node.drain);
    status.set_state(HasProcesses(state, node) ? "draining" : "drained");
  } else if (away) {
    status.set_state("away");
  } else if (node.stopping) {
    status.set_state("leaving");
  } else if (!node.problem.empty()) {
    status.set_state("unhealthy");
  } else {
    status.set_state(IsLeftOut(node.trust, now) ? "left out" : "up");
  }
  if (away && !node.drain) status.set_reason("its agent is not heard");
  if (IsLeftOut(node.trust, now)) *status.mutable_left_out_until() = ToProto(node.trust.until);
}

}  // namespace

GetClusterResponse GetCluster(const State& state, absl::Time now) {
  GetClusterResponse response;
  response.set_version(LOCKSTEP_VERSION);
  const std::map<std::string, std::vector<const Job*>> jobs = JobsByNode(state);
  for (const auto& [id, node] : state.nodes) {
    NodeStatus& status = *response.add_nodes();
    status.set_node_id(id);
    status.set_host(node.host);
    status.set_slots(node.slots);
    status.set_used_slots(UsedSlots(state, node));
    status.set_connected(InSight(state, node, now));
    for (const Device& device : node.devices) *status.add_devices() = device;
    status.set_cores(node.cores);
    status.set_memory(node.memory);
    for (const NumaNode& numa : node.numa) *status.add_numa() = numa;
    status.set_address(node.seen_address);
    status.mutable_labels()->insert(node.labels.begin(), node.labels.end());
    if (node.heard != absl::InfinitePast()) {
      status.set_silent_seconds(std::max(0.0, absl::ToDoubleSeconds(now - node.heard)));
    }
    AddState(state, node, now, status);
    if (const auto found = jobs.find(id); found != jobs.end()) {
      AddJobs(state, node, found->second, now, status);
    }
    if (status.connected()) *status.mutable_gpus() = node.usage.gpus();
  }
  return response;
}

}  // namespace lockstep::coordinator
