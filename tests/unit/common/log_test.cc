// SPDX-License-Identifier: Apache-2.0
#include "common/log.h"

#include <fcntl.h>
#include <limits.h>
#include <unistd.h>

#include <string>

#include "absl/time/time.h"
#include "common/fd.h"
#include "common/log_dates.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

// A pipe in the place of stderr.
class PipeForStderr {
 public:
  PipeForStderr() : kept_(::dup(STDERR_FILENO)) {
    int fds[2];
    EXPECT_EQ(::pipe2(fds, O_CLOEXEC), 0);
    read_.reset(fds[0]);
    const UniqueFd write(fds[1]);
    ::fcntl(fds[0], F_SETFL, O_NONBLOCK);
    ::dup2(fds[1], STDERR_FILENO);
  }
  ~PipeForStderr() { ::dup2(kept_.get(), STDERR_FILENO); }
  // Nobody reads it.
  void Fill() const {
    const UniqueFd write(::open("/proc/self/fd/2", O_WRONLY | O_NONBLOCK | O_CLOEXEC));
    const std::string some(PIPE_BUF, '.');
    while (::write(write.get(), some.data(), some.size()) > 0) {
    }
  }
  std::string Read() const {
    std::string all;
    char buffer[4096];
    for (ssize_t n; (n = ::read(read_.get(), buffer, sizeof(buffer))) > 0;) {
      all.append(buffer, static_cast<size_t>(n));
    }
    return all;
  }

 private:
  const UniqueFd kept_;
  UniqueFd read_;
};

TEST(LogTest, ALineGoesThroughAPipe) {
  std::string got;
  {
    const PipeForStderr pipe;
    LogLine(LogLevel::kWarning, "as it should");
    LogLine(LogLevel::kInfo, std::string(3 * PIPE_BUF, 'x'));
    got = pipe.Read();
  }
  EXPECT_THAT(got, HasSubstr(" as it should\n"));
  EXPECT_THAT(got, EndsWith(std::string(3 * PIPE_BUF, 'x') + "\n"));
}

TEST(LogTest, APipeThatNobodyReadsKeepsNobodyAndWhatIsMissingIsSaid) {
  std::string before, after;
  {
    const PipeForStderr pipe;
    pipe.Fill();
    for (int i = 0; i < 3; ++i) LogLine(LogLevel::kInfo, "lost");
    before = pipe.Read();
    LogLine(LogLevel::kInfo, "read again");
    LogLine(LogLevel::kInfo, "and again");
    after = pipe.Read();
  }
  EXPECT_THAT(before, Not(HasSubstr("lost")));
  EXPECT_THAT(after, AllOf(HasSubstr("[3 log lines are missing here: nobody read them]\nI "),
                           HasSubstr("read again\nI "), EndsWith(" and again\n")));
  EXPECT_THAT(after, Not(HasSubstr("lost")));
}

TEST(LogTest, ALineWithTheDateComesBeforeTheFirstLineOfADay) {
  const absl::TimeZone zone = absl::FixedTimeZone(60 * 60);
  LogCalendar calendar(zone);
  const absl::Time evening = absl::FromCivil(absl::CivilSecond(2026, 11, 30, 23, 59, 59), zone);
  EXPECT_EQ(calendar.Before(evening), "Monday, 2026-11-30, UTC+01:00");
  EXPECT_EQ(calendar.Before(evening), "");
  EXPECT_EQ(calendar.Before(evening + absl::Seconds(1)), "Tuesday, 2026-12-01, UTC+01:00");
  EXPECT_EQ(calendar.Before(evening + absl::Hours(23)), "");
  // The clock was set back.
  EXPECT_EQ(calendar.Before(evening), "Monday, 2026-11-30, UTC+01:00");
}

TEST(LogDeathTest, DatesAreInTheLogOfWhoAsksForThem) {
  const auto log = [](bool dates) {
    if (dates) LogDates();
    LogLine(LogLevel::kWarning, "a line");
    ::_exit(0);
  };
  EXPECT_EXIT(log(false), testing::ExitedWithCode(0), "^W [0-9:.]+ a line\n$");
  EXPECT_EXIT(
      log(true), testing::ExitedWithCode(0),
      "^I [0-9:.]+ [A-Z][a-z]+, [0-9]+-[0-9]+-[0-9]+, UTC[-+][0-9:]+\nW [0-9:.]+ a line\n$");
}

}  // namespace
}  // namespace lockstep
