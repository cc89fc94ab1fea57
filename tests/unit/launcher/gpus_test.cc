// SPDX-License-Identifier: Apache-2.0
// GPUs and what they and the workers use, as a driver tells it that is not there.
#include "launcher/agent/gpus.h"

#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "common/nvml.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launcher/agent/usage.h"

namespace lockstep::launcher {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class GpusTest : public testing::Test {
 protected:
  void SetUp() override {
    ::setenv("LOCKSTEP_NVML_LIBRARY", LOCKSTEP_FAKE_NVML, 1);
    ::unsetenv("CUDA_VISIBLE_DEVICES");
    ::unsetenv("LOCKSTEP_GPUS");
    ::setenv("LOCKSTEP_CUDA_MODULE", "/dev/null", 1);  // there is one
  }
  void TearDown() override {
    for (const char* name :
         {"LOCKSTEP_FAKE_NVML_CUDA", "LOCKSTEP_FAKE_NVML_DRIVER", "LOCKSTEP_FAKE_NVML_UNCUT",
          "LOCKSTEP_FAKE_NVML_LOST", "LOCKSTEP_FAKE_NVML_FAILS", "LOCKSTEP_CUDA_MODULE"}) {
      ::unsetenv(name);
    }
  }
  static std::vector<std::string> Uuids() {
    const auto list = ListGpus();
    EXPECT_TRUE(list.ok()) << list.status();
    std::vector<std::string> uuids;
    for (const Gpu& gpu : list->gpus) uuids.push_back(gpu.uuid);
    return uuids;
  }
};

TEST_F(GpusTest, InstancesTakeTheirGpusPlace) {
  EXPECT_THAT(Uuids(), ElementsAre("GPU-aaaa", "MIG-b0", "MIG-b2"));
  const auto list = ListGpus();
  EXPECT_EQ(list->driver, "580.1");
  EXPECT_EQ(list->gpus[2].name, "Fake GPU MIG 2g.20gb");
  EXPECT_EQ(list->gpus[2].memory, int64_t{20} << 30);
}

TEST_F(GpusTest, TheEnvironmentChooses) {
  ::setenv("CUDA_VISIBLE_DEVICES", "MIG-b2,0", 1);
  EXPECT_THAT(Uuids(), ElementsAre("MIG-b2", "GPU-aaaa"));
  ::setenv("CUDA_VISIBLE_DEVICES", "", 1);
  EXPECT_THAT(Uuids(), IsEmpty());
  ::setenv("LOCKSTEP_GPUS", "MIG-x,GPU-y", 1);
  EXPECT_THAT(Uuids(), ElementsAre("MIG-x", "GPU-y"));
}

TEST_F(GpusTest, WithoutADriverItSaysSo) {
  ::setenv("LOCKSTEP_NVML_LIBRARY", "/nowhere.so", 1);
  EXPECT_EQ(ListGpus().status().code(), absl::StatusCode::kNotFound);
}

TEST_F(GpusTest, ADriverThatIsTooOldForCudaGivesNoneAndSaysSo) {
  EXPECT_EQ(UsableGpus().size(), 3);
  ::setenv("LOCKSTEP_FAKE_NVML_DRIVER", "570.124.06", 1);
  ::setenv("LOCKSTEP_FAKE_NVML_CUDA", "12080", 1);
  testing::internal::CaptureStderr();
  EXPECT_THAT(UsableGpus(), IsEmpty());
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("driver 570.124.06 runs CUDA 12.8; CUDA 13 needs driver 580 or newer"));
  // Beside an old driver there may be a newer one's libraries, which run it.
  ::setenv("LOCKSTEP_FAKE_NVML_CUDA", "13010", 1);
  EXPECT_EQ(UsableGpus().size(), 3);
  // One that does not say is tried.
  ::setenv("LOCKSTEP_FAKE_NVML_CUDA", "0", 1);
  EXPECT_EQ(UsableGpus().size(), 3);
}

TEST_F(GpusTest, AGpuThatIsToBeCutAndIsNotYetIsNotListed) {
  ::setenv("LOCKSTEP_FAKE_NVML_UNCUT", "1", 1);
  EXPECT_THAT(Uuids(), ElementsAre("GPU-aaaa"));
  const auto list = ListGpus();
  ASSERT_EQ(list->unlisted.size(), 1);
  EXPECT_EQ(list->unlisted[0].number, 1);
  EXPECT_EQ(list->unlisted[0].error, 0);
  testing::internal::CaptureStderr();
  EXPECT_EQ(UsableGpus().size(), 1);
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("GPU 1 is in MIG mode and has no instance"));
}

