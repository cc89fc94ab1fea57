// SPDX-License-Identifier: Apache-2.0
#include "coordinator/outbox/stream_machine.h"

#include <gtest/gtest.h>

#include <string>

namespace lockstep::coordinator {
namespace {

// One with a topic makes an earlier one of that topic void.
struct Line {
  std::string text;
  std::string topic = {};
  bool operator==(const Line&) const = default;
};
bool Supersedes(const Line& newer, const Line& older) {
  return !newer.topic.empty() && newer.topic == older.topic;
}

using Machine = StreamMachine<Line>;

TEST(StreamMachineTest, WritesInOrderOneAtATimeAndFinishesAfterTheLast) {
  Machine machine;
  EXPECT_FALSE(machine.TakeNext().write);
  machine.Enqueue({"a"}, false);
  machine.Enqueue({"b"}, true);
  machine.Enqueue({"after the end"}, false);
  EXPECT_EQ(machine.TakeNext().write, Line{"a"});
  EXPECT_FALSE(machine.TakeNext().write) << "one at a time";
  machine.WriteDone(true);
  EXPECT_EQ(machine.TakeNext().write, Line{"b"});
  EXPECT_FALSE(machine.TakeNext().finish);
  machine.WriteDone(true);
  const Machine::Next end = machine.TakeNext();
  EXPECT_TRUE(end.finish);
  EXPECT_FALSE(end.too_slow);
  EXPECT_FALSE(machine.TakeNext().finish) << "once";
}

TEST(StreamMachineTest, OfWhatWaitsTheNewestOfATopicIsKept) {
  Machine machine;
  machine.Enqueue({"wish 1", "wish"}, false);
  EXPECT_EQ(machine.TakeNext().write, (Line{"wish 1", "wish"}));
  machine.Enqueue({"wish 2", "wish"}, false);
  machine.Enqueue({"a"}, false);
  for (size_t i = 0; i <= Machine::kMaxQueued; ++i) machine.Enqueue({"more", "wish"}, false);
  machine.Enqueue({"last", "wish"}, false);
  machine.WriteDone(true);
  EXPECT_EQ(machine.TakeNext().write, Line{"a"});
  machine.WriteDone(true);
  EXPECT_EQ(machine.TakeNext().write, (Line{"last", "wish"}));
  machine.WriteDone(true);
  EXPECT_FALSE(machine.TakeNext().write);
  EXPECT_FALSE(machine.TakeNext().finish);
}

TEST(StreamMachineTest, ANewerWishOfAnAgentMakesTheOlderOneVoidAndNothingElse) {
  AgentCommand wish, acknowledged;
  wish.mutable_desired();
  acknowledged.mutable_acknowledged();
  EXPECT_TRUE(coordinator::Supersedes(wish, wish));
  EXPECT_FALSE(coordinator::Supersedes(wish, acknowledged));
  EXPECT_FALSE(coordinator::Supersedes(acknowledged, wish));
  EXPECT_FALSE(coordinator::Supersedes(acknowledged, acknowledged));
}

TEST(StreamMachineTest, CutsOffAPeerThatTakesNothing) {
  Machine machine;
  machine.Enqueue({"first"}, false);
  machine.TakeNext();
  for (size_t i = 0; i <= Machine::kMaxQueued; ++i) machine.Enqueue({"more"}, false);
  EXPECT_FALSE(machine.TakeNext().finish) << "a write is under way";
  machine.WriteDone(true);
  const Machine::Next end = machine.TakeNext();
  EXPECT_FALSE(end.write);
  EXPECT_TRUE(end.finish);
  EXPECT_TRUE(end.too_slow);
}

TEST(StreamMachineTest, DropsWhatIsForAPeerThatIsGone) {
  Machine machine;
  machine.Enqueue({"a"}, false);
  machine.Enqueue({"b"}, false);
  machine.TakeNext();
  machine.WriteDone(false);
  const Machine::Next end = machine.TakeNext();
  EXPECT_FALSE(end.write);
  EXPECT_TRUE(end.finish);
  EXPECT_FALSE(end.too_slow);
}

}  // namespace
}  // namespace lockstep::coordinator
