// SPDX-License-Identifier: Apache-2.0
// What `launcher doctor` makes of what a driver says, here one that is not there.
#include "worker/commands/gpu_health.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::worker {
namespace {

using engine::GpuFinding;
using State = GpuFinding::State;
using testing::ElementsAre;
using testing::HasSubstr;

class GpuHealthTest : public testing::Test {
 protected:
  void SetUp() override {
    ::setenv("LOCKSTEP_NVML_LIBRARY", LOCKSTEP_FAKE_NVML, 1);
    ::unsetenv("LOCKSTEP_FAKE_NVML_APART");
    ::unsetenv("LOCKSTEP_FAKE_NVML_UNCUT");
    ::unsetenv("LOCKSTEP_FAKE_NVML_LOST");
    ::setenv("LOCKSTEP_FAKE_NVML_CPUS", "0xffffffffffffffff", 1);
    std::filesystem::remove_all(root_);
    Write("bus/pci/drivers/nvidia/0000:3b:00.0/local_cpulist", "0-31");
    Write("bus/pci/drivers/nvidia/0000:3b:00.0/numa_node", "1");
    Write(absl::StrCat(::getpid(), "/comm"), "trainer\n");
  }
  void TearDown() override { std::filesystem::remove_all(root_); }
  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path whole = root_ + "/" + path;
    std::filesystem::create_directories(whole.parent_path());
    std::ofstream(whole) << text;
  }
  // The findings about `part`, in the order of the GPUs.
  std::vector<GpuFinding> Of(const std::string& part) {
    const auto nvml = Nvml::Open();
    EXPECT_TRUE(nvml.ok()) << nvml.status();
    std::vector<GpuFinding> found;
    for (const GpuFinding& finding : ExamineByDriver(**nvml, root_, root_)) {
      if (finding.part == part) found.push_back(finding);
    }
    return found;
  }

  const std::string root_ = absl::StrCat(testing::TempDir(), "/gpu_health_test-", ::getpid());
};

TEST_F(GpuHealthTest, PlacesHaveNodesAndCpus) {
  auto places = Of("place");
  ASSERT_EQ(places.size(), 2);  // of GPUs, not of their instances
  EXPECT_EQ(places[0].text, "GPU 0 at 0000:3b:00.0, NUMA node 1, near CPUs 0-63");
  EXPECT_EQ(places[0].state, State::kGood);
  EXPECT_EQ(places[1].text, "GPU 1 at 0000:9a:00.0, near CPUs 0-63");
  // The kernel knows it too.
  ::setenv("LOCKSTEP_FAKE_NVML_CPUS", "0", 1);
  places = Of("place");
  EXPECT_EQ(places[0].text, "GPU 0 at 0000:3b:00.0, NUMA node 1, near CPUs 0-31");
  EXPECT_EQ(places[1].text, "GPU 1 at 0000:9a:00.0");
}

TEST_F(GpuHealthTest, AGpuThatHasNoInstanceYetIsTold) {
  EXPECT_TRUE(Of("MIG").empty());
  ::setenv("LOCKSTEP_FAKE_NVML_UNCUT", "1", 1);
  const auto told = Of("MIG");
  ASSERT_EQ(told.size(), 1);
  EXPECT_EQ(told[0].state, State::kDoubtful);
  EXPECT_THAT(told[0].text, HasSubstr("GPU 1 is in MIG mode and has no instance"));
  EXPECT_EQ(Of("place").size(), 1);
}

TEST_F(GpuHealthTest, AGpuThatCannotBeAskedIsToldAndHidesNoOther) {
  EXPECT_TRUE(Of("driver").empty());
  ::setenv("LOCKSTEP_FAKE_NVML_LOST", "0", 1);
  const auto told = Of("driver");
  ASSERT_EQ(told.size(), 1);
  EXPECT_EQ(told[0].state, State::kDoubtful);
  EXPECT_THAT(told[0].text, HasSubstr("GPU 0 is left out: the NVIDIA driver gives error 15"));
  const auto places = Of("place");
  ASSERT_EQ(places.size(), 1);
  EXPECT_THAT(places[0].text, HasSubstr("GPU 1 at 0000:9a:00.0"));
}

TEST_F(GpuHealthTest, CpusThatMayNotBeUsedAreTold) {
  Write("bus/pci/drivers/nvidia/0000:3b:00.0/local_cpulist", "16000-16001");
  ::setenv("LOCKSTEP_FAKE_NVML_CPUS", "0", 1);
  const auto places = Of("place");
  EXPECT_EQ(places[0].state, State::kDoubtful);
  EXPECT_THAT(places[0].text, HasSubstr("near CPUs 16000-16001, none of which this process may"));
}

TEST_F(GpuHealthTest, ErrorsOfMemoryAreDoubtful) {
  const auto ecc = Of("ECC");
  ASSERT_EQ(ecc.size(), 2);
  EXPECT_EQ(ecc[0].state, State::kGood);
  EXPECT_EQ(ecc[0].text, "GPU 0: 5 errors corrected, 0 not, since the driver was loaded");
  EXPECT_EQ(ecc[1].state, State::kDoubtful);
  EXPECT_THAT(ecc[1].text, HasSubstr("2 not"));
  EXPECT_THAT(ecc[1].text, HasSubstr("rows are to be replaced: reset the GPU"));
}

TEST_F(GpuHealthTest, LinksThatAreDownAreDoubtful) {
  const auto links = Of("NVLink");
  ASSERT_EQ(links.size(), 2);
  EXPECT_EQ(links[0].text, "GPU 0: 18 of 18 links, version 4");
  EXPECT_EQ(links[0].state, State::kGood);
  EXPECT_EQ(links[1].state, State::kDoubtful);
  EXPECT_THAT(links[1].text, HasSubstr("16 of 18 links"));
}

TEST_F(GpuHealthTest, ProcessesHaveNamesAndMemory) {
  const auto users = Of("processes");
  ASSERT_EQ(users.size(), 2);
  EXPECT_EQ(users[0].text, absl::StrCat("GPU 0: ", ::getpid(), " (trainer) 2.0 GiB"));
  EXPECT_EQ(users[1].text, "GPU 1: none");
}

TEST_F(GpuHealthTest, PeersAreAMatrix) {
  auto peers = Of("peers");
  ASSERT_EQ(peers.size(), 2);
  EXPECT_EQ(peers[0].text, "GPU 0 to 1: NVLink");
  EXPECT_EQ(peers[1].text, "GPU 1 to 0: NVLink");
  EXPECT_EQ(peers[0].state, State::kGood);
  ::setenv("LOCKSTEP_FAKE_NVML_APART", "1", 1);
  peers = Of("peers");
  EXPECT_EQ(peers[0].state, State::kOptional);
  EXPECT_EQ(peers[0].text,
            "GPU 0 to 1: no peer access (copies go through the host), across NUMA nodes");
}

}  // namespace
}  // namespace lockstep::worker