TEST_F(GpusTest, AGpuThatCannotBeAskedHidesNoOther) {
  ::setenv("LOCKSTEP_FAKE_NVML_LOST", "0", 1);
  EXPECT_THAT(Uuids(), ElementsAre("MIG-b0", "MIG-b2"));
  ::setenv("LOCKSTEP_FAKE_NVML_LOST", "1", 1);
  EXPECT_THAT(Uuids(), ElementsAre("GPU-aaaa"));
  testing::internal::CaptureStderr();
  EXPECT_EQ(UsableGpus().size(), 1);
  EXPECT_EQ(UsableGpus().size(), 1);
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, HasSubstr("GPU 1 is left out: the NVIDIA driver gives error 15"));
  EXPECT_EQ(log.find("left out"), log.rfind("left out")) << log;
}

TEST_F(GpusTest, ADriverThatFailsIsTold) {
  ::setenv("LOCKSTEP_FAKE_NVML_FAILS", "999", 1);
  testing::internal::CaptureStderr();
  EXPECT_THAT(UsableGpus(), IsEmpty());
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("no GPU of this host is used: the NVIDIA driver gives error 999"));
}

TEST_F(GpusTest, UsageIsThatOfTheDriver) {
  const auto nvml = Nvml::Open();
  ASSERT_TRUE(nvml.ok()) << nvml.status();
  const auto devices = (*nvml)->Devices();
  ASSERT_EQ(devices->size(), 3);
  const Nvml::Use whole = (*nvml)->UseOf((*devices)[0]);
  EXPECT_EQ(whole.used, int64_t{3} << 30);
  EXPECT_EQ(whole.utilisation, 97);
  EXPECT_DOUBLE_EQ(*whole.watts, 512.3);
  EXPECT_DOUBLE_EQ(*whole.watts_limit, 700);
  EXPECT_EQ(whole.celsius, 61);
  EXPECT_EQ(whole.sm_mhz, 1980);
  EXPECT_EQ(whole.memory_mhz, 3201);
  const Nvml::Use part = (*nvml)->UseOf((*devices)[1]);
  EXPECT_FALSE(part.utilisation.has_value());  // the driver does not tell it of instances
  EXPECT_EQ(part.celsius, 61);                 // of the GPU that it belongs to
}

TEST_F(GpusTest, CpusNearThemAreThoseOfTheDriver) {
  ::setenv("LOCKSTEP_FAKE_NVML_CPUS", "0x8000000000000f03", 1);
  const auto list = ListGpus();
  ASSERT_TRUE(list.ok()) << list.status();
  for (const Gpu& gpu : list->gpus) EXPECT_EQ(gpu.cpus, "0-1,8-11,63") << gpu.uuid;
  ::setenv("LOCKSTEP_FAKE_NVML_CPUS", "0", 1);  // there is no such device in sysfs either
  EXPECT_EQ(ListGpus()->gpus[0].cpus, "");
  ::unsetenv("LOCKSTEP_FAKE_NVML_CPUS");
}

TEST_F(GpusTest, TheSamplerKnowsItsWorkersAndItsGpusAlone) {
  const auto nvml = Nvml::Open();
  ASSERT_TRUE(nvml.ok());
  UsageSampler sampler({"GPU-aaaa", "MIG-b2"});
  sampler.Watch({{"me", ::getpid()}, {"gone", 1 << 30}});
  const absl::Time start = absl::Now();
  sampler.Sample(nvml->get(), start);
  const double before = TimesOf(::getpid()).cpu_seconds;
  while (TimesOf(::getpid()).cpu_seconds < before + 0.05) {
  }
  sampler.Sample(nvml->get(), start + absl::Seconds(100));
  const AgentHeartbeat figures = sampler.Latest();
  ASSERT_EQ(figures.gpus_size(), 2);
  EXPECT_EQ(figures.gpus(0).used(), int64_t{3} << 30);
  EXPECT_DOUBLE_EQ(figures.gpus(0).watts(), 512.3);
  EXPECT_THAT(figures.gpus(0).pids(), ElementsAre(::getpid()));
  EXPECT_EQ(figures.gpus(1).uuid(), "MIG-b2");
  EXPECT_FALSE(figures.gpus(1).has_utilisation());
  ASSERT_EQ(figures.workers_size(), 2);
  EXPECT_EQ(figures.workers(0).rss_bytes(), 0);  // "gone"
  const ProcessUsage& me = figures.workers(1);
  EXPECT_EQ(me.worker_incarnation(), "me");
  EXPECT_GT(me.rss_bytes(), 1 << 20);
  EXPECT_EQ(me.gpu_bytes(), int64_t{2} << 30);
  EXPECT_GE(me.cpu_percent(), 0.03);  // of 100 seconds
  EXPECT_LT(me.cpu_percent(), 100);
}

}  // namespace
}  // namespace lockstep::launcher
