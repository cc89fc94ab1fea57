// SPDX-License-Identifier: Apache-2.0
// What a supervisor keeps of its processes' output until an agent comes.
#include "launcher/supervisor/kept_output.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/fd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/supervisor.pb.h"
#include "tests/unit/worker/file_limit.h"

namespace lockstep::launcher {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

struct Printed {
  explicit Printed(const char* log) {
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_NONBLOCK | O_CLOEXEC), 0);
    print.reset(ends[1]);
    kept = std::make_unique<KeptOutput>(UniqueFd(ends[0]), UniqueFd(),
                                        UniqueFd(::open(log, O_WRONLY | O_APPEND | O_CLOEXEC)));
  }
  void Print(const std::string& text) {
    EXPECT_EQ(::write(print.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
    kept->Read(0);
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
  UniqueFd print;
  std::unique_ptr<KeptOutput> kept;
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
