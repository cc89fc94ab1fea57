// SPDX-License-Identifier: Apache-2.0
#include "launcher/agent/run_folder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdio>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/fd.h"
#include "common/random_hex.h"
#include "common/status.h"
#include "coordinator/client/package_store.h"
#include "job/job_file.h"
#include "launcher/agent/account.h"
#include "launcher/agent/identity.h"

namespace lockstep::launcher {
namespace {

constexpr int kFolder = O_RDONLY | O_DIRECTORY | O_CLOEXEC;
constexpr mode_t kPublic = 0777;  // less the umask
constexpr mode_t kPrivate = 0700;

absl::Status CannotMake(int why, const std::string& path, const std::string& part) {
  return ErrnoStatus(why, absl::StrCat("cannot make the run's folder ", path,
                                       " (start from a folder that you may write to): ", part));
}

// The target of the link `name` in `parent` if the link is the agent's own user's; races with
// nobody, since link and target are looked at through one descriptor.
absl::StatusOr<std::string> OwnLinkTarget(int parent, const std::string& name) {
  UniqueFd link(::openat(parent, name.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
  struct stat info {};
  if (!link.valid() || ::fstat(link.get(), &info) != 0) return ErrnoStatus(errno, name);
  char target[PATH_MAX];
  const ssize_t n = S_ISLNK(info.st_mode) ? ::readlinkat(link.get(), "", target, PATH_MAX) : -1;
  if (n <= 0) return absl::FailedPreconditionError(absl::StrCat(name, " is not a folder"));
  if (info.st_uid != FileUser()) {
    return absl::FailedPreconditionError(
        absl::StrCat(name,
                     " is a symbolic link of another user, which is not followed (--runs-dir "
                     "of the agent names another place for runs)"));
  }
  return std::string(target, static_cast<size_t>(n));
}

// What becomes of a folder that is not there.
enum class IfMissing { kMake, kFail };

// Opens the folder `name` in `parent`, making it with `mode` if it is not there. `links`: a link of
// the own user is followed.
absl::StatusOr<UniqueFd> OpenChild(int parent, const std::string& name, mode_t mode, bool links,
                                   IfMissing missing = IfMissing::kMake) {
  const bool make = missing == IfMissing::kMake;
  const int made = make ? ::mkdirat(parent, name.c_str(), mode) : -1;
  const int why = make ? errno : ENOENT;
  UniqueFd child(::openat(parent, name.c_str(), kFolder | O_NOFOLLOW));
  if (child.valid()) return child;
  if (errno == ENOENT && made != 0) return ErrnoStatus(why, absl::StrCat("mkdir ", name));
  if (errno != ELOOP && errno != ENOTDIR) return ErrnoStatus(errno, name);
  if (!links) {
    return absl::FailedPreconditionError(
        absl::StrCat(name, " is not a folder but a file or a symbolic link"));
  }
  LS_ASSIGN_OR_RETURN(const std::string target, OwnLinkTarget(parent, name));
  child.reset(::openat(parent, target.c_str(), kFolder));
  if (!child.valid()) return ErrnoStatus(errno, absl::StrCat(name, " -> ", target));
  return child;
}

// Checks that nobody but the account that the thread acts as, and root, can put another folder in
// the place of theirs in the folder `fd`.
absl::Status CheckAround(int fd, const std::string& shown) {
  struct stat info {};
  if (!IsAsAccount()) return absl::OkStatus();
  if (::fstat(fd, &info) != 0) return ErrnoStatus(errno, shown);
  const bool own = info.st_uid == FileUser();
  if (!own && info.st_uid != 0) {
    if (!KeepsOwners(fd)) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat("'", shown, "', in which runs lie, was made by user ", info.st_uid,
                     ", who can put others in their place: have it be yours or root's"));
  }
  // Users have groups of their own, in which they are alone.
  const mode_t others = info.st_uid == 0 ? S_IWGRP | S_IWOTH : S_IWOTH;
  if ((info.st_mode & others) != 0 && (info.st_mode & S_ISVTX) == 0 && (own || KeepsOwners(fd))) {
    return absl::FailedPreconditionError(
        absl::StrCat("in '", shown, "', in which runs lie, users can rename each other's: chmod ",
                     "+t keeps them from it"));
  }
  return absl::OkStatus();
}

// The same for the folder around `path`.
absl::Status CheckAroundOwn(const std::string& path) {
  if (!IsAsAccount()) return absl::OkStatus();
  const size_t slash = path.rfind('/');
  const std::string around = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  const UniqueFd folder(::open(around.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!folder.valid()) return ErrnoStatus(errno, around);
  return CheckAround(folder.get(), around);
}

// A folder that the agent's own user named: links are theirs, but for the last name where it is
// made as an account.
absl::StatusOr<UniqueFd> OpenOwn(const std::string& path, IfMissing missing = IfMissing::kMake) {
  for (size_t end = path.find('/', 1); missing == IfMissing::kMake; end = path.find('/', end + 1)) {
    const std::string part = path.substr(0, end);
    const mode_t mode = end == std::string::npos ? kPrivate : kPublic;
    if (::mkdir(part.c_str(), mode) != 0 && errno != EEXIST) {
      // A parent that cannot be written to is no harm while what is below it exists.
      struct stat info {};
      const int why = errno;
      if (::stat(part.c_str(), &info) != 0) {
        return CannotMake(why, path, absl::StrCat("mkdir ", part));
      }
    }
    if (end == std::string::npos) break;
  }
  LS_RETURN_IF_ERROR(CheckAroundOwn(path));
  UniqueFd folder(::open(path.c_str(), kFolder | (IsAsAccount() ? O_NOFOLLOW : 0)));
  if (!folder.valid() && IsAsAccount() && (errno == ELOOP || errno == ENOTDIR)) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " is not a folder but a file or a symbolic link"));
  }
  if (!folder.valid() && missing == IfMissing::kFail) return ErrnoStatus(errno, path);
  if (!folder.valid()) return CannotMake(errno, path, absl::StrCat("open ", path));
  LS_RETURN_IF_ERROR(CheckOwner(folder.get(), path, folder.get()));
  return folder;
}

// The run's folder by the coordinator's word: `run_dir`, step by step from `submit_dir`.
absl::StatusOr<UniqueFd> OpenProposed(const std::string& submit_dir, const std::string& run_dir,
                                      IfMissing missing = IfMissing::kMake) {
  const std::string path = ResolvePath(submit_dir, run_dir);
  UniqueFd folder(::open(submit_dir.c_str(), kFolder));
  if (!folder.valid()) {
    return CannotMake(errno, path,
                      absl::StrCat("the folder ", submit_dir, " that the job was submitted from"));
  }
  std::string shown = submit_dir;
  const std::vector<std::string> parts = absl::StrSplit(run_dir, '/');
  for (size_t i = 0; i < parts.size(); ++i) {
    const bool last = i + 1 == parts.size();
    absl::StatusOr<UniqueFd> child =
        OpenChild(folder.get(), parts[i], last ? kPrivate : kPublic, /*links=*/!last, missing);
    if (!child.ok() && missing == IfMissing::kFail) return Annotate(child.status(), path);
    if (!child.ok()) {
      return absl::Status(
          child.status().code(),
          absl::StrCat("cannot make the run's folder ", path,
                       " (start from a folder that you may write to): ", child.status().message()));
    }
    folder = *std::move(child);
    shown = ResolvePath(shown, parts[i]);
    LS_RETURN_IF_ERROR(last ? CheckOwner(folder.get(), shown, folder.get())
                            : CheckAround(folder.get(), shown));
  }
  return folder;
}

// Returns whether the run's folder has the job's id in its name, as those that the coordinator
// names; another may be that of several jobs.
bool IsNamedAfter(const std::string& folder, const WorkerAssignment& assignment) {
  return absl::EndsWith(folder, absl::StrCat("-", assignment.job_id()));
}

bool Exists(int folder, const std::string& name) {
  return ::faccessat(folder, name.c_str(), F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

// Returns whether the file `name` is an ordinary one with this text.
bool HasText(int folder, const std::string& name, const std::string& text) {
  const UniqueFd fd(::openat(folder, name.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct stat info {};
  if (!fd.valid() || ::fstat(fd.get(), &info) != 0 || !S_ISREG(info.st_mode)) return false;
  std::string found(text.size() + 1, '\0');
  const ssize_t n = ::read(fd.get(), found.data(), found.size());
  return n == static_cast<ssize_t>(text.size()) && found.compare(0, text.size(), text) == 0;
}

// Returns the run's job file, which can be submitted again: with the workdir that a copy was sent
// of.
std::string JobText(const WorkerAssignment& assignment) {
  if (assignment.workdir().empty()) return job::ToYaml(assignment.spec());
  JobSpec spec = assignment.spec();
  spec.set_workdir(assignment.workdir());
  return job::ToYaml(spec);
}

// Appears whole or not at all: other agents may write the same file at the same time, those of
// other containers with the same process number.
absl::Status WriteWhole(int folder, const std::string& name, const std::string& text,
                        const std::string& shown) {
  const std::string temporary = absl::StrCat(name, ".", RandomHex(8), ".tmp");
  UniqueFd fd(::openat(folder, temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!fd.valid()) return ErrnoStatus(errno, absl::StrCat("cannot write ", shown));
  const ssize_t n = ::write(fd.get(), text.data(), text.size());
  int why = n < 0 ? errno : ENOSPC;
  if (n == static_cast<ssize_t>(text.size())) {
    if (::renameat(folder, temporary.c_str(), folder, name.c_str()) == 0) return absl::OkStatus();
    why = errno;
  }
  ::unlinkat(folder, temporary.c_str(), 0);
  return ErrnoStatus(why, absl::StrCat("cannot write ", shown));
}

absl::StatusOr<UniqueFd> OpenLog(int logs, const std::string& name, const std::string& shown) {
  UniqueFd fd(::openat(logs, name.c_str(),
                       O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600));
  struct stat info {};
  if (!fd.valid() || ::fstat(fd.get(), &info) != 0) {
    return ErrnoStatus(errno, absl::StrCat("cannot open the log ", shown,
                                           errno == ELOOP ? ", which is a symbolic link" : ""));
  }
  if (!S_ISREG(info.st_mode)) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot open the log ", shown, ": it is no ordinary file"));
  }
  LS_RETURN_IF_ERROR(CheckOwner(fd.get(), shown, logs));
  return fd;
}

// Checks whose the folder is in which the ranks' errors lie, if a worker has made it.
absl::Status CheckErrors(int folder, const std::string& path) {
  const UniqueFd errors(::openat(folder, "errors", O_PATH | O_NOFOLLOW | O_CLOEXEC));
  if (!errors.valid()) return absl::OkStatus();
  return CheckOwner(errors.get(), absl::StrCat(path, "/errors"), folder);
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

absl::Status CheckAssignment(const WorkerAssignment& assignment) {
  const auto refuse = [](const std::string& what) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the coordinator asks for ", what, ": is it a coordinator, and of the same version?"));
  };
  if (!IsPlainName(assignment.job_id()))
    return refuse("a job whose id has other characters than A-Z, a-z, 0-9, '.', '_', '-'");
  if (!IsPlainName(assignment.incarnation()))
    return refuse("a worker whose name has other characters than A-Z, a-z, 0-9, '.', '_', '-'");
  if (assignment.slot() < 0) return refuse("a worker in a place below 0");
  if (assignment.submit_dir().empty() || assignment.submit_dir()[0] != '/') {
    return refuse("a job that was submitted from a relative folder");
  }
  const std::string& run_dir = assignment.run_dir();
  if (run_dir.empty()) return refuse("a run without a folder");
  for (const absl::string_view part : absl::StrSplit(run_dir, '/')) {
    if (!IsPlainName(std::string(part))) {
      return refuse(
          "a run's folder outside the submitter's, or with other characters than A-Z, "
          "a-z, 0-9, '.', '_', '-' (the job's name is a part of it)");
    }
  }
  return absl::OkStatus();
}

std::string RunFolder(const WorkerAssignment& assignment) {
  return ResolvePath(assignment.submit_dir(), assignment.run_dir());
}

std::string WorkFolder(const WorkerAssignment& assignment) {
  if (!coordinator::PackageOf(assignment.spec().workdir()).empty()) {
    const std::string folder = RunFolder(assignment);
    if (IsNamedAfter(folder, assignment)) return absl::StrCat(folder, "/workdir");
    return absl::StrCat(folder, "/workdir-", assignment.job_id());
  }
  return ResolvePath(assignment.submit_dir(), assignment.spec().workdir());
}

absl::StatusOr<UniqueFd> FindRunFolder(const WorkerAssignment& assignment, bool own) {
  if (!own) {
    return OpenProposed(assignment.submit_dir(), assignment.run_dir(), IfMissing::kFail);
  }
  return OpenOwn(RunFolder(assignment), IfMissing::kFail);
}

absl::Status MakeRunFolder(const WorkerAssignment& assignment, bool own) {
  return (own ? OpenOwn(RunFolder(assignment))
              : OpenProposed(assignment.submit_dir(), assignment.run_dir()))
      .status();
}

absl::StatusOr<UniqueFd> OpenRunLog(const WorkerAssignment& assignment, bool own) {
  const std::string path = RunFolder(assignment);
  LS_ASSIGN_OR_RETURN(
      const UniqueFd folder,
      own ? OpenOwn(path) : OpenProposed(assignment.submit_dir(), assignment.run_dir()));
  absl::StatusOr<UniqueFd> logs = OpenChild(folder.get(), "logs", kPrivate, /*links=*/false);
  if (!logs.ok()) return Annotate(logs.status(), path);
  LS_RETURN_IF_ERROR(CheckOwner(logs->get(), absl::StrCat(path, "/logs"), logs->get()));
  LS_RETURN_IF_ERROR(CheckErrors(folder.get(), path));
  const auto job = [&] { return JobText(assignment); };
  std::string name = "job.yaml";
  // The user's own file in a folder of their choice stays, and so does that of a job which had the
  // folder before.
  if (!IsNamedAfter(path, assignment) && Exists(folder.get(), name) &&
      !HasText(folder.get(), name, job())) {
    name = absl::StrCat("job-", assignment.job_id(), ".yaml");
  }
  if (!Exists(folder.get(), name)) {
    LS_RETURN_IF_ERROR(WriteWhole(folder.get(), name, job(), absl::StrCat(path, "/", name)));
  }
  const std::string log = absl::StrCat(assignment.slot(), ".log");
  return OpenLog(logs->get(), log, absl::StrCat(path, "/logs/", log));
}

}  // namespace lockstep::launcher
