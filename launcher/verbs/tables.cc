// SPDX-License-Identifier: Apache-2.0
#include "launcher/verbs/tables.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "common/json.h"
#include "common/utf8.h"
#include "job/job_file.h"
#include "launcher/follow/result.h"
#include "launcher/follow/text.h"
#include "proto/message_json.h"

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

absl::Time TimeOf(const google::protobuf::Timestamp& stamp) {
  return absl::FromUnixSeconds(stamp.seconds()) + absl::Nanoseconds(stamp.nanos());
}

// From `begin` until `end`; nothing when one of them is not known.
std::optional<absl::Duration> Between(bool known, const google::protobuf::Timestamp& begin,
                                      const google::protobuf::Timestamp& end) {
  if (!known) return std::nullopt;
  return std::max(absl::ZeroDuration(), TimeOf(end) - TimeOf(begin));
}

// Since its submission, by the coordinator's clock alone.
std::optional<absl::Duration> AgeOf(const JobStatus& job) {
  return Between(job.has_now() && job.has_submitted(), job.submitted(), job.now());
}

std::string AgeText(const JobStatus& job) {
  const std::optional<absl::Duration> age = AgeOf(job);
  return age.has_value() ? ShortAge(*age) : "-";
}

// "submitted   12m ago (2026-05-04T03:02:01Z)" for the stamps that there are.
std::string StampLines(const JobStatus& job) {
  std::string text;
  const auto line = [&](const char* name, bool known, const google::protobuf::Timestamp& stamp) {
    if (!known) return;
    const std::optional<absl::Duration> age = Between(job.has_now(), stamp, job.now());
    absl::StrAppendFormat(
        &text, "%-12s%s(%s)\n", name, age.has_value() ? ShortAge(*age) + " ago " : "",
        absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", TimeOf(stamp), absl::UTCTimeZone()));
  };
  line("submitted", job.has_submitted(), job.submitted());
  line("started", job.has_started(), job.started());
  line("ended", job.has_ended(), job.ended());
  return text;
}

// "1 cpu", "2 cpus, GPU-1, 4 GiB".
std::string HasText(const Allocation& allocation) {
  if (allocation.cpus() == 0) return "-";
  std::string text = absl::StrCat(allocation.cpus(), allocation.cpus() == 1 ? " cpu" : " cpus");
  for (const std::string& gpu : allocation.gpus()) absl::StrAppend(&text, ", ", gpu);
  if (allocation.memory() > 0) absl::StrAppend(&text, ", ", ShortBytes(allocation.memory()));
  return text;
}

}  // namespace

std::string AlignedTable(const std::vector<std::vector<std::string>>& rows) {
  std::vector<int> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], DisplayWidth(std::string_view(row[i])));
    }
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      const int blanks = widths[i] - DisplayWidth(std::string_view(row[i])) + 2;
      absl::StrAppend(&line, row[i], std::string(static_cast<size_t>(blanks), ' '));
    }
    line.erase(line.find_last_not_of(' ') + 1);
    absl::StrAppend(&text, line, "\n");
  }
  return text;
}

std::string ListTable(const ListJobsResponse& response) {
  const ListJobsResponse shown = Printed(response);
  std::vector<std::vector<std::string>> rows = {
      {"JOB", "NAME", "STATE", "WORKERS", "STEP", "AGE", "USER", "REASON"}};
  for (const JobStatus& job : shown.jobs()) {
    rows.push_back({job.job_id(), job.name(), JobState_Name(job.state()), WorkersText(job),
                    StepText(job.progress()), AgeText(job), job.user(), job.reason()});
  }
  return AlignedTable(rows);
}

std::string StatusJson(const JobStatus& status) {
  // The age goes first, so that the message's own object can follow as it is.
  const std::optional<absl::Duration> age = AgeOf(status);
  const std::string json = MessageJson(status, Unset::kWritten);
  return absl::StrCat(
      "{\"age_seconds\":", age.has_value() ? JsonNumber(absl::ToDoubleSeconds(*age)) : "null", ",",
      json.substr(1));
}

std::string MembersJson(const DescribeJobResponse& response) {
  return JsonArrayOf(response.members(), [](const MemberStatus& member) {
    return MessageJson(member, Unset::kWritten);
  });
}

std::string ListJson(const ListJobsResponse& response) {
  return JsonObject()
             .Add("schema", 1)
             .Raw("jobs", JsonArrayOf(response.jobs(), StatusJson))
             .Done() +
         "\n";
}

std::string DescribeJson(const DescribeJobResponse& response) {
  JobSpec spec = response.spec();
  for (auto& [name, value] : *spec.mutable_secrets()) value = job::kHiddenSecret;
  const std::string job =
      JsonObject()
          .Raw("status", StatusJson(response.status()))
          .Raw("spec", MessageJson(spec))
          .Raw("members", MembersJson(response))
          .Raw("faults",
               JsonArrayOf(response.faults(),
                           [](const Fault& fault) { return MessageJson(fault, Unset::kWritten); }))
          .Raw("goodput",
               response.has_goodput() ? JsonNumber(response.goodput()) : std::string("null"))
          .Done();
  return JsonObject().Add("schema", 1).Raw("job", job).Done() + "\n";
}

