// SPDX-License-Identifier: Apache-2.0
#include "data/fingerprint.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::data {
namespace {

namespace fs = std::filesystem;

class FingerprintTest : public ::testing::Test {
 protected:
  FingerprintTest() : folder_(absl::StrCat(::testing::TempDir(), "/print-", ::getpid())) {
    fs::create_directories(folder_ + "/text");
  }
  ~FingerprintTest() override { fs::remove_all(folder_); }
  std::string Write(const std::string& name, const std::string& text) {
    std::ofstream(folder_ + "/" + name, std::ios::binary) << text;
    return folder_ + "/" + name;
  }
  std::vector<FileFingerprint> Of(const Source& source) {
    auto files = FingerprintFiles(source);
    EXPECT_TRUE(files.ok()) << files.status();
    return files.ok() ? *files : std::vector<FileFingerprint>{};
  }
  const std::string folder_;
};

TEST_F(FingerprintTest, EveryByteOfASmallFileCounts) {
  std::string text(1000, 'a');
  const FileFingerprint first = *FingerprintFile(Write("x", text));
  EXPECT_EQ(first.bytes, 1000u);
  for (const size_t at : {size_t{0}, size_t{517}, size_t{999}}) {
    std::string other = text;
    other[at] = 'b';
    EXPECT_NE(FingerprintFile(Write("x", other))->hash, first.hash) << at;
  }
  EXPECT_EQ(FingerprintFile(Write("y", text))->hash, first.hash);
  EXPECT_EQ(FingerprintFile(Write("empty", ""))->bytes, 0u);
  EXPECT_FALSE(FingerprintFile(folder_ + "/nowhere").ok());
}

TEST_F(FingerprintTest, OfALargeFileBeginEndAndPiecesBetweenCount) {
  std::string text(100'000, 'a');
  const auto hash = [&] { return FingerprintFile(Write("x", text), 25'600)->hash; };
  const uint64_t first = hash();
  for (const size_t at : {size_t{0}, size_t{99'999}}) {
    text[at] = 'b';
    EXPECT_NE(hash(), first) << at;
    text[at] = 'a';
  }
  EXPECT_EQ(hash(), first);
  for (size_t at = 50'000; at < 50'400; ++at) text[at] = 'b';
  EXPECT_NE(hash(), first);
}

TEST_F(FingerprintTest, TheFilesOfASource) {
  CsvSource csv;
  csv.train = Write("train.csv", "1,2");
  csv.test = folder_ + "/nowhere.csv";
  ASSERT_EQ(Of(csv).size(), 1u);
  EXPECT_EQ(Of(csv)[0].path, csv.train);
  IdxSource idx;
  idx.train_images = folder_ + "/t";
  Write("t.gz", "x");
  ASSERT_EQ(Of(idx).size(), 1u);
  EXPECT_EQ(Of(idx)[0].path, folder_ + "/t.gz");
  EXPECT_TRUE(Of(SyntheticSource{}).empty());
}

TEST_F(FingerprintTest, WhatTheTrainingSplitDoesNotNeedMayBeLeftOut) {
  const std::string train = Write("train", "1,2"), test = Write("test", "3,4");
  const auto paths = [](const Source& source) {
    const auto files = FingerprintFiles(source, {.test = false});
    EXPECT_TRUE(files.ok()) << files.status();
    std::vector<std::string> found;
    for (const FileFingerprint& file : *files) found.push_back(file.path);
    return found;
  };
  const std::vector<std::string> alone = {train};
  EXPECT_EQ(paths(CsvSource{train, test}), alone);
  EXPECT_EQ(paths(TokensSource{.train = train, .test = test}), alone);
  EXPECT_EQ(paths(IdxSource{train, "", test, test}), alone);
  NpySource npy;
  npy.train_inputs = train;
  npy.test_inputs = npy.test_labels = test;
  EXPECT_EQ(paths(npy), alone);
  TextSource text;
  text.path = train;
  EXPECT_EQ(paths(text), alone) << "both splits are of it";
  Cifar10Source cifar;
  cifar.path = folder_;
  Write("test_batch.bin", "5");
  const std::string batch = Write("data_batch_1.bin", "6");
  EXPECT_EQ(paths(cifar), std::vector<std::string>{batch});
}

TEST_F(FingerprintTest, AStampChangesWithWhatWasReplacedOrWritten) {
  CsvSource csv{Write("train", "1,2"), Write("test", "3,4")};
  const uint64_t first = StampFiles(csv, /*test=*/true), train = StampFiles(csv, /*test=*/false);
  EXPECT_EQ(StampFiles(csv, true), first);
  fs::rename(Write("other", "5,6"), csv.test);
  EXPECT_NE(StampFiles(csv, true), first) << "as long";
  EXPECT_EQ(StampFiles(csv, false), train);
  TextSource text;
  text.path = folder_ + "/text";
  Write("text/a", "one");
  const uint64_t folder = StampFiles(text, false);
  EXPECT_EQ(StampFiles(text, true), folder);
  Write("text/b", "two");
  EXPECT_NE(StampFiles(text, true), folder);
}

TEST_F(FingerprintTest, EndsBeforeAnyFileWhenItsCallerGivesUp) {
  TextSource text;
  text.path = folder_ + "/text";
  Write("text/a", "one");
  Write("text/b", "two");
  int left = 2;
  const FingerprintOptions options{.go_on = [&] { return --left > 0; }};
  EXPECT_EQ(FingerprintFiles(text, options).status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(left, 0);
}

TEST_F(FingerprintTest, AFolderIsItsFilesAndTheirNames) {
  TextSource text;
  text.path = folder_ + "/text";
  Write("text/a", "one");
  Write("text/b", "two");
  const auto two = Of(text);
  ASSERT_EQ(two.size(), 3u);
  EXPECT_EQ(two[2].path, text.path);
  EXPECT_EQ(two[2].bytes, 2u);
  fs::rename(folder_ + "/text/b", folder_ + "/text/c");
  EXPECT_NE(Of(text)[2].hash, two[2].hash);
  for (int i = 0; i < 100; ++i) Write(absl::StrCat("text/n", i), "many");
  const auto many = Of(text);
  ASSERT_EQ(many.size(), 1u);
  EXPECT_EQ(many[0].bytes, 102u);
  Write("text/n50", "mane");
  EXPECT_NE(Of(text)[0].hash, many[0].hash);
}

TEST_F(FingerprintTest, OfAFolderNoMoreIsReadThanIsAskedFor) {
  TextSource text;
  text.path = folder_ + "/text";
  std::string large(1 << 20, 'a');
  Write("text/large", large);
  Write("text/small", std::string(1 << 16, 'a'));
  const auto hash = [&](size_t file, uint64_t bytes) {
    return (*FingerprintFiles(text, {.folder_bytes = bytes}))[file].hash;
  };
  const uint64_t first = hash(0, 1 << 16), whole = hash(0, 4 << 20), small = hash(1, 1 << 16);
  large[5000] = 'b';  // between two pieces
  Write("text/large", large);
  EXPECT_EQ(hash(0, 1 << 16), first);
  EXPECT_NE(hash(0, 4 << 20), whole);
  Write("text/small", std::string(1 << 15, 'a') + "b" + std::string((1 << 15) - 1, 'a'));
  EXPECT_NE(hash(1, 1 << 16), small) << "a small file is read whole";
}

TEST_F(FingerprintTest, AFileIsOneOfTheDataByWhateverName) {
  NpySource npy;
  npy.train_inputs = folder_ + "/x.npy";
  npy.test_labels = folder_ + "/y.npy";
  TextSource text;
  text.path = folder_ + "/text";
  for (const char* name : {"x.npy", "y.npy", "text/a", "other"}) Write(name, "data");
  fs::create_symlink(folder_ + "/y.npy", folder_ + "/link");
  EXPECT_TRUE(IsFileOf(npy, folder_ + "/x.npy"));
  EXPECT_TRUE(IsFileOf(npy, folder_ + "/link"));
  EXPECT_TRUE(IsFileOf(text, folder_ + "/text/../text/a"));
  for (const char* name : {"/other", "/text/a", "/new"})
    EXPECT_FALSE(IsFileOf(npy, folder_ + name));
  EXPECT_FALSE(IsFileOf(text, folder_ + "/x.npy"));
  EXPECT_FALSE(IsFileOf(SyntheticSource(), folder_ + "/x.npy"));
}

TEST_F(FingerprintTest, OfAFolderOfLinksTheFilesCountThatTheyLeadTo) {
  TextSource text;
  text.path = folder_ + "/text";
  Write("text/own", "its own");
  Write("blob", "one");
  fs::create_symlink(folder_ + "/blob", folder_ + "/text/a");
  const auto first = Of(text);
  ASSERT_EQ(first.size(), 3u);
  EXPECT_EQ(first[0].path, folder_ + "/text/a");
  EXPECT_EQ(first[0].bytes, 3u);
  const uint64_t stamp = StampFiles(text, true);
  Write("blob", "three");
  EXPECT_NE(Of(text)[0].hash, first[0].hash);
  EXPECT_NE(StampFiles(text, true), stamp);
  fs::remove(folder_ + "/blob");
  EXPECT_EQ(FingerprintFiles(text, {}).status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace lockstep::data
