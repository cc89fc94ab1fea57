// SPDX-License-Identifier: Apache-2.0
#include "launcher/agent/run_folder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "common/fd.h"
#include "common/status.h"
#include "job/job_file.h"

namespace lockstep::launcher {
namespace {

absl::Status MakeFolders(const std::string& path) {
  for (size_t end = path.find('/', 1);; end = path.find('/', end + 1)) {
    const std::string part = path.substr(0, end);
    if (::mkdir(part.c_str(), 0777) != 0 && errno != EEXIST) {
      // A parent that cannot be written to is no harm while what is below it exists.
      struct stat info {};
      const int why = errno;
      if (::stat(part.c_str(), &info) != 0) {
        return ErrnoStatus(
            why, absl::StrCat("cannot make the run's folder ", path,
                              " (start from a folder that you may write to): mkdir ", part));
      }
    }
    if (end == std::string::npos) return absl::OkStatus();
  }
}

// Appears whole or not at all: other agents may write the same file at the same time.
absl::Status WriteWhole(const std::string& path, const std::string& text) {
  const std::string temporary = absl::StrCat(path, ".", ::getpid(), ".tmp");
  UniqueFd fd(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (!fd.valid()) return ErrnoStatus(errno, absl::StrCat("cannot write ", path));
  const ssize_t n = ::write(fd.get(), text.data(), text.size());
  const int why = n < 0 ? errno : ENOSPC;
  if (n != static_cast<ssize_t>(text.size()) || ::rename(temporary.c_str(), path.c_str()) != 0) {
    ::unlink(temporary.c_str());
    return ErrnoStatus(why, absl::StrCat("cannot write ", path));
  }
  return absl::OkStatus();
}

}  // namespace

std::string ResolvePath(const std::string& folder, const std::string& path) {
  if (path.empty()) return folder;
  if (path[0] == '/' || folder.empty()) return path;
  return absl::StrCat(folder, folder.back() == '/' ? "" : "/", path);
}

std::string ChosenRunFolder(const std::string& run_dir, const std::string& runs_dir,
                            const std::string& proposed) {
  if (!run_dir.empty()) return run_dir;
  if (runs_dir.empty()) return proposed;
  return ResolvePath(runs_dir, proposed.substr(proposed.rfind('/') + 1));
}

std::string RunFolder(const WorkerAssignment& assignment) {
  return ResolvePath(assignment.submit_dir(), assignment.run_dir());
}

std::string WorkFolder(const WorkerAssignment& assignment) {
  return ResolvePath(assignment.submit_dir(), assignment.spec().workdir());
}

std::string LogPath(const WorkerAssignment& assignment) {
  return absl::StrCat(RunFolder(assignment), "/logs/", assignment.slot(), ".log");
}

absl::Status PrepareRunFolder(const WorkerAssignment& assignment) {
  const std::string folder = RunFolder(assignment);
  const std::string job_file = absl::StrCat(folder, "/job.yaml");
  if (::access(job_file.c_str(), F_OK) == 0) return absl::OkStatus();  // made with the first worker
  LS_RETURN_IF_ERROR(MakeFolders(absl::StrCat(folder, "/logs")));
  return WriteWhole(job_file, job::ToYaml(assignment.spec()));
}

}  // namespace lockstep::launcher