namespace {

// How the job waits, and what it has used.
std::string QueueText(const JobStatus& job) {
  const QueueStatus& queue = job.queue();
  std::string text = absl::StrCat("priority    ", queue.priority(), "\n");
  if (queue.has_array()) {
    absl::StrAppend(&text, "array       ", queue.array().id(), ", element ", queue.array().index(),
                    "\n");
  }
  if (job.state() == PENDING) {
    absl::StrAppend(&text, "ahead       ", queue.ahead(), "\n");
    const bool soon = queue.has_starts() && TimeOf(queue.starts()) <= TimeOf(job.now());
    absl::StrAppend(&text, "starts      ",
                    soon ? "soon"
                    : queue.has_starts()
                        ? absl::StrCat("in ", ShortAge(TimeOf(queue.starts()) - TimeOf(job.now())),
                                       " at the latest, by the time limits of those before it")
                        : absl::StrCat("not known: ", queue.no_estimate()),
                    "\n");
  }
  if (queue.preemptions() > 0) {
    absl::StrAppend(&text, "preempted   ", queue.preemptions(),
                    queue.preemptions() == 1 ? " time\n" : " times\n");
  }
  if (queue.slot_seconds() > 0) {
    absl::StrAppendFormat(&text, "used        %.1f slot-hours, %.1f GPU-hours\n",
                          queue.slot_seconds() / 3600, queue.gpu_seconds() / 3600);
  }
  return text;
}

// Returns what each failure cost, from the failure on.
std::string FaultsText(const DescribeJobResponse& response) {
  if (response.faults_size() == 0) return "";
  std::vector<std::vector<std::string>> rows = {
      {"FAULT", "RANK", "HOST", "DETECT", "RENDEZVOUS", "RESTORE", "REPLAY", "STEPS", "CAUSE"}};
  const auto ms = [](double value) { return value > 0 ? absl::StrFormat("%.0f ms", value) : "-"; };
  // What lies between two times from the failure on, of which 0 is not known.
  const auto between = [&](double begin, double end) {
    return begin > 0 && end > 0 ? ms(end - begin) : "-";
  };
  for (const Fault& fault : response.faults()) {
    const double met = std::max(0.0, fault.rendezvous_ms() - fault.detect_ms());
    const int64_t number = fault.number() > 0 ? fault.number() : static_cast<int64_t>(rows.size());
    rows.push_back({absl::StrCat(number), absl::StrCat(fault.rank()), fault.host(),
                    ms(fault.detect_ms()), ms(met),
                    between(fault.rendezvous_ms(), fault.restore_ms()),
                    between(fault.restore_ms(), fault.replay_ms()),
                    absl::StrCat(fault.steps_lost()), fault.cause()});
  }
  return AlignedTable(rows);
}

}  // namespace

std::string DescribeText(const DescribeJobResponse& response, const std::string& fetch) {
  const DescribeJobResponse shown = Printed(response);
  const JobStatus& job = shown.status();
  std::string text = absl::StrFormat(
      "job         %s\nname        %s\nstate       %s\nreason      %s\nuser        %s\n"
      "workers     %d of %d\ngeneration  %d\nrestarts    %d\nstep        %s\nfolder      %s\n",
      job.job_id(), job.name(), JobState_Name(job.state()), job.reason(), job.user(), job.workers(),
      job.wanted_workers(), job.generation(), job.restarts(), StepText(job.progress()),
      fetch.empty() ? job.run_dir() : fetch);
  absl::StrAppend(&text, QueueText(job), StampLines(job));
  if (response.has_goodput()) {
    absl::StrAppendFormat(&text, "goodput     %.1f %% of its time it trained\n",
                          100 * response.goodput());
  }
  if (job.wanted_standbys() > 0) {
    absl::StrAppend(&text, "standby     ", job.standbys(), " of ", job.wanted_standbys(),
                    " ready to take over\n");
  }
  if (!job.stall().empty()) absl::StrAppend(&text, "stands      ", job.stall(), "\n");
  if (!job.straggler().empty()) absl::StrAppend(&text, "slowed by   ", job.straggler(), "\n");
  if (!job.moves().empty()) absl::StrAppend(&text, "moves       ", job.moves(), "\n");
  if (shown.members_size() > 0) {
    std::vector<std::vector<std::string>> rows = {{"RANK", "HOST", "PID", "STEP", "NODE", "HAS"}};
    for (const MemberStatus& member : shown.members()) {
      rows.push_back({absl::StrCat(member.rank()), member.host(), absl::StrCat(member.pid()),
                      member.standby() ? "standby" : StepText(member.progress()), member.node_id(),
                      HasText(member.allocation())});
    }
    absl::StrAppend(&text, AlignedTable(rows));
  }
  absl::StrAppend(&text, FaultsText(shown));
  if (job.has_result()) absl::StrAppend(&text, ResultSummary(job, fetch));
  return text;
}

std::string UsageTable(const GetUsageResponse& response) {
  const GetUsageResponse shown = Printed(response);
  std::vector<std::vector<std::string>> rows = {
      {"USER", "SLOT-HOURS", "GPU-HOURS", "ENDED", "RUNNING", "SLOTS", "GPUS", "WAITING"}};
  const auto of = [](int has, int most) {
    return most > 0 ? absl::StrCat(has, "/", most) : absl::StrCat(has);
  };
  for (const UserUsage& user : shown.users()) {
    rows.push_back({user.user(), absl::StrFormat("%.2f", user.slot_seconds() / 3600),
                    absl::StrFormat("%.2f", user.gpu_seconds() / 3600),
                    absl::StrCat(user.ended_jobs()), of(user.running_jobs(), user.most_jobs()),
                    of(user.slots(), user.most_slots()), of(user.gpus(), user.most_gpus()),
                    absl::StrCat(user.waiting_jobs())});
  }
  return AlignedTable(rows);
}

std::string UsageJson(const GetUsageResponse& response) {
  const auto user_json = [](const UserUsage& user) { return MessageJson(user, Unset::kWritten); };
  return JsonObject()
             .Add("schema", 1)
             .Raw("users", JsonArrayOf(response.users(), user_json))
             .Done() +
         "\n";
}

}  // namespace lockstep::launcher
