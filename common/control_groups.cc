// SPDX-License-Identifier: Apache-2.0
#include "common/control_groups.h"

#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace lockstep {
namespace {

void AddWithAllAbove(const std::string& root, std::string group, bool v2,
                     std::vector<ControlGroup>* found) {
  while (true) {
    found->push_back({root + group, v2});
    if (group.empty()) return;
    group.resize(group.rfind('/') == std::string::npos ? 0 : group.rfind('/'));
  }
}

}  // namespace

std::vector<ControlGroup> GroupsOfProcess(const std::string& proc, const std::string& groups,
                                          absl::string_view controller) {
  std::vector<ControlGroup> found;
  // Lines of "number:controllers:path"; the v2 hierarchy has no controllers.
  std::ifstream file(proc + "/self/cgroup");
  std::string line;
  while (std::getline(file, line)) {
    const std::vector<std::string> fields = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (fields.size() != 3) continue;
    const std::string group = fields[2] == "/" ? "" : fields[2];
    if (fields[1].empty()) {
      AddWithAllAbove(groups, group, true, &found);
      continue;
    }
    for (const absl::string_view each : absl::StrSplit(fields[1], ',')) {
      if (each != controller) continue;
      AddWithAllAbove(absl::StrCat(groups, "/", each), group, false, &found);
    }
  }
  return found;
}

std::optional<int64_t> ReadNumber(const std::string& path) {
  std::ifstream file(path);
  int64_t value = 0;
  if (file >> value) return value;
  return std::nullopt;
}

}  // namespace lockstep
