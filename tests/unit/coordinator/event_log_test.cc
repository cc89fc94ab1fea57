// SPDX-License-Identifier: Apache-2.0
#include "coordinator/outbox/event_log.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

namespace lockstep::coordinator {
namespace {

JobEvent Line(size_t bytes) {
  JobEvent event;
  event.mutable_log()->add_lines(std::string(bytes, 'x'));
  return event;
}

// The first line that is kept, after the note that older ones are not.
int64_t Oldest(const EventLog& log) {
  const std::shared_ptr<const JobEvent> note = log.After(0, /*logs=*/true);
  EXPECT_TRUE(note->has_notice());
  const std::shared_ptr<const JobEvent> first = log.After(note->sequence(), /*logs=*/true);
  EXPECT_TRUE(first->has_log());
  return first->sequence();
}

TEST(EventLogTest, KeepsTheNewestLines) {
  EventLog log;
  for (int64_t i = 0; i < EventLog::kMaxLogLines; ++i) log.Append(Line(1));
  EXPECT_EQ(log.After(0, /*logs=*/true)->sequence(), 1) << "all are there";
  for (int64_t i = 0; i < 10; ++i) log.Append(Line(1));
  EXPECT_EQ(Oldest(log), 11);
}

TEST(EventLogTest, WhoMissesLinesIsTold) {
  EventLog log;
  for (int64_t i = 0; i < EventLog::kMaxLogLines + 10; ++i) log.Append(Line(1));
  EXPECT_TRUE(log.After(9, /*logs=*/true)->has_notice()) << "the tenth is gone";
  EXPECT_TRUE(log.After(10, /*logs=*/true)->has_log()) << "nothing is missing";
  EXPECT_EQ(log.After(0, /*logs=*/false), nullptr) << "who wants no lines misses none";
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

}  // namespace
}  // namespace lockstep::coordinator
