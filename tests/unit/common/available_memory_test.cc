// SPDX-License-Identifier: Apache-2.0
#include "common/available_memory.h"

#include <cstdint>

#include "gtest/gtest.h"
#include "tests/unit/common/system_tree.h"

namespace lockstep {
namespace {

class AvailableMemoryTest : public SystemTree {
 protected:
  AvailableMemoryTest() { Write("proc/meminfo", "MemTotal: 4000 kB\nMemAvailable: 3000 kB\n"); }

  int64_t Available() const { return AvailableMemory(proc(), groups()); }
};

TEST_F(AvailableMemoryTest, WithoutGroupsItIsTheMachines) { EXPECT_EQ(Available(), 3000 * 1024); }

TEST_F(AvailableMemoryTest, EveryGroupOnTheWayLimits) {
  Write("proc/self/cgroup", "0::/slice/job\n");
  Write("groups/slice/job/memory.max", "max\n");
  Write("groups/slice/job/memory.current", "400\n");
  EXPECT_EQ(Available(), 3000 * 1024);
  Write("groups/slice/memory.max", "1000\n");
  Write("groups/slice/memory.current", "700\n");
  EXPECT_EQ(Available(), 300);
  Write("groups/slice/job/memory.max", "500\n");
  EXPECT_EQ(Available(), 100);
}

TEST_F(AvailableMemoryTest, PagesOfFilesAreFree) {
  Write("proc/self/cgroup", "0::/job\n");
  Write("groups/job/memory.max", "1000\n");
  Write("groups/job/memory.current", "900\n");
  Write("groups/job/memory.stat", "anon 500\ninactive_file 250\nactive_file 150\n");
  EXPECT_EQ(Available(), 500);
}

TEST_F(AvailableMemoryTest, TheFirstVersionOfGroupsToo) {
  Write("proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/docker/a\n0::/\n");
  Write("groups/memory/docker/a/memory.limit_in_bytes", "1000\n");
  Write("groups/memory/docker/a/memory.usage_in_bytes", "900\n");
  Write("groups/memory/docker/a/memory.stat",
        "inactive_file 10\ntotal_inactive_file 100\ntotal_active_file 50\n");
  EXPECT_EQ(Available(), 250);
}

TEST_F(AvailableMemoryTest, InAContainerTheRootIsItsOwn) {
  Write("proc/self/cgroup", "4:memory:/docker/of-the-host\n");
  Write("groups/memory/memory.limit_in_bytes", "1000\n");
  Write("groups/memory/memory.usage_in_bytes", "1200\n");
  EXPECT_EQ(Available(), 0);
}

}  // namespace
}  // namespace lockstep
