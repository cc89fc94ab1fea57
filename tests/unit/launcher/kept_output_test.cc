// SPDX-License-Identifier: Apache-2.0
// What a supervisor keeps of its processes' output until an agent comes.
#include "launcher/supervisor/kept_output.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "common/fd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launcher/agent/run_disk.h"
#include "proto/supervisor.pb.h"
#include "tests/unit/launcher/read_bytes.h"
#include "tests/unit/worker/file_limit.h"

namespace lockstep::launcher {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

constexpr absl::Duration kLong = absl::Seconds(20);

struct Printed {
  explicit Printed(const char* log)
      : Printed(UniqueFd(::open(log, O_WRONLY | O_APPEND | O_CLOEXEC))) {}
  explicit Printed(UniqueFd log) {
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_NONBLOCK | O_CLOEXEC), 0);
    print.reset(ends[1]);
    kept = std::make_unique<KeptOutput>(UniqueFd(ends[0]), UniqueFd(), std::move(log), &disk);
  }
  void PrintUnwritten(const std::string& text) {
    EXPECT_EQ(::write(print.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
    kept->Read(0);
  }
  void Print(const std::string& text) {
    PrintUnwritten(text);
    EXPECT_TRUE(disk.Settle(kLong));
  }
  // The lines that an agent gets and has to write into the log.
  std::vector<std::string> HandOver(KeptProcess* process) {
    kept->HandOver(process);
    std::vector<std::string> unlogged;
    for (const PrintedLine& line : process->lines()) {
      if (line.unlogged()) unlogged.push_back(line.text());
    }
    return unlogged;
  }
  RunDisk disk;
  UniqueFd print;
  std::unique_ptr<KeptOutput> kept;
};

// A log whose disk takes a page, and the rest when that is read.
struct SlowDisk {
  SlowDisk() {
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    ::signal(SIGPIPE, SIG_IGN);
    read.reset(ends[0]);
    write.reset(ends[1]);
    page = ::fcntl(ends[1], F_SETPIPE_SZ, 1);
    EXPECT_GT(page, 0);
  }
  // Waits until a write is under way that has more than it takes.
  void AwaitStill() {
    for (int there = 0; there < page; std::this_thread::yield()) {
      ASSERT_EQ(::ioctl(read.get(), FIONREAD, &there), 0);
    }
  }
  std::string Read(size_t bytes) { return ReadBytes(read.get(), bytes); }
  std::string Page() const { return std::string(static_cast<size_t>(page), '1'); }
  UniqueFd read, write;
  int page = 0;  // bytes
};

TEST(KeptOutputTest, AFullDiskCostsNoLineThatAnAgentCanWriteLater) {
  Printed printed("/dev/full");
  printed.Print("one\n");
  printed.Print("two\nbeg");
  struct stat log {
  }, full{};
  ASSERT_EQ(::fstat(printed.kept->log(), &log), 0) << "the agent gets the log, too";
  ASSERT_EQ(::stat("/dev/full", &full), 0);
  EXPECT_EQ(log.st_rdev, full.st_rdev);
  KeptProcess process;
  EXPECT_THAT(printed.HandOver(&process), ElementsAre("one", "two"));
  EXPECT_EQ(process.lost_lines(), 0);
  EXPECT_EQ(process.partial(0), "beg");
}

TEST(KeptOutputTest, WhatADiskTookBeforeItWasFullIsNotWrittenAgain) {
  const std::string path = ::testing::TempDir() + "/full.log";
  std::ofstream(path).close();
  Printed printed(path.c_str());
  const auto log = [&] {
    std::ostringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
  };
  {
    const worker::FileLimit full(10);
    printed.Print("one\ntwo\nthree\nfour\n");
  }
  EXPECT_EQ(log(), "one\ntwo\n") << "and no part of a line";
  KeptProcess process;
  EXPECT_THAT(printed.HandOver(&process), ElementsAre("three", "four"));
  std::filesystem::remove(path);
}

TEST(KeptOutputTest, WithoutALogLinesWaitForAnAgent) {
  Printed printed("/no such log");
  printed.Print("one\n");
  KeptProcess process;
  EXPECT_THAT(printed.HandOver(&process), ElementsAre("one"));
}

TEST(KeptOutputTest, WhatIsInTheLogIsNotWrittenAgain) {
  Printed printed("/dev/null");
  printed.Print("one\n");
  KeptProcess process;
  EXPECT_THAT(printed.HandOver(&process), ElementsAre());
  EXPECT_THAT(process.lines(), SizeIs(1));
}

TEST(KeptOutputTest, LinesThatNobodyHasAnyMoreAreCounted) {
  Printed printed("/dev/full");
  const std::string line(KeptOutput::kBytes / 8 - 1, 'x');
  for (int i = 0; i < 11; ++i) printed.Print(absl::StrCat(line, "\n"));
  KeptProcess process;
  EXPECT_THAT(printed.HandOver(&process), SizeIs(8));
  EXPECT_EQ(process.lost_lines(), 3);
  KeptProcess next;
  printed.HandOver(&next);
  EXPECT_EQ(next.lost_lines(), 0);
}

TEST(KeptOutputTest, AnAgentDoesNotWaitForADiskThatDoesNotAnswer) {
  SlowDisk log;
  Printed printed(std::move(log.write));
  const std::string one = log.Page();
  printed.PrintUnwritten(absl::StrCat(one, "\n"));
  log.AwaitStill();
  printed.PrintUnwritten("two\nthree\n");
  KeptProcess process;
  EXPECT_THAT(printed.HandOver(&process), ElementsAre("two", "three"))
      << "the first one is on its way to the log";
  EXPECT_THAT(process.lines(), SizeIs(3));
  KeptProcess next;
  EXPECT_THAT(printed.HandOver(&next), ElementsAre());
  EXPECT_THAT(next.lines(), SizeIs(0)) << "an agent has them all";
  EXPECT_EQ(log.Read(one.size() + 1), absl::StrCat(one, "\n"));
  printed.Print("four\n");
  EXPECT_EQ(log.Read(5), "four\n");
  KeptProcess last;
  EXPECT_THAT(printed.HandOver(&last), ElementsAre());
  EXPECT_EQ(last.lost_lines(), 0) << "the first one came to the log";
}

TEST(KeptOutputTest, ALineThatItsLogRefusesWhenAnAgentHasItIsCounted) {
  SlowDisk log;
  Printed printed(std::move(log.write));
  printed.PrintUnwritten(absl::StrCat(log.Page(), "\n"));
  log.AwaitStill();
  KeptProcess process, next;
  EXPECT_THAT(printed.HandOver(&process), ElementsAre());
  log.read.reset();
  EXPECT_TRUE(printed.disk.Settle(kLong));
  printed.Print("two\n");
  EXPECT_THAT(printed.HandOver(&next), ElementsAre("two"));
  EXPECT_EQ(next.lost_lines(), 1);
}

// As when it ends before it has read what it was told.
TEST(KeptOutputTest, WhatNoAgentGotComesToTheLogAfterAll) {
  absl::Notification answers;
  const std::string path = ::testing::TempDir() + "/back.log";
  std::ofstream(path).close();
  Printed printed(path.c_str());
  printed.Print("zero\n");
  printed.disk.Do([&] { answers.WaitForNotification(); });
  printed.PrintUnwritten("one\ntwo\nbeg");
  KeptProcess process, next;
  EXPECT_THAT(printed.HandOver(&process), ElementsAre("one", "two"));
  printed.kept->TakeBack(process);
  answers.Notify();
  printed.Print("inning\n");
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_EQ(text.str(), "zero\none\ntwo\nbeginning\n");
  EXPECT_THAT(printed.HandOver(&next), ElementsAre());
  EXPECT_THAT(next.lines(), SizeIs(4)) << "all are told";
  std::filesystem::remove(path);
}

// As when the log's disk did not answer until it ended.
TEST(KeptOutputTest, WhatAnAgentLeavesUnwrittenComesToTheLogAndIsToldOnce) {
  const std::string path = ::testing::TempDir() + "/left.log";
  std::ofstream(path).close();
  Printed printed(path.c_str());
  printed.kept->TakeUnlogged(0, "one\r\n\n");
  printed.kept->TakeUnlogged(1, "two\n");
  printed.kept->Begin(0, "beg");
  printed.Print("un\n");
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_EQ(text.str(), "one\r\n\ntwo\nbegun\n");
  KeptProcess process;
  EXPECT_THAT(printed.HandOver(&process), ElementsAre());
  ASSERT_THAT(process.lines(), SizeIs(4));
  EXPECT_TRUE(process.lines(2).is_stderr());
  EXPECT_TRUE(process.lines(2).told());
  EXPECT_FALSE(process.lines(3).told());
  printed.kept->TakeBack(process);
  KeptProcess next;
  printed.HandOver(&next);
  ASSERT_THAT(next.lines(), SizeIs(4));
  EXPECT_TRUE(next.lines(2).told());
  std::filesystem::remove(path);
}

TEST(KeptOutputTest, LinesWaitForADiskUntilThereIsNoRoom) {
  absl::Notification answers;
  const std::string path = ::testing::TempDir() + "/slow.log";
  std::ofstream(path).close();
  Printed printed(path.c_str());
  printed.disk.Do([&] { answers.WaitForNotification(); });
  const std::string line(KeptOutput::kBytes / 8 - 1, 'x');
  size_t lines = 0;
  for (; printed.kept->has_room(); ++lines) printed.PrintUnwritten(absl::StrCat(line, "\n"));
  EXPECT_GT(lines * line.size(), KeptOutput::kRoom * 9 / 10);
  answers.Notify();
  EXPECT_TRUE(printed.disk.Settle(kLong));
  EXPECT_TRUE(printed.kept->has_room());
  EXPECT_EQ(std::filesystem::file_size(path), lines * (line.size() + 1)) << "none is lost";
  KeptProcess process;
  EXPECT_THAT(printed.HandOver(&process), ElementsAre());
  std::filesystem::remove(path);
}

TEST(KeptOutputTest, WhatWaitsForADiskOutlivesItsProcess) {
  absl::Notification answers;
  const std::string path = ::testing::TempDir() + "/late.log";
  std::ofstream(path).close();
  Printed printed(path.c_str());
  printed.disk.Do([&] { answers.WaitForNotification(); });
  printed.PrintUnwritten("one\n");
  printed.kept.reset();
  answers.Notify();
  EXPECT_TRUE(printed.disk.Settle(kLong));
  EXPECT_EQ(std::filesystem::file_size(path), 4);
  std::filesystem::remove(path);
}

TEST(KeptOutputTest, ALineThatAnAgentHasBegunToReadIsOne) {
  Printed printed("/dev/null");
  printed.kept->Begin(0, "beg");
  printed.Print("un\n");
  KeptProcess process;
  printed.HandOver(&process);
  ASSERT_THAT(process.lines(), SizeIs(1));
  EXPECT_EQ(process.lines(0).text(), "begun");
}

}  // namespace
}  // namespace lockstep::launcher
