// SPDX-License-Identifier: Apache-2.0
#include "tests/scenarios/effects_text.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace lockstep::coordinator {
namespace {

std::string Name(const Names& names, SessionId session) {
  const auto found = names.find(session);
  return found == names.end() ? absl::StrCat("session ", session) : found->second;
}

// Of a node that is there and gets no work.
std::string StateText(const NodeStatus& node) {
  if (node.state() == "up" || node.state() == "away") return "";
  std::string text = absl::StrCat(", ", node.state(), ": ", node.reason());
  if (node.has_drain()) absl::StrAppend(&text, " (", node.drain().user(), ")");
  return text;
}

}  // namespace

std::string ToText(const AgentCommand& command) {
  if (command.has_send_files())
    return absl::StrCat("send files of ", command.send_files().job_id());
  if (command.has_rejected()) return absl::StrCat("rejected: ", command.rejected().reason());
  if (command.has_acknowledged()) {
    return absl::StrCat("acknowledged ",
                        absl::StrJoin(command.acknowledged().worker_incarnations(), " "));
  }
  std::string text = "run";
  for (const WorkerAssignment& worker : command.desired().workers()) {
    absl::StrAppend(&text, " ", worker.incarnation(), "(local ", worker.local_rank(), ", ",
                    worker.device().kind(),
                    worker.device().uuid().empty() ? "" : absl::StrCat(" ", worker.device().uuid()),
                    ")");
  }
  if (command.desired().workers_size() == 0) absl::StrAppend(&text, " nothing");
  for (const std::string& job : command.desired().kill_jobs()) {
    absl::StrAppend(&text, "; kill ", job);
  }
  for (const std::string& worker : command.desired().kill_workers()) {
    absl::StrAppend(&text, "; kill ", worker);
  }
  return text;
}

std::string ToText(const WorkerCommand& command) {
  if (command.has_generation()) {
    const Generation& generation = command.generation();
    std::string text = absl::StrCat("generation ", generation.generation(), " after step ",
                                    generation.start_step(), ":");
    for (const Member& member : generation.members()) {
      absl::StrAppend(&text, " ", member.rank(), "=", member.incarnation(), "[",
                      member.shard_begin(), ",", member.shard_end(), ")");
    }
    return text;
  }
  if (command.has_abort()) {
    return absl::StrCat("abort ", command.abort().generation(), ": ", command.abort().reason());
  }
  if (command.has_checkpoint()) {
    const CheckpointVerdict& verdict = command.checkpoint();
    return absl::StrCat(
        "checkpoint of step ", verdict.mark().step(),
        verdict.refused().empty() ? " may appear" : " may not appear: ", verdict.refused());
  }
  if (command.has_regroup()) {
    return absl::StrCat("regroup ", command.regroup().generation(), ": ",
                        command.regroup().reason());
  }
  if (command.has_drain()) return absl::StrCat("drain: ", command.drain().reason());
  if (!command.has_exit()) return "nothing";
  return absl::StrCat("exit ", command.exit().code(), ": ", command.exit().reason());
}

std::string ToText(const JobEvent& event) {
  if (event.has_state()) {
    std::string text =
        absl::StrCat(JobState_Name(event.state().state()), ": ", event.state().reason());
    if (event.state().has_result()) {
      absl::StrAppend(&text, " (exit code ", event.state().result().exit_code(), ", ",
                      event.state().result().steps(), " steps)");
    }
    return text;
  }
  if (event.has_fault()) {
    const Fault& fault = event.fault();
    return absl::StrCat("fault: rank ", fault.rank(), ", ", fault.cause(), ", signal ",
                        fault.signal(), ", exit code ", fault.exit_code(), ", victims [",
                        absl::StrJoin(fault.victims(), " "), "], said [",
                        absl::StrJoin(fault.last_lines(), " | "), "]");
  }
  if (event.has_eval()) {
    return absl::StrFormat("evaluation after step %d: %.4f", event.eval().step(),
                           event.eval().accuracy());
  }
  if (event.has_progress()) return absl::StrCat("progress: step ", event.progress().step());
  if (event.has_log()) return absl::StrCat("log: ", absl::StrJoin(event.log().lines(), " | "));
  return absl::StrCat("notice: ", event.notice());
}

std::vector<std::string> ToText(const Effects& effects, const Names& names) {
  std::vector<std::string> lines;
  for (const ToAgent& message : effects.to_agents) {
    lines.push_back(absl::StrCat(Name(names, message.session), " <- ", ToText(Whole(message)),
                                 message.close ? " (closed)" : ""));
  }
  for (const ToWorker& message : effects.to_workers) {
    lines.push_back(absl::StrCat(Name(names, message.session), " <- ", ToText(Whole(message)),
                                 message.close ? " (closed)" : ""));
  }
  for (const Append& append : effects.events) {
    lines.push_back(absl::StrCat("followers of ", append.job_id, ": ", ToText(append.event)));
  }
  for (const std::string& id : effects.forgotten_jobs) {
    lines.push_back(absl::StrCat("forgets ", id));
  }
  if (!effects.rows.empty()) {
    lines.push_back(absl::StrCat(
        "rows ", absl::StrJoin(effects.rows, " ", [](std::string* out, const Row& row) {
          absl::StrAppend(out, row.erased ? "-" : "", row.key);
        })));
  }
  return lines;
}

std::vector<std::string> Overview(const State& state, absl::Time now) {
  std::vector<std::string> lines;
  ListJobsRequest all;
  all.set_include_ended(true);
  const ListJobsResponse jobs = *ListJobs(state, all, now);
  for (const JobStatus& job : jobs.jobs()) {
    lines.push_back(absl::StrCat(
        job.job_id(), " ", JobState_Name(job.state()), " ", job.workers(), "/",
        job.wanted_workers(), job.wanted_standbys() == 0 ? "" : absl::StrCat("+", job.standbys()),
        ": ", job.reason()));
  }
  const GetClusterResponse cluster = GetCluster(state, now);
  for (const NodeStatus& node : cluster.nodes()) {
    lines.push_back(absl::StrCat(node.node_id(), " ", node.used_slots(), "/", node.slots(),
                                 node.connected() ? "" : " not connected", StateText(node)));
    for (const std::string& moves : node.moves()) lines.push_back(absl::StrCat("  ", moves));
  }
  return lines;
}

}  // namespace lockstep::coordinator
