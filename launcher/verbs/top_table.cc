// SPDX-License-Identifier: Apache-2.0
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "launcher/follow/text.h"
#include "launcher/verbs/tables.h"
#include "launcher/verbs/top.h"
#include "proto/message_json.h"

namespace lockstep::launcher {
namespace {

constexpr const char* kUnknown = "-";

std::string MemoryText(int64_t used, int64_t all) {
  if (all == 0) return kUnknown;
  return absl::StrCat(ShortBytes(used), " / ", ShortBytes(all));
}

std::string PowerText(const GpuUsage& gpu) {
  if (!gpu.has_watts()) return kUnknown;
  std::string text = absl::StrFormat("%.0f", gpu.watts());
  if (gpu.has_watts_limit()) absl::StrAppendFormat(&text, " / %.0f", gpu.watts_limit());
  return text + " W";
}

std::string ClockText(const GpuUsage& gpu) {
  if (!gpu.has_sm_mhz() || !gpu.has_memory_mhz()) return kUnknown;
  return absl::StrCat(gpu.sm_mhz(), " / ", gpu.memory_mhz(), " MHz");
}

// "GPU-1a2b3c4d": enough to tell it from the others.
std::string ShortUuid(const std::string& uuid) { return uuid.substr(0, 12); }

std::vector<std::string> GpuRow(const std::string& host, const GpuUsage& gpu) {
  return {host,
          ShortUuid(gpu.uuid()),
          gpu.name(),
          MemoryText(gpu.used(), gpu.memory()),
          gpu.has_utilisation() ? absl::StrCat(gpu.utilisation(), "%") : kUnknown,
          PowerText(gpu),
          gpu.has_celsius() ? absl::StrCat(gpu.celsius(), " C") : kUnknown,
          ClockText(gpu),
          gpu.pids().empty() ? kUnknown : absl::StrJoin(gpu.pids(), ",")};
}

std::string StepText(const MemberStatus& member) {
  const Progress& progress = member.progress();
  if (member.standby()) return "standby";
  if (progress.total_steps() == 0) return kUnknown;
  return absl::StrCat(progress.step(), "/", progress.total_steps());
}

std::vector<std::string> WorkerRow(const std::string& job, const MemberStatus& member) {
  const Progress& progress = member.progress();
  const ProcessUsage& usage = member.usage();
  const bool steps = progress.step() > 0;
  const bool seen = usage.rss_bytes() > 0;
  return {job,
          absl::StrCat(member.rank()),
          member.host(),
          member.pid() == 0 ? kUnknown : absl::StrCat(member.pid()),
          member.device().kind() == "cuda" ? ShortUuid(member.device().uuid()) : "cpu",
          StepText(member),
          steps ? absl::StrFormat("%.4f", progress.loss()) : kUnknown,
          steps ? absl::StrFormat("%.0f", progress.samples_per_second()) : kUnknown,
          seen ? absl::StrFormat("%.0f%%", usage.cpu_percent()) : kUnknown,
          seen ? ShortBytes(usage.rss_bytes()) : kUnknown,
          usage.gpu_bytes() > 0 ? ShortBytes(usage.gpu_bytes()) : kUnknown};
}

}  // namespace

std::string TopTable(const TopFigures& told) {
  TopFigures figures = told;
  MakePrintable(&figures.cluster);
  for (DescribeJobResponse& job : figures.jobs) MakePrintable(&job);
  std::vector<std::vector<std::string>> gpus = {
      {"HOST", "GPU", "NAME", "MEMORY", "USE", "POWER", "TEMP", "CLOCKS", "PROCESSES"}};
  int64_t slots = 0, used = 0, nodes = 0;
  for (const NodeStatus& node : figures.cluster.nodes()) {
    if (!node.connected()) continue;
    ++nodes;
    slots += node.slots();
    used += node.used_slots();
    for (const GpuUsage& gpu : node.gpus()) gpus.push_back(GpuRow(node.host(), gpu));
  }
  std::vector<std::vector<std::string>> workers = {{"JOB", "RANK", "HOST", "PID", "DEVICE", "STEP",
                                                    "LOSS", "SAMPLES/S", "CPU", "MEMORY",
                                                    "GPU MEMORY"}};
  for (const DescribeJobResponse& job : figures.jobs) {
    if (job.members().empty()) {
      workers.push_back({job.status().job_id(), kUnknown, JobState_Name(job.status().state()),
                         kUnknown, kUnknown, kUnknown, kUnknown, kUnknown, kUnknown, kUnknown,
                         kUnknown});
    }
    for (const MemberStatus& member : job.members()) {
      workers.push_back(WorkerRow(job.status().job_id(), member));
    }
  }
  std::string text = absl::StrCat(nodes, nodes == 1 ? " node, " : " nodes, ", used, " of ", slots,
                                  " slots in use, ", figures.jobs.size(),
                                  figures.jobs.size() == 1 ? " job\n" : " jobs\n");
  if (gpus.size() > 1) absl::StrAppend(&text, "\n", AlignedTable(gpus));
  if (workers.size() > 1) absl::StrAppend(&text, "\n", AlignedTable(workers));
  return text;
}

std::string TopJson(const TopFigures& figures) {
  // The spec is `describe`'s.
  const auto job_json = [](const DescribeJobResponse& job) {
    return JsonObject()
        .Raw("status", StatusJson(job.status()))
        .Raw("members", MembersJson(job))
        .Done();
  };
  return JsonObject()
             .Add("schema", 1)
             .Raw("nodes", JsonArrayOf(figures.cluster.nodes(), NodeJson))
             .Raw("jobs", JsonArrayOf(figures.jobs, job_json))
             .Done() +
         "\n";
}

}  // namespace lockstep::launcher
