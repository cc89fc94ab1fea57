// SPDX-License-Identifier: Apache-2.0
// The comparison of two variants of a plan, value by value.
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/worker/small_job.h"
#include "worker/commands/compare.h"
#include "worker/commands/saved_model.h"

namespace lockstep::worker {
namespace {

using ::testing::HasSubstr;

TEST(Variants, AreWordsJoinedByPlus) {
  const engine::TrainSpec spec;
  const auto variant = VariantOf(spec, "unfused+portable+unplanned");
  ASSERT_TRUE(variant.ok());
  EXPECT_FALSE(variant->passes.fuse);
  EXPECT_FALSE(variant->passes.reuse_memory);
  EXPECT_EQ(variant->passes.isa, "portable");
  const auto without = VariantOf(spec, "without_loss+portable");
  ASSERT_TRUE(without.ok());
  EXPECT_TRUE(without->passes.fuse && without->passes.patterns.pools);
  EXPECT_FALSE(without->passes.patterns.loss);
  EXPECT_FALSE(VariantOf(spec, "without_").ok());
  EXPECT_THAT(std::string(VariantOf(spec, "fusd").status().message()), HasSubstr("'fusd'"));
}

// A shard of a job's first step, in two variants.
class Compared {
 public:
  explicit Compared(const JobSpec& job) : job_(job) {
    for (const FieldSpec& field : job_.data.train->fields()) {
      memory_.push_back(AllocateAligned(12 * field.bytes()));
      fields_.push_back(memory_.back().get());
    }
    std::vector<int64_t> indices(12);
    for (int64_t i = 0; i < 12; ++i) indices[static_cast<size_t>(i)] = i;
    EXPECT_TRUE(job_.data.train->ReadBatch({indices}, fields_).ok());
  }
  Comparison Run(const std::string& a, const std::string& b, double tolerance) {
    const engine::TrainSpec& spec = job_.compiled.plan->spec();
    const std::vector<const void*> fields(fields_.begin(), fields_.end());
    return Compare(VariantOf(spec, a).value(), VariantOf(spec, b).value(), 1, 0, fields, tolerance)
        .value();
  }

 private:
  Compiled job_;
  std::vector<AlignedMemory> memory_;
  std::vector<void*> fields_;
};

TEST(CompareTest, PlannedIsUnplannedToTheBit) {
  const Comparison result = Compared(SmallJob()).Run("planned", "unplanned", 1e-30);
  EXPECT_FALSE(result.first.found);
  EXPECT_EQ(result.worst, 0);
  EXPECT_EQ(result.only_one, 0);
  EXPECT_GT(result.matched, 5);
}

TEST(CompareTest, InstructionSetsAreTheSameToTheBit) {
  const Comparison result = Compared(SmallJob()).Run("fused", "unfused+portable", 1e-30);
  EXPECT_FALSE(result.first.found);
  EXPECT_EQ(result.worst, 0);
}

TEST(CompareTest, OtherRoundingsAreWithinToleranceAndNamedBeyondIt) {
  // A gradient whose relu lies on the other side of 0 is 0.54 off.
  const Comparison within = Compared(SmallJob()).Run("fused", "unfused+bf16", 0.6);
  EXPECT_FALSE(within.first.found);
  EXPECT_GT(within.only_one, 0);  // what fusion removes
  EXPECT_GT(within.worst, 0);
  const Comparison beyond = Compared(SmallJob()).Run("fused", "unfused+bf16", 1e-12);
  ASSERT_TRUE(beyond.first.found);
  EXPECT_THAT(beyond.first.a_node, HasSubstr("linear("));
  EXPECT_NE(beyond.first.a, beyond.first.b);
  EXPECT_NEAR(beyond.first.a, beyond.first.b, 0.02);
  EXPECT_GT(beyond.first.over, 0);
}

// A value and its roundings have one origin, which counts once.
TEST(CompareTest, RoundedCopiesAreNotMissing) {
  const Comparison result = Compared(SmallJob()).Run("unfused", "unfused+bf16", 1);
  const Comparison reverse = Compared(SmallJob()).Run("unfused+bf16", "unfused", 1);
  EXPECT_GT(result.matched, reverse.matched);
  EXPECT_EQ(result.only_one, reverse.only_one);
}

// Values that are read in fp32 and rounded besides, and sums for a tied weight.
JobSpec TiedJob() {
  JobSpec job = SmallJob();
  job.mutable_train()->mutable_model()->clear_kind();
  Gpt& gpt = *job.mutable_train()->mutable_model()->mutable_gpt();
  gpt.set_layers(2);
  gpt.set_heads(2);
  gpt.set_width(32);
  gpt.set_dropout(0.1);
  gpt.set_tied_head(true);
  Tokens& tokens = *job.mutable_train()->mutable_data()->mutable_tokens();
  tokens.set_length(16);
  tokens.set_vocab(50);
  tokens.set_train_samples(100);
  return job;
}

// A value and what is rounded of it are compared each with its like.
TEST(CompareTest, APlanIsItselfInEveryPrecision) {
  Compared tied(TiedJob());
  for (const char* precision : {"fp32", "bf16", "fp16", "pure_bf16", "bf16+fp8"}) {
    for (const char* other : {"+unplanned", "+selective", "+blocks"}) {
      const Comparison result =
          tied.Run(std::string(precision) + "+kept", std::string(precision) + other, 0);
      EXPECT_FALSE(result.first.found)
          << precision << other << ": " << result.first.a_node << " and " << result.first.b_node;
      EXPECT_EQ(result.worst, 0) << precision << other;
      EXPECT_EQ(result.only_one, 0) << precision << other;
    }
  }
}

// What brings a sum into the gradient vector is that sum.
TEST(CompareTest, GradientsOfTiedWeightsAreComparedWithTheirLike) {
  Compared tied(TiedJob());
  const Comparison result = tied.Run("fused", "without_residuals", 1e-3);
  EXPECT_FALSE(result.first.found) << result.first.a_node << " and " << result.first.b_node;
  EXPECT_LT(result.worst, 1e-3);
}

}  // namespace
}  // namespace lockstep::worker
