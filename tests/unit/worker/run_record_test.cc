// SPDX-License-Identifier: Apache-2.0
#include "worker/control/run_record.h"

#include <fcntl.h>
#include <sys/file.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/fd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/worker/file_limit.h"

namespace lockstep::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class RunRecordTest : public ::testing::Test {
 protected:
  RunRecordTest() : dir_(::testing::TempDir() + "/run_record_XXXXXX") {
    EXPECT_NE(::mkdtemp(dir_.data()), nullptr);
  }
  ~RunRecordTest() override { std::filesystem::remove_all(dir_); }
  std::string Read(const std::string& name) {
    std::ifstream file(dir_ + "/" + name, std::ios::binary);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }
  void Put(const std::string& name, const std::string& bytes) {
    std::ofstream(dir_ + "/" + name, std::ios::binary) << bytes;
  }
  // The steps in ledger.bin.
  std::vector<int64_t> Steps() {
    const std::string ledger = Read("ledger.bin");
    EXPECT_EQ(ledger.size() % 24, 0u);
    std::vector<int64_t> steps(ledger.size() / 24);
    for (size_t i = 0; i < steps.size(); ++i) std::memcpy(&steps[i], ledger.data() + i * 24, 8);
    return steps;
  }
  std::string dir_;
};

TEST_F(RunRecordTest, WritesLinesAndRecordsOnlyWhenAsked) {
  RunRecord record(dir_, 1000);
  record.SetWriter(true, false);
  record.Step(12, 0.05, 1.5, 0.1, 3072);
  record.Ledger(12, 3, 2, 0x0123456789ABCDEFu);
  EXPECT_EQ(Read("metrics.jsonl"), "");
  record.Write();
  EXPECT_EQ(Read("metrics.jsonl"),
            "{\"kind\":\"step\",\"step\":12,\"epoch\":0.05,\"loss\":1.5,\"lr\":0.1,"
            "\"samples\":3072}\n");
  const std::string ledger = Read("ledger.bin");
  ASSERT_EQ(ledger.size(), 24u);
  int64_t step;
  uint64_t hash;
  std::memcpy(&step, ledger.data(), 8);
  std::memcpy(&hash, ledger.data() + 16, 8);
  EXPECT_EQ(step, 12);
  EXPECT_EQ(hash, 0x0123456789ABCDEFu);
}

// A survivor writes what rank 0 may not have written; from then on it writes, or ceases to.
TEST_F(RunRecordTest, RemembersTheNewestAndWritesThemWhenAsked) {
  RunRecord record(dir_, 1000);
  record.Ledger(1, 0, 1, 11);
  record.Write();
  record.Ledger(2, 0, 1, 22);
  EXPECT_FALSE(std::filesystem::exists(dir_ + "/ledger.bin"));
  record.SetWriter(false, true);
  record.Write();
  EXPECT_EQ(Read("ledger.bin").size(), 2 * 24u);
  record.Ledger(3, 0, 2, 33);
  record.SetWriter(true, false);  // step 3 was somebody else's to write
  record.Write();
  EXPECT_EQ(Read("ledger.bin").size(), 2 * 24u);
  record.Ledger(4, 0, 2, 44);
  record.SetWriter(false, false);
  record.Write();  // what it owed before
  EXPECT_EQ(Read("ledger.bin").size(), 3 * 24u);
  for (int64_t step = 5; step < 100; ++step) {
    record.Ledger(step, 0, 3, 0);
    record.Write();
  }
  record.SetWriter(true, true);
  record.Write();
  EXPECT_LT(Read("ledger.bin").size(), 60 * 24u);  // the newest seconds alone
}

// Nothing new for longer than survivors remember: a replacement of rank 0 that starts slowly.
TEST_F(RunRecordTest, RemembersTheNewestHoweverLongNothingFollows) {
  RunRecord record(dir_, 1000);
  record.Ledger(1, 0, 1, 11);
  for (int i = 0; i < 100; ++i) record.Write();
  record.SetWriter(true, true);
  record.Write();
  EXPECT_EQ(Read("ledger.bin").size(), 24u);
}

// However fast it trains: more than is kept of what a full disk does not take.
TEST_F(RunRecordTest, WritesAllThatItRemembers) {
  RunRecord record(dir_, 1000);
  for (int64_t step = 1; step <= 9; ++step) {
    for (int shard = 0; shard < (1 << 20) / 24; ++shard) record.Ledger(step, shard, 1, 0);
    record.Write();
  }
  record.SetWriter(true, true);
  record.Write();
  EXPECT_EQ(Steps().size(), 9u * ((1 << 20) / 24));
}

