// SPDX-License-Identifier: Apache-2.0
// The small pieces of common/: status, clock, philox, descriptors over sockets, checks, log lines.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <string>

#include "absl/strings/cord.h"
#include "common/check.h"
#include "common/clock.h"
#include "common/fd.h"
#include "common/fd_passing.h"
#include "common/hash_bytes.h"
#include "common/log.h"
#include "common/philox.h"
#include "common/status.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using Words = std::array<uint32_t, 4>;

TEST(PhiloxTest, PublishedKnownAnswers) {  // kat_vectors of Random123
  EXPECT_EQ(Philox4x32({0, 0, 0, 0}, 0), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox4x32({~0u, ~0u, ~0u, ~0u}, ~uint64_t{0}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0x299f31d0a4093822),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
  EXPECT_EQ(Philox4x32({0, 0, 0, 0}, 0, 7),
            (Words{0x5f6fb709, 0x0d893f64, 0x4f121f81, 0x4f730a48}));
  EXPECT_EQ(Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0x299f31d0a4093822, 7),
            (Words{0x4dfccaba, 0x190a87f0, 0xc47362ba, 0xb6b5242a}));
}

TEST(PhiloxTest, KeysAndFloats) {
  EXPECT_NE(SiteKey(1, "a"), SiteKey(2, "a"));
  EXPECT_NE(SiteKey(1, "a"), SiteKey(1, "b"));
  EXPECT_EQ(UniformFloat(0), 0.0f);
  EXPECT_LT(UniformFloat(~0u), 1.0f);
}

TEST(StatusTest, ErrnoHasOneCode) {
  EXPECT_EQ(ErrnoStatus(ENOENT, "x").code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ErrnoStatus(EACCES, "x").code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ErrnoStatus(ENAMETOOLONG, "x").code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ErrnoStatus(ELOOP, "x").code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ErrnoStatus(ENOSPC, "x").code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ErrnoStatus(ECONNREFUSED, "x").code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ErrnoStatus(EINVAL, "x").code(), absl::StatusCode::kInternal);
  EXPECT_EQ(ErrnoStatus(ENOENT, "open a").message(), "open a: No such file or directory");
}

TEST(StatusTest, ErrnoNamesTheLimitBehindIt) {
  EXPECT_THAT(ErrnoStatus(EMFILE, "open a").message(),
              HasSubstr("open files are allowed: ulimit -n)"));
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit low{1 << 30, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &low), 0);
  EXPECT_THAT(ErrnoStatus(EFBIG, "write a").message(), HasSubstr("ulimit -f"));
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
}

TEST(StatusTest, AnnotateKeepsCodeAndPayload) {
  absl::Status status = absl::DataLossError("bad");
  status.SetPayload("u", absl::Cord("p"));
  const absl::Status annotated = Annotate(status, "file");
  EXPECT_EQ(annotated.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(annotated.message(), "file: bad");
  EXPECT_EQ(annotated.GetPayload("u"), absl::Cord("p"));
  EXPECT_TRUE(Annotate(absl::OkStatus(), "file").ok());
}

TEST(ClockTest, FakeClockMovesOnlyWhenTold) {
  FakeClock clock;
  const absl::Time start = clock.Now();
  EXPECT_EQ(clock.Now(), start);
  clock.Advance(absl::Seconds(2));
  clock.Sleep(absl::Seconds(3));
  clock.Sleep(-absl::Seconds(3));
  EXPECT_EQ(clock.Now() - start, absl::Seconds(5));
}

TEST(ClockTest, RealClockDoesNotGoBack) {
  const absl::Time a = Clock::Real()->Now();
  EXPECT_LE(a, Clock::Real()->Now());
}

TEST(FdPassingTest, WhatWasSentBeforeADeathArrives) {
  int pair[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
  UniqueFd a(pair[0]), b(pair[1]);
  ASSERT_TRUE(SendFds(a.get(), "last words", {}).ok());
  ASSERT_TRUE(SendFds(b.get(), "never read", {}).ok());
  a.reset();  // resets the connection, since something was left unread
  const auto message = RecvFds(b.get());
  ASSERT_TRUE(message.ok()) << message.status();
  EXPECT_EQ(message->data, "last words");
  EXPECT_EQ(RecvFds(b.get()).status().code(), absl::StatusCode::kUnavailable);
}

TEST(FdPassingTest, DescriptorsAndBytesArrive) {
  int pair[2], pipe_ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
  UniqueFd a(pair[0]), b(pair[1]);
  ASSERT_EQ(::pipe(pipe_ends), 0);
  UniqueFd read_end(pipe_ends[0]), write_end(pipe_ends[1]);
  ASSERT_TRUE(SendFds(a.get(), "hello", {write_end.get()}).ok());
  const auto message = RecvFds(b.get());
  ASSERT_TRUE(message.ok()) << message.status();
  EXPECT_EQ(message->data, "hello");
  ASSERT_EQ(message->fds.size(), 1u);
  ASSERT_EQ(::write(message->fds[0].get(), "x", 1), 1);
  char c;
  EXPECT_EQ(::read(read_end.get(), &c, 1), 1);
  a.reset();
  EXPECT_EQ(RecvFds(b.get()).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(SendFds(b.get(), "x", {}).code(), absl::StatusCode::kUnavailable);
}

TEST(CheckTest, AbortsWithPlaceAndMessage) {
  LS_CHECK(true) << "not shown";
  EXPECT_DEATH(LS_CHECK_EQ(1 + 1, 3) << "sum", "CHECK failed at .*basics_test.cc.*2 vs 3 sum");
}

TEST(LogTest, LinesHaveLevelPrefixAndMessage) {
  SetLogPrefix("r3 g2");
  testing::internal::CaptureStderr();
  LS_LOG_WARNING << "disk " << 7;
  LS_LOG_DEBUG << "dropped";
  SetLogPrefix("");
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              MatchesRegex("W ..:..:..\\.... \\[r3 g2\\] disk 7\n"));
}

TEST(HashBytes, SeesEveryByte) {
  for (const size_t bytes : {0, 1, 7, 8, 31, 32, 33, 100, 4096}) {
    std::string data(bytes, 'x');
    const uint64_t hash = HashBytes(data.data(), bytes);
    for (size_t i = 0; i < bytes; ++i) {
      for (const int bit : {0, 7}) {
        data[i] = static_cast<char>(data[i] ^ (1 << bit));
        EXPECT_NE(HashBytes(data.data(), bytes), hash) << i << " of " << bytes;
        data[i] = static_cast<char>(data[i] ^ (1 << bit));
      }
    }
    EXPECT_EQ(HashBytes(data.data(), bytes), hash);
    data += '\0';
    EXPECT_NE(HashBytes(data.data(), bytes + 1), hash);
  }
}

}  // namespace
}  // namespace lockstep
