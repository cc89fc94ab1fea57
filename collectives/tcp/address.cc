// SPDX-License-Identifier: Apache-2.0
#include "collectives/tcp/address.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <netinet/in.h>

#include <cstdint>
#include <cstring>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/status.h"

namespace lockstep {

int SocketAddress::port() const {
  if (family() == AF_INET) return ntohs(reinterpret_cast<const sockaddr_in*>(&storage)->sin_port);
  return ntohs(reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_port);
}

std::string SocketAddress::ToString() const {
  char text[INET6_ADDRSTRLEN] = "?";
  if (family() == AF_INET) {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(&storage);
    ::inet_ntop(AF_INET, &v4->sin_addr, text, sizeof(text));
    return absl::StrCat(text, ":", port());
  }
  const auto* v6 = reinterpret_cast<const sockaddr_in6*>(&storage);
  ::inet_ntop(AF_INET6, &v6->sin6_addr, text, sizeof(text));
  return absl::StrCat("[", text, "]:", port());
}

absl::StatusOr<SocketAddress> ParseHostAddress(std::string_view text, int port) {
  const auto wrong = [&] {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", std::string(text), "\" is not a numeric address"));
  };
  SocketAddress address;
  const std::string whole(text);
  auto* v4 = reinterpret_cast<sockaddr_in*>(&address.storage);
  if (::inet_pton(AF_INET, whole.c_str(), &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    v4->sin_port = htons(static_cast<uint16_t>(port));
    address.size = sizeof(*v4);
    return address;
  }
  auto* v6 = reinterpret_cast<sockaddr_in6*>(&address.storage);
  const size_t percent = whole.find('%');
  if (::inet_pton(AF_INET6, whole.substr(0, percent).c_str(), &v6->sin6_addr) != 1) return wrong();
  if (percent != std::string::npos) {
    const std::string zone = whole.substr(percent + 1);
    v6->sin6_scope_id = ::if_nametoindex(zone.c_str());
    if (v6->sin6_scope_id == 0 && !absl::SimpleAtoi(zone, &v6->sin6_scope_id)) return wrong();
  }
  v6->sin6_family = AF_INET6;
  v6->sin6_port = htons(static_cast<uint16_t>(port));
  address.size = sizeof(*v6);
  return address;
}

absl::StatusOr<SocketAddress> ParseSocketAddress(std::string_view text) {
  const size_t colon = text.rfind(':');
  int port = 0;
  if (colon == std::string_view::npos || colon == 0 ||
      !absl::SimpleAtoi(std::string(text.substr(colon + 1)), &port) || port < 1 || port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", std::string(text), "\" is not a numeric address with a port"));
  }
  std::string_view host = text.substr(0, colon);
  if (host.front() != '[') {
    if (host.find(':') == std::string_view::npos) return ParseHostAddress(host, port);
    return absl::InvalidArgumentError(
        absl::StrCat("\"", std::string(text), "\" has no brackets around its IPv6 address"));
  }
  if (host.back() != ']') {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", std::string(text), "\" is not a numeric address with a port"));
  }
  host.remove_prefix(1);
  host.remove_suffix(1);
  return ParseHostAddress(host, port);
}

}  // namespace lockstep
