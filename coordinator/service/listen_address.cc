// SPDX-License-Identifier: Apache-2.0
#include "coordinator/service/listen_address.h"

#include <netdb.h>
#include <netinet/in.h>
#include <string.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/fd.h"

namespace lockstep::coordinator {
namespace {

constexpr absl::Duration kAskAgain = absl::Milliseconds(250);

bool IsAnyV6(const addrinfo& one) {
  return one.ai_family == AF_INET6 &&
         IN6_IS_ADDR_UNSPECIFIED(&reinterpret_cast<const sockaddr_in6*>(one.ai_addr)->sin6_addr);
}

bool IsLoopback(const addrinfo& one) {
  if (one.ai_family == AF_INET) {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(one.ai_addr);
    return (ntohl(v4->sin_addr.s_addr) >> 24) == 127;
  }
  return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(one.ai_addr)->sin6_addr);
}

// All of this machine's: of both families, where its kernel has IPv6.
SocketAddress Any(int port) {
  SocketAddress any;
  if (UniqueFd(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0)).valid()) {
    auto* v6 = reinterpret_cast<sockaddr_in6*>(&any.bytes);
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(static_cast<uint16_t>(port));
    any.size = sizeof(*v6);
    return any;
  }
  auto* v4 = reinterpret_cast<sockaddr_in*>(&any.bytes);
  v4->sin_family = AF_INET;
  v4->sin_port = htons(static_cast<uint16_t>(port));
  any.size = sizeof(*v4);
  return any;
}

}  // namespace

absl::StatusOr<std::vector<SocketAddress>> ListenAddresses(absl::string_view host, int port,
                                                           Clock* clock) {
  const bool v6 = host.size() > 2 && host.front() == '[' && host.back() == ']';
  const std::string name(v6                    ? host.substr(1, host.size() - 2)
                         : host == "localhost" ? "127.0.0.1"
                                               : host);
  addrinfo hints = {};
  hints.ai_family = v6 ? AF_INET6 : AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  const std::string service = absl::StrCat(port);
  addrinfo* found = nullptr;
  int failed = ::getaddrinfo(name.c_str(), service.c_str(), &hints, &found);
  const bool number = failed == 0;
  if (!number && !v6) {
    hints.ai_flags = AI_NUMERICSERV;
    const absl::Time deadline = clock->Now() + kUnknownFor;
    while ((failed = ::getaddrinfo(name.c_str(), service.c_str(), &hints, &found)) != 0 &&
           clock->Now() < deadline) {
      clock->Sleep(kAskAgain);
    }
  }
  if (failed != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", host, "' is no address of this machine: ", ::gai_strerror(failed)));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owned(found, ::freeaddrinfo);
  std::vector<SocketAddress> addresses;
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    if (!number && IsLoopback(*one)) continue;
    if (IsAnyV6(*one)) {
      addresses.push_back(Any(port));
      continue;
    }
    SocketAddress& address = addresses.emplace_back();
    ::memcpy(&address.bytes, one->ai_addr, one->ai_addrlen);
    address.size = one->ai_addrlen;
  }
  if (addresses.empty()) addresses.push_back(Any(port));
  return addresses;
}

}  // namespace lockstep::coordinator
