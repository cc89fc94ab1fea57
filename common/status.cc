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
    case ENAMETOOLONG:
    case ELOOP:
      return absl::StatusCode::kFailedPrecondition;
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
    case ENOMEM:
    case EAGAIN:  // of fork(2)
    case EMFILE:
    case ENFILE:
      return absl::StatusCode::kResourceExhausted;
    case ECONNREFUSED:
    case ECONNRESET:
    case EPIPE:
    case ENETUNREACH:
    case EHOSTUNREACH:
    // A disk, or the server of a mounted file system, that does not answer as it should.
    case EIO:
    case EREMOTEIO:
    case ESTALE:
    case ENOTCONN:
    case ENODEV:
    case ENXIO:
      return absl::StatusCode::kUnavailable;
    case ETIMEDOUT:
      return absl::StatusCode::kDeadlineExceeded;
    default:
      return absl::StatusCode::kInternal;
  }
}

// The limit of this process that such an error comes from, for people; empty: none is set.
std::string LimitBehind(int error_number) {
  struct Limit {
    int error_number;
    decltype(RLIMIT_FSIZE) resource;
    const char* text;  // before and after the number
    const char* unit;
  };
  constexpr Limit kLimits[] = {
      {EFBIG, RLIMIT_FSIZE, "files may have ", " bytes: ulimit -f"},
      {EMFILE, RLIMIT_NOFILE, "", " open files are allowed: ulimit -n"},
      {ENOMEM, RLIMIT_AS, "", " bytes of address space are allowed: ulimit -v"},
  };
  for (const Limit& limit : kLimits) {
    rlimit value{};
    if (limit.error_number != error_number || ::getrlimit(limit.resource, &value) != 0 ||
        value.rlim_cur == RLIM_INFINITY) {
      continue;
    }
    return absl::StrCat(" (", limit.text, value.rlim_cur, limit.unit, ")");
  }
  return "";
}

}  // namespace

absl::Status ErrnoStatus(int error_number, std::string_view what) {
  return absl::Status(
      CodeOf(error_number),
      absl::StrCat(std::string(what), ": ", std::generic_category().message(error_number),
                   LimitBehind(error_number)));
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
