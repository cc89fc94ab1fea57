// SPDX-License-Identifier: Apache-2.0
// Messages with file descriptors over a Unix socket (SCM_RIGHTS).
// Thread-safety: one sender and one receiver for each socket.
#ifndef LOCKSTEP_COMMON_FD_PASSING_H_
#define LOCKSTEP_COMMON_FD_PASSING_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/fd.h"

namespace lockstep {

struct FdMessage {
  std::string data;
  std::vector<UniqueFd> fds;  // close-on-exec
};

// Sends one message of at most 64 KiB and 16 descriptors on a SOCK_SEQPACKET socket. Blocks as the
// socket does. Errors: Unavailable when the peer is gone.
absl::Status SendFds(int socket, std::string_view data, absl::Span<const int> fds);

// Receives one message. Errors: Unavailable when the peer has closed; DeadlineExceeded when the
// socket's receive timeout passes.
absl::StatusOr<FdMessage> RecvFds(int socket);

}  // namespace lockstep

#endif  // LOCKSTEP_COMMON_FD_PASSING_H_
