// SPDX-License-Identifier: Apache-2.0
#include "worker/checkpoint/data_identity.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::worker {
namespace {

namespace fs = std::filesystem;
using Records = std::vector<checkpoint::DataRecord>;

class DataIdentityTest : public ::testing::Test {
 protected:
  DataIdentityTest() : folder_(absl::StrCat(::testing::TempDir(), "/identity-", ::getpid())) {
    fs::create_directories(folder_);
  }
  ~DataIdentityTest() override { fs::remove_all(folder_); }
  std::string Write(const std::string& name, const std::string& text) {
    std::ofstream(folder_ + "/" + name, std::ios::binary) << text;
    return folder_ + "/" + name;
  }
  // A worker starts.
  static DataIdentity Open(const data::Source& source, bool evaluates) {
    return {source, evaluates, data::StampFiles(source, evaluates)};
  }
  // Returns the records, and counts the files that were looked at for them.
  Records Ask(DataIdentity* identity) {
    return identity->Records([this] {
      ++looked_;
      return true;
    });
  }
  const std::string folder_;
  int looked_ = 0;
};

TEST_F(DataIdentityTest, IsOfTheFilesWhenItWasFirstAsked) {
  const data::CsvSource csv{Write("train.csv", "1,2"), Write("test.csv", "1,3")};
  DataIdentity identity = Open(csv, /*evaluates=*/true);
  Write("train.csv", "1,4,5");
  const Records first = Ask(&identity);
  ASSERT_EQ(first.size(), 2u);
  EXPECT_EQ(first[0].path, csv.train);
  EXPECT_EQ(first[0].bytes, 5u);
  Write("train.csv", "7");
  EXPECT_EQ(Ask(&identity), first);
  EXPECT_EQ(looked_, 2);
}

// JSON holds no other text: a checkpoint would be of other data than its own run's.
TEST_F(DataIdentityTest, IsTextWhereAFilesNameIsNone) {
  const data::CsvSource csv{Write("c\xe9.csv", "1,2"), ""};
  DataIdentity identity = Open(csv, /*evaluates=*/false);
  const Records records = Ask(&identity);
  ASSERT_EQ(records.size(), 1u);
  EXPECT_EQ(records[0].path, folder_ + "/c\\xe9.csv");
  checkpoint::Manifest saved;
  saved.train = "{}";
  saved.files = {{"state", 1, std::string(64, 'a')}};
  saved.data = records;
  const auto read = checkpoint::ParseManifest(checkpoint::FormatManifest(saved));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->data, records);
}

TEST_F(DataIdentityTest, SaysWhetherAFileWasWrittenToSince) {
  const data::CsvSource csv{Write("train.csv", "1,2"), Write("test.csv", "1,3")};
  const DataIdentity trains = Open(csv, /*evaluates=*/false);
  const DataIdentity evaluates = Open(csv, /*evaluates=*/true);
  EXPECT_FALSE(trains.Changed() || evaluates.Changed());
  Write("test.csv", "1,33");
  EXPECT_FALSE(trains.Changed()) << "it does not read that";
  EXPECT_TRUE(evaluates.Changed());
  std::filesystem::remove(csv.train);
  EXPECT_TRUE(trains.Changed());
}

TEST_F(DataIdentityTest, AFileForBothSplitsIsOne) {
  const std::string file = Write("x.csv", "1,2");
  DataIdentity identity = Open(data::CsvSource{file, file}, /*evaluates=*/true);
  EXPECT_EQ(Ask(&identity).size(), 1u);
}

TEST_F(DataIdentityTest, WhatIsNeverOpenedIsNotLookedAt) {
  const std::string test = folder_ + "/test.csv";
  ASSERT_EQ(::mkfifo(test.c_str(), 0600), 0);
  DataIdentity identity =
      Open(data::CsvSource{Write("train.csv", "1,2"), test}, /*evaluates=*/false);
  EXPECT_EQ(Ask(&identity).size(), 1u);
}

TEST_F(DataIdentityTest, IsNotKnownOfAFileThatCannotBeRead) {
  const std::string test = folder_ + "/test.csv";
  ASSERT_EQ(::mkfifo(test.c_str(), 0600), 0);
  DataIdentity identity =
      Open(data::CsvSource{Write("train.csv", "1,2"), test}, /*evaluates=*/true);
  ::testing::internal::CaptureStderr();
  EXPECT_TRUE(Ask(&identity).empty());
  EXPECT_TRUE(Ask(&identity).empty());
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, ::testing::HasSubstr("test.csv is not a regular file"));
  EXPECT_EQ(said.find("not a regular"), said.rfind("not a regular")) << "once";
}

TEST_F(DataIdentityTest, WhoGivesUpKnowsNothingAndTheNextOneLooks) {
  DataIdentity identity = Open(data::CsvSource{Write("train.csv", "1,2"), ""}, /*evaluates=*/true);
  EXPECT_TRUE(identity.Records([] { return false; }).empty());
  EXPECT_EQ(Ask(&identity).size(), 1u);
}

TEST_F(DataIdentityTest, WhatIsKnownOfFilesIsNotReadAgain) {
  const std::string train = Write("train.csv", "1,2");
  DataIdentity identity = Open(data::CsvSource{train, ""}, /*evaluates=*/true);
  identity.Know({{train, 3, 77}});
  EXPECT_EQ(Ask(&identity), (Records{{train, 3, 77}}));
  EXPECT_EQ(looked_, 0);
}

// Of which another part is read for a checkpoint.
TEST_F(DataIdentityTest, WhatIsKnownOfAFolderIsNotTaken) {
  const std::string text = Write("text", "some words");
  DataIdentity identity = Open(data::TextSource{folder_}, /*evaluates=*/true);
  identity.Know({{text, 10, 77}, {folder_, 1, 78}});
  const Records records = Ask(&identity);
  ASSERT_EQ(records.size(), 2u);
  EXPECT_NE(records[0].hash, 77u);
}

// Before it was first asked.
TEST_F(DataIdentityTest, WhatWasWrittenToSinceIsNotWhatWasOpened) {
  const std::string train = Write("train.csv", "1,2");
  const auto always = [] { return true; };
  DataIdentity identity = Open(data::CsvSource{train, ""}, /*evaluates=*/true);
  EXPECT_EQ(identity.RecordsAsMade(always).size(), 1u);
  fs::rename(Write("other", "3,4"), train);
  EXPECT_TRUE(identity.RecordsAsMade(always).empty());
  EXPECT_EQ(Open(data::CsvSource{train, ""}, true).RecordsAsMade(always).size(), 1u);
}

}  // namespace
}  // namespace lockstep::worker
