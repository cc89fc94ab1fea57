// SPDX-License-Identifier: Apache-2.0
#include "launcher/local_run/run_lock.h"

#include <unistd.h>

#include <filesystem>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/lock_file.h"
#include "common/printable.h"
#include "launcher/agent/run_folder.h"

namespace lockstep::launcher {

absl::StatusOr<RunLock> RunLock::Take(const std::string& run_dir) {
  WorkerAssignment assignment;
  assignment.set_submit_dir(std::filesystem::current_path().string());
  assignment.set_run_dir(run_dir);
  // The agent, which needs it, says why it cannot be made.
  if (!MakeRunFolder(assignment, /*own=*/true).ok()) return RunLock();
  const std::string path = absl::StrCat(run_dir, "/.lock");
  absl::StatusOr<UniqueFd> locked = LockFile(path, absl::ZeroDuration());
  if (absl::IsDeadlineExceeded(locked.status())) {
    const std::string id(absl::StripAsciiWhitespace(ReadText(path)));
    return absl::FailedPreconditionError(absl::StrCat(
        "the folder ", Printable(run_dir), " (--run-dir) is in use by ",
        id.empty() ? "another run" : absl::StrCat("the run ", Printable(id)),
        ", and each would write over the other's model: wait for its end, or name another folder"));
  }
  if (!locked.ok()) return RunLock();
  RunLock lock(*std::move(locked));
  lock.Name("");  // until it is known
  return lock;
}

void RunLock::Name(const std::string& job_id) {
  if (!file_.valid()) return;
  const std::string line = job_id.empty() ? "" : absl::StrCat(job_id, "\n");
  // Who is refused does without the name.
  if (::ftruncate(file_.get(), 0) != 0) return;
  (void)!::pwrite(file_.get(), line.data(), line.size(), 0);
}

}  // namespace lockstep::launcher