// Nobody wrote for so long that what was collected took too much memory.
TEST_F(RunRecordTest, SaysHowMuchIsMissing) {
  RunRecord record(dir_, 1000);
  record.SetWriter(true, false);
  for (int64_t step = 1; step <= 350'000; ++step) record.Ledger(step, 0, 1, 0);
  testing::internal::CaptureStderr();
  record.Write();
  const std::string said = testing::internal::GetCapturedStderr();
  const size_t most = (8 << 20) / 24;
  ASSERT_EQ(Steps().size(), most);
  EXPECT_THAT(said, HasSubstr(absl::StrCat("ledger.bin is written, but ", 350'000 - most,
                                           " records are missing")));
}

// The next one who writes may be on a host whose disk is full, or not there yet.
TEST_F(RunRecordTest, AFolderThatCannotBeWrittenToCostsNoRun) {
  RunRecord record(dir_ + "/later", 1000);
  record.Ledger(1, 0, 1, 11);
  testing::internal::CaptureStderr();
  record.SetWriter(true, true);
  record.Write();
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, HasSubstr("open " + dir_ + "/later/ledger.bin: No such file or directory"));
  std::filesystem::create_directory(dir_ + "/later");
  record.Write();
  EXPECT_EQ(Read("later/ledger.bin").size(), 24u);
}

// What a limit or a full disk has cut in two is made whole, and nothing is missing.
TEST_F(RunRecordTest, WhatTheDiskDidNotTakeComesLater) {
  RunRecord record(dir_, 1000);
  record.SetWriter(true, false);
  std::optional<FileLimit> limit(1000);  // no multiple of a record's 24 bytes
  testing::internal::CaptureStderr();
  for (int64_t step = 1; step <= 50; ++step) {
    record.Ledger(step, 0, 1, static_cast<uint64_t>(step));
    record.Write();
  }
  const std::string said = testing::internal::GetCapturedStderr();
  limit.reset();
  EXPECT_EQ(Read("ledger.bin").size(), 984u) << "whole records alone";
  EXPECT_THAT(said, HasSubstr("write " + dir_ + "/ledger.bin: File too large"));
  EXPECT_THAT(said, HasSubstr("files may have 1000 bytes: ulimit -f"));
  EXPECT_EQ(said.find("ledger.bin"), said.rfind("ledger.bin")) << "said once: " << said;
  record.Write();
  const std::string ledger = Read("ledger.bin");
  ASSERT_EQ(ledger.size(), 50 * 24u);
  for (int64_t step = 1; step <= 50; ++step) {
    int64_t read;
    std::memcpy(&read, ledger.data() + (step - 1) * 24, 8);
    EXPECT_EQ(read, step);
  }
}

// Who wrote it before was killed in the middle, or its disk was full.
TEST_F(RunRecordTest, HalfARecordAndHalfALineAreCutOff) {
  for (const std::string& lines : {std::string(), std::string("{\"kind\":\"step\"}\n")}) {
    for (const std::string& half : {std::string(), std::string("{"), std::string(10000, 'x')}) {
      Put("metrics.jsonl", lines + half);
      std::string record(30, '\0');
      record[0] = 7;
      Put("ledger.bin", record);
      RunRecord next(dir_, 1000);
      next.SetWriter(true, false);
      next.Step(8, 0.05, 1.5, 0.1, 3072);
      next.Ledger(8, 0, 2, 88);
      next.Write();
      EXPECT_EQ(Read("metrics.jsonl"),
                lines +
                    "{\"kind\":\"step\",\"step\":8,\"epoch\":0.05,\"loss\":1.5,\"lr\":0.1,"
                    "\"samples\":3072}\n");
      EXPECT_THAT(Steps(), ElementsAre(7, 8));
    }
  }
}

// Who ceased to write goes on to try, and another one writes meanwhile.
TEST_F(RunRecordTest, WhoWritesNoMoreStillWritesWhatTheDiskDidNotTake) {
  RunRecord first(dir_, 1000), second(dir_, 1000);
  first.SetWriter(true, false);
  {
    const FileLimit limit(30);
    first.Ledger(1, 0, 1, 11);
    first.Ledger(2, 0, 1, 22);
    first.SetWriter(false, false);
    first.Write();
    EXPECT_THAT(Steps(), ElementsAre(1)) << "whole records alone";
    first.Ledger(3, 0, 2, 33);
    first.Write();
  }
  second.SetWriter(true, false);
  second.Ledger(3, 0, 2, 33);
  second.Write();
  EXPECT_THAT(Steps(), ElementsAre(1, 3));
  first.Write();
  EXPECT_THAT(Steps(), ElementsAre(1, 3, 2)) << "and not what is the other's to write";
  second.Ledger(4, 0, 2, 44);
  second.Write();
  EXPECT_THAT(Steps(), ElementsAre(1, 3, 2, 4));
}

