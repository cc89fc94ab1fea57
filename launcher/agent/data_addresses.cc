// SPDX-License-Identifier: Apache-2.0
#include "launcher/agent/data_addresses.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <tuple>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace lockstep::launcher {
namespace {

constexpr size_t kMost = 8;

// 4 or 16 bytes in the network's order; an IPv4 address in IPv6's form as the former. Empty: it is
// no numeric address.
std::string Numeric(const std::string& address) {
  char bytes[sizeof(in6_addr)];
  if (::inet_pton(AF_INET, address.c_str(), bytes) == 1) return std::string(bytes, 4);
  if (::inet_pton(AF_INET6, address.c_str(), bytes) != 1) return "";
  std::string all(bytes, sizeof(bytes));
  const std::string mapped("\0\0\0\0\0\0\0\0\0\0\xff\xff", 12);
  return absl::StartsWith(all, mapped) ? all.substr(12) : all;
}

bool InNetwork(const std::string& bytes, const std::string& network, int prefix) {
  if (bytes.size() != network.size()) return false;
  for (int bit = 0; bit < prefix; ++bit) {
    const int shift = 7 - bit % 8;
    if (((bytes[bit / 8] ^ network[bit / 8]) >> shift & 1) != 0) return false;
  }
  return true;
}

bool IsLoopback(const std::string& bytes) {
  if (bytes.size() == 4) return bytes[0] == 127;
  return bytes == std::string(15, '\0') + '\1';
}

bool IsUsable(const std::string& bytes) {
  if (bytes.empty() || bytes == std::string(bytes.size(), '\0')) return false;
  if (bytes.size() == 4) {
    return !InNetwork(bytes, Numeric("169.254.0.0"), 16) &&
           !InNetwork(bytes, Numeric("224.0.0.0"), 4);
  }
  return !InNetwork(bytes, Numeric("fe80::"), 10) && !InNetwork(bytes, Numeric("ff00::"), 8);
}

absl::Status BadPart(absl::string_view part, const std::string& why) {
  return absl::InvalidArgumentError(absl::StrCat(
      "'", part, "' ", why, ": give names of interfaces, addresses or networks such as ",
      "eth0,10.0.0.0/8,^docker0"));
}

}  // namespace

absl::StatusOr<InterfaceFilter> InterfaceFilter::Parse(const std::string& list) {
  InterfaceFilter filter;
  if (list.empty()) return filter;
  for (absl::string_view text : absl::StrSplit(list, ',')) {
    const absl::string_view whole = text;
    Part part;
    part.out = absl::ConsumePrefix(&text, "^");
    const std::string before(text.substr(0, text.find('/')));
    part.network = Numeric(before);
    part.prefix = static_cast<int>(part.network.size()) * 8;
    if (text.empty()) return BadPart(whole, "is empty");
    if (text.size() > before.size()) {
      int prefix = 0;
      if (part.network.empty() || !absl::SimpleAtoi(text.substr(before.size() + 1), &prefix) ||
          prefix < 0 || prefix > part.prefix) {
        return BadPart(whole, "is no network");
      }
      part.prefix = prefix;
    } else if (part.network.empty()) {
      part.name = before;
      const size_t star = before.find('*');
      if (star != std::string::npos && star + 1 != before.size()) {
        return BadPart(whole, "has a '*' that is not at its end");
      }
    }
    filter.includes_ |= !part.out;
    filter.parts_.push_back(std::move(part));
  }
  return filter;
}

bool InterfaceFilter::Matches(const Part& part, const std::string& interface,
                              const std::string& address) {
  if (part.name.empty()) return InNetwork(Numeric(address), part.network, part.prefix);
  absl::string_view name = part.name;
  if (absl::ConsumeSuffix(&name, "*")) return absl::StartsWith(interface, name);
  return interface == name;
}

int InterfaceFilter::Rank(const std::string& interface, const std::string& address) const {
  int rank = includes_ ? -1 : static_cast<int>(parts_.size());
  for (size_t i = parts_.size(); i-- > 0;) {
    if (!Matches(parts_[i], interface, address)) continue;
    if (parts_[i].out) return -1;
    rank = static_cast<int>(i);
  }
  return rank;
}

bool InterfaceFilter::Names(const std::string& interface, const std::string& address) const {
  return includes_ && Rank(interface, address) >= 0;
}

std::vector<std::string> ChooseDataAddresses(const std::vector<InterfaceAddress>& all,
                                             const InterfaceFilter& filter, const std::string& own,
                                             const std::string& seen) {
  const auto at = [&](const std::string& address) {
    return std::find_if(all.begin(), all.end(), [&](const InterfaceAddress& a) {
      return !address.empty() && Numeric(a.address) == Numeric(address);
    });
  };
  // The coordinator knows the way when this host does not.
  const auto to_coordinator = at(own) != all.end() ? at(own) : at(seen);
  const std::string way = to_coordinator == all.end() ? "" : to_coordinator->interface;
  const size_t family = to_coordinator == all.end() ? 4 : Numeric(to_coordinator->address).size();
  using Order = std::tuple<int, bool, bool, int64_t, bool>;
  std::vector<std::pair<Order, std::string>> ordered;
  std::string loopback;
  for (const InterfaceAddress& candidate : all) {
    const std::string bytes = Numeric(candidate.address);
    const int rank = filter.Rank(candidate.interface, candidate.address);
    const bool named = filter.Names(candidate.interface, candidate.address);
    if (!candidate.up || rank < 0 || !IsUsable(bytes)) continue;
    if (IsLoopback(bytes) && !named) {
      if (loopback.empty() || bytes.size() == 4) loopback = candidate.address;
      continue;
    }
    if (candidate.is_virtual && !named && candidate.interface != way) continue;
    const bool is_way = to_coordinator != all.end() && candidate.address == to_coordinator->address;
    ordered.push_back(
        {{rank, !is_way, candidate.interface != way, -candidate.mbits, bytes.size() != family},
         candidate.address});
  }
  std::stable_sort(ordered.begin(), ordered.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<std::string> addresses;
  for (auto& [order, address] : ordered) {
    if (std::count(addresses.begin(), addresses.end(), address) == 0) {
      addresses.push_back(std::move(address));
    }
  }
  const std::string outside = Numeric(seen);
  if (IsUsable(outside) && !IsLoopback(outside) && at(seen) == all.end() &&
      filter.Rank("", seen) >= 0) {
    addresses.resize(std::min(addresses.size(), kMost - 1));
    addresses.push_back(seen);
  }
  if (addresses.empty() && !loopback.empty()) addresses.push_back(loopback);
  addresses.resize(std::min(addresses.size(), kMost));
  return addresses;
}

}  // namespace lockstep::launcher
