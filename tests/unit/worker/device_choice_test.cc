// SPDX-License-Identifier: Apache-2.0
// The GPU that a worker has been given and the one that CUDA shows it.
#include "worker/setup/device_choice.h"

#include <cstdlib>
#include <string>

#include "engine/cuda/module.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/emulation/emulated_gpus.h"
#include "tests/emulation/emulation.h"

namespace lockstep::worker {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr const char* kFirst = "GPU-aaaaaaaa-0000-0000-0000-000000000001";
constexpr const char* kSecond = "GPU-bbbbbbbb-0000-0000-0000-000000000001";

WorkerAssignment Assigned(const std::string& kind, const std::string& uuid) {
  WorkerAssignment assignment;
  assignment.set_slot(1);
  assignment.mutable_device()->set_kind(kind);
  assignment.mutable_device()->set_uuid(uuid);
  return assignment;
}

// Of two GPUs the first stays number 0, as where CUDA was begun before the worker chose.
TEST(DeviceChoice, AnotherGpuThanTheAssignedOneIsRefused) {
  engine::cuda::UseTables(engine::cuda::EmulatedTables());
  ::setenv("LOCKSTEP_EMULATED_GPUS", (std::string(kFirst) + "," + kSecond).c_str(), 1);
  ::unsetenv("CUDA_VISIBLE_DEVICES");
  const absl::Status refused = CheckDevice(Assigned("cuda", kSecond));
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), HasSubstr(std::string("worker 1 was given ") +
                                                        kSecond + ", but CUDA shows it " + kFirst));
  EXPECT_TRUE(CheckDevice(Assigned("cuda", kFirst)).ok());
  EXPECT_TRUE(CheckDevice(Assigned("cuda", "GPU-aaaa")).ok());  // as CUDA takes it
  EXPECT_TRUE(CheckDevice(Assigned("cuda", "MIG-x")).ok());
  EXPECT_TRUE(CheckDevice(Assigned("cpu", "")).ok());
}

// What a job may not do without a GPU fails where its workers are given the CPU.
TEST(DeviceChoice, WhatWantsAGpuIsNotDoneOnTheCpuInSilence) {
  const auto error = [](const JobSpec& job) {
    return std::string(JobOnDevice(job, Assigned("cpu", "")).status().message());
  };
  JobSpec job;
  job.mutable_resources()->set_device("auto");
  EXPECT_EQ(error(job), "");
  job.mutable_nccl()->set_use("always");
  EXPECT_EQ(error(job),
            "nccl.use is always, but worker 1 was given the CPU: set resources.device to cuda, or "
            "leave nccl.use out");
  // As the coordinator says it where it counted the workers.
  job.mutable_resources()->set_device("cpu");
  EXPECT_THAT(error(job), HasSubstr("nccl.use is always"));
  job.mutable_nccl()->set_use("auto");
  job.mutable_resources()->set_cudnn("always");
  EXPECT_THAT(error(job), HasSubstr("resources.cudnn is always, but worker 1 was given the CPU"));
  EXPECT_TRUE(JobOnDevice(job, Assigned("cuda", kFirst)).ok());
}

TEST(EmulatedGpus, AreShownAsCudaShowsThem) {
  const auto shown = [](const char* order, const char* visible) {
    return emulation::ShownGpus("GPU-c,GPU-a,GPU-b", order, visible);
  };
  EXPECT_THAT(shown(nullptr, nullptr), ElementsAre("GPU-c", "GPU-a", "GPU-b"));
  EXPECT_THAT(shown("PCI_BUS_ID", "0"), ElementsAre("GPU-a"));
  EXPECT_THAT(shown("FASTEST_FIRST", "0,GPU-b"), ElementsAre("GPU-c", "GPU-b"));
  EXPECT_THAT(shown(nullptr, "1,7,0"), ElementsAre("GPU-a"));
  EXPECT_THAT(shown(nullptr, ""), IsEmpty());
  EXPECT_THAT(emulation::ShownGpus(nullptr, nullptr, "1"), ElementsAre(""));
}

}  // namespace
}  // namespace lockstep::worker
