// SPDX-License-Identifier: Apache-2.0
#include "common/status.h"

#include <sys/resource.h>

#include <cerrno>
#include <string>
#include <system_error>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"

namespace lockstep {
namespace {

absl::StatusCode CodeOf(int error_number) {
  switch (error_number) {
    case ENOENT:
      return absl::StatusCode::kNotFound;
    case EACCES:
    case EPERM:
    case EROFS:
    case EISDIR:
    case ENOTDIR:
      return absl::StatusCode::kFailedPrecondition;
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
    case ENOMEM:
    case EMFILE:
    case ENFILE:
      return absl::StatusCode::kResourceExhausted;
    case ECONNREFUSED:
    case ECONNRESET:
    case EPIPE:
    case ENETUNREACH:
    case EHOSTUNREACH:
      return absl::StatusCode::kUnavailable;
    case ETIMEDOUT:
      return absl::StatusCode::kDeadlineExceeded;
    default:
      return absl::StatusCode::kInternal;
  }
}

bool IsLimited(int resource) {
  rlimit limit{};
  return ::getrlimit(static_cast<__rlimit_resource>(resource), &limit) == 0 &&
         limit.rlim_cur != RLIM_INFINITY;
}

// The limit of this process that may be behind the error.
const char* LimitOf(int error_number) {
  switch (error_number) {
    case EMFILE:
      return " (the limit is ulimit -n)";
    case EFBIG:
      return IsLimited(RLIMIT_FSIZE) ? " (the limit is ulimit -f)" : "";
    case ENOMEM:
      return IsLimited(RLIMIT_AS) ? " (or beyond the limit ulimit -v)" : "";
    default:
      return "";
  }
}

}  // namespace

absl::Status ErrnoStatus(int error_number, std::string_view what) {
  return absl::Status(
      CodeOf(error_number),
      absl::StrCat(std::string(what), ": ", std::generic_category().message(error_number),
                   LimitOf(error_number)));
}

absl::Status Annotate(const absl::Status& status, std::string_view context) {
  if (status.ok()) return status;
  absl::Status annotated(status.code(), absl::StrCat(std::string(context), ": ", status.message()));
  status.ForEachPayload([&](absl::string_view url, const absl::Cord& payload) {
    annotated.SetPayload(url, payload);
  });
  return annotated;
}

}  // namespace lockstep
