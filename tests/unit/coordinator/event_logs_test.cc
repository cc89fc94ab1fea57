// SPDX-License-Identifier: Apache-2.0
#include "coordinator/outbox/event_logs.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace lockstep::coordinator {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

void Print(EventLogs& logs, const std::string& job, size_t bytes, int lines = 1) {
  for (int i = 0; i < lines; ++i) {
    JobEvent event;
    event.mutable_log()->add_lines(std::string(bytes, 'x'));
    logs.Append(job, std::move(event));
  }
}

void End(EventLogs& logs, const std::string& job) {
  JobEvent event;
  event.mutable_state()->set_state(SUCCEEDED);
  logs.Append(job, std::move(event));
}

TEST(EventLogsTest, LinesOfTheJobThatEndedLongestAgoGoFirst) {
  EventLogs logs(0, 8 * kMiB);
  for (const char* job : {"runs", "second", "first"}) Print(logs, job, kMiB, 2);
  End(logs, "first");
  End(logs, "second");
  EXPECT_EQ(logs.Find("first")->log_pieces(), 2u);
  Print(logs, "runs", kMiB, 2);
  EXPECT_EQ(logs.Find("first")->log_pieces(), 1u);
  FollowerPlace place(0);
  EXPECT_TRUE(logs.Find("first")->After(place, /*logs=*/true)->has_notice());
  EXPECT_TRUE(logs.Find("first")->After(place, /*logs=*/true)->has_log());
  EXPECT_TRUE(logs.Find("first")->After(place, /*logs=*/true)->has_state());
  Print(logs, "runs", kMiB, 2);
  EXPECT_EQ(logs.Find("first")->log_pieces(), 0u);
  EXPECT_EQ(logs.Find("second")->log_pieces(), 1u);
  EXPECT_EQ(logs.Find("runs")->log_pieces(), 6u) << "it loses nothing";
  EXPECT_LE(logs.log_bytes(), 8 * kMiB);
}

TEST(EventLogsTest, OfTooManyThatRunThoseLoseThatHaveMost) {
  EventLogs logs(0, 8 * kMiB);
  Print(logs, "quiet", kMiB, 1);
  Print(logs, "chatty", kMiB, 6);
  Print(logs, "other", kMiB, 6);
  EXPECT_LE(logs.log_bytes(), 8 * kMiB);
  EXPECT_EQ(logs.Find("quiet")->log_pieces(), 1u);
  EXPECT_GE(logs.Find("chatty")->log_pieces(), 2u);
  EXPECT_GE(logs.Find("other")->log_pieces(), 2u);
}

TEST(EventLogsTest, WhatEndedLastKeepsItsLinesWhereJobsThatRunHaveAllThePlace) {
  EventLogs logs(0, 8 * kMiB);
  Print(logs, "runs", kMiB, 20);
  Print(logs, "failed", kMiB / 4, 4);
  End(logs, "failed");
  Print(logs, "runs", kMiB, 20);
  EXPECT_EQ(logs.Find("failed")->log_pieces(), 4u);
  EXPECT_GE(logs.Find("runs")->log_pieces(), 5u);
  EXPECT_LE(logs.log_bytes(), 8 * kMiB);
  for (const char* job : {"b", "c", "d"}) {
    Print(logs, job, kMiB / 4, 4);
    End(logs, job);
  }
  Print(logs, "runs", kMiB, 20);
  EXPECT_EQ(logs.Find("failed")->log_pieces(), 0u) << "ended jobs have a quarter";
  EXPECT_EQ(logs.Find("d")->log_pieces(), 4u);
}

TEST(EventLogsTest, TheNewestLinesOfAJobThatRunsAreKeptInAnyCase) {
  EventLogs logs(0, kMiB);
  for (const char* job : {"a", "b"}) Print(logs, job, 2 * kMiB, 2);
  EXPECT_EQ(logs.Find("a")->log_pieces(), 1u);
  EXPECT_EQ(logs.Find("b")->log_pieces(), 1u);
}

TEST(EventLogsTest, AForgottenJobHasNoPart) {
  EventLogs logs(0, 2 * kMiB);
  Print(logs, "gone", kMiB);
  End(logs, "gone");
  logs.Forget("gone");
  logs.Forget("gone");
  EXPECT_EQ(logs.Find("gone"), nullptr);
  EXPECT_EQ(logs.log_bytes(), 0u);
  Print(logs, "a", kMiB / 2, 3);
  End(logs, "a");
  EXPECT_EQ(logs.Find("a")->log_pieces(), 3u);
}

// A line of 20 characters takes 25 bytes on the wire.
TEST(EventLogsTest, ShortLinesCountWithAllThatTheyTake) {
  EventLogs logs(0, 32 * kMiB);
  Print(logs, "a", 20, 1000);
  EXPECT_GE(logs.log_bytes(), 1000 * (sizeof(JobEvent) + sizeof(LogLines) + sizeof(std::string)));
  for (int job = 0; job < 100; ++job) {
    const std::string id = absl::StrCat("job-", job);
    Print(logs, id, 20, 5000);
    End(logs, id);
  }
  EXPECT_LE(logs.log_bytes(), 32 * kMiB);
  EXPECT_EQ(logs.Find("a")->log_pieces(), 1000u);
}

}  // namespace
}  // namespace lockstep::coordinator
