// SPDX-License-Identifier: Apache-2.0
#include "common/bus_guard.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "common/fd.h"
#include "common/mapped_bytes.h"
#include "common/thread.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

constexpr size_t kBytes = 64 << 10;

class BusGuardTest : public ::testing::Test {
 protected:
  BusGuardTest() : path_(::testing::TempDir() + "/bus_guard_" + std::to_string(::getpid())) {
    std::ofstream(path_, std::ios::binary) << std::string(kBytes, 'x');
  }
  ~BusGuardTest() override { std::filesystem::remove(path_); }
  void Cut(size_t bytes) { std::filesystem::resize_file(path_, bytes); }

  const std::string path_;
};

int Sum(const MappedBytes& bytes) {
  int sum = 0;
  for (const uint8_t byte : bytes.span()) sum += byte;
  return sum;
}

TEST_F(BusGuardTest, AMappingOfATruncatedFileReadsZerosAndSaysSo) {
  const auto bytes = MappedBytes::OpenFile(path_);
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  EXPECT_EQ(Sum(*bytes), static_cast<int>(kBytes * 'x'));
  EXPECT_TRUE(bytes->Check().ok());
  Cut(10'000);
  EXPECT_EQ(Sum(*bytes), 10'000 * 'x');
  EXPECT_EQ(bytes->Check().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(bytes->Check().message()),
              HasSubstr(path_ + " was truncated while in use: it has 10000 bytes, it had 65536"));
}

// The kernel ends a process whose thread blocks the signal that its own access raises.
TEST_F(BusGuardTest, OurOwnThreadsReadZerosToo) {
  const auto bytes = MappedBytes::OpenFile(path_);
  Cut(10'000);
  int sum = 0;
  Thread("loader", [&] { sum = Sum(*bytes); }).Join();
  EXPECT_EQ(sum, 10'000 * 'x');
  EXPECT_EQ(bytes->Check().code(), absl::StatusCode::kDataLoss);
}

TEST_F(BusGuardTest, TheRestOfTheLastPageCountsToo) {
  const auto bytes = MappedBytes::OpenFile(path_);
  Cut(kBytes - 1);
  EXPECT_EQ(bytes->span()[kBytes - 1], 0);
  EXPECT_EQ(bytes->Check().code(), absl::StatusCode::kDataLoss);
}

TEST_F(BusGuardTest, AFileThatAnotherTookTheNameOfIsAsItWas) {
  const auto bytes = MappedBytes::OpenFile(path_);
  std::ofstream(path_ + ".new") << "short";
  std::filesystem::rename(path_ + ".new", path_);
  EXPECT_EQ(Sum(*bytes), static_cast<int>(kBytes * 'x'));
  EXPECT_TRUE(bytes->Check().ok());
  std::filesystem::remove(path_);
  EXPECT_TRUE(bytes->Check().ok());
}

TEST_F(BusGuardTest, OthersAreNotConcerned) {
  const std::string other_path = path_ + ".other";
  std::ofstream(other_path, std::ios::binary) << std::string(kBytes, 'y');
  const auto bytes = MappedBytes::OpenFile(path_);
  const auto other = MappedBytes::OpenFile(other_path);
  Cut(0);
  EXPECT_EQ(Sum(*bytes), 0);
  EXPECT_FALSE(bytes->Check().ok());
  EXPECT_EQ(Sum(*other), static_cast<int>(kBytes * 'y'));
  EXPECT_TRUE(other->Check().ok());
  std::filesystem::remove(other_path);
}

TEST_F(BusGuardTest, AnyOfManyMappingsIsFound) {
  const std::string whole_path = path_ + ".whole";
  std::ofstream(whole_path, std::ios::binary) << std::string(kBytes, 'y');
  std::vector<MappedBytes> whole, cut;
  for (int i = 0; i < 2000; ++i) {
    auto bytes = MappedBytes::OpenFile(i % 3 == 0 ? path_ : whole_path);
    ASSERT_TRUE(bytes.ok()) << bytes.status();
    (i % 3 == 0 ? cut : whole).push_back(*std::move(bytes));
  }
  for (size_t i = 0; i < whole.size(); i += 2) whole[i] = MappedBytes();
  for (size_t i = 0; i < cut.size(); i += 5) {
    cut[i] = MappedBytes();
    cut[i] = MappedBytes::OpenFile(path_).value();
  }
  Cut(0);
  for (size_t i = 0; i < cut.size(); ++i) {
    EXPECT_EQ(cut[i].span()[i % kBytes], 0);
    EXPECT_FALSE(cut[i].Check().ok());
    EXPECT_TRUE(whole[i].Check().ok());
  }
  std::filesystem::remove(whole_path);
}

TEST_F(BusGuardTest, ALackOfMappingsSaysWhatToRaise) {
  const UniqueFd fd(::open(path_.c_str(), O_RDONLY | O_CLOEXEC));
  const auto bytes = MappedBytes::MapFd(fd.get(), size_t{1} << 60, /*writable=*/false, path_);
  EXPECT_EQ(bytes.status().code(), absl::StatusCode::kResourceExhausted) << bytes.status();
  EXPECT_THAT(std::string(bytes.status().message()), HasSubstr(path_));
  EXPECT_THAT(std::string(bytes.status().message()), HasSubstr("vm.max_map_count"));
}

TEST_F(BusGuardTest, AMappingIsGoodAgainAfterABadOneThatHadItsPlace) {
  for (int i = 0; i < 3; ++i) {
    std::ofstream(path_, std::ios::binary) << std::string(kBytes, 'x');
    auto bytes = MappedBytes::OpenFile(path_);
    ASSERT_TRUE(bytes->Check().ok());
    MappedBytes moved = *std::move(bytes);
    Cut(0);
    EXPECT_EQ(Sum(moved), 0);
    EXPECT_FALSE(moved.Check().ok());
  }
}

TEST_F(BusGuardTest, AWriteIntoATruncatedFileGoesNowhere) {
  const UniqueFd fd(::open(path_.c_str(), O_RDWR | O_CLOEXEC));
  auto bytes = MappedBytes::MapFd(fd.get(), kBytes, /*writable=*/true, path_);
  ASSERT_TRUE(bytes.ok());
  Cut(0);
  std::memset(bytes->writable().data(), 'z', kBytes);
  EXPECT_EQ(Sum(*bytes), static_cast<int>(kBytes * 'z'));
  EXPECT_FALSE(bytes->Check().ok());
}

TEST_F(BusGuardTest, ManyThreadsAtOnce) {
  for (int round = 0; round < 20; ++round) {
    std::ofstream(path_, std::ios::binary) << std::string(kBytes, 'x');
    const auto bytes = MappedBytes::OpenFile(path_);
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&] {
        while (true) {
          const int sum = Sum(*bytes);
          const absl::Status good = bytes->Check();
          if (!good.ok()) return;
          ASSERT_EQ(sum, static_cast<int>(kBytes * 'x')) << "zeros without the mark";
        }
      });
    }
    Cut(100);
  }
}

TEST_F(BusGuardTest, AnyOtherSigbusEndsTheProcessAsBefore) {
  const auto guarded = MappedBytes::OpenFile(path_);  // the handler is there
  EXPECT_DEATH(
      {
        const UniqueFd fd(::open(path_.c_str(), O_RDONLY | O_CLOEXEC));
        const auto* data = static_cast<const volatile char*>(
            ::mmap(nullptr, kBytes, PROT_READ, MAP_SHARED, fd.get(), 0));
        Cut(0);
        (void)data[kBytes / 2];
      },
      "" /* a sanitizer has words of its own */);
}

}  // namespace
}  // namespace lockstep
