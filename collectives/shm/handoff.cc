// SPDX-License-Identifier: Apache-2.0
#include "collectives/shm/handoff.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/fd_passing.h"
#include "common/status.h"

namespace lockstep {
namespace {

constexpr absl::Duration kClientPatience = absl::Milliseconds(200);
constexpr char kGiven[] = "arena";
constexpr char kRefused[] = "refused";

absl::StatusOr<std::string> RandomHex(size_t bytes) {
  std::string random(bytes, '\0');
  if (::getrandom(random.data(), random.size(), 0) != static_cast<ssize_t>(random.size())) {
    return ErrnoStatus(errno, "getrandom");
  }
  return absl::BytesToHexString(random);
}

// An abstract address: a zero byte, then the name.
socklen_t FillAddress(const std::string& name, sockaddr_un* address) {
  *address = {};
  address->sun_family = AF_UNIX;
  const size_t size = std::min(name.size(), sizeof(address->sun_path) - 1);
  std::memcpy(address->sun_path + 1, name.data(), size);
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + size);
}

bool SameUser(int socket) {
  ucred credentials{};
  socklen_t size = sizeof(credentials);
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &size) == 0 &&
         credentials.uid == ::geteuid();
}

// In a time that does not tell how much was right.
bool SameKey(const std::string& a, const std::string& b) {
  if (a.size() != b.size()) return false;
  unsigned difference = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference |= static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(b[i]);
  }
  return difference == 0;
}

void SetTimeouts(int socket, absl::Duration timeout) {
  const timeval value = absl::ToTimeval(std::max(timeout, absl::Milliseconds(1)));
  ::setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &value, sizeof(value));
  ::setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &value, sizeof(value));
}

}  // namespace

absl::StatusOr<std::unique_ptr<ArenaServer>> ArenaServer::Start(int arena_fd) {
  auto server = std::unique_ptr<ArenaServer>(new ArenaServer());
  server->arena_fd_ = arena_fd;
  LS_ASSIGN_OR_RETURN(const std::string name, RandomHex(16));
  LS_ASSIGN_OR_RETURN(server->key_, RandomHex(32));
  server->address_ = absl::StrCat("lockstep-", name);
  server->listener_.reset(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  server->stop_.reset(::eventfd(0, EFD_CLOEXEC));
  if (!server->listener_.valid() || !server->stop_.valid()) {
    return ErrnoStatus(errno, "opening the arena's socket");
  }
  sockaddr_un address;
  const socklen_t size = FillAddress(server->address_, &address);
  if (::bind(server->listener_.get(), reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      ::listen(server->listener_.get(), SOMAXCONN) != 0) {
    return ErrnoStatus(errno, "binding the arena's socket");
  }
  server->thread_ = Thread("ls-arena", [raw = server.get()] { raw->Serve(); });
  return server;
}

ArenaServer::~ArenaServer() {
  if (!thread_.running()) return;
  const uint64_t one = 1;
  LS_CHECK_EQ(::write(stop_.get(), &one, sizeof(one)), static_cast<ssize_t>(sizeof(one)));
  thread_.Join();
}

void ArenaServer::Serve() {
  while (true) {
    pollfd events[2] = {{listener_.get(), POLLIN, 0}, {stop_.get(), POLLIN, 0}};
    if (::poll(events, 2, -1) < 0 && errno != EINTR) return;
    if ((events[1].revents & POLLIN) != 0) return;
    UniqueFd client(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (client.valid()) Answer(client.get());
  }
}

void ArenaServer::Answer(int socket) const {
  if (!SameUser(socket)) return;
  SetTimeouts(socket, kClientPatience);
  bool knows_key;
  {
    const absl::StatusOr<FdMessage> request = RecvFds(socket);
    if (!request.ok()) return;
    knows_key = SameKey(request->data, key_);
  }  // given back before the answer: once all clients have theirs, this thread takes and frees none
  // A client that is gone meanwhile needs no answer, so the result of the sends is of no use.
  if (knows_key) {
    SendFds(socket, kGiven, {arena_fd_}).IgnoreError();
  } else {
    SendFds(socket, kRefused, {}).IgnoreError();
  }
}

absl::StatusOr<UniqueFd> FetchArena(const std::string& address, const std::string& key,
                                    absl::Duration timeout) {
  UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!socket.valid()) return ErrnoStatus(errno, "socket");
  SetTimeouts(socket.get(), timeout);
  sockaddr_un name;
  const socklen_t size = FillAddress(address, &name);
  if (::connect(socket.get(), reinterpret_cast<sockaddr*>(&name), size) != 0) {
    return absl::UnavailableError(
        ErrnoStatus(errno, absl::StrCat("connecting to ", address)).message());
  }
  if (!SameUser(socket.get())) {
    return absl::FailedPreconditionError(
        absl::StrCat("the worker at ", address, " runs as another user"));
  }
  LS_RETURN_IF_ERROR(SendFds(socket.get(), key, {}));
  absl::StatusOr<FdMessage> answer = RecvFds(socket.get());
  if (!answer.ok()) {
    return absl::UnavailableError(absl::StrCat(address, ": ", answer.status().message()));
  }
  if (answer->data != kGiven || answer->fds.size() != 1) {
    return absl::FailedPreconditionError(
        absl::StrCat("the worker at ", address, " refused: wrong key, or another build"));
  }
  return std::move(answer->fds[0]);
}

}  // namespace lockstep
