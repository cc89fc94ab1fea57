// SPDX-License-Identifier: Apache-2.0
#include "tests/scenarios/requests.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/check.h"
#include "coordinator/core/accounting.h"
#include "coordinator/core/context.h"
#include "coordinator/core/questions.h"

namespace lockstep::coordinator {

void SetDuration(absl::Duration duration, google::protobuf::Duration* proto) {
  proto->set_seconds(absl::ToInt64Seconds(duration));
  proto->set_nanos(static_cast<int32_t>(
      absl::ToInt64Nanoseconds(duration - absl::Seconds(absl::ToInt64Seconds(duration)))));
}

namespace {

Submitted ParseSubmission(const Command& command) {
  Submitted event;
  event.job_id = command.word(0);
  event.request.set_request_id(command.text("request"));
  JobSpec& spec = *event.request.mutable_spec();
  spec.set_name(command.text("name", "mlp"));
  event.request.set_submit_dir(command.text("dir"));
  if (command.has("limit")) {
    SetDuration(command.duration("limit", absl::ZeroDuration()), spec.mutable_time_limit());
  }
  spec.set_priority(static_cast<int>(command.number("priority")));
  event.request.set_user(command.text("user"));
  event.request.set_hold(command.flag("hold"));
  for (const std::string& id : command.list("after")) event.request.add_after(id);
  for (const std::string& id : command.list("after_any")) event.request.add_after_any(id);
  if (command.has("index")) {
    ArrayElement& array = *event.request.mutable_array();
    array.set_id(command.text("array"));
    array.set_index(static_cast<int>(command.number("index")));
    array.set_at_once(static_cast<int>(command.number("at_once")));
  }
  if (command.has("grace")) {
    SetDuration(command.duration("grace", absl::ZeroDuration()),
                spec.mutable_preemption()->mutable_grace());
  }
  for (const std::string& label : command.list("labels")) {
    const std::vector<std::string> parts = absl::StrSplit(label, ':');
    (*spec.mutable_resources()->mutable_labels())[parts.at(0)] = parts.at(1);
  }
  spec.mutable_resources()->set_nodes(static_cast<int>(command.number("nodes", 1)));
  spec.mutable_resources()->set_nproc_per_node(static_cast<int>(command.number("nproc", 1)));
  for (const std::string& ranks : command.list("ranks")) {
    int count = 0;
    LS_CHECK(absl::SimpleAtoi(ranks, &count)) << ranks;
    Resources& resources = *spec.mutable_resources();
    resources.add_ranks_per_node(count);
    resources.set_nodes(resources.ranks_per_node_size());
    resources.set_nproc_per_node(std::max(resources.nproc_per_node(), count));
  }
  spec.mutable_resources()->set_nproc_by(command.text("by"));
  spec.mutable_resources()->set_rank0_node(command.text("rank0"));
  spec.mutable_resources()->set_device(command.text("device", "auto"));
  if (command.flag("command")) {
    spec.mutable_run()->add_command("true");
  } else {
    spec.mutable_train()->set_shards(static_cast<int>(command.number("shards", 8)));
    if (command.number("zero", 0) > 0) spec.mutable_train()->set_zero_stage(1);
  }
  spec.mutable_resources()->set_standby(static_cast<int>(command.number("standby")));
  if (command.flag("mixed")) spec.mutable_train()->set_reproducible(false);
  if (command.has("resume")) {
    spec.mutable_checkpoint()->set_dir("saved");
    spec.mutable_checkpoint()->set_resume(command.text("resume"));
  }
  spec.mutable_restart()->set_max_restarts(static_cast<int>(command.number("restarts")));
  spec.mutable_elastic()->set_min_workers(static_cast<int>(command.number("min")));
  spec.mutable_elastic()->set_max_workers(static_cast<int>(command.number("max")));
  SetDuration(command.duration("detect", absl::Seconds(5)), spec.mutable_failure_detection());
  SetDuration(command.duration("start", absl::Minutes(10)), spec.mutable_start_timeout());
  return event;
}

void SetQuota(const Command& command, Options& options) {
  options.fair_share_half_life = command.duration("half", options.fair_share_half_life);
  Quota& quota = command.word(0).empty() ? options.quota : options.quotas[command.word(0)];
  quota.slots = static_cast<int>(command.number("slots"));
  quota.gpus = static_cast<int>(command.number("gpus"));
  quota.jobs = static_cast<int>(command.number("jobs"));
}

std::vector<std::string> Usage(const Command& command, const State& state, absl::Time now) {
  std::vector<std::string> lines;
  GetUsageRequest request;
  request.set_user(command.word(0));
  const GetUsageResponse response = GetUsage(state, request, now);
  for (const UserUsage& user : response.users()) {
    lines.push_back(absl::StrCat(user.user(), ": ", user.slot_seconds(), " slot-seconds, ",
                                 user.gpu_seconds(), " GPU-seconds, ", user.ended_jobs(),
                                 " ended, ", user.running_jobs(), " running with ", user.slots(),
                                 " slots, ", user.waiting_jobs(), " waiting"));
  }
  return lines;
}

std::string QueueText(const JobStatus& status, absl::Time now) {
  const QueueStatus& queue = status.queue();
  std::string text = absl::StrCat("waits: ", status.reason(), "; ", queue.ahead(), " ahead; ");
  if (queue.has_starts()) {
    absl::StrAppend(&text, "starts in ", absl::FormatDuration(FromProto(queue.starts()) - now));
  } else {
    absl::StrAppend(&text, "start not known: ", queue.no_estimate());
  }
  return text;
}

std::string CostsText(const Fault& fault) {
  return absl::StrCat("rank ", fault.rank(), " cost ", fault.steps_lost(), " steps; after ",
                      fault.detect_ms(), " ms known, ", fault.rendezvous_ms(), " met, ",
                      fault.restore_ms(), " restored, ", fault.to_next_step_ms(), " a step, ",
                      fault.replay_ms(), " a new step");
}

std::vector<std::string> Describe(const Command& command, const State& state, absl::Time now) {
  std::vector<std::string> lines;
  const auto response = DescribeJob(state, command.word(0), now);
  if (!response.ok()) return {response.status().ToString()};
  if (response->status().state() == PENDING) lines.push_back(QueueText(response->status(), now));
  if (!response->status().stall().empty()) {
    lines.push_back(absl::StrCat("stands: ", response->status().stall()));
  }
  if (!response->status().straggler().empty()) {
    lines.push_back(absl::StrCat("slowed by: ", response->status().straggler()));
  }
  if (!response->status().moves().empty()) {
    lines.push_back(absl::StrCat("moves: ", response->status().moves()));
  }
  if (command.flag("all")) {
    for (const MemberStatus& member : response->members()) {
      lines.push_back(absl::StrCat("rank ", member.rank(), " on ", member.node_id(), ": ",
                                   member.allocation().cpus(), " cpus, ",
                                   member.allocation().memory(), " bytes, gpus [",
                                   absl::StrJoin(member.allocation().gpus(), " "), "]"));
    }
  }
  if (command.flag("goodput")) {
    lines.push_back(absl::StrFormat("goodput: %.1f %%", 100 * response->goodput()));
  }
  if (command.flag("costs")) {
    for (const Fault& fault : response->faults()) lines.push_back(CostsText(fault));
  }
  for (const Fault& fault : response->status().result().faults()) {
    lines.push_back(absl::StrCat("fault: rank ", fault.rank(), ", ", fault.cause(), ", victims [",
                                 absl::StrJoin(fault.victims(), " "), "]"));
  }
  return lines;
}

}  // namespace

std::optional<Event> ParseRequest(const Command& command) {
  const std::string& verb = command.verb();
  if (verb == "submit") return ParseSubmission(command);
  if (verb == "cancel") return CancelRequested{command.word(0), command.flag("kill")};
  if (verb == "scale") {
    return ScaleRequested{command.word(0), static_cast<int>(command.number("workers"))};
  }
  if (verb == "drain") {
    return DrainRequested{command.word(0), command.text("reason"), command.text("user", "ann")};
  }
  if (verb == "undrain") return UndrainRequested{command.word(0)};
  if (verb == "hold" || verb == "release") return HoldRequested{command.word(0), verb == "release"};
  return std::nullopt;
}

bool SetOptions(const Command& command, Options& options) {
  if (command.verb() == "quota") {
    SetQuota(command, options);
    return true;
  }
  if (command.verb() == "nodes-by") {
    options.nodes_by = command.word(0) == "command" ? NodesBy::kSameCommand : NodesBy::kNobody;
    return true;
  }
  if (command.verb() != "keep") return false;
  options.keep_ended = static_cast<size_t>(command.number("ended"));
  options.keep_ended_for = command.duration("for", absl::Minutes(5));
  options.keep_node = command.duration("node", absl::Hours(1));
  return true;
}

std::optional<std::vector<std::string>> Answered(const Command& command, const State& state,
                                                 absl::Time now) {
  if (command.verb() == "usage") return Usage(command, state, now);
  if (command.verb() == "describe") return Describe(command, state, now);
  return std::nullopt;
}

}  // namespace lockstep::coordinator
