// SPDX-License-Identifier: Apache-2.0
#include "launcher/supervisor/wire.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "common/fd_passing.h"
#include "common/memory_file.h"
#include "common/status.h"

namespace lockstep::launcher {
namespace {

constexpr size_t kInlineBytes = 60 << 10;

}  // namespace

absl::StatusOr<UniqueFd> MemoryFileOf(const google::protobuf::MessageLite& message) {
  return MemoryFile("lockstep-message", message.SerializeAsString());
}

absl::Status ReadMemoryFile(int fd, google::protobuf::MessageLite* message) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) return ErrnoStatus(errno, "fstat of a message");
  std::string text(static_cast<size_t>(info.st_size), '\0');
  if (::pread(fd, text.data(), text.size(), 0) != info.st_size || !message->ParseFromString(text)) {
    return absl::InternalError("a message is not whole");
  }
  return absl::OkStatus();
}

absl::Status SendMessage(int socket, const google::protobuf::MessageLite& message,
                         absl::Span<const int> fds) {
  const std::string text = message.SerializeAsString();
  // An empty one would look like the end.
  if (!text.empty() && text.size() <= kInlineBytes) return SendFds(socket, text, fds);
  LS_ASSIGN_OR_RETURN(const UniqueFd body, MemoryFileOf(message));
  std::vector<int> with_body(fds.begin(), fds.end());
  with_body.push_back(body.get());
  return SendFds(socket, "", with_body);
}

absl::StatusOr<std::vector<UniqueFd>> ReceiveMessage(int socket,
                                                     google::protobuf::MessageLite* message) {
  LS_ASSIGN_OR_RETURN(FdMessage received, RecvFds(socket));
  if (received.data.empty()) {  // its text lies in the last descriptor
    const UniqueFd body = std::move(received.fds.back());
    received.fds.pop_back();
    LS_RETURN_IF_ERROR(ReadMemoryFile(body.get(), message));
  } else if (!message->ParseFromString(received.data)) {
    return absl::InternalError("a message is not whole");
  }
  return std::move(received.fds);
}

bool IsOwnUser(int socket) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return false;
  return peer.uid == ::geteuid() || peer.uid == 0;
}

}  // namespace lockstep::launcher
