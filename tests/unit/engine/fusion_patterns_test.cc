// SPDX-License-Identifier: Apache-2.0
// The switches of fusion: each pattern by itself, on whole training steps and evaluations.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <variant>
#include <vector>

#include "tests/unit/engine/gradient_slots.h"
#include "tests/unit/engine/step_job.h"

namespace lockstep::engine {
namespace {

using testing::HasSubstr;

TrainSpec PooledCnn() {
  using Kind = LayerSpec::Kind;
  TrainSpec spec = NormedCnn();
  spec.input = ClassificationInput({3, 13, 12}, 10);
  spec.model = LayersSpec{{{.kind = Kind::kConv, .width = 37, .kernel = 3, .padding = 1},
                           {.kind = Kind::kRelu},
                           {.kind = Kind::kMaxPool, .kernel = 2},
                           {.kind = Kind::kConv, .width = 18, .kernel = 3, .padding = 1},
                           {.kind = Kind::kMaxPool, .kernel = 2},
                           {.kind = Kind::kLinear}}};
  return spec;
}

// More words and rows than logits are wanted for at once: 2 strips.
TrainSpec WideBert() {
  TrainSpec spec = TinyBert();
  std::get<BertSpec>(spec.model).vocab = 4160;
  for (FieldSpec& field : spec.input.fields) field.limit = 4111;
  spec.input.classes = 4111;
  spec.micro_batch = 32;
  return spec;
}

TEST(FusionPatternsTest, TakesLessMemoryAndTheSameBitsOnTwoThreads) {
  TrainSpec spec = WideBert();
  Job fused(spec);
  EXPECT_THAT(fused.plan->DumpText(), HasSubstr("linear_softmax_cross_entropy("));
  spec.threads = 2;
  Job threaded(spec);
  EXPECT_TRUE(EqualBits(PoisonedGradients(&fused, 1, 3), PoisonedGradients(&threaded, 1, 3)));
  spec.threads = 1;
  spec.micro_batch = 256;  // 2304 rows
  const auto strips = Plan::Compile(spec).value();
  spec.passes.patterns.heads = false;
  const auto whole = Plan::Compile(spec).value();
  EXPECT_LT(strips->arena_bytes(), whole->arena_bytes() - whole->arena_bytes() / 2);
}

// The largest difference of gradients, over the largest of a parameter, or `least` where those are
// smaller.
double Difference(Job* a, Job* b, double least = 1e-6) {
  const std::vector<float> x = PoisonedGradients(a, 1, 2), y = PoisonedGradients(b, 1, 2);
  const auto other = SlotsOf(*b->plan);
  double most = 0;
  for (const auto& [name, slot] : SlotsOf(*a->plan)) {
    const int64_t shift = other.at(name).first - slot.first;
    double size = least, difference = 0;
    for (int64_t i = slot.first; i < slot.second; ++i) {
      const float p = x[static_cast<size_t>(i)], q = y[static_cast<size_t>(i + shift)];
      EXPECT_FALSE(std::isnan(p) || std::isnan(q)) << name;
      size = std::max(size, static_cast<double>(std::fabs(p)));
      difference = std::max(difference, static_cast<double>(std::fabs(p - q)));
    }
    most = std::max(most, difference / size);
  }
  return most;
}

// A head in 16 bits is the fp32 head but for the rounding of its operands, and with pairs of the
// logits' gradient; apart from its loss, the logits too are rounded.
TEST(FusionPatternsTest, HeadsInSixteenBitsAreNearThoseInFp32) {
  TrainSpec spec = WideBert();
  spec.micro_batch *= 2;  // more logits than copies of the weight
  Job fp32(spec);
  spec.loss_scale.init = 1;
  // The gradient of a key's bias is 0 but for rounding, with others around 1.
  constexpr double kLeast = 0.01;
  for (const std::string precision : {"bf16", "fp16"}) {
    spec.precision = precision;
    for (const bool pairs : {false, true}) {
      if (pairs && precision != "bf16") continue;
      spec.passes.bf16_pairs = pairs;
      spec.passes.patterns.heads = true;
      Job fused(spec);
      EXPECT_THAT(fused.plan->DumpText(), HasSubstr("linear_softmax_cross_entropy("));
      EXPECT_LT(Difference(&fused, &fp32, kLeast), 0.01);
      spec.passes.patterns.heads = false;
      Job whole(spec);
      EXPECT_GT(Difference(&fused, &whole), 0);
      EXPECT_LT(Difference(&fused, &whole, kLeast), 0.03);
      EXPECT_LT(fused.plan->arena_bytes(), whole.plan->arena_bytes());
    }
  }
}

// Each pattern by itself: without it the step is another one, with the same results.
class FusionPatternTest : public testing::TestWithParam<FusionPattern> {
 protected:
  static EvalSums Evaluated(Job* job) {
    const TrainSpec& spec = job->plan->spec();
    const AnyBatch batch(spec, 3, 0, 0, spec.eval_block);
    EvalSums sums;
    job->arena.FillWithNan();
    EXPECT_TRUE(job->executor->Evaluate(batch.fields(), spec.eval_block, &sums).ok());
    return sums;
  }
};

TEST_P(FusionPatternTest, ChangesTheStepAndNotItsResults) {
  const std::string name = GetParam().name;
  const bool weights = name == "weights";
  const bool same_bits = weights || name == "relu" || name == "activations" || name == "addends";
  int changed = 0;
  for (TrainSpec (*make)() :
       {DeepMlp, NormedCnn, PooledCnn, TinyResnet, TinyGpt, TinyBert, WideBert}) {
    TrainSpec spec = make();
    if (weights) spec.precision = "bf16";
    Job fused(spec);
    spec.passes.patterns.*GetParam().on = false;
    Job other(spec);
    if (fused.plan->hash() == other.plan->hash()) continue;
    ++changed;
    EXPECT_LE(Difference(&fused, &other), same_bits ? 0 : 2e-5);
    const EvalSums a = Evaluated(&fused), b = Evaluated(&other);
    EXPECT_NEAR(a.loss, b.loss, same_bits ? 0 : 1e-5 * std::fabs(a.loss));
    EXPECT_EQ(a.correct, b.correct);
  }
  EXPECT_GT(changed, 0) << "no model has this pattern";
}

INSTANTIATE_TEST_SUITE_P(Patterns, FusionPatternTest, testing::ValuesIn(kFusionPatterns),
                         [](const auto& info) { return std::string(info.param.name); });

// All of them off are `fuse` off.
TEST(FusionPatternsTest, WithoutAnyNothingIsFused) {
  for (TrainSpec (*make)() :
       {DeepMlp, NormedCnn, PooledCnn, TinyResnet, TinyGpt, TinyBert, WideBert}) {
    TrainSpec none = make(), off = make();
    none.passes.fuse = false;
    for (const FusionPattern& pattern : kFusionPatterns) off.passes.patterns.*pattern.on = false;
    EXPECT_EQ(Plan::Compile(none).value()->hash(), Plan::Compile(off).value()->hash());
  }
}

}  // namespace
}  // namespace lockstep::engine
