// SPDX-License-Identifier: Apache-2.0
#include "coordinator/client/private_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/fd.h"
#include "common/random_hex.h"
#include "common/status.h"

namespace lockstep::coordinator {
namespace {

constexpr size_t kMaxBytes = 64 << 10;

// A pipe is for its two ends alone, and needs no look at its mode.
absl::Status CheckPrivate(int fd, const std::string& file, absl::string_view what) {
  struct stat status;
  if (::fstat(fd, &status) != 0) return ErrnoStatus(errno, file);
  if (S_ISFIFO(status.st_mode)) return absl::OkStatus();
  if (!S_ISREG(status.st_mode)) {
    return absl::FailedPreconditionError(absl::StrCat("the ", what, " '", file, "' is no file"));
  }
  if (status.st_uid != ::geteuid() && status.st_uid != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("the ", what, " '", file, "' belongs to user ", status.st_uid));
  }
  if (!IsPrivate(status.st_uid, status.st_mode, ::geteuid())) {
    return absl::FailedPreconditionError(absl::StrCat("others can read the ", what, " '", file,
                                                      "': make it private (chmod 600 ", file, ")"));
  }
  return absl::OkStatus();
}

std::string CannotMake(const std::string& file, absl::string_view what) {
  return absl::StrCat("cannot make the ", what, " ", file);
}

// Gives `fd` the group and the mode of the file that it is to replace, if there is one and they
// keep it private. Else it stays as it was made.
void KeepMode(int fd, const std::string& file) {
  constexpr uid_t kSomebody = 1;  // who reads what is root's
  struct stat before;
  if (::lstat(file.c_str(), &before) != 0 || !S_ISREG(before.st_mode)) return;
  const uid_t own = ::geteuid();
  const mode_t mode = before.st_mode & 0777;
  if (!IsPrivate(own, mode, own == 0 ? kSomebody : own)) return;
  if (::fchown(fd, static_cast<uid_t>(-1), before.st_gid) == 0) (void)::fchmod(fd, mode);
}

// Writes and flushes a private file beside `file`; its name.
absl::StatusOr<std::string> WriteBeside(const std::string& file, absl::string_view what,
                                        absl::string_view text) {
  std::string fresh = absl::StrCat(file, ".", RandomHex(8));
  const UniqueFd fd(::open(fresh.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!fd.valid()) return ErrnoStatus(errno, CannotMake(file, what));
  errno = ENOSPC;  // of a write that is cut short
  bool made = ::write(fd.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()) &&
              ::fchmod(fd.get(), 0600) == 0;
  if (made) {
    KeepMode(fd.get(), file);
    made = ::fsync(fd.get()) == 0;
  }
  if (made) return fresh;
  const int why = errno;
  ::unlink(fresh.c_str());
  return ErrnoStatus(why, CannotMake(file, what));
}

// Returns what `file` leads to, where it is a link; itself where it is none, or leads nowhere.
std::string BehindLinks(const std::string& file) {
  const std::unique_ptr<char, void (*)(void*)> path(::realpath(file.c_str(), nullptr), ::free);
  return path != nullptr ? std::string(path.get()) : file;
}

}  // namespace

bool IsPrivate(uid_t owner, mode_t mode, uid_t reader) {
  const mode_t more = owner == 0 && reader != 0 ? S_IWGRP | S_IXGRP | S_IRWXO : S_IRWXG | S_IRWXO;
  return (mode & more) == 0;
}

absl::StatusOr<std::string> ReadPrivateFile(const std::string& file, absl::string_view what) {
  const std::string failed = absl::StrCat("cannot read the ", what, " '", file, "'");
  const UniqueFd fd(::open(file.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return ErrnoStatus(errno, failed);
  LS_RETURN_IF_ERROR(CheckPrivate(fd.get(), file, what));
  std::string text(kMaxBytes, '\0');
  size_t size = 0;
  while (size < text.size()) {
    const ssize_t n = ::read(fd.get(), text.data() + size, text.size() - size);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, failed);
    if (n == 0) break;
    size += static_cast<size_t>(n);
  }
  text.resize(size);
  return text;
}

absl::Status WritePrivateFile(const std::string& file, absl::string_view what,
                              absl::string_view text, bool replace) {
  const std::string place = replace ? BehindLinks(file) : file;
  LS_ASSIGN_OR_RETURN(const std::string fresh, WriteBeside(place, what, text));
  // Of two that make it at once, one does.
  const bool made = replace ? ::rename(fresh.c_str(), place.c_str()) == 0
                            : ::link(fresh.c_str(), place.c_str()) == 0 || errno == EEXIST;
  const int why = errno;
  if (!made || !replace) ::unlink(fresh.c_str());
  if (made) return absl::OkStatus();
  return ErrnoStatus(why, CannotMake(file, what));
}

PrivateFiles::~PrivateFiles() {
  for (const auto& [fresh, file] : files_) ::unlink(fresh.c_str());
}

absl::Status PrivateFiles::Add(const std::string& file, absl::string_view what,
                               absl::string_view text) {
  absl::StatusOr<std::string> fresh = WriteBeside(file, what, text);
  if (!fresh.ok()) {
    return absl::Status(fresh.status().code(),
                        absl::StrCat(fresh.status().message(), "; the files stay as they were"));
  }
  files_.emplace_back(*std::move(fresh), file);
  return absl::OkStatus();
}

absl::Status PrivateFiles::PutInPlace() {
  if (files_.empty()) return absl::OkStatus();
  const std::string& first = files_.front().second;
  const size_t slash = first.rfind('/');
  const std::string folder = slash == first.npos ? "." : first.substr(0, slash + 1);
  for (const auto& [fresh, file] : files_) {
    if (::rename(fresh.c_str(), file.c_str()) != 0) {
      return ErrnoStatus(errno, absl::StrCat("cannot replace ", file, ", so do the same again"));
    }
  }
  files_.clear();
  const UniqueFd fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  // Some file systems cannot flush a folder, and say EINVAL: there is nothing to flush.
  if (!fd.valid() || (::fsync(fd.get()) != 0 && errno != EINVAL)) {
    return ErrnoStatus(errno, absl::StrCat("cannot flush the folder ", folder));
  }
  return absl::OkStatus();
}

}  // namespace lockstep::coordinator
