// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "launcher/follow/result.h"
#include "launcher/follow/text.h"
#include "launcher/verbs/jobs.h"

namespace lockstep::launcher {
namespace {

std::string StepText(const Progress& progress) {
  if (progress.total_steps() == 0) return "-";
  return absl::StrCat(progress.step(), "/", progress.total_steps());
}

// "3/4", with spares "3/4+1".
std::string WorkersText(const JobStatus& job) {
  std::string text = absl::StrCat(job.workers(), "/", job.wanted_workers());
  if (job.wanted_standbys() > 0) absl::StrAppend(&text, "+", job.standbys());
  return text;
}

}  // namespace

std::string AlignedTable(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      absl::StrAppendFormat(&line, "%-*s  ", static_cast<int>(widths[i]), row[i]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    absl::StrAppend(&text, line, "\n");
  }
  return text;
}

std::string JobTable(const ListJobsResponse& response) {
  std::vector<std::vector<std::string>> rows = {
      {"JOB", "STATE", "WORKERS", "STEP", "USER", "REASON"}};
  for (const JobStatus& job : response.jobs()) {
    rows.push_back({job.job_id(), JobState_Name(job.state()), WorkersText(job),
                    StepText(job.progress()), job.user(), job.reason()});
  }
  return AlignedTable(rows);
}

std::string JobText(const DescribeJobResponse& response) {
  const JobStatus& job = response.status();
  std::string text = absl::StrFormat(
      "job         %s\nstate       %s\nreason      %s\nuser        %s\nworkers     %d of %d\n"
      "generation  %d\nrestarts    %d\nstep        %s\nfolder      %s\n",
      job.job_id(), JobState_Name(job.state()), job.reason(), job.user(), job.workers(),
      job.wanted_workers(), job.generation(), job.restarts(), StepText(job.progress()),
      job.run_dir());
  if (job.wanted_standbys() > 0) {
    absl::StrAppend(&text, "standby     ", job.standbys(), " of ", job.wanted_standbys(),
                    " ready to take over\n");
  }
  if (!job.stall().empty()) absl::StrAppend(&text, "stands      ", job.stall(), "\n");
  if (!job.straggler().empty()) absl::StrAppend(&text, "slowed by   ", job.straggler(), "\n");
  if (response.members_size() > 0) {
    std::vector<std::vector<std::string>> rows = {{"RANK", "HOST", "PID", "STEP"}};
    for (const MemberStatus& member : response.members()) {
      rows.push_back({absl::StrCat(member.rank()), member.host(), absl::StrCat(member.pid()),
                      member.standby() ? "standby" : StepText(member.progress())});
    }
    absl::StrAppend(&text, AlignedTable(rows));
  }
  if (job.has_result()) absl::StrAppend(&text, ResultSummary(job));
  return text;
}

}  // namespace lockstep::launcher
