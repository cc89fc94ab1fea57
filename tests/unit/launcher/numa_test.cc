// SPDX-License-Identifier: Apache-2.0
// NUMA nodes, in made folders.
#include "launcher/agent/numa.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::launcher {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class NumaTest : public testing::Test {
 protected:
  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path whole = absl::StrCat(root_, "/devices/system/node/", path);
    std::filesystem::create_directories(whole.parent_path());
    std::ofstream(whole) << text;
  }
  void WriteNode(int id, const std::string& cpus, int64_t kilobytes) {
    Write(absl::StrCat("node", id, "/cpulist"), cpus + "\n");
    Write(absl::StrCat("node", id, "/meminfo"),
          absl::StrCat("Node ", id, " MemFree:         1234 kB\nNode ", id,
                       " MemTotal:       ", kilobytes, " kB\n"));
  }
  void SetUp() override { std::filesystem::remove_all(root_); }
  void TearDown() override { std::filesystem::remove_all(root_); }

  const std::string root_ = absl::StrCat(testing::TempDir(), "/numa_test-", ::getpid());
};

TEST_F(NumaTest, EachNodeHasItsCpusItsMemoryAndTheGpusNearIt) {
  WriteNode(10, "4-5,12-13", 200);
  WriteNode(0, "0-3,8-11", 100);
  Write("possible", "0-10\n");
  Write("has_cpu", "0,10\n");
  const Gpu near{.uuid = "GPU-near", .cpus = "0-3"};
  const Gpu far{.uuid = "GPU-far", .cpus = "12-13"};
  const Gpu unknown{.uuid = "GPU-unknown"};
  const auto nodes = NumaNodes(root_, *ParseCpuList("0-15"), {far, near, unknown});
  ASSERT_EQ(nodes.size(), 2);
  EXPECT_EQ(nodes[0].id(), 0);
  EXPECT_EQ(nodes[0].cpus(), "0-3,8-11");
  EXPECT_EQ(nodes[0].memory(), 100 * 1024);
  EXPECT_THAT(nodes[0].gpus(), ElementsAre("GPU-near"));
  EXPECT_EQ(nodes[1].id(), 10);
  EXPECT_THAT(nodes[1].gpus(), ElementsAre("GPU-far"));
}

TEST_F(NumaTest, CpusThatMayNotBeUsedDoNotCount) {
  WriteNode(0, "0-3", 100);
  WriteNode(1, "4-7", 100);
  WriteNode(2, "", 100);  // memory alone, as of a GPU
  const auto nodes = NumaNodes(root_, *ParseCpuList("2-3"), {});
  ASSERT_EQ(nodes.size(), 1);
  EXPECT_EQ(nodes[0].cpus(), "2-3");
}

TEST_F(NumaTest, WhereTheKernelTellsOfNoneThereIsNone) {
  EXPECT_THAT(NumaNodes(root_, *ParseCpuList("0-3"), {}), IsEmpty());
}

TEST_F(NumaTest, WhatCannotBeReadIsNotKnown) {
  Write("node0/cpulist", "what\n");
  Write("node1/cpulist", "0-1\n");
  const auto nodes = NumaNodes(root_, *ParseCpuList("0-3"), {});
  ASSERT_EQ(nodes.size(), 1);
  EXPECT_EQ(nodes[0].memory(), 0);
}

}  // namespace
}  // namespace lockstep::launcher
