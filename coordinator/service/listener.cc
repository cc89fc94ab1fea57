// SPDX-License-Identifier: Apache-2.0
#include "coordinator/service/listener.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/check.h"
#include "common/clock.h"
#include "common/status.h"
#include "coordinator/client/default_address.h"
#include "coordinator/service/listen_address.h"

namespace lockstep::coordinator {
namespace {

constexpr int kBacklog = 1024;
// How long no connection is taken when the process has no descriptor for one.
constexpr int kNoDescriptorMillis = 100;

struct TcpAddress {
  std::string host;
  int port = 0;
};

absl::StatusOr<TcpAddress> ParseTcp(absl::string_view address) {
  const size_t colon = address.rfind(':');
  TcpAddress parsed;
  if (colon == absl::string_view::npos || colon == 0 ||
      !absl::SimpleAtoi(address.substr(colon + 1), &parsed.port) || parsed.port < 0 ||
      parsed.port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", address, "' is not 'unix:/path', 'unix-abstract:name' or 'host:port'"));
  }
  parsed.host = std::string(address.substr(0, colon));
  if (parsed.host.find(':') != parsed.host.npos && parsed.host[0] != '[') {
    return absl::InvalidArgumentError(
        absl::StrCat("'", address, "': an IPv6 address stands in brackets, as [::1]:7070"));
  }
  return parsed;
}

sockaddr_un UnixName(absl::string_view path) {
  sockaddr_un name = {};
  name.sun_family = AF_UNIX;
  memcpy(name.sun_path, path.data(), path.size());
  return name;
}

absl::Status InUse(absl::string_view address) {
  return absl::FailedPreconditionError(absl::StrCat(
      "'", address, "' is in use: another program listens there, perhaps a coordinator"));
}

// Whatever the cause, another address or permission is what helps.
absl::Status CannotListen(absl::string_view address, absl::string_view what) {
  if (errno == EADDRINUSE) return InUse(address);
  return absl::FailedPreconditionError(
      absl::StrCat("cannot listen on '", address, "': ", what, ": ", strerror(errno)));
}

UniqueFd NewSocket(int family) {
  return UniqueFd(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

bool SomebodyListens(const sockaddr_un& name) {
  const UniqueFd probe = NewSocket(AF_UNIX);
  if (!probe.valid()) return false;
  // One that is busy has no room for us now.
  return ::connect(probe.get(), reinterpret_cast<const sockaddr*>(&name), sizeof(name)) == 0 ||
         errno == EAGAIN;
}

}  // namespace

absl::Status CheckListenForm(absl::string_view address) {
  absl::string_view name = address;
  if (absl::ConsumePrefix(&name, "unix:") || absl::ConsumePrefix(&name, "unix-abstract:")) {
    if (name.empty() || name.size() >= sizeof(sockaddr_un::sun_path)) {
      return absl::InvalidArgumentError(absl::StrCat("'", address, "': a socket's name has 1 to ",
                                                     sizeof(sockaddr_un::sun_path) - 1,
                                                     " characters"));
    }
    return absl::OkStatus();
  }
  return ParseTcp(address).status();
}

absl::Status CheckListenAddress(absl::string_view address, bool reachable) {
  LS_RETURN_IF_ERROR(CheckListenForm(address));
  if (absl::StartsWith(address, "unix:") || absl::StartsWith(address, "unix-abstract:")) {
    return absl::OkStatus();
  }
  if (IsLoopbackHost(HostOf(address)) || reachable) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "'", address, "' can be reached from other machines, and without TLS whoever sees the ",
      "network's packets reads the token: run `coordinator init` once and give its --state-dir; "
      "or ",
      "listen on a Unix socket or 127.0.0.1; or give --plaintext where nobody else is in the ",
      "network"));
}

absl::StatusOr<std::unique_ptr<Listener>> Listener::Bind(const std::string& address, bool reachable,
                                                         bool local_users) {
  LS_RETURN_IF_ERROR(CheckListenAddress(address, reachable));
  std::unique_ptr<Listener> listener(new Listener());
  listener->mode_ = local_users ? 0666 : 0600;
  listener->address_ = address;
  listener->stop_.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!listener->stop_.valid()) return ErrnoStatus(errno, "eventfd for the coordinator");
  LS_ASSIGN_OR_RETURN(listener->anteroom_, Anteroom::Create(Clock::Real()));
  absl::string_view name = address;
  if (absl::ConsumePrefix(&name, "unix:")) {
    LS_RETURN_IF_ERROR(listener->BindUnix(name));
  } else if (absl::ConsumePrefix(&name, "unix-abstract:")) {
    LS_RETURN_IF_ERROR(listener->BindAbstract(name));
  } else {
    LS_ASSIGN_OR_RETURN(const TcpAddress tcp, ParseTcp(address));
    LS_RETURN_IF_ERROR(listener->BindTcp(tcp.host, tcp.port));
  }
  return listener;
}

