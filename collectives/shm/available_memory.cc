// SPDX-License-Identifier: Apache-2.0
#include "collectives/shm/available_memory.h"

#include <algorithm>
#include <fstream>
#include <optional>
#include <string>

namespace lockstep {
namespace {

// MemAvailable of /proc/meminfo, which is in KiB.
std::optional<int64_t> MemAvailable() {
  std::ifstream file("/proc/meminfo");
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

// The path of this process's group in the v2 hierarchy, such as "/system.slice/x"; empty at the
// root.
std::string ControlGroup() {
  std::ifstream file("/proc/self/cgroup");
  std::string line;
  while (std::getline(file, line)) {
    if (line.rfind("0::", 0) == 0) return line.substr(3) == "/" ? "" : line.substr(3);
  }
  return "";
}

}  // namespace

int64_t AvailableMemory() {
  int64_t available = MemAvailable().value_or(INT64_MAX);
  std::string group = ControlGroup();
  // Every group on the way to the root limits its members.
  while (true) {
    const std::string folder = "/sys/fs/cgroup" + group;
    const std::optional<int64_t> limit = ReadNumber(folder + "/memory.max");
    const std::optional<int64_t> used = ReadNumber(folder + "/memory.current");
    if (limit.has_value() && used.has_value()) {
      available = std::min(available, std::max<int64_t>(0, *limit - *used));
    }
    if (group.empty()) return available;
    group.resize(group.rfind('/') == std::string::npos ? 0 : group.rfind('/'));
  }
}

}  // namespace lockstep