// It is to write what was remembered, and nothing that follows.
TEST_F(RunRecordTest, ASubstituteTriesUntilTheDiskTakesWhatItRemembers) {
  RunRecord record(dir_, 1000);
  record.Ledger(1, 0, 1, 11);
  record.Step(1, 0.05, 1.5, 0.1, 3072);
  EXPECT_FALSE(record.Owes());
  {
    const FileLimit limit(10);
    record.SetWriter(false, true);
    EXPECT_TRUE(record.Owes());
    record.Write();
    EXPECT_TRUE(record.Owes());
    EXPECT_EQ(Read("ledger.bin"), "");
    EXPECT_EQ(Read("metrics.jsonl"), "");
  }
  record.Write();
  EXPECT_FALSE(record.Owes());
  EXPECT_THAT(Steps(), ElementsAre(1));
  EXPECT_THAT(Read("metrics.jsonl"), HasSubstr("\"step\":1,"));
}

// A worker that ends while there is no room.
TEST_F(RunRecordTest, SaysAtTheEndWhatItGivesUp) {
  auto record = std::make_unique<RunRecord>(dir_, 1000);
  record->SetWriter(true, false);
  {
    const FileLimit limit(30);
    for (int64_t step = 1; step <= 4; ++step) record->Ledger(step, 0, 1, 11);
    record->Write();
  }
  testing::internal::CaptureStderr();
  record.reset();
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("/ledger.bin: 3 records are given up, which could not be written"));
}

// A backup, or a host of a network file system that has died: nobody waits for it for ever.
TEST_F(RunRecordTest, ALockThatOthersKeepHoldsUpForItsPatienceAlone) {
  FakeClock clock;
  auto record = std::make_unique<RunRecord>(dir_, 1000, &clock);
  record->SetWriter(true, false);
  UniqueFd held(::open((dir_ + "/ledger.bin").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  ASSERT_EQ(::flock(held.get(), LOCK_EX | LOCK_NB), 0);
  record->Step(1, 0.05, 1.5, 0.1, 3072);
  record->Ledger(1, 0, 1, 11);
  testing::internal::CaptureStderr();
  const absl::Time began = clock.Now();
  record->Write();
  EXPECT_EQ(clock.Now() - began, RunRecord::kLockPatience);
  record->Ledger(2, 0, 1, 22);
  record->Write();
  std::string said = testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, HasSubstr("write " + dir_ +
                              "/ledger.bin: another process has held a lock on it for 2s; "));
  EXPECT_EQ(said.find("ledger.bin"), said.rfind("ledger.bin")) << "said once: " << said;
  EXPECT_THAT(Read("metrics.jsonl"), HasSubstr("\"step\":1,"));
  EXPECT_THAT(Steps(), ElementsAre());
  ASSERT_EQ(::flock(held.get(), LOCK_UN), 0);
  record->Write();
  EXPECT_THAT(Steps(), ElementsAre(1, 2));
  ASSERT_EQ(::flock(held.get(), LOCK_EX | LOCK_NB), 0);
  record->Ledger(3, 0, 1, 33);
  testing::internal::CaptureStderr();
  record->Write();
  record.reset();
  said = testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, HasSubstr("/ledger.bin: 1 record is given up, which could not be written"));
}

TEST_F(RunRecordTest, NumbersThatAreNotFiniteAreNull) {
  RunRecord record(dir_, 1000);
  record.SetWriter(true, false);
  record.Step(1, 0, std::nan(""), INFINITY, 1);
  record.Write();
  EXPECT_THAT(Read("metrics.jsonl"), HasSubstr("\"loss\":null,\"lr\":null"));
}

TEST_F(RunRecordTest, ASkippedStepIsSaidWhetherLossesAreScaledOrNot) {
  RunRecord record(dir_, 1000);
  record.SetWriter(true, false);
  record.Step(1, 0, 1.5, 0.1, 1, /*loss_scale=*/2, /*skipped=*/false);
  record.Step(2, 0, 1.5, 0.1, 2, /*loss_scale=*/2, /*skipped=*/true);
  record.Step(3, 0, 1.5, 0.1, 3, /*loss_scale=*/0, /*skipped=*/true);
  record.Write();
  const std::string lines = Read("metrics.jsonl");
  EXPECT_THAT(lines, HasSubstr("\"samples\":1,\"loss_scale\":2,\"skipped\":false}\n"));
  EXPECT_THAT(lines, HasSubstr("\"samples\":2,\"loss_scale\":2,\"skipped\":true}\n"));
  EXPECT_THAT(lines, HasSubstr("\"samples\":3,\"skipped\":true}\n"));
}

TEST_F(RunRecordTest, TheFirstHundredStepsAboutAThousandAndTheLast) {
  RunRecord record(dir_, 50001);
  record.SetWriter(true, false);
  int64_t lines = 0;
  for (int64_t step = 1; step <= 50001; ++step) lines += record.WantsStep(step) ? 1 : 0;
  EXPECT_TRUE(record.WantsStep(100));
  EXPECT_FALSE(record.WantsStep(101));
  EXPECT_TRUE(record.WantsStep(50001));
  EXPECT_GT(lines, 1000);
  EXPECT_LT(lines, 1200);
}

}  // namespace
}  // namespace lockstep::worker
