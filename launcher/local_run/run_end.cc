// SPDX-License-Identifier: Apache-2.0
#include "launcher/local_run/run_end.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/printable.h"
#include "launcher/follow/result.h"
#include "launcher/local_run/chaos_report.h"
#include "launcher/verbs/fetch.h"

namespace lockstep::launcher {
namespace {

constexpr absl::Duration kLookAgain = absl::Milliseconds(100);

}  // namespace

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
  std::error_code none;
  const bool logs = std::filesystem::exists(status.run_dir() + "/logs", none);
  std::string result =
      record.json
          ? ResultJson(status)
          : ResultSummary(status, logs ? "" : status.run_dir() + "/logs (not on this host)");
  if (!record.faults.empty()) {
    AddSuffered(ReadSuffered(status.run_dir(), status.job_id(), record.faults, record.refused),
                record.json, &result);
  }
  text << result;
  return text.str();
}

std::string FetchModel(coordinator::FilesClient* files, const JobStatus& ended) {
  const auto fetched = FetchFiles(files, {.job = ended.job_id(), .model = true});
  if (fetched.ok() && fetched->missing.empty()) {
    return absl::StrCat("the model is in ", fetched->folder, "/model on this host");
  }
  const std::string why =
      fetched.ok() ? fetched->missing.front() : std::string(fetched.status().message());
  return absl::StrCat("warning: the model stays on the host of rank 0: ", why, "; copy it from ",
                      ended.result().model_path(), " there");
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
