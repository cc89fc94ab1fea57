// SPDX-License-Identifier: Apache-2.0
// Streams that nobody reads, for a while or for good.
#include "launcher/follow/standard_streams.h"

#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/synchronization/notification.h"
#include "common/fd.h"
#include "common/thread.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::launcher {
namespace {

using ::testing::HasSubstr;

struct Pipe {
  Pipe() {
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    read.reset(ends[0]);
    write.reset(ends[1]);
  }
  // The first `bytes` of what comes.
  std::string Read(size_t bytes) const {
    std::string got(bytes, '\0');
    size_t filled = 0;
    while (filled < bytes) {
      const ssize_t n = ::read(read.get(), got.data() + filled, bytes - filled);
      if (n <= 0) break;
      filled += static_cast<size_t>(n);
    }
    got.resize(filled);
    return got;
  }
  // What is there, at most 64 KiB; blocks while nothing is.
  std::string ReadSome() const {
    char buffer[size_t{64} << 10];
    const ssize_t n = ::read(read.get(), buffer, sizeof(buffer));
    return std::string(buffer, n > 0 ? static_cast<size_t>(n) : 0);
  }
  UniqueFd read, write;
};

struct Terminal {
  Terminal() : reader(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC)) {
    EXPECT_EQ(::grantpt(reader.get()), 0);
    EXPECT_EQ(::unlockpt(reader.get()), 0);
    end.reset(::open(::ptsname(reader.get()), O_RDWR | O_NOCTTY | O_CLOEXEC));
    EXPECT_TRUE(end.valid());
  }
  UniqueFd reader, end;
};

constexpr absl::Duration kStill = absl::Milliseconds(1);

const std::string kMuch(size_t{2} << 20, 'x');  // NOLINT: more than a pipe and the room take

TEST(StandardStreamsTest, WhoSaysSomethingDoesNotWaitForTheOthersReader) {
  const Pipe out, err;
  StandardStreams streams(out.write.get(), err.write.get(), kStill);
  streams.Out(kMuch);
  streams.Err("a warning\n");
  EXPECT_EQ(err.Read(10), "a warning\n") << "nobody reads stdout";
  EXPECT_GT(streams.waiting(), TextSink::kRoom);
  streams.Hurry();
}

TEST(StandardStreamsTest, WhatCouldNotBeWrittenIsKnownWhenMoreWas) {
  const UniqueFd full(::open("/dev/full", O_WRONLY | O_CLOEXEC));
  const UniqueFd well(::open("/dev/null", O_WRONLY | O_CLOEXEC));
  const UniqueFd out(::fcntl(full.get(), F_DUPFD_CLOEXEC, 0));
  StandardStreams streams(out.get(), well.get(), kStill);
  EXPECT_TRUE(streams.out_failure().ok());
  streams.Out("one\n");
  EXPECT_TRUE(absl::IsResourceExhausted(streams.Flush()));
  ASSERT_EQ(::dup3(well.get(), out.get(), O_CLOEXEC), out.get());
  streams.Out("two\n");
  EXPECT_TRUE(streams.Flush().ok()) << "the newest one";
  EXPECT_TRUE(absl::IsResourceExhausted(streams.out_failure()));
}

TEST(StandardStreamsTest, NothingIsLostWhereSomebodyReadsLate) {
  const Pipe out;
  std::string got;
  Thread reader;
  {
    StandardStreams streams(out.write.get(), out.write.get());
    streams.Out(kMuch);
    streams.Err("between\n");
    streams.Out("the end\n");
    reader = Thread("reader", [&] { got = out.Read(kMuch.size() + 16); });
    streams.AwaitRoom();
    EXPECT_LE(streams.waiting(), TextSink::kRoom);
    EXPECT_TRUE(streams.Flush().ok());
    reader.Join();
  }
  EXPECT_EQ(got, kMuch + "between\nthe end\n") << "one place has one order";
}

