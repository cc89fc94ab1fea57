// SPDX-License-Identifier: Apache-2.0
#include "worker/setup/own_files.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "common/printable.h"
#include "worker/setup/opened_data.h"

namespace lockstep::worker {
namespace {

namespace fs = std::filesystem;

// Returns whether `path`, which need not be there, is `folder` or lies in it.
bool LiesIn(const fs::path& path, const fs::path& folder) {
  std::error_code error;
  const fs::path inner = fs::weakly_canonical(fs::absolute(path, error), error);
  if (error) return false;
  const fs::path outer = fs::canonical(folder, error);
  if (error) return false;
  return std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end()).first == outer.end();
}

}  // namespace

absl::Status CheckOwnFilesAreNoData(const JobSpec& job, const std::string& run_dir) {
  const Data& data = job.train().data();
  std::error_code error;
  if (!data.has_text() || !fs::is_directory(data.text().path(), error)) return absl::OkStatus();
  const auto refuse = [&](const std::string& what, const std::string& folder,
                          const std::string& advice) {
    return absl::InvalidArgumentError(absl::StrCat(
        "train.data.text.path: the folder ", Printable(data.text().path()), " holds ", what, " (",
        Printable(folder), "), so that it would train on what it writes: name a folder of texts ",
        "alone, or ", advice));
  };
  if (LiesIn(run_dir, data.text().path())) {
    return refuse("this run's folder", run_dir, "have runs elsewhere with --runs-dir");
  }
  if (SavesCheckpoints(job) && LiesIn(job.checkpoint().dir(), data.text().path())) {
    return refuse("this job's checkpoints", job.checkpoint().dir(), "another checkpoint.dir");
  }
  return absl::OkStatus();
}

}  // namespace lockstep::worker
