// SPDX-License-Identifier: Apache-2.0
// The few additions to absl::Status that the whole program shares. Each code has one meaning:
//   InvalidArgument   the user's mistake, a retry cannot help
//   NotFound          a named thing (file, job, node) is not there
//   Unavailable       a peer or service cannot be reached, retry
//   Aborted           the generation ended, rejoin with the next one
//   DeadlineExceeded  waited long enough; the message names who is missing
//   ResourceExhausted memory or disk is full
//   FailedPrecondition the environment does not allow it (permission, missing device)
//   DataLoss          a file is damaged
//   Cancelled         the user asked for the stop
//   Internal          our bug
// Thread-safety: thread-safe.
#ifndef LOCKSTEP_COMMON_STATUS_H_
#define LOCKSTEP_COMMON_STATUS_H_

#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lockstep {

// The status for an errno value: NotFound (ENOENT), FailedPrecondition (EACCES, EPERM, EROFS,
// EISDIR, ENOTDIR), ResourceExhausted (ENOSPC, EDQUOT, EFBIG, ENOMEM, EMFILE), Unavailable (EIO,
// ESTALE, connections), else Internal: "<what>: <strerror>", and the limit where one is to blame.
absl::Status ErrnoStatus(int error_number, std::string_view what);

// `status` with "<context>: " before its message; OK stays OK. Payloads are kept.
absl::Status Annotate(const absl::Status& status, std::string_view context);

}  // namespace lockstep

#define LS_CONCAT_INNER_(a, b) a##b
#define LS_CONCAT_(a, b) LS_CONCAT_INNER_(a, b)

#define LS_RETURN_IF_ERROR(expression)                                               \
  do {                                                                               \
    if (absl::Status ls_status_ = (expression); !ls_status_.ok()) return ls_status_; \
  } while (false)

#define LS_ASSIGN_OR_RETURN(lhs, expression) \
  LS_ASSIGN_OR_RETURN_IMPL_(LS_CONCAT_(ls_statusor_, __LINE__), lhs, expression)
#define LS_ASSIGN_OR_RETURN_IMPL_(tmp, lhs, expression) \
  auto tmp = (expression);                              \
  if (!tmp.ok()) return std::move(tmp).status();        \
  lhs = std::move(tmp).value()

#endif  // LOCKSTEP_COMMON_STATUS_H_
