// SPDX-License-Identifier: Apache-2.0
#include "coordinator/outbox/stream_machine.h"

#include <gtest/gtest.h>

#include <string>

namespace lockstep::coordinator {
namespace {

using Machine = StreamMachine<std::string>;

TEST(StreamMachineTest, WritesInOrderOneAtATimeAndFinishesAfterTheLast) {
  Machine machine;
  EXPECT_FALSE(machine.TakeNext().write);
  machine.Enqueue("a", false);
  machine.Enqueue("b", true);
  machine.Enqueue("after the end", false);
  EXPECT_EQ(machine.TakeNext().write, "a");
  EXPECT_FALSE(machine.TakeNext().write) << "one at a time";
  machine.WriteDone(true);
  EXPECT_EQ(machine.TakeNext().write, "b");
  EXPECT_FALSE(machine.TakeNext().finish);
  machine.WriteDone(true);
  const Machine::Next end = machine.TakeNext();
  EXPECT_TRUE(end.finish);
  EXPECT_FALSE(end.too_slow);
  EXPECT_FALSE(machine.TakeNext().finish) << "once";
}

TEST(StreamMachineTest, CutsOffAPeerThatTakesNothing) {
  Machine machine;
  machine.Enqueue("first", false);
  machine.TakeNext();
  for (size_t i = 0; i <= Machine::kMaxQueued; ++i) machine.Enqueue("more", false);
  EXPECT_FALSE(machine.TakeNext().finish) << "a write is under way";
  machine.WriteDone(true);
  const Machine::Next end = machine.TakeNext();
  EXPECT_FALSE(end.write);
  EXPECT_TRUE(end.finish);
  EXPECT_TRUE(end.too_slow);
}

TEST(StreamMachineTest, DropsWhatIsForAPeerThatIsGone) {
  Machine machine;
  machine.Enqueue("a", false);
  machine.Enqueue("b", false);
  machine.TakeNext();
  machine.WriteDone(false);
  const Machine::Next end = machine.TakeNext();
  EXPECT_FALSE(end.write);
  EXPECT_TRUE(end.finish);
  EXPECT_FALSE(end.too_slow);
}

}  // namespace
}  // namespace lockstep::coordinator
