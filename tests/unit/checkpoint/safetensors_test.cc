// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "checkpoint/safetensors_header.h"
#include "checkpoint/sha256.h"
#include "common/half.h"

namespace lockstep::checkpoint {
namespace {

using ::testing::HasSubstr;

TEST(Sha256Test, KnownAnswers) {  // FIPS 180-4's examples
  EXPECT_EQ(Sha256Hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(Sha256Hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

class SafetensorsTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "safetensors-XXXXXX";
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
    path_ = folder_ + "/deep/er/model.safetensors";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string Read() {
    std::stringstream text;
    text << std::ifstream(path_, std::ios::binary).rdbuf();
    return text.str();
  }
  const float weight_[2] = {1.0f, -2.0f};
  const int64_t step_ = 7;
  const std::vector<TensorView> tensors_{{"w", "F32", {1, 2}, weight_, 8},
                                         {"step", "I64", {}, &step_, 8},
                                         {"none", "F32", {0}, nullptr, 0}};
  std::string folder_, path_;
};

TEST_F(SafetensorsTest, BytesAreExactlyThese) {
  const auto hash = WriteSafetensors(path_, tensors_, {{"b", "2\""}, {"a", "1"}});
  ASSERT_TRUE(hash.ok()) << hash.status();
  const std::string header =
      "{\"__metadata__\":{\"a\":\"1\",\"b\":\"2\\\"\"},"
      "\"w\":{\"dtype\":\"F32\",\"shape\":[1,2],\"data_offsets\":[0,8]},"
      "\"step\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[8,16]},"
      "\"none\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[16,16]}}";
  std::string expected(1, static_cast<char>((header.size() + 7) / 8 * 8));
  expected += std::string(7, '\0') + header;
  expected.resize((expected.size() + 7) / 8 * 8, ' ');
  expected += std::string("\0\0\x80\x3f\0\0\0\xc0\x07\0\0\0\0\0\0\0", 16);
  EXPECT_EQ(Read(), expected);
  EXPECT_EQ(*hash, Sha256Hex(expected));
  EXPECT_EQ(HashFile(Storage::Disk(), path_, nullptr)->sha256, *hash);
}

TEST_F(SafetensorsTest, WhatIsWidenedHasTheBytesOfAWidenedCopy) {
  constexpr int64_t kCount = 150'000;  // some pieces and a part
  std::vector<uint16_t> halves(kCount);
  for (size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<uint16_t>(i * 7);
  for (const bool bf16 : {false, true}) {
    std::vector<float> wide;
    for (const uint16_t bits : halves) {
      wide.push_back(bf16 ? BFloat16{bits}.ToFloat() : Float16{bits}.ToFloat());
    }
    const size_t bytes = wide.size() * sizeof(float);
    const auto stream = [](const TensorView& tensor, std::string* all) {
      return StreamSafetensors({tensor}, {}, [all](const void* data, size_t size) {
        EXPECT_LE(size, size_t{256} << 10);
        all->append(static_cast<const char*>(data), size);
        return absl::OkStatus();
      });
    };
    std::string copied, widened;
    const auto first = stream({"w", "F32", {kCount}, wide.data(), bytes}, &copied);
    const auto second =
        stream({"w", "F32", {kCount}, halves.data(), bytes, bf16 ? "BF16" : "F16"}, &widened);
    ASSERT_TRUE(first.ok() && second.ok());
    EXPECT_TRUE(copied == widened);
    EXPECT_EQ(first->sha256, second->sha256);
    EXPECT_EQ(first->bytes, second->bytes);
  }
}

TEST_F(SafetensorsTest, ReadsWhatItWrote) {
  ASSERT_TRUE(WriteSafetensors(path_, tensors_, {{"k", "v"}}).ok());
  const auto file = SafetensorsFile::Open(path_);
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_EQ((*file)->tensors().size(), 3u);
  EXPECT_EQ((*file)->metadata().at("k"), "v");
  const TensorEntry* w = (*file)->Find("w");
  ASSERT_NE(w, nullptr);
  EXPECT_EQ(w->shape, (std::vector<int64_t>{1, 2}));
  float read[2];
  ASSERT_TRUE((*file)->Read(*w, 0, read, sizeof(read)).ok());
  EXPECT_EQ(std::memcmp(read, weight_, 8), 0);
  ASSERT_TRUE((*file)->Read(*w, 4, read, 4).ok());
  EXPECT_EQ(std::memcmp(read, reinterpret_cast<const char*>(weight_) + 4, 4), 0);
  EXPECT_EQ((*file)->Find("x"), nullptr);
}

TEST_F(SafetensorsTest, AFileTruncatedWhileInUseIsAnErrorThatNamesIt) {
  ASSERT_TRUE(WriteSafetensors(path_, tensors_, {}).ok());
  const auto file = SafetensorsFile::Open(path_);
  ASSERT_TRUE(file.ok()) << file.status();
  std::filesystem::resize_file(path_, 20);
  for (const TensorEntry& tensor : (*file)->tensors()) {
    std::vector<char> bytes(tensor.bytes());
    const absl::Status read = (*file)->Read(tensor, 0, bytes.data(), bytes.size());
    if (bytes.empty()) continue;
    EXPECT_EQ(read.code(), absl::StatusCode::kDataLoss) << tensor.name;
    EXPECT_THAT(std::string(read.message()),
                testing::HasSubstr(path_ + " was truncated while in use"));
  }
}

TEST_F(SafetensorsTest, WrongArgumentsAreRefused) {
  const auto code = [&](const std::vector<TensorView>& tensors) {
    return WriteSafetensors(path_, tensors, {}).status().code();
  };
  EXPECT_EQ(code({{"w", "F32", {3}, weight_, 8}}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({{"w", "F33", {2}, weight_, 8}}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({tensors_[0], tensors_[0]}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({{"\xff", "F32", {2}, weight_, 8}}), absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(SafetensorsTest, AFullDiskKeepsTheOlderFileAndLeavesNothing) {
  ASSERT_TRUE(WriteSafetensors(path_, tensors_, {}).ok());
  const std::string before = Read();
  const std::vector<float> large(1 << 18);
  rlimit old;
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{64 << 10, old.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const auto status =
      WriteSafetensors(path_, {{"l", "F32", {1 << 18}, large.data(), 4 << 18}}, {}).status();
  ::setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(path_));
  EXPECT_EQ(Read(), before);
  const std::filesystem::directory_iterator entries(std::filesystem::path(path_).parent_path());
  EXPECT_EQ(std::distance(begin(entries), end(entries)), 1);
}

TEST_F(SafetensorsTest, TruncatedFilesAreDataLoss) {
  ASSERT_TRUE(WriteSafetensors(path_, tensors_, {}).ok());
  const size_t size = Read().size();
  for (size_t cut = 1; cut <= size; ++cut) {
    std::filesystem::resize_file(path_, size - cut);
    ASSERT_EQ(SafetensorsFile::Open(path_).status().code(), absl::StatusCode::kDataLoss) << cut;
  }
  EXPECT_EQ(SafetensorsFile::Open(folder_ + "/x").status().code(), absl::StatusCode::kNotFound);
}

TEST(SafetensorsHeaderTest, EveryDamageIsNamed) {
  const auto expect = [](const std::string& json, uint64_t bytes, const std::string& what) {
    const auto header = ParseSafetensorsHeader(json, bytes);
    ASSERT_FALSE(header.ok()) << json;
    EXPECT_EQ(header.status().code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(std::string(header.status().message()), HasSubstr(what)) << json;
  };
  const auto tensor = [](const std::string& name, int begin, int end) {
    return "\"" + name + "\":{\"dtype\":\"U8\",\"shape\":[" + std::to_string(end - begin) +
           "],\"data_offsets\":[" + std::to_string(begin) + "," + std::to_string(end) + "]}";
  };
  EXPECT_TRUE(
      ParseSafetensorsHeader("{" + tensor("b", 2, 4) + "," + tensor("a", 0, 2) + "}  ", 4).ok());
  EXPECT_TRUE(ParseSafetensorsHeader("{}", 0).ok());
  expect("", 0, "does not begin");
  expect(" {}", 0, "does not begin");
  expect("{", 0, "not JSON");
  expect("{}x", 0, "not JSON");
  expect("{" + tensor("a", 0, 2) + "," + tensor("a", 2, 4) + "}", 4, "twice");
  expect("{" + tensor("a", 0, 2) + "," + tensor("b", 3, 4) + "}", 4, "begins at 3");
  expect("{" + tensor("a", 0, 2) + "," + tensor("b", 1, 4) + "}", 4, "begins at 1");
  expect("{" + tensor("a", 0, 2) + "}", 3, "there are 3");
  expect("{" + tensor("a", 0, 9) + "}", 3, "ends at 9");
  expect("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,3]}}", 3, "say 4");
  expect("{\"a\":{\"dtype\":\"X\",\"shape\":[1],\"data_offsets\":[0,3]}}", 3, "unknown dtype");
  expect("{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,3]}}", 3, "are needed");
  expect("{\"a\":{\"dtype\":\"U8\",\"shape\":[-1],\"data_offsets\":[0,3]}}", 3, "negative");
  expect("{\"a\":{\"dtype\":\"U8\",\"shape\":[[1]],\"data_offsets\":[0,3]}}", 3, "list");
  expect("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"x\":1,\"data_offsets\":[0,1]}}", 1,
         "unknown key");
  expect("{\"a\":{\"dtype\":\"F64\",\"shape\":[4611686018427387904],\"data_offsets\":[0,0]}}", 0,
         "64 bits");
  expect("{\"__metadata__\":{\"a\":1}}", 0, "number");
  expect("{\"a\":[1]}", 0, "list");
}

}  // namespace
}  // namespace lockstep::checkpoint
