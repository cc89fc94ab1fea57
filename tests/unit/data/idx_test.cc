// SPDX-License-Identifier: Apache-2.0
#include "data/idx.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "common/fd.h"
#include "data/decoded_cache.h"

namespace lockstep::data {
namespace {

using ::testing::HasSubstr;
using Bytes = std::vector<uint8_t>;

Bytes Idx(const std::vector<uint32_t>& dims, size_t payload, uint8_t type = 8) {
  Bytes bytes{0, 0, type, static_cast<uint8_t>(dims.size())};
  for (const uint32_t dim : dims) {
    for (int shift = 24; shift >= 0; shift -= 8)
      bytes.push_back(static_cast<uint8_t>(dim >> shift));
  }
  for (size_t i = 0; i < payload; ++i) bytes.push_back(static_cast<uint8_t>(i * i >> 3));
  return bytes;
}

Bytes Gzip(const Bytes& bytes) {
  z_stream stream{};
  EXPECT_EQ(deflateInit2(&stream, 1, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
  Bytes out(deflateBound(&stream, bytes.size()) + 64);
  stream.next_in = const_cast<Bytef*>(bytes.data());
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = out.data();
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

class IdxTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "idx-XXXXXX";
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
    ASSERT_EQ(::setenv("XDG_CACHE_HOME", (folder_ + "/cache").c_str(), 1), 0);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string Write(const std::string& name, const Bytes& bytes) {
    const std::string path = folder_ + "/" + name;
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
    return path;
  }
  void ExpectDamaged(const Bytes& bytes, const std::string& what) {
    const std::string path = Write("bad", bytes);
    const auto array = IdxArray::Open(path);
    ASSERT_FALSE(array.ok()) << what;
    EXPECT_EQ(array.status().code(), absl::StatusCode::kDataLoss) << array.status();
    EXPECT_THAT(std::string(array.status().message()), HasSubstr(path));
    EXPECT_THAT(std::string(array.status().message()), HasSubstr(what));
  }
  std::string folder_;
};

TEST_F(IdxTest, ReadsPlainAndGzip) {
  const Bytes bytes = Idx({3, 2, 4}, 24);
  for (const Bytes& file : {bytes, Gzip(bytes)}) {
    const auto array = IdxArray::Open(Write("good", file));
    ASSERT_TRUE(array.ok()) << array.status();
    EXPECT_EQ((*array)->dims(), (std::vector<int64_t>{3, 2, 4}));
    EXPECT_EQ(Bytes((*array)->values().begin(), (*array)->values().end()),
              Bytes(bytes.begin() + 16, bytes.end()));
  }
}

TEST_F(IdxTest, ReadsSeveralGzipMembers) {
  const Bytes bytes = Idx({50}, 50);
  Bytes file = Gzip(Bytes(bytes.begin(), bytes.begin() + 30));
  const Bytes second = Gzip(Bytes(bytes.begin() + 30, bytes.end()));
  file.insert(file.end(), second.begin(), second.end());
  EXPECT_TRUE(IdxArray::Open(Write("two", file)).ok());
}

TEST_F(IdxTest, EveryDamageIsNamed) {
  ExpectDamaged({}, "truncated at offset 0");
  ExpectDamaged({0, 0, 8}, "truncated at offset 3");
  ExpectDamaged({1, 0, 8, 1, 0, 0, 0, 1, 5}, "not an IDX file");
  ExpectDamaged(Idx({1}, 1, 0x0D), "value type 0x0d at offset 2");
  ExpectDamaged({0, 0, 8, 0}, "0 dimensions");
  ExpectDamaged({0, 0, 8, 200, 0, 0, 0, 1}, "200 dimensions");
  ExpectDamaged({0, 0, 8, 2, 0, 0, 0, 1, 0}, "truncated at offset 9");
  ExpectDamaged(Idx({2, 0}, 0), "dimension 0 at offset 8");
  ExpectDamaged(Idx({0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF}, 4), "promise more than");
  ExpectDamaged(Idx({4}, 3), "has 11 bytes, but its header says 12");
  ExpectDamaged(Idx({4}, 5), "has 13 bytes, but its header says 12");
}

TEST_F(IdxTest, EveryDamageInsideGzipIsNamed) {
  const Bytes good = Gzip(Idx({1000}, 1000));
  Bytes bad = good;
  bad[bad.size() / 2] ^= 0x55;
  ExpectDamaged(bad, "damaged gzip data");
  bad = good;
  bad[bad.size() - 6] ^= 1;  // the checksum
  ExpectDamaged(bad, "damaged gzip data");
  ExpectDamaged(Bytes(good.begin(), good.end() - 3), "damaged gzip data");
  ExpectDamaged({0x1F, 0x8B}, "truncated at offset 0");
  ExpectDamaged({0x1F, 0x8B, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7}, "damaged gzip data");
  bad = good;
  bad.push_back(0);
  ExpectDamaged(bad, "damaged gzip data");
  ExpectDamaged(Gzip(Idx({1000}, 999)), "decodes to 1007 bytes, but its header says 1008");
  ExpectDamaged(Gzip(Idx({1000}, 1001)), "decodes to more than the 1008 bytes");
}

TEST_F(IdxTest, ABombIsRefusedBeforeMemoryIsAskedFor) {
  ExpectDamaged(Gzip(Idx({1 << 20, 1 << 20}, 10)), "more than");
}

TEST_F(IdxTest, MissingAndForbiddenFiles) {
  EXPECT_EQ(IdxArray::Open(folder_ + "/none").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(IdxArray::Open(folder_).status().code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_EQ(::mkfifo((folder_ + "/fifo").c_str(), 0600), 0);
  EXPECT_EQ(IdxArray::Open(folder_ + "/fifo").status().code(),
            absl::StatusCode::kFailedPrecondition);
}

// A file large enough to be kept decoded.
class DecodedCopyTest : public IdxTest {
 protected:
  void SetUp() override {
    IdxTest::SetUp();
    bytes_ = Idx({2 << 20}, 2 << 20);
    source_ = Write("large.gz", Gzip(bytes_));
  }
  absl::StatusOr<DecodedCopy> Open() { return Open(Info()); }
  // Of what is in `bytes_`, and was opened as `info` says.
  absl::StatusOr<DecodedCopy> Open(const struct stat& info) {
    return OpenDecodedCopy(source_, info, bytes_.size(), [this](absl::Span<uint8_t> out) {
      ++decoded_;
      std::copy(bytes_.begin(), bytes_.end(), out.begin());
      return absl::OkStatus();
    });
  }
  struct stat Info() {
    struct stat info {};
    EXPECT_EQ(::stat(source_.c_str(), &info), 0);
    return info;
  }
  void ExpectContent(const absl::StatusOr<DecodedCopy>& copy, bool shared) {
    ASSERT_TRUE(copy.ok()) << copy.status();
    EXPECT_EQ(copy->shared, shared);
    ASSERT_EQ(copy->bytes.size() - copy->offset, bytes_.size());
    EXPECT_TRUE(std::equal(bytes_.begin(), bytes_.end(), copy->bytes.data() + copy->offset));
  }
  Bytes bytes_;
  std::string source_;
  int decoded_ = 0;
};

TEST_F(DecodedCopyTest, IsMadeOnce) {
  ExpectContent(Open(), true);
  ExpectContent(Open(), true);
  EXPECT_EQ(decoded_, 1);
  EXPECT_FALSE(std::filesystem::exists(DecodedCopyPath(source_) + ".tmp"));
}

TEST_F(DecodedCopyTest, IsUsedByIdxArray) {
  ASSERT_TRUE(IdxArray::Open(source_).ok());
  ExpectContent(Open(), true);
  EXPECT_EQ(decoded_, 0);
}

TEST_F(DecodedCopyTest, AStaleDamagedOrShortOneIsMadeAnew) {
  const std::string path = DecodedCopyPath(source_);
  ExpectContent(Open(), true);
  {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(1 << 20);
    file.put(static_cast<char>(bytes_[(1 << 20) - 4096] ^ 1));
  }
  ExpectContent(Open(), true);
  EXPECT_EQ(decoded_, 2);
  std::filesystem::resize_file(path, 5000);
  ExpectContent(Open(), true);
  EXPECT_EQ(decoded_, 3);
  std::filesystem::last_write_time(
      source_, std::filesystem::last_write_time(source_) + std::chrono::seconds(1));
  ExpectContent(Open(), true);
  EXPECT_EQ(decoded_, 4);
}

TEST_F(DecodedCopyTest, OneOfAFileThatIsReplacedMeanwhileIsNotTheNewOnes) {
  const struct stat before = Info();
  std::filesystem::last_write_time(
      source_, std::filesystem::last_write_time(source_) + std::chrono::seconds(1));
  ExpectContent(Open(before), true);
  ++bytes_.back();  // as the new file has it
  ExpectContent(Open(), true);
  EXPECT_EQ(decoded_, 2);
}

TEST_F(DecodedCopyTest, WhatNobodyUsedForAMonthIsRemovedWhenACopyIsMade) {
  namespace fs = std::filesystem;
  const fs::path cache = fs::path(DecodedCopyPath(source_)).parent_path();
  fs::create_directories(cache);
  const auto put = [&](const std::string& name, int days) {
    std::ofstream(cache / name) << "x";
    fs::last_write_time(cache / name,
                        fs::file_time_type::clock::now() - std::chrono::hours(24 * days + 1));
  };
  const std::string hash = "-0123456789abcdef.decoded";
  for (const char* suffix : {"", ".lock", ".tmp"}) {
    put("old.gz" + hash + suffix, 30);
    put("new.gz" + hash + suffix, suffix[0] == '\0' ? 29 : 40);
    put("decoding.gz" + hash + suffix, 40);
    put(std::string("other.decoded") + suffix, 40);
  }
  put("killed.gz" + hash + ".tmp", 40);
  put("killed.gz" + hash + ".lock", 40);
  put("starting.gz" + hash + ".tmp", 40);
  put("starting.gz" + hash + ".lock", 0);
  put("cpu-kernels.tsv", 40);
  const UniqueFd held(::open((cache / ("decoding.gz" + hash + ".lock")).c_str(), O_RDWR));
  ASSERT_EQ(::flock(held.get(), LOCK_EX), 0);
  ExpectContent(Open(), true);
  std::set<std::string> left;
  for (const auto& entry : fs::directory_iterator(cache)) left.insert(entry.path().filename());
  const std::string own = fs::path(DecodedCopyPath(source_)).filename();
  std::set<std::string> expected = {own, own + ".lock", "cpu-kernels.tsv",
                                    "starting.gz" + hash + ".tmp", "starting.gz" + hash + ".lock"};
  for (const char* suffix : {"", ".lock", ".tmp"}) {
    for (const char* name : {"new.gz", "decoding.gz"}) expected.insert(name + hash + suffix);
    expected.insert(std::string("other.decoded") + suffix);
  }
  EXPECT_EQ(left, expected);
}

TEST_F(DecodedCopyTest, UseKeepsACopyFromBeingRemoved) {
  namespace fs = std::filesystem;
  const std::string path = DecodedCopyPath(source_);
  ExpectContent(Open(), true);
  const auto now = fs::last_write_time(path);
  fs::last_write_time(path, now - std::chrono::hours(24 * 60));
  fs::last_write_time(path + ".lock", now - std::chrono::hours(24 * 60));
  const auto copy = Open();
  ExpectContent(copy, true);
  EXPECT_GE(fs::last_write_time(path), now - std::chrono::hours(1));
  EXPECT_EQ(decoded_, 1);
  // One that is in use lives on without its name, and is made again for others.
  for (const char* suffix : {"", ".lock"}) {
    fs::last_write_time(path + suffix, now - std::chrono::hours(24 * 60));
  }
  ASSERT_TRUE(IdxArray::Open(Write("another.gz", Gzip(bytes_))).ok());
  EXPECT_FALSE(fs::exists(path));
  EXPECT_FALSE(fs::exists(path + ".lock"));
  ExpectContent(copy, true);
  EXPECT_TRUE(copy->bytes.Check().ok());
  ExpectContent(Open(), true);
  EXPECT_EQ(decoded_, 2);
}

TEST_F(DecodedCopyTest, WithoutAUsableCacheMemoryIsPrivate) {
  Write("blocked", {1});
  ASSERT_EQ(::setenv("XDG_CACHE_HOME", (folder_ + "/blocked").c_str(), 1), 0);
  testing::internal::CaptureStderr();
  ExpectContent(Open(), false);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("no shared copy"));
}

TEST_F(DecodedCopyTest, ADecodeErrorIsTheError) {
  const auto copy = OpenDecodedCopy(source_, Info(), bytes_.size(), [](absl::Span<uint8_t>) {
    return absl::DataLossError("broken");
  });
  EXPECT_EQ(copy.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(copy.status().message()), HasSubstr(source_));
  EXPECT_FALSE(std::filesystem::exists(DecodedCopyPath(source_)));
  EXPECT_FALSE(std::filesystem::exists(DecodedCopyPath(source_) + ".tmp"));
}

}  // namespace
}  // namespace lockstep::data
