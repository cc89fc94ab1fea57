// SPDX-License-Identifier: Apache-2.0
#include "coordinator/client/session_machine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace lockstep::coordinator {
namespace {

using ::testing::ElementsAre;

using Machine = SessionMachine<std::string, int>;

absl::Time At(double seconds) { return absl::UnixEpoch() + absl::Seconds(seconds); }

struct Text {
  std::string operator()(const session_action::Open& a) const {
    return a.wait_for_ready ? "open, wait" : "open";
  }
  std::string operator()(const session_action::Write<std::string>& a) const {
    return absl::StrCat("write ", a.message);
  }
  std::string operator()(const session_action::HalfClose&) const { return "half-close"; }
  std::string operator()(const session_action::End& a) const { return a.cancel ? "cut" : "end"; }
  std::string operator()(const session_action::Deliver<int>& a) const {
    return absl::StrCat("deliver ", a.command);
  }
  std::string operator()(const session_action::Explain&) const { return "explain"; }
  std::string operator()(const session_action::Announce& a) const {
    return a.connected ? "up" : absl::StrCat("down: ", a.reason);
  }
};

std::string Say(const Machine::Actions& actions) {
  return absl::StrJoin(actions, "; ", [](std::string* out, const Machine::Action& action) {
    absl::StrAppend(out, std::visit(Text(), action));
  });
}

Machine Make() {
  return Machine([](int attempt) { return absl::Seconds(1 << attempt); });
}

TEST(SessionMachineTest, WritesOneAtATimeAfterTheHello) {
  Machine machine = Make();
  EXPECT_EQ(Say(machine.Send("a")), "");
  EXPECT_EQ(Say(machine.Begin()), "open");
  EXPECT_EQ(Say(machine.Send("b")), "");
  EXPECT_EQ(Say(machine.WriteDone(true)), "") << "nobody has answered yet";
  EXPECT_EQ(Say(machine.Up(At(0))), "up; write a");
  EXPECT_EQ(Say(machine.Received(7)), "deliver 7");
  EXPECT_EQ(Say(machine.WriteDone(true)), "write b");
  EXPECT_FALSE(machine.flushed());
  EXPECT_EQ(Say(machine.WriteDone(true)), "");
  EXPECT_TRUE(machine.flushed());
}

TEST(SessionMachineTest, ALaterMessageOfAKindTakesThePlaceOfAQueuedOne) {
  Machine machine = Make();
  machine.Begin();
  machine.Up(At(0));
  machine.Send("beat 1", 1);
  machine.Send("fact");
  machine.Send("beat 2", 1);
  EXPECT_EQ(Say(machine.WriteDone(true)), "write beat 2");
  EXPECT_EQ(Say(machine.Send("beat 3", 1)), "") << "the one being written is not touched";
  EXPECT_EQ(Say(machine.WriteDone(true)), "write fact");
  EXPECT_EQ(Say(machine.WriteDone(true)), "write beat 3");
}

TEST(SessionMachineTest, WhatWasNotWrittenGoesFirstOnTheNextStream) {
  Machine machine = Make();
  machine.Begin();
  machine.Up(At(0));
  machine.Send("a");
  machine.Send("b");
  EXPECT_EQ(Say(machine.WriteDone(true)), "write a");
  EXPECT_EQ(Say(machine.WriteDone(false)), "cut");
  EXPECT_EQ(Say(machine.Received(1)), "") << "of a stream that ends";
  EXPECT_EQ(Say(machine.Done("reset", At(0))), "down: reset");
  EXPECT_EQ(machine.wake_at(), At(1));
  EXPECT_EQ(Say(machine.Wake(At(0.5))), "");
  EXPECT_EQ(Say(machine.Wake(At(1))), "open, wait");
  EXPECT_EQ(Say(machine.Up(At(0))), "up");
  EXPECT_EQ(Say(machine.WriteDone(true)), "write a");
  EXPECT_EQ(Say(machine.WriteDone(true)), "write b");
}

// One that takes streams and dies, or that only stands by, has heard nothing of what was written.
TEST(SessionMachineTest, AStreamThatNobodyAnswersOnTakesNothing) {
  Machine machine = Make();
  machine.Begin();
  machine.Send("ready");
  EXPECT_EQ(Say(machine.WriteDone(true)), "") << "of the hello";
  machine.ReadEnded();
  machine.Done("stands by", At(0));
  machine.Wake(At(1));
  EXPECT_EQ(Say(machine.WriteDone(true)), "");
  EXPECT_EQ(Say(machine.Up(At(0))), "up; write ready");
}

TEST(SessionMachineTest, BacksOffUntilItWasUp) {
  Machine machine = Make();
  machine.Begin();
  EXPECT_EQ(Say(machine.ReadEnded()), "end");
  EXPECT_EQ(Say(machine.WriteDone(false)), "") << "the hello is not kept";
  EXPECT_EQ(Say(machine.Done("refused", At(0))), "down: refused");
  EXPECT_EQ(Say(machine.Wake(At(1))), "open, wait");
  machine.ReadEnded();
  EXPECT_EQ(Say(machine.Done("refused", At(1))), "") << "said once";
  EXPECT_EQ(machine.wake_at(), At(3));
  machine.Wake(At(3));
  EXPECT_EQ(Say(machine.Up(At(0))), "up");
  machine.ReadEnded();
  EXPECT_EQ(Say(machine.Done("ended", At(10))), "down: ended");
  EXPECT_EQ(machine.wake_at(), At(11));
}

// A coordinator of another cluster, or one that takes the token for none.
TEST(SessionMachineTest, WhoIsTurnedAwayComesBackEverMoreSeldom) {
  Machine machine([](int attempt) { return absl::Milliseconds(std::min(500, 20 << attempt)); });
  machine.Begin();
  absl::Time now = At(0);
  std::vector<double> waits;
  for (int i = 0; i < 14; ++i) {
    if (i % 2 == 0) machine.Up(now);
    machine.ReadEnded();
    machine.Done("not known here", now, /*ended=*/true);
    waits.push_back(absl::ToDoubleSeconds(machine.wake_at() - now));
    now = machine.wake_at();
    EXPECT_EQ(Say(machine.Wake(now)), "open, wait");
  }
  EXPECT_THAT(waits, ElementsAre(0.02, 0.04, 0.08, 0.16, 0.32, 0.5, 1, 2, 4, 8, 16, 32, 32, 32));
  // Once nobody is there, it is looked for as often as ever.
  machine.ReadEnded();
  machine.Done("nobody listens", now);
  EXPECT_LE(machine.wake_at() - now, absl::Milliseconds(500));
  now = machine.wake_at();
  machine.Wake(now);
  machine.Up(now);
  machine.ReadEnded();
  machine.Done("bye", now + Machine::kSteady, /*ended=*/true);
  EXPECT_EQ(machine.wake_at(), now + Machine::kSteady + absl::Milliseconds(20))
      << "it was served for a while";
}

// No handshake succeeds, and gRPC alone would make one after the other.
TEST(SessionMachineTest, AHopelessWaitIsGivenUpForAWhile) {
  Machine machine = Make();
  machine.Begin();
  machine.ReadEnded();
  machine.Done("refused", At(0));
  machine.Wake(At(1));
  EXPECT_EQ(Say(machine.Wake(At(6))), "explain");
  EXPECT_EQ(Say(machine.Hopeless()), "cut");
  EXPECT_EQ(Say(machine.Hopeless()), "");
  EXPECT_EQ(Say(machine.Done("cancelled", At(6))), "");
  EXPECT_EQ(machine.wake_at(), At(7));
  EXPECT_EQ(Say(machine.Wake(At(7))), "open, wait");
  EXPECT_EQ(Say(machine.Wake(At(8))), "explain") << "sooner than at first";
  machine.Hopeless();
  machine.Done("cancelled", At(8));
  EXPECT_EQ(machine.wake_at(), At(10)) << "and then later";
  machine.Wake(At(10));
  EXPECT_EQ(Say(machine.Up(At(10))), "up");
  EXPECT_EQ(Say(machine.Hopeless()), "") << "it has come about";
}

TEST(SessionMachineTest, ClosesWhenAllIsWritten) {
  Machine machine = Make();
  machine.Begin();
  machine.Up(At(0));
  machine.Send("last");
  EXPECT_EQ(Say(machine.Close(At(5), At(0))), "");
  EXPECT_EQ(Say(machine.WriteDone(true)), "write last");
  EXPECT_EQ(Say(machine.WriteDone(true)), "half-close");
  EXPECT_EQ(Say(machine.ReadEnded()), "end");
  EXPECT_FALSE(machine.closed());
  EXPECT_EQ(Say(machine.Done("bye", At(1))), "down: bye");
  EXPECT_TRUE(machine.closed());
}

TEST(SessionMachineTest, IsCutAtTheDeadlineAndTriesUntilThen) {
  Machine machine = Make();
  machine.Begin();
  machine.Send("last");
  machine.Close(At(5), At(0));
  machine.ReadEnded();
  machine.Done("refused", At(0));
  EXPECT_FALSE(machine.closed()) << "there is something to say, and time";
  EXPECT_EQ(Say(machine.Wake(At(1))), "open, wait");
  EXPECT_EQ(machine.wake_at(), At(5));
  EXPECT_EQ(Say(machine.Wake(At(5))), "cut");
  machine.Done("cancelled", At(5));
  EXPECT_TRUE(machine.closed());
  EXPECT_FALSE(machine.flushed());
}

TEST(SessionMachineTest, AWaitThatLastsIsExplained) {
  Machine machine = Make();
  machine.Begin();
  machine.ReadEnded();
  const auto first = machine.Done("refused", At(0));
  EXPECT_TRUE(std::get<session_action::Announce>(first.front()).explain);
  EXPECT_EQ(Say(machine.Wake(At(1))), "open, wait");
  EXPECT_EQ(machine.wake_at(), At(6));
  EXPECT_EQ(Say(machine.Wake(At(6))), "explain");
  EXPECT_EQ(machine.wake_at(), At(16)) << "it costs a handshake";
  EXPECT_EQ(Say(machine.Up(At(0))), "up");
  EXPECT_EQ(machine.wake_at(), absl::InfiniteFuture());
  EXPECT_EQ(Say(machine.Wake(At(20))), "");
  machine.ReadEnded();
  const auto lost = machine.Done("ended", At(30));
  EXPECT_FALSE(std::get<session_action::Announce>(lost.front()).explain) << "it was up";
}

}  // namespace
}  // namespace lockstep::coordinator
