// SPDX-License-Identifier: Apache-2.0
#include "launcher/package/package.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/fd.h"
#include "common/printable.h"
#include "common/status.h"
#include "common/utf8.h"
#include "coordinator/client/package_store.h"
#include "launcher/package/ignore.h"
#include "proto/package.pb.h"

namespace lockstep::launcher {
namespace {

using coordinator::kMostPackageBytes;
using coordinator::PackageId;

constexpr char kIgnoreFile[] = ".lockstepignore";
constexpr int kFolderFlags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;

// The parts of a path below a folder; empty: it is none.
std::vector<std::string> PartsOf(const std::string& path) {
  std::vector<std::string> parts = absl::StrSplit(path, '/');
  for (const std::string& part : parts) {
    if (part.empty() || part == "." || part == ".." || part.size() > NAME_MAX) return {};
    if (part.find('\0') != part.npos) return {};
  }
  return parts;
}

// Returns whether a link at `name` to `target` stays in the folder, whatever other links are in it:
// a way through one of them is not taken.
bool StaysInside(const std::string& name, const std::string& target) {
  if (target.empty() || target[0] == '/' || target.find('\0') != target.npos) return false;
  int depth = static_cast<int>(PartsOf(name).size()) - 1;
  bool down = false;
  for (absl::string_view part : absl::StrSplit(target, '/')) {
    if (part.empty() || part == ".") continue;
    if (part == "..") {
      if (down || --depth < 0) return false;
    } else {
      down = true;
    }
  }
  return true;
}

absl::StatusOr<std::string> ReadAll(int fd, int64_t most, const std::atomic<bool>& stopped) {
  std::string text;
  char buffer[64 << 10];
  while (true) {
    if (stopped) return absl::CancelledError("stopped");
    const ssize_t n = ::read(fd, buffer, sizeof(buffer));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, "read");
    if (n == 0) return text;
    text.append(buffer, static_cast<size_t>(n));
    if (static_cast<int64_t>(text.size()) > most) {
      return absl::ResourceExhaustedError("it grows while it is read");
    }
  }
}

class Packer {
 public:
  Packer(const std::string& runs, const std::atomic<bool>& stopped) : stopped_(stopped) {
    if (!runs.empty()) has_runs_ = ::stat(runs.c_str(), &runs_) == 0;
  }
  absl::Status Run(const std::string& folder) {
    UniqueFd top(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!top.valid()) return ErrnoStatus(errno, absl::StrCat("the workdir ", folder));
    const UniqueFd rules(::openat(top.get(), kIgnoreFile, O_RDONLY | O_CLOEXEC));
    std::string text;
    if (rules.valid()) {
      LS_ASSIGN_OR_RETURN(text, ReadAll(rules.get(), kMostPackageBytes, stopped_));
    }
    rules_ = std::make_unique<IgnoreRules>(text);
    LS_RETURN_IF_ERROR(List(top.get(), ""));
    if (bytes_ > kMostPackageBytes || found_.size() > kMostPackageFiles) return TooMuch(folder);
    std::sort(found_.begin(), found_.end(),
              [](const Found& a, const Found& b) { return a.name < b.name; });
    for (const Found& found : found_) LS_RETURN_IF_ERROR(Add(top.get(), found));
    return absl::OkStatus();
  }
  PackedFolder packed;

 private:
  struct Found {
    std::string name;
    int64_t bytes = 0;
    bool executable = false;
    std::string link;
  };