TEST(StandardStreamsTest, WhoIsInAHurryWaitsForNobody) {
  const Pipe out, err;
  StandardStreams streams(out.write.get(), err.write.get(), kStill);
  streams.Out(kMuch);
  Thread waits("waits", [&] { streams.AwaitRoom(); });
  streams.Hurry();
  waits.Join();
  streams.Out("no room for it");
  EXPECT_FALSE(streams.Flush().ok());
  streams.Err("what is last\n");
  EXPECT_EQ(err.Read(20), "[1 message is not sh") << "and the other stream goes on";
}

// That what came before it is read after all does not make it written.
TEST(StandardStreamsTest, WhatWasLeftOutIsNotWritten) {
  const Pipe out, err;
  StandardStreams streams(out.write.get(), err.write.get(), absl::Seconds(20));
  streams.Out(kMuch);
  streams.Hurry();
  streams.Out("no room for it");
  EXPECT_EQ(out.Read(kMuch.size()), kMuch);
  EXPECT_FALSE(streams.Flush().ok());
  streams.Out("the next one\n");
  EXPECT_EQ(out.Read(13), "the next one\n");
  EXPECT_TRUE(streams.Flush().ok());
}

TEST(StandardStreamsTest, WhoIsInAHurryWaitsForNoTerminal) {
  Terminal terminal;
  auto streams = std::make_unique<StandardStreams>(terminal.end.get(), terminal.end.get(), kStill);
  absl::Notification ended;
  streams->Err(kMuch);
  char first;
  EXPECT_EQ(::read(terminal.reader.get(), &first, 1), 1);
  Thread ends("ends", [&] {
    streams->Hurry();
    streams.reset();
    ended.Notify();
  });
  EXPECT_TRUE(ended.WaitForNotificationWithTimeout(absl::Seconds(20)));
  terminal.reader.reset();  // who still waits goes on
  ends.Join();
}

TEST(StandardStreamsTest, ATerminalThatIsReadLateShowsAllOfIt) {
  const Terminal terminal;
  std::string wanted, got;
  for (int i = 0; i < 5000; ++i) absl::StrAppend(&wanted, "line ", i, "\n\n");
  StandardStreams streams(terminal.end.get(), terminal.end.get());
  streams.Out(wanted);
  const std::string shown = absl::StrReplaceAll(wanted, {{"\n", "\r\n"}});
  while (got.size() < shown.size()) {
    char buffer[1000];
    const ssize_t n = ::read(terminal.reader.get(), buffer, sizeof(buffer));
    ASSERT_GT(n, 0);
    got.append(buffer, static_cast<size_t>(n));
  }
  EXPECT_EQ(got, shown);
  EXPECT_TRUE(streams.Flush().ok());
}

TEST(StandardStreamsTest, WhatFindsNoRoomIsCounted) {
  const Pipe out, err;
  StandardStreams streams(out.write.get(), err.write.get());
  for (int i = 0; i < 6; ++i) streams.Err(kMuch);
  Thread reader("reader", [&] {
    std::string end;
    while (end.find("is there again\n") == std::string::npos) {
      end = end.substr(end.size() - std::min<size_t>(end.size(), 200)) + err.ReadSome();
    }
    EXPECT_THAT(end, HasSubstr("[1 message is not shown here, since nobody read it]\n"));
  });
  streams.AwaitRoom();
  streams.Err("who reads is there again\n");
  reader.Join();
}

TEST(StandardStreamsTest, WhyTheNewestTextIsNotWritten) {
  Pipe out;
  const Pipe err;
  StandardStreams streams(out.write.get(), err.write.get());
  streams.Out("a line\n");
  EXPECT_TRUE(streams.Flush().ok());
  out.read.reset();
  streams.Out("the result\n");
  EXPECT_THAT(std::string(streams.Flush().message()), HasSubstr("Broken pipe"));
}

}  // namespace
}  // namespace lockstep::launcher
