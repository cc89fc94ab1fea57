// SPDX-License-Identifier: Apache-2.0
#include "tests/emulation/fake_nccl_interface.h"

#include <string_view>

namespace lockstep::fake_nccl {
namespace {

bool BeginsWith(std::string_view text, std::string_view with) {
  return text.substr(0, with.size()) == with;
}

bool OfFamily(const InterfaceAddress& there, const char* family) {
  const int of = there.address.ss_family;
  if (family == nullptr) return of == AF_INET || of == AF_INET6;
  return of == (std::string_view(family) == "AF_INET6" ? AF_INET6 : AF_INET);
}

// Only where nothing else is.
bool IsLast(std::string_view interface) {
  return BeginsWith(interface, "lo") || BeginsWith(interface, "docker");
}

}  // namespace

bool Names(const std::string& wanted, const std::string& interface) {
  std::string_view list = wanted;
  const bool left_out = BeginsWith(list, "^");
  if (left_out) list.remove_prefix(1);
  const bool whole = BeginsWith(list, "=");
  if (whole) list.remove_prefix(1);
  bool found = false;
  while (!list.empty()) {
    const std::string_view name = list.substr(0, list.find(','));
    found |= whole ? interface == name : !name.empty() && BeginsWith(interface, name);
    list.remove_prefix(name.size() < list.size() ? name.size() + 1 : list.size());
  }
  return found != left_out;
}

int Choose(const std::vector<InterfaceAddress>& there, const char* wanted, const char* family) {
  const bool told = wanted != nullptr && *wanted != '\0';
  int last = -1;
  for (size_t i = 0; i < there.size(); ++i) {
    if (!OfFamily(there[i], family)) continue;
    if (told && !Names(wanted, there[i].interface)) continue;
    if (told || !IsLast(there[i].interface)) return static_cast<int>(i);
    if (last < 0) last = static_cast<int>(i);
  }
  return last;
}

}  // namespace lockstep::fake_nccl
