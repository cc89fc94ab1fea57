// SPDX-License-Identifier: Apache-2.0
#include "worker/setup/cpu_binding.h"

#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::worker {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

WorkerAssignment OnGpu(const std::string& cpus) {
  WorkerAssignment assignment;
  assignment.mutable_device()->set_kind("cuda");
  assignment.mutable_device()->set_cpus(cpus);
  return assignment;
}

TEST(CpuBinding, StaysOnTheAllowedCpusThatAreNear) {
  const CpuChoice choice = ChooseCpus(OnGpu("4-7"), {0, 1, 5, 6});
  EXPECT_THAT(choice.cpus, ElementsAre(5, 6));
  EXPECT_EQ(choice.says, "runs on CPUs 5-6, which are near its GPU");
}

TEST(CpuBinding, NeverLeavesWhatIsAllowed) {
  const CpuChoice choice = ChooseCpus(OnGpu("4-7"), {0, 1});
  EXPECT_THAT(choice.cpus, IsEmpty());
  EXPECT_THAT(choice.says, HasSubstr("(4-7): it may run on 0-1 only"));
}

TEST(CpuBinding, DoesNothingWhereNothingIsToChoose) {
  for (const char* cpus : {"", "0-7", "0-1"}) {
    const CpuChoice choice = ChooseCpus(OnGpu(cpus), {0, 1});
    EXPECT_THAT(choice.cpus, IsEmpty()) << cpus;
    EXPECT_EQ(choice.says, "") << cpus;
  }
  WorkerAssignment cpu = OnGpu("0");
  cpu.mutable_device()->set_kind("cpu");
  EXPECT_THAT(ChooseCpus(cpu, {0, 1}).cpus, IsEmpty());
}

TEST(CpuBinding, DoesNotPackThreads) {
  WorkerAssignment assignment = OnGpu("0-1");
  assignment.mutable_spec()->mutable_resources()->set_cpus_per_proc(3);
  const CpuChoice choice = ChooseCpus(assignment, {0, 1, 2, 3});
  EXPECT_THAT(choice.cpus, IsEmpty());
  EXPECT_THAT(choice.says, HasSubstr("has 3 threads"));
}

TEST(CpuBinding, TheJobMayForbidIt) {
  WorkerAssignment assignment = OnGpu("0");
  assignment.mutable_spec()->mutable_resources()->set_bind_cpus("never");
  EXPECT_THAT(ChooseCpus(assignment, {0, 1}).cpus, IsEmpty());
  EXPECT_EQ(ChooseCpus(assignment, {0, 1}).says, "");
}

TEST(CpuBinding, TextThatIsNoListIsSaidAndNotFollowed) {
  const CpuChoice choice = ChooseCpus(OnGpu("all"), {0, 1});
  EXPECT_THAT(choice.cpus, IsEmpty());
  EXPECT_THAT(choice.says, HasSubstr("'all'"));
}

TEST(CpuBinding, ThreadsThatStartLaterStayToo) {
  std::thread([] {
    const CpuList before = *CpusOfThread();
    if (before.size() < 2) GTEST_SKIP() << "one CPU";
    StayNearDevice(OnGpu(CpuListText({before[1]})));
    std::thread([&] { EXPECT_THAT(*CpusOfThread(), ElementsAre(before[1])); }).join();
  }).join();
}

}  // namespace
}  // namespace lockstep::worker
