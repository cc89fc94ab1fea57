// SPDX-License-Identifier: Apache-2.0
#include "launcher/local_run/run_end.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/clock.h"
#include "common/printable.h"
#include "launcher/follow/result.h"
#include "launcher/local_run/chaos_report.h"
#include "launcher/verbs/fetch.h"

namespace lockstep::launcher {
namespace {

constexpr absl::Duration kLookAgain = absl::Milliseconds(100);

// Returns what is said of logs that are not in the run's folder here; "": they may be.
std::string LogsElsewhere(const JobStatus& status, const RunRecord& record) {
  if (record.disk_hangs) return "";
  const std::string logs = status.run_dir() + "/logs";
  std::error_code none;
  const bool here = std::filesystem::exists(logs, none) &&
                    (record.logs_before.empty() || LogsIn(status.run_dir()) != record.logs_before);
  return here ? "" : logs + " (not on this host)";
}

}  // namespace

std::string LogsIn(const std::string& run_dir) {
  std::set<std::string> logs;
  std::error_code none;
  std::filesystem::directory_iterator file(run_dir + "/logs", none);
  for (; file != std::filesystem::directory_iterator(); file.increment(none)) {
    const auto written = file->last_write_time(none).time_since_epoch().count();
    logs.insert(absl::StrCat(file->path().filename().string(), " ", file->file_size(none), " ",
                             static_cast<int64_t>(written)));
  }
  return absl::StrJoin(logs, "\n");
}

std::string ResultText(const JobStatus& status, const RunRecord& record) {
  std::stringstream text;
  // What --profile measured goes before the summary.
  if (record.profiled && !record.json) {
    std::stringstream measured;
    if (std::ifstream profile(status.run_dir() + "/profile.txt"); profile) {
      measured << profile.rdbuf();
      text << PrintableLines(measured.str()) << "\n";
    }
  }
  std::string result =
      record.json ? ResultJson(status) : ResultSummary(status, LogsElsewhere(status, record));
  if (!record.faults.empty()) {
    AddSuffered(ReadSuffered(status.run_dir(), status.job_id(), record.faults, record.refused),
                record.json, &result);
  }
  text << result;
  return text.str();
}

BroughtModel BringModel(coordinator::FilesClient* files, const JobStatus& ended,
                        const std::string& run_dir, const std::function<bool()>& go_on) {
  const absl::StatusOr<std::string> folder = FetchModel(files, ended, run_dir, go_on);
  if (!folder.ok()) {
    return {
        absl::StrCat("warning: the model stays on the host of rank 0: ", folder.status().message(),
                     "; copy it from ", ended.result().model_path(), " there"),
        absl::IsCancelled(folder.status())};
  }
  if (folder->empty()) return {};
  return {absl::StrCat("the model is in ", *folder, "/model on this host")};
}

bool HungDisk::Wait(const std::string& what, bool waits) {
  if (!waits) {
    renderer_->Message(absl::StrCat("warning: ", what, ": ends without waiting for that"));
    return false;
  }
  const absl::Time now = Clock::Real()->Now();
  if (since_ > now) {
    renderer_->Message(absl::StrCat("warning: ", what, ": the launcher waits (Ctrl-C ends it)"));
  }
  since_ = std::min(since_, now);
  Clock::Real()->Sleep(kLookAgain);
  return true;
}

absl::Duration HungDisk::waited() const {
  return std::max(absl::ZeroDuration(), Clock::Real()->Now() - since_);
}

}  // namespace lockstep::launcher
