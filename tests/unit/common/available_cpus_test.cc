// SPDX-License-Identifier: Apache-2.0
#include "common/available_cpus.h"

#include <climits>

#include "common/cpu_list.h"
#include "gtest/gtest.h"
#include "tests/unit/common/system_tree.h"

namespace lockstep {
namespace {

class AvailableCpusTest : public SystemTree {
 protected:
  int Limit() const { return CpuLimit(proc(), groups()); }
  int Available() const { return AvailableCpus(proc(), groups()); }
  static int Allowed() { return static_cast<int>(CpusOfThread()->size()); }
};

TEST_F(AvailableCpusTest, WithoutGroupsTheyAreThoseThatItMayRunOn) {
  EXPECT_EQ(Limit(), INT_MAX);
  EXPECT_EQ(Available(), Allowed());
}

TEST_F(AvailableCpusTest, AGroupMayBeWithoutALimit) {
  Write("proc/self/cgroup", "0::/\n");
  Write("groups/cpu.max", "max 100000\n");
  EXPECT_EQ(Limit(), INT_MAX);
  EXPECT_EQ(Available(), Allowed());
}

TEST_F(AvailableCpusTest, AContainersLimitIsThatOfItsRoot) {
  Write("proc/self/cgroup", "0::/\n");
  Write("groups/cpu.max", "400000 100000\n");
  EXPECT_EQ(Limit(), 4);
  Write("groups/cpu.max", "100000 100000\n");
  EXPECT_EQ(Available(), 1);
}

TEST_F(AvailableCpusTest, EveryGroupOnTheWayLimits) {
  Write("proc/self/cgroup", "0::/slice/unit\n");
  Write("groups/slice/unit/cpu.max", "max 100000\n");
  Write("groups/slice/cpu.max", "600000 100000\n");
  EXPECT_EQ(Limit(), 6);
  Write("groups/slice/unit/cpu.max", "150000 50000\n");
  EXPECT_EQ(Limit(), 3);
  Write("groups/slice/cpu.max", "200000 100000\n");
  EXPECT_EQ(Limit(), 2);
}

TEST_F(AvailableCpusTest, TheyAreWholeAndOneAtLeast) {
  Write("proc/self/cgroup", "0::/\n");
  Write("groups/cpu.max", "250000 100000\n");
  EXPECT_EQ(Limit(), 2);
  Write("groups/cpu.max", "50000 100000\n");
  EXPECT_EQ(Limit(), 1);
  EXPECT_EQ(Available(), 1);
}

TEST_F(AvailableCpusTest, TheFirstVersionOfGroupsToo) {
  Write("proc/self/cgroup", "5:cpu,cpuacct:/docker/a\n4:memory:/x\n3:cpuset:/docker/a\n0::/\n");
  Write("groups/cpu/docker/a/cpu.cfs_quota_us", "-1\n");
  Write("groups/cpu/docker/a/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(Limit(), INT_MAX);
  Write("groups/cpu/cpu.cfs_quota_us", "300000\n");
  Write("groups/cpu/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(Limit(), 3);
  Write("groups/cpu/docker/a/cpu.cfs_quota_us", "200000\n");
  EXPECT_EQ(Limit(), 2);
}

}  // namespace
}  // namespace lockstep