  // Adds what is in the folder `fd`, whose path is `path`, to found_.
  absl::Status List(int fd, const std::string& path) {
    DIR* const opened = ::fdopendir(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
    if (opened == nullptr) return ErrnoStatus(errno, path);
    const std::unique_ptr<DIR, int (*)(DIR*)> listing(opened, ::closedir);
    while (true) {
      errno = 0;  // at the end of the folder, too, there is no entry
      const dirent* const entry = ::readdir(listing.get());
      if (entry == nullptr) break;
      const std::string name = entry->d_name;
      if (stopped_) return absl::CancelledError("stopped");
      if (name == "." || name == "..") continue;
      LS_RETURN_IF_ERROR(Look(fd, name, path.empty() ? name : absl::StrCat(path, "/", name)));
    }
    if (errno != 0) return ErrnoStatus(errno, path.empty() ? "the workdir" : path);
    return absl::OkStatus();
  }

  absl::Status Look(int folder, const std::string& name, const std::string& path) {
    struct stat status;
    if (::fstatat(folder, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) {
      return errno == ENOENT ? absl::OkStatus() : ErrnoStatus(errno, path);
    }
    if (rules_->Ignores(path, S_ISDIR(status.st_mode)) || IsOfRuns(status)) return absl::OkStatus();
    // A package's names are text.
    if (ToUtf8(name) != name) {
      return absl::FailedPreconditionError(
          absl::StrCat("the name '", Printable(path), "' is not UTF-8: rename it, or leave it out ",
                       "in ", kIgnoreFile));
    }
    if (S_ISDIR(status.st_mode)) {
      const UniqueFd child(::openat(folder, name.c_str(), kFolderFlags));
      if (!child.valid()) return ErrnoStatus(errno, path);
      return List(child.get(), path);
    }
    Found found{path, status.st_size, (status.st_mode & S_IXUSR) != 0, ""};
    if (S_ISLNK(status.st_mode)) {
      char target[PATH_MAX];
      const ssize_t n = ::readlinkat(folder, name.c_str(), target, sizeof(target));
      if (n < 0) return ErrnoStatus(errno, path);
      found.link.assign(target, static_cast<size_t>(n));
      if (ToUtf8(found.link) != found.link) {
        return absl::FailedPreconditionError(absl::StrCat(
            path, " is a link to '", Printable(found.link),
            "', which is not UTF-8: ", "rename that, or leave the link out in ", kIgnoreFile));
      }
      if (!StaysInside(path, found.link)) {
        return absl::FailedPreconditionError(
            absl::StrCat(path, " is a link out of the workdir (", Printable(found.link),
                         "): copy what is meant, or leave it out in ", kIgnoreFile));
      }
    } else if (!S_ISREG(status.st_mode)) {
      return absl::FailedPreconditionError(
          absl::StrCat(path, " is neither a file nor a folder: leave it out in ", kIgnoreFile));
    }
    bytes_ += found.bytes;
    found_.push_back(std::move(found));
    return absl::OkStatus();
  }

  bool IsOfRuns(const struct stat& status) const {
    return has_runs_ && status.st_dev == runs_.st_dev && status.st_ino == runs_.st_ino;
  }

  absl::Status Add(int top, const Found& found) {
    PackedFile& file = *packed.add_files();
    file.set_name(found.name);
    file.set_link(found.link);
    if (!found.link.empty()) return absl::OkStatus();
    file.set_executable(found.executable);
    const UniqueFd fd(::openat(top, found.name.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
    if (!fd.valid()) return ErrnoStatus(errno, found.name);
    absl::StatusOr<std::string> data = ReadAll(fd.get(), kMostPackageBytes, stopped_);
    if (!data.ok()) return Annotate(data.status(), found.name);
    file.set_data(*std::move(data));
    return absl::OkStatus();
  }

  absl::Status TooMuch(const std::string& folder) {
    constexpr size_t kNamed = 5;
    const size_t named = std::min(kNamed, found_.size());
    std::partial_sort(found_.begin(), found_.begin() + static_cast<ptrdiff_t>(named), found_.end(),
                      [](const Found& a, const Found& b) { return a.bytes > b.bytes; });
    std::vector<std::string> largest;
    for (size_t i = 0; i < named; ++i) {
      largest.push_back(absl::StrCat(found_[i].name, " (", found_[i].bytes, " bytes)"));
    }
    return absl::ResourceExhaustedError(
        absl::StrCat("the workdir ", folder, " has ", found_.size(), " files and ", bytes_,
                     " bytes, and is sent with at most ", kMostPackageFiles, " and ",
                     kMostPackageBytes, "; the largest: ", absl::StrJoin(largest, ", "),
                     ". Leave out what the job does not need, in ", folder, "/", kIgnoreFile,
                     ", and keep data in a folder that the nodes have"));
  }

  const std::atomic<bool>& stopped_;
  bool has_runs_ = false;
  struct stat runs_ = {};
  std::unique_ptr<IgnoreRules> rules_;
  std::vector<Found> found_;
  int64_t bytes_ = 0;
};

// The folder that `parts` lead to but for the last one, made where it is missing.
absl::StatusOr<UniqueFd> FolderOf(int top, const std::vector<std::string>& parts) {
  UniqueFd folder(::fcntl(top, F_DUPFD_CLOEXEC, 0));
  for (size_t i = 0; i + 1 < parts.size(); ++i) {
    if (::mkdirat(folder.get(), parts[i].c_str(), 0700) != 0 && errno != EEXIST) {
      return ErrnoStatus(errno, parts[i]);
    }
    UniqueFd child(::openat(folder.get(), parts[i].c_str(), kFolderFlags));
    if (!child.valid()) return ErrnoStatus(errno, parts[i]);
    folder = std::move(child);
  }
  return folder;
}

absl::Status WriteFile(int top, const PackedFile& file) {
  const std::vector<std::string> parts = PartsOf(file.name());
  LS_ASSIGN_OR_RETURN(const UniqueFd folder, FolderOf(top, parts));
  if (!file.link().empty()) {
    if (::symlinkat(file.link().c_str(), folder.get(), parts.back().c_str()) == 0) {
      return absl::OkStatus();
    }
    return ErrnoStatus(errno, file.name());
  }
  const UniqueFd fd(::openat(folder.get(), parts.back().c_str(),
                             O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                             file.executable() ? 0700 : 0600));
  if (!fd.valid()) return ErrnoStatus(errno, file.name());
  for (size_t at = 0; at < file.data().size();) {
    const ssize_t n = ::write(fd.get(), file.data().data() + at, file.data().size() - at);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, file.name());
    at += static_cast<size_t>(n);
  }
  // The folder gets its name next: after a loss of power that would outlive what has not come to
  // the disk, and an empty file would be run.
  if (::fsync(fd.get()) != 0) return ErrnoStatus(errno, file.name());
  return absl::OkStatus();
}

absl::Status CheckNames(const PackedFolder& packed) {
  std::set<std::string> names;
  for (const PackedFile& file : packed.files()) {
    const bool good = !PartsOf(file.name()).empty() && names.insert(file.name()).second &&
                      (file.link().empty() || StaysInside(file.name(), file.link()));
    if (!good) {
      return absl::InvalidArgumentError(
          absl::StrCat("a package has the name or link '", Printable(file.name()),
                       "', which is not allowed: nothing of it is used"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Package> PackFolder(const std::string& folder, const std::string& runs,
                                   const std::atomic<bool>& stopped) {
  Packer packer(runs, stopped);
  LS_RETURN_IF_ERROR(packer.Run(folder));
  Package package;
  package.files = packer.packed.files_size();
  package.bytes = packer.packed.SerializeAsString();
  package.id = PackageId(package.bytes);
  return package;
}

absl::Status UnpackFolder(std::string_view bytes, const std::string& id,
                          const std::string& folder) {
  PackedFolder packed;
  if (PackageId(bytes) != id ||
      !packed.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return absl::DataLossError(absl::StrCat("the package ", id, " is damaged"));
  }
  LS_RETURN_IF_ERROR(CheckNames(packed));
  if (::mkdir(folder.c_str(), 0700) != 0) return ErrnoStatus(errno, folder);
  const UniqueFd top(::open(folder.c_str(), kFolderFlags));
  if (!top.valid()) return ErrnoStatus(errno, folder);
  // Links come last, so that no name leads through one.
  for (const bool links : {false, true}) {
    for (const PackedFile& file : packed.files()) {
      if (file.link().empty() == links) continue;
      LS_RETURN_IF_ERROR(Annotate(WriteFile(top.get(), file), folder));
    }
  }
  return absl::OkStatus();
}

}  // namespace lockstep::launcher
