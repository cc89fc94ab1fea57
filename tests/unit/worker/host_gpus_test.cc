// SPDX-License-Identifier: Apache-2.0
// What the kernel says of GPUs, in made folders.
#include "worker/commands/host_gpus.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::worker {
namespace {

using testing::HasSubstr;

class HostGpusTest : public testing::Test {
 protected:
  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path whole = root_ + "/" + path;
    std::filesystem::create_directories(whole.parent_path());
    std::ofstream(whole) << text;
  }
  void SetUp() override { std::filesystem::remove_all(root_); }
  void TearDown() override { std::filesystem::remove_all(root_); }

  const std::string root_ = absl::StrCat(testing::TempDir(), "/host_gpus_test-", ::getpid());
};

TEST_F(HostGpusTest, PlacesAreThoseOfTheDriversDevices) {
  EXPECT_THAT(GpuPlaces(root_), testing::IsEmpty());
  Write("bus/pci/drivers/nvidia/0000:9a:00.0/local_cpulist", "32-63\n");
  Write("bus/pci/drivers/nvidia/0000:9a:00.0/numa_node", "1\n");
  Write("bus/pci/drivers/nvidia/0000:3b:00.0/local_cpulist", "0-31\n");
  Write("bus/pci/drivers/nvidia/0000:3b:00.0/numa_node", "-1\n");
  Write("bus/pci/drivers/nvidia/module/holders", "");
  const auto places = GpuPlaces(root_);
  ASSERT_EQ(places.size(), 2);
  EXPECT_EQ(places[0].pci, "0000:3b:00.0");
  EXPECT_EQ(places[0].numa, -1);
  EXPECT_EQ(places[1].numa, 1);
  EXPECT_EQ(places[1].cpus, "32-63");
}

TEST_F(HostGpusTest, DirectAccessNeedsModules) {
  DirectAccess access = FindDirectAccess(root_, root_);
  EXPECT_FALSE(access.rdma || access.storage);
  EXPECT_THAT(access.rdma_text, HasSubstr("load nvidia_peermem"));
  Write("driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.1");
  Write("module/nvidia_fs/version", "2");
  access = FindDirectAccess(root_, root_);
  EXPECT_TRUE(access.rdma && access.storage);
  EXPECT_THAT(access.rdma_text, HasSubstr("dmabuf"));
  Write("module/nvidia_peermem/version", "1");
  EXPECT_THAT(FindDirectAccess(root_, root_).rdma_text, HasSubstr("by nvidia_peermem"));
}

}  // namespace
}  // namespace lockstep::worker
