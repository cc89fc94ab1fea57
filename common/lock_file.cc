// SPDX-License-Identifier: Apache-2.0
#include "common/lock_file.h"

#include <fcntl.h>
#include <sys/file.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/durable_file.h"

namespace lockstep {
namespace {

constexpr absl::Duration kPoll = absl::Milliseconds(2);

}  // namespace

std::string ReadText(const std::string& path) {
  const std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

absl::Status LockError(const std::string& path, int error_number) {
  return absl::UnavailableError(
      absl::StrCat(path, " cannot be locked: ", std::strerror(error_number), " (errno ",
                   error_number, "); its file system must have locks (flock)"));
}

absl::StatusOr<UniqueFd> LockFile(const std::string& path, absl::Duration limit) {
  const size_t slash = path.rfind('/');
  absl::Status made = absl::OkStatus();
  if (slash != std::string::npos && slash > 0) made = CreateFolders(path.substr(0, slash));
  UniqueFd lock;
  if (made.ok()) lock.reset(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!lock.valid()) {
    return absl::UnavailableError(absl::StrCat(
        path, " cannot be opened: ", made.ok() ? std::strerror(errno) : made.ToString()));
  }
  const absl::Time deadline = Clock::Real()->Now() + limit;
  while (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) return LockError(path, errno);
    if (Clock::Real()->Now() > deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat("another process has held ", path, " for ", absl::FormatDuration(limit)));
    }
    Clock::Real()->Sleep(kPoll);
  }
  return lock;
}

}  // namespace lockstep
