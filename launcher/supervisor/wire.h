// SPDX-License-Identifier: Apache-2.0
// The messages of proto/supervisor.proto over a SOCK_SEQPACKET socket, with their descriptors.
// Thread-safety: one sender and one receiver for each socket.
#ifndef LOCKSTEP_LAUNCHER_SUPERVISOR_WIRE_H_
#define LOCKSTEP_LAUNCHER_SUPERVISOR_WIRE_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/fd.h"
#include "google/protobuf/message_lite.h"

namespace lockstep::launcher {

// Of the protocol; a supervisor serves agents of its own version and of the one before, and an
// agent speaks to supervisors of these.
inline constexpr int kSupervisorVersion = 1;
inline constexpr int kOldestSupervisorVersion = 1;

// The launcher's flag, in the place of a verb, that makes it a supervisor; the job's id follows.
// Descriptors: 3 the listening socket, 4 the SupervisorSetup, 5 the worker program or /dev/null.
inline constexpr char kSupervisorFlag[] = "--supervisor-fd=3";

// At most 15 descriptors. Long messages travel in a memfd. Blocks as the socket does. Errors:
// Unavailable when the peer is gone.
absl::Status SendMessage(int socket, const google::protobuf::MessageLite& message,
                         absl::Span<const int> fds);

// Receives one into `message`; returns its descriptors. Errors: Unavailable when the peer has
// closed; DeadlineExceeded when the socket's receive timeout passes; Internal when it is not whole.
absl::StatusOr<std::vector<UniqueFd>> ReceiveMessage(int socket,
                                                     google::protobuf::MessageLite* message);

// A file in memory with the message, read from its beginning. Errors: ResourceExhausted.
absl::StatusOr<UniqueFd> MemoryFileOf(const google::protobuf::MessageLite& message);
// Reads what MemoryFileOf wrote. Errors: Internal when it is not whole.
absl::Status ReadMemoryFile(int fd, google::protobuf::MessageLite* message);

// Returns whether the process at the other end of a Unix socket, or who listened there, is of this
// user or of root.
bool IsOwnUser(int socket);

}  // namespace lockstep::launcher

#endif  // LOCKSTEP_LAUNCHER_SUPERVISOR_WIRE_H_
