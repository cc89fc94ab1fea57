// SPDX-License-Identifier: Apache-2.0
// The part of data_addresses.h that looks at the system.
#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <fstream>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/fd.h"
#include "launcher/agent/data_addresses.h"

namespace lockstep::launcher {
namespace {

std::string TextOf(const sockaddr* address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address->sa_family == AF_INET) {
    const auto* const v4 = reinterpret_cast<const sockaddr_in*>(address);
    ::inet_ntop(AF_INET, &v4->sin_addr, text, sizeof(text));
  } else if (address->sa_family == AF_INET6) {
    const auto* const v6 = reinterpret_cast<const sockaddr_in6*>(address);
    ::inet_ntop(AF_INET6, &v6->sin6_addr, text, sizeof(text));
  }
  return text;
}

// Switches that a host has of its own accord; one that somebody has set up under another name is
// known by what it is.
bool IsVirtual(const std::string& interface) {
  for (const absl::string_view name : {"docker", "br-", "virbr", "lxcbr", "lxdbr", "cni", "flannel",
                                       "cali", "veth", "vnet", "podman", "kube"}) {
    if (absl::StartsWith(interface, name)) return true;
  }
  return false;
}

// Wireless and virtual interfaces have none, which reads as -1 or as an error.
int64_t Mbits(const std::string& interface) {
  std::ifstream file(absl::StrCat("/sys/class/net/", interface, "/speed"));
  int64_t mbits = 0;
  return file >> mbits && mbits > 0 ? mbits : 0;
}

}  // namespace

std::vector<InterfaceAddress> SystemAddresses() {
  std::vector<InterfaceAddress> all;
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return all;
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owned(list, ::freeifaddrs);
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr) continue;
    InterfaceAddress address;
    address.address = TextOf(entry->ifa_addr);
    if (address.address.empty()) continue;
    address.interface = entry->ifa_name;
    address.up = (entry->ifa_flags & IFF_UP) != 0 && (entry->ifa_flags & IFF_RUNNING) != 0;
    address.is_virtual = IsVirtual(address.interface);
    address.mbits = Mbits(address.interface);
    all.push_back(std::move(address));
  }
  return all;
}

std::string OwnEndTowards(const std::string& address) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos || absl::StartsWith(address, "unix")) return "";
  std::string host = address.substr(0, colon);
  if (host.size() > 2 && host.front() == '[') host = host.substr(1, host.size() - 2);
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), "9", &hints, &found) != 0) return "";
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owned(found, ::freeaddrinfo);
  const UniqueFd fd(::socket(found->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_storage own{};
  socklen_t size = sizeof(own);
  if (!fd.valid() || ::connect(fd.get(), found->ai_addr, found->ai_addrlen) != 0 ||
      ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&own), &size) != 0) {
    return "";
  }
  return TextOf(reinterpret_cast<const sockaddr*>(&own));
}

}  // namespace lockstep::launcher
