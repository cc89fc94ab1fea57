// SPDX-License-Identifier: Apache-2.0
#include "common/available_cpus.h"

#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdint>
#include <fstream>
#include <optional>

#include "common/control_groups.h"
#include "common/cpu_list.h"

namespace lockstep {
namespace {

// Microseconds of CPU time that a group's members get in each period.
struct Quota {
  int64_t time = 0;
  int64_t period = 0;
};

// None where the group sets no limit: "max" in v2, -1 in v1.
std::optional<Quota> QuotaOf(const ControlGroup& group) {
  Quota quota;
  if (group.v2) {
    std::ifstream file(group.folder + "/cpu.max");  // "max|quota period"
    if (!(file >> quota.time >> quota.period)) return std::nullopt;
  } else {
    quota.time = ReadNumber(group.folder + "/cpu.cfs_quota_us").value_or(-1);
    quota.period = ReadNumber(group.folder + "/cpu.cfs_period_us").value_or(0);
  }
  if (quota.time <= 0 || quota.period <= 0) return std::nullopt;
  return quota;
}

}  // namespace

int CpuLimit(const std::string& proc, const std::string& groups) {
  int64_t least = INT_MAX;
  for (const ControlGroup& group : GroupsOfProcess(proc, groups, "cpu")) {
    const std::optional<Quota> quota = QuotaOf(group);
    if (quota.has_value()) least = std::min(least, quota->time / quota->period);
  }
  return static_cast<int>(std::max<int64_t>(1, least));
}

int AvailableCpus(const std::string& proc, const std::string& groups) {
  const absl::StatusOr<CpuList> may = CpusOfThread();
  const int64_t here =
      may.ok() ? static_cast<int64_t>(may->size()) : ::sysconf(_SC_NPROCESSORS_ONLN);
  return static_cast<int>(std::clamp<int64_t>(here, 1, CpuLimit(proc, groups)));
}

}  // namespace lockstep
