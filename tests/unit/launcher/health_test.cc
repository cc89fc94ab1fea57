// SPDX-License-Identifier: Apache-2.0
// Whether work can be done on a host, and who keeps looking.
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "common/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launcher/agent/gpu_trial.h"
#include "launcher/agent/health_check.h"
#include "launcher/agent/health_watch.h"
#include "launcher/agent/start_gate.h"

namespace lockstep::launcher {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class HealthTest : public ::testing::Test {
 protected:
  HealthTest() {
    char name[] = "/tmp/lockstep-health-test-XXXXXX";
    EXPECT_NE(::mkdtemp(name), nullptr);
    path_ = name;
  }
  ~HealthTest() override { fs::remove_all(path_); }
  // Asks and waits.
  static std::string Ask(HealthWatch& watch) {
    absl::Notification told;
    std::string answer;
    watch.Ask([&](const std::string& problem) {
      answer = problem;
      told.Notify();
    });
    told.WaitForNotification();
    return answer;
  }

  std::string path_;
};

TEST_F(HealthTest, ADiskThatTakesAndGivesBackIsWell) {
  EXPECT_THAT(ExamineDisk(path_, /*own=*/true), IsEmpty());
  EXPECT_TRUE(fs::is_empty(path_)) << "nothing is left there";
  // The nearest folder that is there is meant.
  EXPECT_THAT(ExamineDisk(path_ + "/runs/of/a/job/", true), IsEmpty());
  EXPECT_THAT(ExamineDisk("no/such/folder/here", false), IsEmpty());
}

TEST_F(HealthTest, TooLittleRoomIsNamedWithWhatIsNeeded) {
  EXPECT_THAT(ExamineDisk(path_, true, int64_t{1} << 62),
              AllOf(HasSubstr("the disk of " + path_ + " has "), HasSubstr("MiB are needed")));
}

TEST_F(HealthTest, AFolderThatIsNotForThisUserSaysNothingAboutTheDisk) {
  // In /proc nobody makes files, whoever asks.
  EXPECT_THAT(ExamineDisk("/proc", /*own=*/false, 0), IsEmpty());
  EXPECT_THAT(ExamineDisk("/proc", /*own=*/true, 0),
              HasSubstr("nothing can be written in /proc: "));
}

TEST_F(HealthTest, MemoryIsThereAndCanBeShared) {
  EXPECT_THAT(ExamineSharedMemory(), IsEmpty());
  EXPECT_THAT(ExamineMemory(kLeastFreeMemory), IsEmpty());
  EXPECT_THAT(ExamineMemory(3 << 20), HasSubstr("3 MiB of memory are free, and 64 MiB are needed"));
}

TEST_F(HealthTest, WhatTheTrialOfGpusSays) {
  EXPECT_THAT(ReadTrial("driver       missing  x\n", 0, 0), IsEmpty());
  EXPECT_THAT(ReadTrial("CPU          ok       a cpu\nGPU 0        ok       fine\n"
                        "kernel       missing  GPU 1 adds wrongly\n",
                        1, 0),
              HasSubstr("kernel: GPU 1 adds wrongly"));
  EXPECT_THAT(ReadTrial("", 3, 0), HasSubstr("exited with code 3"));
  EXPECT_THAT(ReadTrial("", 0, 11), HasSubstr("signal 11"));
}

TEST_F(HealthTest, AWatchSaysWhatIsWrongUntilItIsNot) {
  HealthWatch::Options options;
  options.folders = {"/state"};
  std::string full;
  options.examine_disk = [&](const std::string& folder) -> std::string {
    return folder == full ? "the disk of " + folder + " is full" : "";
  };
  options.again = absl::Hours(1);
  HealthWatch watch(std::move(options));
  ASSERT_TRUE(watch.AwaitFirst(absl::Seconds(30)));
  EXPECT_THAT(watch.problem(), IsEmpty());
  EXPECT_THAT(Ask(watch), IsEmpty());
  full = "/state";
  EXPECT_EQ(Ask(watch), "the disk of /state is full");
  EXPECT_THAT(watch.problem(), "the disk of /state is full");
  full.clear();
  EXPECT_THAT(Ask(watch), IsEmpty());
  EXPECT_THAT(watch.problem(), IsEmpty());
}

TEST_F(HealthTest, WhatIsWrongIsText) {
  HealthWatch::Options options;
  options.folders = {"/state-\xe9"};
  options.examine_disk = [](const std::string& folder) { return folder + " is full"; };
  options.again = absl::Hours(1);
  HealthWatch watch(std::move(options));
  ASSERT_TRUE(watch.AwaitFirst(absl::Seconds(30)));
  EXPECT_EQ(watch.problem(), "/state-\\xe9 is full");
}

TEST_F(HealthTest, AnOwnDiskThatDoesNotDoIsNamedAtOnce) {
  HealthWatch::Options options;
  options.folders = {"/proc"};
  HealthWatch watch(std::move(options));
  ASSERT_TRUE(watch.AwaitFirst(absl::Seconds(30)));
  EXPECT_THAT(watch.problem(), HasSubstr("nothing can be written in /proc"));
}

TEST_F(HealthTest, AWatchSaysWhichFolderDoesNotAnswer) {
  FakeClock clock;
  HealthWatch::Options options;
  options.folders = {"/well", "/hangs"};
  options.clock = &clock;
  absl::Notification hangs, answers;
  options.examine_disk = [&](const std::string& folder) {
    if (folder == "/hangs" && !hangs.HasBeenNotified()) {
      hangs.Notify();
      answers.WaitForNotification();
    }
    return std::string();
  };
  HealthWatch watch(std::move(options));
  hangs.WaitForNotification();
  EXPECT_EQ(watch.problem(), "its checks have not come back yet");
  clock.Advance(absl::Seconds(11));
  EXPECT_EQ(watch.problem(),
            "its checks have not come back for 10s: the folder /hangs does not answer");
  answers.Notify();
  EXPECT_THAT(Ask(watch), IsEmpty());
  EXPECT_THAT(watch.problem(), IsEmpty());
}

TEST_F(HealthTest, AWatchThatEndsSaysWhatDoesNotComeBack) {
  HealthWatch::Options options;
  options.folders = {"/well", "/hangs", "/after"};
  absl::Notification hangs, answers;
  bool after = false;
  options.examine_disk = [&](const std::string& folder) {
    after = after || folder == "/after";
    if (folder == "/hangs") {
      hangs.Notify();
      answers.WaitForNotification();
    }
    return std::string();
  };
  options.examine_gpus = [&]() -> std::string {
    after = true;
    return "";
  };
  HealthWatch watch(std::move(options));
  hangs.WaitForNotification();
  EXPECT_EQ(watch.Stop(absl::ZeroDuration()), "the folder /hangs");
  answers.Notify();
  EXPECT_EQ(watch.Stop(absl::Seconds(30)), "");
  EXPECT_FALSE(after) << "it begins nothing more";
}

TEST_F(HealthTest, AWatchTriesGpusAgainUntilTheyCompute) {
  HealthWatch::Options options;
  options.again = absl::Milliseconds(1);
  int tries = 0;
  absl::Notification well;
  options.examine_gpus = [&]() -> std::string {
    if (++tries < 3) return "its GPUs cannot be used";
    well.Notify();
    return "";
  };
  HealthWatch watch(std::move(options));
  well.WaitForNotification();
  EXPECT_THAT(Ask(watch), IsEmpty());
  EXPECT_THAT(watch.problem(), IsEmpty());
  EXPECT_EQ(tries, 3);
}

TEST_F(HealthTest, TheFirstWorkersOfAJobWaitForOneLook) {
  using Answer = StartGate::Answer;
  StartGate gate;
  EXPECT_EQ(gate.Add("j", "j.0", /*others_run=*/false), Answer::kAsk);
  EXPECT_EQ(gate.Add("j", "j.1", false), Answer::kWait);
  EXPECT_EQ(gate.Add("k", "k.0", false), Answer::kAsk);
  EXPECT_TRUE(gate.Leave("j.0"));
  EXPECT_FALSE(gate.Leave("j.0"));
  EXPECT_THAT(gate.Open("j"), ElementsAre("j.1"));
  EXPECT_THAT(gate.Open("j"), IsEmpty());
  EXPECT_EQ(gate.Add("j", "j.2", /*others_run=*/true), Answer::kStart);
  EXPECT_EQ(gate.Add("k", "k.1", /*others_run=*/true), Answer::kWait) << "with its job's first";
}

}  // namespace
}  // namespace lockstep::launcher
