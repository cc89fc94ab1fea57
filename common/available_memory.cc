// SPDX-License-Identifier: Apache-2.0
#include "common/available_memory.h"

#include <algorithm>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

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

// The number in a control file; none for "max" or a missing file.
std::optional<int64_t> ReadNumber(const std::string& path) {
  std::ifstream file(path);
  int64_t value = 0;
  if (file >> value) return value;
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

// Returns what every group from `group` up to `root` leaves to its members. In a container the
// group's path may be the host's, of which nothing is to be seen here; the container's own is then
// the root.
int64_t LeftInGroups(const std::string& root, std::string group, const Names& names) {
  int64_t left = INT64_MAX;
  while (true) {
    const std::string folder = root + group;
    const std::optional<int64_t> limit = ReadNumber(folder + names.limit);
    const std::optional<int64_t> used = ReadNumber(folder + names.used);
    if (limit.has_value() && used.has_value()) {
      const std::string stat = folder + "/memory.stat";
      const int64_t cached = ReadStat(stat, names.inactive) + ReadStat(stat, names.active);
      const int64_t held = std::max<int64_t>(0, *used - cached);
      left = std::min(left, std::max<int64_t>(0, *limit - held));
    }
    if (group.empty()) return left;
    group.resize(group.rfind('/') == std::string::npos ? 0 : group.rfind('/'));
  }
}

}  // namespace

int64_t AvailableMemory(const std::string& proc, const std::string& groups) {
  int64_t available = MemAvailable(proc).value_or(INT64_MAX);
  // Lines of "number:controllers:path"; the v2 hierarchy has no controllers.
  std::ifstream file(proc + "/self/cgroup");
  std::string line;
  while (std::getline(file, line)) {
    const std::vector<std::string> fields = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (fields.size() != 3) continue;
    const std::string group = fields[2] == "/" ? "" : fields[2];
    if (fields[1].empty()) {
      available = std::min(available, LeftInGroups(groups, group, kV2));
      continue;
    }
    for (const absl::string_view controller : absl::StrSplit(fields[1], ',')) {
      if (controller != "memory") continue;
      available = std::min(available, LeftInGroups(groups + "/memory", group, kV1));
    }
  }
  return available;
}

}  // namespace lockstep
