// SPDX-License-Identifier: Apache-2.0
#include "coordinator/client/token.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/fd.h"
#include "common/status.h"

namespace lockstep::coordinator {
namespace {

constexpr size_t kMaxToken = 4096;

// A pipe is for its two ends alone, and needs no look at its mode.
absl::Status CheckPrivate(int fd, const std::string& file) {
  struct stat status;
  if (::fstat(fd, &status) != 0) return ErrnoStatus(errno, file);
  if (S_ISFIFO(status.st_mode)) return absl::OkStatus();
  if (!S_ISREG(status.st_mode)) {
    return absl::FailedPreconditionError(absl::StrCat("token '", file, "' is no file"));
  }
  if (status.st_uid != ::geteuid() && status.st_uid != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("the token file '", file, "' belongs to user ", status.st_uid));
  }
  if ((status.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    return absl::FailedPreconditionError(absl::StrCat("others can read the token file '", file,
                                                      "': make it private (chmod 600 ", file, ")"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> ReadToken(const std::string& file) {
  const UniqueFd fd(::open(file.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) {
    return ErrnoStatus(errno, absl::StrCat("cannot read the token file '", file, "'"));
  }
  LS_RETURN_IF_ERROR(CheckPrivate(fd.get(), file));
  std::string text(kMaxToken, '\0');
  size_t size = 0;
  while (size < text.size()) {
    const ssize_t n = ::read(fd.get(), text.data() + size, text.size() - size);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, absl::StrCat("cannot read the token file '", file, "'"));
    if (n == 0) break;
    size += static_cast<size_t>(n);
  }
  const absl::string_view token = absl::StripAsciiWhitespace(
      absl::string_view(text).substr(0, std::min(size, text.find('\n'))));
  if (token.empty()) {
    return absl::FailedPreconditionError(absl::StrCat("there is no token in '", file, "'"));
  }
  if (!std::all_of(token.begin(), token.end(), absl::ascii_isgraph)) {
    return absl::FailedPreconditionError(
        absl::StrCat("the token in '", file, "' is not of plain letters, digits and signs"));
  }
  return std::string(token);
}

}  // namespace lockstep::coordinator
