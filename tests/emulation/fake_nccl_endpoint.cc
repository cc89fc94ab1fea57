// SPDX-License-Identifier: Apache-2.0
#include "tests/emulation/fake_nccl_endpoint.h"

#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "common/check.h"
#include "tests/emulation/fake_nccl_interface.h"

namespace lockstep::fake_nccl {

struct Endpoint::Greeting {
  char name[128] = {};
  char address[64] = {};  // of the sender, when it comes to a meeting
  int32_t world = 0;      // not 0: it comes to a meeting
  int32_t from = 0;
  int32_t to = 0;
};

namespace {

constexpr size_t kAddressBytes = 64;
constexpr int kSliceMs = 5;  // between looks at what may end a wait

// A numeric address and its text, "10.0.0.1:41234". A module has no use for collectives/tcp's,
// which would bring libraries with it that cannot be part of one.
struct Address {
  sockaddr_storage storage{};
  socklen_t size = sizeof(sockaddr_storage);

  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
};

std::string TextOf(Address* address) {
  char host[NI_MAXHOST], port[NI_MAXSERV];
  LS_CHECK_EQ(::getnameinfo(address->get(), address->size, host, sizeof(host), port, sizeof(port),
                            NI_NUMERICHOST | NI_NUMERICSERV),
              0);
  return std::string(host) + ":" + port;
}

Address Parse(const std::string& text) {
  const size_t colon = text.rfind(':');
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  LS_CHECK(colon != std::string::npos &&
           ::getaddrinfo(text.substr(0, colon).c_str(), text.substr(colon + 1).c_str(), &hints,
                         &found) == 0)
      << text;
  Address address;
  address.size = found->ai_addrlen;
  std::memcpy(&address.storage, found->ai_addr, found->ai_addrlen);
  ::freeaddrinfo(found);
  return address;
}

std::vector<InterfaceAddress> Interfaces() {
  std::vector<InterfaceAddress> found;
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) return found;
  for (const ifaddrs* each = all; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr || (each->ifa_flags & IFF_UP) == 0) continue;
    const int family = each->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    InterfaceAddress there;
    there.interface = each->ifa_name;
    std::memcpy(&there.address, each->ifa_addr,
                family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
    found.push_back(there);
  }
  ::freeifaddrs(all);
  return found;
}

// A listener at the chosen interface, and its address.
UniqueFd Listen(std::string* address) {
  const std::vector<InterfaceAddress> there = Interfaces();
  const int chosen =
      Choose(there, std::getenv("NCCL_SOCKET_IFNAME"), std::getenv("NCCL_SOCKET_FAMILY"));
  if (chosen < 0) return UniqueFd();
  Address at;
  at.storage = there[static_cast<size_t>(chosen)].address;
  at.size = at.storage.ss_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  UniqueFd listener(::socket(at.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  LS_CHECK(listener.valid() && ::bind(listener.get(), at.get(), at.size) == 0 &&
           ::listen(listener.get(), 128) == 0 &&
           ::getsockname(listener.get(), at.get(), &at.size) == 0)
      << "fake NCCL: " << std::strerror(errno);
  *address = TextOf(&at);
  return listener;
}

// Waits for `events` in slices; false: `ended`.
bool Await(int fd, int16_t events, const std::function<bool()>& ended) {
  while (!ended()) {
    pollfd wait{fd, events, 0};
    if (::poll(&wait, 1, kSliceMs) > 0) return true;
  }
  return false;
}

// One try; none: it was refused, or `ended`.
UniqueFd TryToConnect(Address to, const std::function<bool()>& ended) {
  UniqueFd socket(::socket(to.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (::connect(socket.get(), to.get(), to.size) != 0) {
    if (errno != EINPROGRESS || !Await(socket.get(), POLLOUT, ended)) return UniqueFd();
    int error = 0;
    socklen_t size = sizeof(error);
    ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) return UniqueFd();
  }
  ::fcntl(socket.get(), F_SETFL, 0);
  const int on = 1;
  ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  return socket;
}

UniqueFd ConnectTo(const std::string& address, const std::function<bool()>& ended) {
  const Address to = Parse(address);
  while (!ended()) {
    UniqueFd socket = TryToConnect(to, ended);
    if (socket.valid()) return socket;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return UniqueFd();
}

template <size_t N>
void SetText(const std::string& from, char (&to)[N]) {
  LS_CHECK_LT(from.size(), N);
  std::memcpy(to, from.data(), from.size());
}

}  // namespace

Endpoint::Endpoint(UniqueFd listener, std::string address)
    : listener_(std::move(listener)), address_(std::move(address)) {
  server_ = std::thread([this] { Serve(); });
}

Endpoint* Endpoint::Get() {
  static std::mutex making;
  static Endpoint* own = nullptr;  // lives as long as its process
  static pid_t of = 0;             // a child process has none of its parent's threads
  const std::lock_guard lock(making);
  if (own != nullptr && of == ::getpid()) return own;
  std::string address;
  UniqueFd listener = Listen(&address);
  if (!listener.valid()) return nullptr;
  of = ::getpid();
  own = new Endpoint(std::move(listener), address);
  return own;
}

void Endpoint::Serve() {
  while (true) {
    UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!socket.valid()) continue;
    const timeval patience{1, 0};
    ::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    Greeting greeting;
    const ssize_t n = ::recv(socket.get(), &greeting, sizeof(greeting), MSG_WAITALL);
    if (n != static_cast<ssize_t>(sizeof(greeting))) continue;
    const std::lock_guard lock(mu_);
    if (greeting.world > 0) {
      Gather(std::move(socket), greeting);
    } else {
      Welcome(std::move(socket), greeting);
    }
  }
}

void Endpoint::Welcome(UniqueFd socket, const Greeting& greeting) {
  const Place place{greeting.name, greeting.to};
  const auto rank = ranks_.find(place);
  if (rank == ranks_.end()) {
    early_[place].emplace_back(std::move(socket), greeting.from);
  } else {
    rank->second(std::move(socket), greeting.from);
  }
}

void Endpoint::Gather(UniqueFd socket, const Greeting& greeting) {
  Meeting& meeting = meetings_[greeting.name];
  meeting.addresses.resize(static_cast<size_t>(greeting.world));
  meeting.addresses[static_cast<size_t>(greeting.from)] = greeting.address;
  meeting.sockets[greeting.from] = std::move(socket);
  if (meeting.sockets.size() < meeting.addresses.size()) return;
  std::string table;
  for (std::string each : meeting.addresses) {
    each.resize(kAddressBytes);
    table += each;
  }
  for (const auto& [rank, to] : meeting.sockets) {
    ::send(to.get(), table.data(), table.size(), MSG_NOSIGNAL);  // small: the kernel takes it
  }
  meetings_.erase(greeting.name);
}

void Endpoint::Register(const std::string& name, int rank, Adopt adopt) {
  const std::lock_guard lock(mu_);
  const Place place{name, rank};
  for (auto& [socket, from] : early_[place]) adopt(std::move(socket), from);
  early_.erase(place);
  LS_CHECK(ranks_.emplace(place, std::move(adopt)).second) << name << " rank " << rank;
}

void Endpoint::Forget(const std::string& name, int rank) {
  const std::lock_guard lock(mu_);
  ranks_.erase({name, rank});
  early_.erase({name, rank});
}

std::vector<std::string> Endpoint::Meet(const std::string& root, const std::string& name, int world,
                                        int rank, const std::function<bool()>& ended) {
  Greeting greeting;
  SetText(name, greeting.name);
  SetText(address_, greeting.address);
  greeting.world = world;
  greeting.from = rank;
  const UniqueFd socket = ConnectTo(root, ended);
  if (!socket.valid()) return {};
  ::send(socket.get(), &greeting, sizeof(greeting), MSG_NOSIGNAL);
  std::vector<std::string> addresses;
  char address[kAddressBytes];
  while (static_cast<int>(addresses.size()) < world) {
    if (!Await(socket.get(), POLLIN, ended)) return {};
    const ssize_t n = ::recv(socket.get(), address, sizeof(address), MSG_WAITALL);
    if (n != static_cast<ssize_t>(sizeof(address))) break;
    addresses.emplace_back(address);
  }
  // Whoever made the id is gone: nobody will come.
  while (static_cast<int>(addresses.size()) < world && !ended()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(kSliceMs));
  }
  return static_cast<int>(addresses.size()) < world ? std::vector<std::string>() : addresses;
}

UniqueFd Endpoint::Connect(const std::string& address, const std::string& name, int from, int to,
                           const std::function<bool()>& ended) {
  UniqueFd socket = ConnectTo(address, ended);
  if (!socket.valid()) return socket;
  Greeting greeting;
  SetText(name, greeting.name);
  greeting.from = from;
  greeting.to = to;
  ::send(socket.get(), &greeting, sizeof(greeting), MSG_NOSIGNAL);
  return socket;
}

}  // namespace lockstep::fake_nccl
