// SPDX-License-Identifier: Apache-2.0
#include "common/available_memory.h"

#include <algorithm>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>

#include "common/control_groups.h"

namespace lockstep {
namespace {

// How a version of control groups names what it knows of memory.
struct Names {
  const char* limit;
  const char* used;
  // In memory.stat: page cache of the group and all below it.
  const char* inactive;
  const char* active;
};
constexpr Names kV1 = {"/memory.limit_in_bytes", "/memory.usage_in_bytes", "total_inactive_file",
                       "total_active_file"};
constexpr Names kV2 = {"/memory.max", "/memory.current", "inactive_file", "active_file"};

// MemAvailable of /proc/meminfo, which is in KiB.
std::optional<int64_t> MemAvailable(const std::string& proc) {
  std::ifstream file(proc + "/meminfo");
  std::string name, unit;
  int64_t value = 0;
  while (file >> name >> value) {
    if (name == "MemAvailable:") return value * 1024;
    std::getline(file, unit);
  }
  return std::nullopt;
}

// The value of `name` in a file of names and numbers; 0 when it is not there.
int64_t ReadStat(const std::string& path, std::string_view name) {
  std::ifstream file(path);
  std::string each;
  int64_t value = 0;
  while (file >> each >> value) {
    if (each == name) return value;
  }
  return 0;
}

// Returns what a group leaves to its members; INT64_MAX where it sets no limit.
int64_t LeftIn(const ControlGroup& group) {
  const Names& names = group.v2 ? kV2 : kV1;
  const std::optional<int64_t> limit = ReadNumber(group.folder + names.limit);
  const std::optional<int64_t> used = ReadNumber(group.folder + names.used);
  if (!limit.has_value() || !used.has_value()) return INT64_MAX;
  const std::string stat = group.folder + "/memory.stat";
  const int64_t cached = ReadStat(stat, names.inactive) + ReadStat(stat, names.active);
  const int64_t held = std::max<int64_t>(0, *used - cached);
  return std::max<int64_t>(0, *limit - held);
}

}  // namespace

int64_t AvailableMemory(const std::string& proc, const std::string& groups) {
  int64_t available = MemAvailable(proc).value_or(INT64_MAX);
  for (const ControlGroup& group : GroupsOfProcess(proc, groups, "memory")) {
    available = std::min(available, LeftIn(group));
  }
  return available;
}

}  // namespace lockstep
