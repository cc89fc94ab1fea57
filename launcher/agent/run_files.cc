// SPDX-License-Identifier: Apache-2.0
#include "launcher/agent/run_files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/hmac.h"
#include "common/printable.h"
#include "common/status.h"
#include "launcher/agent/run_folder.h"

namespace lockstep::launcher {
namespace {

constexpr int kFolder = O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW;

struct CloseFolder {
  void operator()(DIR* folder) const { ::closedir(folder); }
};

// Opens `name` below `folder`, step by step. Errors: those of openat(2); FailedPrecondition for a
// link.
absl::StatusOr<UniqueFd> OpenBelow(int folder, const std::string& name, int flags) {
  UniqueFd at;
  int parent = folder;
  const std::vector<std::string> parts = absl::StrSplit(name, '/');
  for (size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].empty() || parts[i] == "." || parts[i] == "..") {
      return absl::InvalidArgumentError(absl::StrCat("'", name, "' is no name of a run's file"));
    }
    const bool last = i + 1 == parts.size();
    UniqueFd next(::openat(parent, parts[i].c_str(), last ? flags : kFolder));
    if (!next.valid() && (errno == ELOOP || errno == ENOTDIR)) {
      return absl::FailedPreconditionError(
          absl::StrCat(name, ": ", parts[i], " is a symbolic link, which is not followed"));
    }
    if (!next.valid()) return ErrnoStatus(errno, name);
    at = std::move(next);
    parent = at.get();
  }
  return at;
}

// Adds the ordinary files in `name` below `root` (empty: the root itself).
absl::Status AddFiles(int root, const std::string& name, int depth, bool deep,
                      std::vector<std::string>* names) {
  if (depth > kMostRunFolders) return absl::OkStatus();
  UniqueFd folder;
  if (name.empty()) {
    folder.reset(::openat(root, ".", kFolder));
    if (!folder.valid()) return ErrnoStatus(errno, "the run's folder");
  } else {
    absl::StatusOr<UniqueFd> opened = OpenBelow(root, name, kFolder);
    if (absl::IsNotFound(opened.status())) return absl::OkStatus();
    LS_RETURN_IF_ERROR(opened.status());
    folder = *std::move(opened);
  }
  const std::unique_ptr<DIR, CloseFolder> entries(::fdopendir(folder.release()));
  if (entries == nullptr) return ErrnoStatus(errno, name);
  while (const dirent* entry = ::readdir(entries.get())) {
    const std::string child = entry->d_name;
    if (!IsRunFileName(child)) continue;
    struct stat info {};
    if (::fstatat(::dirfd(entries.get()), child.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0) continue;
    const std::string path = name.empty() ? child : absl::StrCat(name, "/", child);
    if (S_ISREG(info.st_mode)) names->push_back(path);
    if (S_ISDIR(info.st_mode) && deep) {
      LS_RETURN_IF_ERROR(AddFiles(root, path, depth + 1, deep, names));
    }
    if (names->size() > kMostRunFiles) {
      return absl::ResourceExhaustedError(
          absl::StrCat("the run's folder has more than ", kMostRunFiles, " files"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

bool IsRunFileName(const std::string& name) {
  return !name.empty() && name[0] != '.' && !absl::StrContains(name, '/') &&
         Printable(name) == name;
}

absl::StatusOr<UniqueFd> OpenRunFolder(const SendFiles& wanted, const std::string& run_dir,
                                       const std::string& runs_dir) {
  WorkerAssignment assignment;
  assignment.set_job_id(wanted.job_id());
  assignment.set_incarnation("none");
  assignment.set_submit_dir(wanted.submit_dir());
  assignment.set_run_dir(wanted.run_dir());
  LS_RETURN_IF_ERROR(CheckAssignment(assignment));
  if (!absl::EndsWith(wanted.run_dir(), absl::StrCat("-", wanted.job_id()))) {
    return absl::InvalidArgumentError(
        absl::StrCat(wanted.run_dir(), " is no folder of a run of job ", wanted.job_id()));
  }
  assignment.set_run_dir(ChosenRunFolder(run_dir, runs_dir, wanted.run_dir()));
  absl::StatusOr<UniqueFd> folder =
      FindRunFolder(assignment, /*own=*/!run_dir.empty() || !runs_dir.empty());
  if (!folder.ok()) return Annotate(folder.status(), "the run's folder cannot be read");
  return folder;
}

absl::StatusOr<std::vector<std::string>> ListRunFiles(int folder, const SendFiles& wanted) {
  std::vector<std::string> names;
  if (wanted.all()) {
    LS_RETURN_IF_ERROR(AddFiles(folder, "", 0, /*deep=*/true, &names));
  } else {
    if (wanted.records()) LS_RETURN_IF_ERROR(AddFiles(folder, "", 1, /*deep=*/false, &names));
    if (wanted.logs()) LS_RETURN_IF_ERROR(AddFiles(folder, "logs", 1, /*deep=*/false, &names));
    if (wanted.model()) LS_RETURN_IF_ERROR(AddFiles(folder, "model", 1, /*deep=*/false, &names));
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string PieceDigest(const std::string& before, const std::string& data) {
  return HmacSha256(before, data);
}

absl::Status SendRunFile(int folder, const std::string& name, const PieceSink& sink) {
  LS_ASSIGN_OR_RETURN(const UniqueFd file,
                      OpenBelow(folder, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct stat info {};
  if (::fstat(file.get(), &info) != 0) return ErrnoStatus(errno, name);
  if (!S_ISREG(info.st_mode)) {
    return absl::FailedPreconditionError(absl::StrCat(name, " is no ordinary file"));
  }
  std::string digest = name;
  int64_t sent = 0;
  do {
    FilePiece piece;
    piece.set_name(name);
    piece.set_size(info.st_size);
    std::string& data = *piece.mutable_data();
    data.resize(static_cast<size_t>(
        std::min<int64_t>(static_cast<int64_t>(kPieceBytes), info.st_size - sent)));
    size_t filled = 0;
    while (filled < data.size()) {
      const ssize_t n = ::read(file.get(), data.data() + filled, data.size() - filled);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return ErrnoStatus(errno, name);
      if (n == 0) return absl::DataLossError(absl::StrCat(name, " became shorter meanwhile"));
      filled += static_cast<size_t>(n);
    }
    digest = PieceDigest(digest, data);
    piece.set_digest(digest);
    sent += static_cast<int64_t>(data.size());
    if (!sink(piece)) return absl::CancelledError("nobody takes the files any more");
  } while (sent < info.st_size);
  return absl::OkStatus();
}

}  // namespace lockstep::launcher
