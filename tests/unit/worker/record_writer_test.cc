// SPDX-License-Identifier: Apache-2.0
#include "worker/control/record_writer.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace lockstep::worker {
namespace {

Generation Of(const std::vector<std::string>& incarnations) {
  Generation generation;
  for (const std::string& incarnation : incarnations) {
    generation.add_members()->set_incarnation(incarnation);
  }
  return generation;
}

TEST(RecordWriterTest, RankZeroWritesAndNobodyElse) {
  RecordWriter first, second;
  const Generation generation = Of({"a", "b"});
  EXPECT_TRUE(first.InGeneration(generation, 0, {0}).writes);
  EXPECT_FALSE(second.InGeneration(generation, 1, {0}).writes);
}

TEST(RecordWriterTest, NobodyWritesWhatIsRememberedInTheFirstGeneration) {
  RecordWriter writer;
  EXPECT_FALSE(writer.InGeneration(Of({"a", "b"}), 0, {0}).remembered);
}

TEST(RecordWriterTest, WhatOneThatIsGoneDidNotWriteASurvivorDoes) {
  RecordWriter writer;
  writer.InGeneration(Of({"a", "b"}), 1, {0});
  const RecordWriter::Part part = writer.InGeneration(Of({"b", "c"}), 0, {0});
  EXPECT_TRUE(part.writes);
  EXPECT_TRUE(part.remembered);
}

TEST(RecordWriterTest, WhoOnlyLostRankZeroHasWrittenItself) {
  RecordWriter writer;
  writer.InGeneration(Of({"a", "b"}), 1, {0});
  const RecordWriter::Part part = writer.InGeneration(Of({"b", "a"}), 0, {0, 1});
  EXPECT_TRUE(part.writes);
  EXPECT_FALSE(part.remembered) << "'a' is still there";
}

TEST(RecordWriterTest, WhatOneThatIsBehindDidNotWriteAnotherDoes) {
  RecordWriter writer;
  writer.InGeneration(Of({"a", "b", "c"}), 1, {0, 1, 2});
  RecordWriter::Part part = writer.InGeneration(Of({"a", "b", "c"}), 1, {1, 2});
  EXPECT_FALSE(part.writes);
  EXPECT_TRUE(part.remembered) << "'a' did not come to the end of the step";
  part = writer.InGeneration(Of({"c", "a", "b"}), 2, {0, 2});
  EXPECT_FALSE(part.remembered) << "the first who has it does";
}

// 'a' is behind and copies the state; 'c' dies, and not all hear that the copy is made.
TEST(RecordWriterTest, WhoKnowsThatOneIsBehindWritesThoughTheCopyFails) {
  RecordWriter writer;
  writer.InGeneration(Of({"a", "b"}), 1, {0, 1});
  EXPECT_TRUE(writer.InGeneration(Of({"a", "b", "c"}), 1, {1}).remembered);
  EXPECT_FALSE(writer.InGeneration(Of({"a", "b"}), 1, {0, 1}).remembered) << "it has done it";
}

TEST(RecordWriterTest, ANewcomerHasNothingToWriteForAnother) {
  RecordWriter survivor;
  survivor.InGeneration(Of({"a", "b"}), 1, {0});
  // Rank 0 is a newcomer here: the first to have the state is this one, which remembers.
  const RecordWriter::Part part = survivor.InGeneration(Of({"c", "b"}), 1, {1});
  EXPECT_FALSE(part.writes);
  EXPECT_TRUE(part.remembered);
}

TEST(RecordWriterTest, WhatADeadSubstituteWasToWriteTheNextSurvivorDoes) {
  RecordWriter survivor;
  survivor.InGeneration(Of({"a", "b", "c"}), 2, {0});
  EXPECT_FALSE(survivor.InGeneration(Of({"d", "b", "c"}), 2, {1, 2}).remembered)
      << "'b' is to do it";
  EXPECT_TRUE(survivor.InGeneration(Of({"d", "c"}), 1, {1}).remembered);
  EXPECT_FALSE(survivor.InGeneration(Of({"d", "c", "e"}), 1, {0, 1}).remembered)
      << "it has done it";
}

TEST(RecordWriterTest, WhoIsRankZeroNoMoreMayDieBeforeItHasWritten) {
  RecordWriter survivor;
  survivor.InGeneration(Of({"a", "b"}), 1, {0});
  // A newcomer is rank 0, and 'a' has not written yet what it has of the generation before.
  EXPECT_FALSE(survivor.InGeneration(Of({"c", "a", "b"}), 2, {1, 2}).remembered);
  const RecordWriter::Part part = survivor.InGeneration(Of({"c", "b"}), 1, {0, 1});
  EXPECT_FALSE(part.writes);
  EXPECT_TRUE(part.remembered) << "'c' has the state, and does not remember what 'a' owed";
  EXPECT_FALSE(survivor.InGeneration(Of({"c", "b"}), 1, {0, 1}).remembered) << "it has done it";
}

TEST(RecordWriterTest, WhoHasBeenThereLongestWritesWhatOneThatIsGoneDidNot) {
  RecordWriter newcomer, second, third;
  second.InGeneration(Of({"a", "b", "c"}), 1, {0});
  third.InGeneration(Of({"a", "b", "c"}), 2, {0});
  newcomer.InGeneration(Of({"a", "d", "b", "c"}), 1, {0, 2, 3});
  second.InGeneration(Of({"a", "d", "b", "c"}), 2, {0, 2, 3});
  third.InGeneration(Of({"a", "d", "b", "c"}), 3, {0, 2, 3});
  const Generation left = Of({"d", "b", "c"});
  EXPECT_TRUE(newcomer.InGeneration(left, 0, {0, 1, 2}).writes);
  EXPECT_TRUE(second.InGeneration(left, 1, {0, 1, 2}).remembered) << "one is enough";
  EXPECT_FALSE(third.InGeneration(left, 2, {0, 1, 2}).remembered);
}

TEST(RecordWriterTest, WhoIsBehindStillKnowsWhatTheNewcomersMissed) {
  RecordWriter behind, newcomer;
  behind.InGeneration(Of({"a", "b"}), 1, {0, 1});
  behind.InGeneration(Of({"a", "d", "b"}), 2, {0, 2});
  newcomer.InGeneration(Of({"a", "d", "b"}), 1, {0, 2});
  // 'a' is gone with what it had not written, and 'd' alone came to the end of the step.
  const Generation left = Of({"d", "b"});
  EXPECT_TRUE(newcomer.InGeneration(left, 0, {0}).remembered);
  EXPECT_TRUE(behind.InGeneration(left, 1, {0}).remembered);
}

TEST(RecordWriterTest, ItIsTheLastGenerationsRankZeroThatCounts) {
  RecordWriter writer;
  writer.InGeneration(Of({"a", "b"}), 1, {0});
  writer.InGeneration(Of({"b", "c"}), 0, {0});
  EXPECT_FALSE(writer.InGeneration(Of({"b"}), 0, {0}).remembered) << "it wrote itself";
}

}  // namespace
}  // namespace lockstep::worker
