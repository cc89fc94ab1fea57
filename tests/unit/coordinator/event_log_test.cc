// SPDX-License-Identifier: Apache-2.0
#include "coordinator/outbox/event_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/string_view.h"

namespace lockstep::coordinator {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

JobEvent Line(size_t bytes) {
  JobEvent event;
  event.mutable_log()->add_lines(std::string(bytes, 'x'));
  return event;
}

JobEvent State(JobState state) {
  JobEvent event;
  event.mutable_state()->set_state(state);
  return event;
}

// The first line that is kept, after the note that older ones are not.
int64_t Oldest(const EventLog& log) {
  FollowerPlace place(0);
  EXPECT_TRUE(log.After(place, /*logs=*/true)->has_notice());
  const std::shared_ptr<const JobEvent> first = log.After(place, /*logs=*/true);
  EXPECT_TRUE(first->has_log());
  return first->sequence();
}

std::shared_ptr<const JobEvent> After(const EventLog& log, int64_t sequence, bool logs) {
  FollowerPlace place(sequence);
  return log.After(place, logs);
}

// What a notice says of missing lines.
int64_t Missing(const JobEvent& event) {
  const absl::string_view text = event.notice();
  int64_t lines = -1;
  EXPECT_TRUE(absl::SimpleAtoi(text.substr(0, text.find(' ')), &lines)) << text;
  return lines;
}

TEST(EventLogTest, KeepsTheNewestLines) {
  EventLog log;
  for (int64_t i = 0; i < EventLog::kMaxLogLines; ++i) log.Append(Line(1));
  EXPECT_EQ(After(log, 0, /*logs=*/true)->sequence(), 1) << "all are there";
  for (int64_t i = 0; i < 10; ++i) log.Append(Line(1));
  EXPECT_EQ(Oldest(log), 11);
}

TEST(EventLogTest, WhoMissesLinesIsTold) {
  EventLog log;
  for (int64_t i = 0; i < EventLog::kMaxLogLines + 10; ++i) log.Append(Line(1));
  EXPECT_TRUE(After(log, 9, /*logs=*/true)->has_notice()) << "the tenth is gone";
  EXPECT_TRUE(After(log, 10, /*logs=*/true)->has_log()) << "nothing is missing";
  EXPECT_EQ(After(log, 0, /*logs=*/false), nullptr) << "who wants no lines misses none";
}

TEST(EventLogTest, HowManyAreMissingIsSaidToWhoHasReadThem) {
  EventLog log(/*last=*/100);
  log.Append(State(RUNNING));
  for (int64_t i = 0; i < EventLog::kMaxLogLines; ++i) log.Append(Line(1));
  FollowerPlace place(100);
  EXPECT_TRUE(log.After(place, /*logs=*/true)->has_state());
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(log.After(place, /*logs=*/true)->has_log());
  for (int i = 0; i < 6; ++i) log.Append(Line(1));
  const std::shared_ptr<const JobEvent> notice = log.After(place, /*logs=*/true);
  EXPECT_THAT(notice->notice(), HasSubstr("the log files have all of them"));
  const std::shared_ptr<const JobEvent> next = log.After(place, /*logs=*/true);
  ASSERT_TRUE(next->has_log());
  EXPECT_EQ(Missing(*notice), next->sequence() - 101 - 6);

  FollowerPlace first(50);
  EXPECT_TRUE(log.After(first, /*logs=*/true)->has_state());
  EXPECT_EQ(Missing(*log.After(first, /*logs=*/true)), 6) << "a coordinator before had the others";
  EXPECT_THAT(After(log, 103, /*logs=*/true)->notice(), StartsWith("lines that workers printed "))
      << "what somebody has read who comes back is not known";
}

TEST(EventLogTest, WhoIsSlowerThanTheOutputIsSeldomTold) {
  EventLog log;
  FollowerPlace place(0);
  int64_t printed = 0, read = 0, missing = 0, notices = 0, in_a_row = 0, most_in_a_row = 0;
  const auto take = [&] {
    const std::shared_ptr<const JobEvent> event = log.After(place, /*logs=*/true);
    if (event == nullptr) return false;
    if (event->has_notice()) {
      missing += Missing(*event);
      ++notices;
      most_in_a_row = std::max(most_in_a_row, ++in_a_row);
    } else {
      read += event->log().lines_size();
      in_a_row = 0;
    }
    return true;
  };
  // Ten lines are printed while one is taken.
  for (; printed < 10 * EventLog::kMaxLogLines; ++printed) {
    log.Append(Line(1));
    if (printed % 10 == 0) take();
  }
  EXPECT_LE(notices, 30) << read << " lines read";
  while (take()) {
  }
  EXPECT_EQ(read + missing, printed);
  EXPECT_EQ(most_in_a_row, 1);
}

TEST(EventLogTest, WhoReadsFasterThanTheJobPrintsGetsAllThatIsKept) {
  EventLog log;
  for (int64_t i = 0; i < EventLog::kMaxLogLines + 10; ++i) log.Append(Line(1));
  FollowerPlace place(0);
  int64_t missing = 0;
  // One is printed while three are taken.
  for (int64_t i = 0; i < EventLog::kMaxLogLines; ++i) {
    if (i % 3 == 0) log.Append(Line(1));
    const std::shared_ptr<const JobEvent> event = log.After(place, /*logs=*/true);
    if (event->has_notice()) missing += Missing(*event);
  }
  EXPECT_LT(missing, 20);
}

// Who comes back after that event would not be told of the lines before it.
TEST(EventLogTest, WhoFallsBehindIsToldOfItBeforeTheNextOtherEvent) {
  EventLog log;
  FollowerPlace place(0);
  const auto fall_behind = [&](int64_t lines) {
    for (int64_t i = 0; i < lines; ++i) log.Append(Line(1));
  };
  fall_behind(EventLog::kMaxLogLines);
  for (int i = 0; i < 4; ++i) {
    EXPECT_TRUE(log.After(place, /*logs=*/true)->has_log());
    fall_behind(100);
    if (i < 3) EXPECT_TRUE(log.After(place, /*logs=*/true)->has_notice());
  }
  log.Append(State(RUNNING));
  const int64_t state = log.last_sequence();
  fall_behind(EventLog::kMaxLogLines - 100);
  EXPECT_TRUE(log.After(place, /*logs=*/true)->has_notice());
  EXPECT_EQ(place.sequence, state - 1);
  EXPECT_TRUE(log.After(place, /*logs=*/true)->has_state());
}

// Each line takes the place of the one before.
TEST(EventLogTest, WhatIsMissingBehindANoticeIsLeftToTheNextOne) {
  EventLog log;
  const auto append = [&log] { log.Append(Line(2 * EventLog::kMaxLogBytes)); };
  for (int i = 0; i < 3; ++i) append();
  FollowerPlace place(0);
  EXPECT_EQ(Missing(*log.After(place, /*logs=*/true)), 2);
  for (int i = 0; i < 4; ++i) append();
  EXPECT_EQ(log.After(place, /*logs=*/true)->sequence(), 7);
  EXPECT_EQ(Missing(*log.After(place, /*logs=*/true)), 4);
  EXPECT_EQ(log.After(place, /*logs=*/true), nullptr);
}

TEST(EventLogTest, LinesThatAreAllGoneAreToldOf) {
  EventLog log;
  for (int i = 0; i < 3; ++i) log.Append(Line(1));
  log.Append(State(SUCCEEDED));
  FollowerPlace place(0);
  EXPECT_TRUE(log.After(place, /*logs=*/true)->has_log());
  while (log.log_pieces() > 0) log.DropOldestLines();
  EXPECT_EQ(log.log_bytes(), 0u);
  EXPECT_EQ(Missing(*log.After(place, /*logs=*/true)), 2);
  EXPECT_TRUE(log.After(place, /*logs=*/true)->has_state());
  EXPECT_EQ(log.After(place, /*logs=*/true), nullptr);
  EXPECT_EQ(Missing(*After(log, 0, /*logs=*/true)), 3);
}

TEST(EventLogTest, LongLinesAreFewer) {
  EventLog log;
  constexpr size_t kLine = size_t{1} << 20;
  for (int i = 0; i < 100; ++i) log.Append(Line(kLine));
  EXPECT_GE(Oldest(log), 100 - static_cast<int64_t>(EventLog::kMaxLogBytes / kLine) + 1);
  EXPECT_LE(Oldest(log), 100 - static_cast<int64_t>(EventLog::kMaxLogBytes / kLine) + 2);
  log.Append(Line(2 * EventLog::kMaxLogBytes));
  EXPECT_EQ(Oldest(log), 101) << "the newest is there";
}

TEST(EventLogTest, OfLongEventsFewerAreKept) {
  EventLog log;
  JobEvent event = State(PENDING);
  event.mutable_state()->set_reason(std::string(EventLog::kMaxEventBytes / 4, 'x'));
  for (int i = 0; i < 10; ++i) log.Append(event);
  EXPECT_EQ(After(log, 0, /*logs=*/false)->sequence(), 8);
  event.mutable_state()->set_reason(std::string(EventLog::kMaxEventBytes, 'x'));
  log.Append(event);
  EXPECT_EQ(After(log, 0, /*logs=*/false)->sequence(), 11) << "the newest one always";
}

}  // namespace
}  // namespace lockstep::coordinator
