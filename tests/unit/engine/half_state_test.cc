// SPDX-License-Identifier: Apache-2.0
// What 16-bit precisions keep in the training state: the loss scale, and weights in 16 bits with
// stochastic rounding.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "engine/exec/loss_scale.h"
#include "engine/exec/plan.h"
#include "tests/unit/engine/gradient_slots.h"
#include "tests/unit/engine/step_job.h"

namespace lockstep::engine {
namespace {

// ---- loss scaling ----

TrainSpec ScaledMlp() {
  TrainSpec spec = DeepMlp();
  spec.precision = "fp16";
  spec.loss_scale = {.init = 1024, .growth = 2, .backoff = 0.5, .interval = 3};
  return spec;
}

TEST(LossScaleTest, OverflowSkipsTheStepAndBacksOff) {
  TrainSpec spec = ScaledMlp();
  spec.loss_scale.init = 0x1p40;  // overflows fp16 in the first backward product
  Job job(spec);
  const std::vector<char> before = job.StateBytes();
  StepResult result = WholeStep(&job, 1);
  EXPECT_TRUE(result.skipped && !result.finite);
  EXPECT_EQ(result.loss_scale, 0x1p40);
  EXPECT_EQ(job.Scalar<double>("loss_scale"), 0x1p39);
  EXPECT_EQ(job.Scalar<int64_t>("update_count"), 0);
  for (const StateEntry& entry : job.plan->state()) {
    if (entry.role == StateEntry::Role::kScalar) continue;
    EXPECT_EQ(std::memcmp(job.StateBytes().data() + entry.offset, before.data() + entry.offset,
                          entry.bytes),
              0)
        << entry.name;
  }
  int64_t step = 1;
  while (result.skipped && step < 60) result = WholeStep(&job, ++step);
  EXPECT_LT(step, 40);
  EXPECT_EQ(job.Scalar<int64_t>("step"), step);
  EXPECT_EQ(job.Scalar<int64_t>("update_count"), 1);
  EXPECT_EQ(result.loss_scale, std::ldexp(1.0, 41 - static_cast<int>(step)));
}

TEST(LossScaleTest, GrowsAfterTheInterval) {
  Job job(ScaledMlp());
  for (int64_t step = 1; step <= 7; ++step) {
    const StepResult result = WholeStep(&job, step);
    EXPECT_FALSE(result.skipped);
    EXPECT_EQ(result.loss_scale, 1024 << ((step - 1) / 3)) << step;
  }
  EXPECT_EQ(job.Scalar<int64_t>("growth_count"), 1);
}

// Powers of two: without underflow and overflow, the scale changes no bit of fp32's update.
TEST(LossScaleTest, NormAndClippingSeeUnscaledGradients) {
  TrainSpec spec = ScaledMlp();
  Job a(spec);
  spec.loss_scale.init = 4096;
  Job b(spec);
  const StepResult one = WholeStep(&a, 1), four = WholeStep(&b, 1);
  EXPECT_GT(one.gradient_norm, 0);
  EXPECT_NEAR(one.gradient_norm, four.gradient_norm, one.gradient_norm * 1e-3);
  spec.precision = "fp32";
  Job full(spec);
  EXPECT_NEAR(WholeStep(&full, 1).gradient_norm, one.gradient_norm, one.gradient_norm * 1e-2);
}

TEST(LossScaleTest, NoTargetsLeaveTheScaleAlone) {
  Job job(ScaledMlp());
  const std::vector<float> nothing(static_cast<size_t>(job.plan->gradient_count()));
  for (int64_t step = 1; step <= 4; ++step) {
    EXPECT_TRUE(UpdateWith(&job, step, nothing).skipped);
  }
  EXPECT_EQ(job.Scalar<double>("loss_scale"), 1024);
  EXPECT_EQ(job.Scalar<int64_t>("growth_count"), 0);
}

TEST(LossScaleTest, StaysAFiniteNormalNumber) {
  const LossScaleSpec spec{.init = 1, .growth = 2, .backoff = 0.5, .interval = 1};
  double scale = 0x1p127;
  int64_t count = 0;
  UpdateLossScale(spec, false, &scale, &count);
  EXPECT_EQ(scale, 0x1p127);
  scale = 0x1p-126;
  UpdateLossScale(spec, true, &scale, &count);
  EXPECT_EQ(scale, 0x1p-126);
}

// Below that no gradient's overflow is the scale's fault, and gradients would vanish: a run whose
// activations overflow now and then would go on and learn nothing.
TEST(LossScaleTest, BacksOffToOneOrToWhereItBegan) {
  LossScaleSpec spec{.init = 1024, .growth = 2, .backoff = 0.25, .interval = 1};
  double scale = 8;
  int64_t count = 0;
  UpdateLossScale(spec, true, &scale, &count);
  EXPECT_EQ(scale, 2);
  for (int i = 0; i < 3; ++i) UpdateLossScale(spec, true, &scale, &count);
  EXPECT_EQ(scale, 1);
  spec.init = 0.125;
  for (int i = 0; i < 3; ++i) UpdateLossScale(spec, true, &scale, &count);
  EXPECT_EQ(scale, 0.125);
  // One from before is left where it is, and grows.
  scale = 0x1p-20;
  UpdateLossScale(spec, true, &scale, &count);
  EXPECT_EQ(scale, 0x1p-20);
  UpdateLossScale(spec, false, &scale, &count);
  EXPECT_EQ(scale, 0x1p-19);
}

// ---- weights in 16 bits ----

TEST(PureTest, EveryOptimizerMovesWeightsByItsUpdate) {
  const OptimizerSpec optimizers[] = {SgdSpec{.lr = 0.05, .momentum = 0.9},
                                      AdamSpec{.lr = 1e-3, .decoupled = true}, LambSpec{.lr = 1e-2},
                                      MuonSpec{.lr = 1e-2}};
  for (const OptimizerSpec& optimizer : optimizers) {
    TrainSpec spec = SmallMlp();
    spec.optimizer = optimizer;
    spec.precision = "pure_bf16";
    Job pure(spec);
    const StepResult first = pure.Step(1);
    StepResult last;
    for (int64_t step = 2; step <= 60; ++step) last = pure.Step(step);
    EXPECT_LT(last.loss, first.loss * 0.9) << optimizer.index();
  }
}

// Updates of a hundredth of a unit of the last place: to nearest, no weight would ever move.
TEST(PureTest, SmallUpdatesArriveOnAverage) {
  TrainSpec spec = SmallMlp();
  spec.model = MlpSpec{{256}};
  spec.optimizer = SgdSpec{.lr = 1};
  spec.precision = "pure_bf16";
  Job job(spec);
  const auto weights = [&] {
    double sum = 0;
    for (const StateEntry& entry : job.plan->state()) {
      if (entry.name != "0.weight") continue;
      const auto* bits = reinterpret_cast<const uint16_t*>(
          static_cast<const char*>(job.state.data()) + entry.offset);
      for (size_t i = 0; i < entry.bytes / 2; ++i) {
        uint32_t word = static_cast<uint32_t>(bits[i]) << 16;
        float value;
        std::memcpy(&value, &word, sizeof(value));
        sum += static_cast<double>(value);
      }
    }
    return sum / (31 * 256);
  };
  const double before = weights();
  const auto count = static_cast<size_t>(job.plan->gradient_count());
  std::vector<float> gradients(count, 0);
  const auto [begin, end] = SlotsOf(*job.plan).at("0.weight");
  std::fill(gradients.begin() + begin, gradients.begin() + end, 1e-6f);
  gradients[count - 16 + 2] = 64;  // targets, as many as D
  for (int64_t step = 1; step <= 100; ++step) UpdateWith(&job, step, gradients);
  EXPECT_NEAR(before - weights(), 1e-4, 2e-5);
}

TEST(PureTest, RoundingDependsOnSeedAndUpdateAlone) {
  TrainSpec spec = DeepMlp();
  spec.precision = "pure_bf16";
  Job one(spec);
  spec.threads = 3;
  Job three(spec);
  for (int64_t step = 1; step <= 3; ++step) {
    const std::vector<float> g = PoisonedGradients(&one, step, 0);
    UpdateWith(&one, step, g);
    // Cut elsewhere: the same words belong to the same elements.
    const int64_t end = one.plan->gradient_count();
    const GradientSlice slices[] = {
        {0, 48, g.data()}, {48, 1040, g.data() + 48}, {1040, end, g.data() + 1040}};
    three.executor->Update(step, slices).value();
    ASSERT_EQ(one.StateBytes(), three.StateBytes());
  }
}

TEST(PureTest, WeightsTakeHalfTheState) {
  TrainSpec spec = DeepMlp();
  spec.optimizer = SgdSpec{.lr = 0.1};
  const size_t full = Plan::Compile(spec).value()->state_bytes();
  spec.precision = "pure_bf16";
  EXPECT_LT(Plan::Compile(spec).value()->state_bytes(), full * 0.6);
}

}  // namespace
}  // namespace lockstep::engine
