// SPDX-License-Identifier: Apache-2.0
#include "launcher/agent/log_queue.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstddef>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/fd.h"
#include "common/thread.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/launcher/read_bytes.h"

namespace lockstep::launcher {
namespace {

using ::testing::ElementsAre;

// A log whose reader is a disk.
struct Log {
  Log() {
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    read.reset(ends[0]);
    file.Use(UniqueFd(ends[1]), "the log");
  }
  std::string Read(size_t bytes) { return ReadBytes(read.get(), bytes); }
  UniqueFd read;
  LogFile file;
};

std::vector<std::string> Unwritten(const LogQueue& queue) {
  std::vector<std::string> lines;
  for (const LogQueue::Text& text : queue.Unwritten()) lines.push_back(text.lines);
  return lines;
}

TEST(LogQueueTest, WhatIsStoppedLeavesTheRestInItsOrder) {
  Log log;
  LogQueue queue;
  for (const char* line : {"one\n", "two\n", "three\n"}) queue.Add({.lines = line});
  EXPECT_TRUE(queue.WriteOldest(&log.file).ok());
  EXPECT_EQ(log.Read(4), "one\n");
  queue.Stop();
  EXPECT_TRUE(queue.WriteOldest(&log.file).ok());
  EXPECT_THAT(Unwritten(queue), ElementsAre("two\n", "three\n"));
  log.file.Use(UniqueFd(), "");  // closes the other one
  char more;
  EXPECT_EQ(::read(log.read.get(), &more, 1), 0) << "nothing more is written";
}

TEST(LogQueueTest, WhatIsBeingWrittenIsUnwrittenUntilItIs) {
  Log log;
  LogQueue queue;
  const int room = ::fcntl(log.read.get(), F_GETPIPE_SZ);
  ASSERT_GT(room, 0);
  const std::string text(static_cast<size_t>(room), 'x');
  queue.Add({.lines = text + "\n"});
  queue.Add({.lines = "two\n"});
  Thread disk("disk", [&] {
    EXPECT_TRUE(queue.WriteOldest(&log.file).ok());
    EXPECT_TRUE(queue.WriteOldest(&log.file).ok());
  });
  for (int there = 0; there < room; std::this_thread::yield()) {
    ASSERT_EQ(::ioctl(log.read.get(), FIONREAD, &there), 0);
  }
  queue.Stop();
  EXPECT_THAT(Unwritten(queue), ElementsAre(text + "\n", "two\n"));
  EXPECT_EQ(log.Read(text.size() + 1), text + "\n");
  disk.Join();
  EXPECT_THAT(Unwritten(queue), ElementsAre("two\n"));
}

TEST(LogQueueTest, WhatALogRefusesWaitsNoMore) {
  LogQueue queue;
  LogFile full;
  full.Use(UniqueFd(::open("/dev/full", O_WRONLY | O_CLOEXEC)), "the log");
  queue.Add({.lines = "one\n"});
  EXPECT_FALSE(queue.WriteOldest(&full).ok());
  EXPECT_THAT(Unwritten(queue), ElementsAre());
}

}  // namespace
}  // namespace lockstep::launcher