absl::Status Listener::BindUnix(absl::string_view path) {
  const sockaddr_un name = UnixName(path);
  const size_t slash = path.rfind('/');
  const std::string folder(slash == path.npos ? "." : path.substr(0, slash + 1));
  // Of two that start at once, one looks and binds before the other looks.
  const UniqueFd lock(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!lock.valid() || ::flock(lock.get(), LOCK_EX) != 0) {
    return CannotListen(address_, absl::StrCat("folder ", folder));
  }
  struct stat status;
  if (::lstat(name.sun_path, &status) == 0) {
    if (!S_ISSOCK(status.st_mode)) {
      return absl::FailedPreconditionError(
          absl::StrCat("cannot listen on '", address_, "': there is something else of this name"));
    }
    if (SomebodyListens(name)) return InUse(address_);
    if (::unlink(name.sun_path) != 0) return CannotListen(address_, "an old socket stays");
  }
  unix_ = true;
  socket_ = NewSocket(AF_UNIX);
  // The file gets the socket's mode less the umask, so at no moment can others connect.
  if (!socket_.valid() || ::fchmod(socket_.get(), 0600) != 0 ||
      ::bind(socket_.get(), reinterpret_cast<const sockaddr*>(&name), sizeof(name)) != 0) {
    return CannotListen(address_, absl::StrCat("a socket in folder ", folder));
  }
  path_ = std::string(path);
  if (::chmod(name.sun_path, mode_) != 0 || ::lstat(name.sun_path, &status) != 0 ||
      ::listen(socket_.get(), kBacklog) != 0) {
    return CannotListen(address_, "its socket");
  }
  inode_ = status.st_ino;
  return absl::OkStatus();
}

absl::Status Listener::BindAbstract(absl::string_view name) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  memcpy(address.sun_path + 1, name.data(), name.size());
  const socklen_t size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  unix_ = true;
  socket_ = NewSocket(AF_UNIX);
  if (!socket_.valid() ||
      ::bind(socket_.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0 ||
      ::listen(socket_.get(), kBacklog) != 0) {
    return CannotListen(address_, "its socket");
  }
  return absl::OkStatus();
}

absl::Status Listener::BindTcp(absl::string_view host, int port) {
  LS_ASSIGN_OR_RETURN(const std::vector<SocketAddress> addresses,
                      ListenAddresses(host, port, Clock::Real()));
  for (const SocketAddress& address : addresses) {
    const int family = address.bytes.ss_family;
    socket_ = NewSocket(family);
    if (!socket_.valid()) continue;  // a machine without this family
    const int on = 1, off = 0;
    // [::] means IPv4, too, whatever the system's default.
    if (family == AF_INET6) {
      ::setsockopt(socket_.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
    }
    SocketAddress bound = address;
    auto* name = reinterpret_cast<sockaddr*>(&bound.bytes);
    // What is left of earlier connections keeps nobody from the port; somebody who listens does.
    if (::setsockopt(socket_.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
        ::bind(socket_.get(), name, bound.size) != 0 || ::listen(socket_.get(), kBacklog) != 0 ||
        ::getsockname(socket_.get(), name, &bound.size) != 0) {
      continue;  // a name may have addresses that this machine does not have
    }
    const in_port_t taken = family == AF_INET6
                                ? reinterpret_cast<const sockaddr_in6*>(name)->sin6_port
                                : reinterpret_cast<const sockaddr_in*>(name)->sin_port;
    address_ = absl::StrCat(host, ":", ntohs(taken));
    return absl::OkStatus();
  }
  return CannotListen(address_, "its socket");
}

Listener::~Listener() {
  Stop();
  struct stat status;
  // Another one may have taken the name over.
  if (!path_.empty() && ::lstat(path_.c_str(), &status) == 0 && status.st_ino == inode_) {
    ::unlink(path_.c_str());
  }
}

void Listener::Start(std::function<void(UniqueFd)> on_connection, Door* door) {
  LS_CHECK(on_connection_ == nullptr);
  on_connection_ = std::move(on_connection);
  door_ = door;
  door_->TellCalls([room = anteroom_.get()](uint64_t id) { room->Through(id); });
  thread_ = Thread("coord-accept", [this] { Run(); });
}

void Listener::Stop() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t told = ::write(stop_.get(), &one, sizeof(one));
  thread_.Join();
  if (door_ != nullptr) std::exchange(door_, nullptr)->TellCalls(nullptr);
  anteroom_->Clear();
  uint64_t told_before = 0;
  while (::read(stop_.get(), &told_before, sizeof(told_before)) > 0) {
  }
  on_connection_ = nullptr;
}

void Listener::Run() {
  pollfd fds[3] = {
      {socket_.get(), POLLIN, 0}, {stop_.get(), POLLIN, 0}, {anteroom_->fd(), POLLIN, 0}};
  for (;;) {
    const absl::Duration wait = anteroom_->wake_at() - Clock::Real()->Now();
    const int millis = wait == absl::InfiniteDuration()
                           ? -1
                           : static_cast<int>(absl::ToInt64Milliseconds(
                                 std::max(wait, absl::ZeroDuration()) + absl::Milliseconds(1)));
    if (::poll(fds, 3, millis) < 0 && errno != EINTR) return;
    if (fds[1].revents != 0) return;
    if (fds[0].revents != 0) Accept();
    if (unix_) continue;
    for (UniqueFd& connection : anteroom_->Turns()) on_connection_(std::move(connection));
  }
}

void Listener::Accept() {
  UniqueFd fd(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!fd.valid()) {
    if (errno != EMFILE && errno != ENFILE && errno != ENOMEM && errno != ENOBUFS) return;
    pollfd stop = {stop_.get(), POLLIN, 0};
    ::poll(&stop, 1, kNoDescriptorMillis);
    return;
  }
  const auto peer = door_->LetIn(fd.get());
  if (!peer.has_value()) return;
  if (unix_) return on_connection_(std::move(fd));
  const int on = 1;
  ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  anteroom_->Add(std::move(fd), peer->id, peer->host);
}

}  // namespace lockstep::coordinator
