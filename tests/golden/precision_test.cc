// SPDX-License-Identifier: Apache-2.0
// 16-bit precisions against PyTorch's autocast on the same weights and samples (losses of 10 steps,
// norms of the first gradients), and dynamic loss scaling against its GradScaler, step by step.
// tools/gen_golden_precision.py makes the file.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "engine/exec/plan.h"
#include "tests/golden/golden.h"

namespace lockstep::engine {
namespace {

constexpr int kSteps = 10;
constexpr int64_t kBatch = 3, kLength = 11, kTokens = 61, kPadded = 64;
constexpr int64_t kPlaces = kBatch * kLength;
constexpr double kFp16Scale = 1024;

struct Batch {
  explicit Batch(int step) {
    const uint64_t site = 10000 + 10 * static_cast<uint64_t>(step);
    for (uint64_t i = 0; i < kPlaces; ++i) {
      tokens.push_back(static_cast<int32_t>(Uniform(site, i) * kTokens));
      labels.push_back(
          Uniform(site + 2, i) < 0.1f ? -1 : static_cast<int32_t>(Uniform(site + 1, i) * kTokens));
    }
  }
  std::vector<int32_t> tokens, labels;
};

TrainSpec GptSpecOf(const std::string& precision) {
  TrainSpec spec;
  GptSpec& gpt = spec.model.emplace<GptSpec>();
  gpt.layers = gpt.heads = 2;
  gpt.width = 16;
  gpt.vocab = kPadded;
  gpt.dropout = 0;
  const auto type = FieldSpec::Type::kInt32;
  spec.input = {{{"tokens", type, {kLength}, kTokens}, {"labels", type, {kLength}, kTokens}},
                kTokens};
  spec.optimizer = SgdSpec{.lr = 0.05, .momentum = 0.9};
  spec.label_smoothing = 0.1;
  spec.micro_batch = kBatch;
  spec.eval_block = 2;
  spec.precision = precision;
  spec.loss_scale.init = kFp16Scale;
  return spec;
}

struct Curve {
  std::vector<double> losses;
  std::map<std::string, double> norms;  // of the first gradients, for the mean loss
};

Curve Train(const std::string& precision) {
  Curve curve;
  const auto plan =
      std::dynamic_pointer_cast<const CompiledPlan>(Plan::Compile(GptSpecOf(precision)).value());
  const Memory64 state = Allocate(plan->state_bytes()), arena = Allocate(plan->arena_bytes());
  const auto executor = Executor::Create(plan, {state.get(), arena.get()}).value();
  executor->InitState();
  SetTransformerWeights(*plan, static_cast<char*>(executor->BeginLoad()));
  executor->EndLoad();
  std::vector<float> gradients(static_cast<size_t>(plan->gradient_count()));
  for (int step = 0; step < kSteps; ++step) {
    const Batch batch(step);
    const void* fields[] = {batch.tokens.data(), batch.labels.data()};
    EXPECT_TRUE(executor->RunShard(step + 1, 0, 0, fields, gradients.data(), {}).ok());
    const GradientSlice whole{0, plan->gradient_count(), gradients.data()};
    const StepResult result = executor->Update(step + 1, absl::MakeConstSpan(&whole, 1)).value();
    EXPECT_FALSE(result.skipped);
    curve.losses.push_back(result.loss);
    if (step > 0) continue;
    const double factor = static_cast<double>(plan->nominal_targets()) /
                          (static_cast<double>(result.valid_targets) * result.loss_scale);
    for (const GradientSlot& slot : plan->layout().slots) {
      double squares = 0;
      for (int64_t i = slot.begin; i < slot.begin + slot.count; ++i) {
        squares += std::pow(static_cast<double>(gradients[static_cast<size_t>(i)]) * factor, 2);
      }
      curve.norms[slot.parameter] = std::sqrt(squares);
    }
  }
  return curve;
}

// `loss` and `norm` bound the relative distances from PyTorch's in `reference`.
void ExpectNear(const Curve& curve, const std::string& reference, double loss, double norm) {
  const auto golden = ReadGolden("precision.txt").values;
  ASSERT_TRUE(golden.contains(reference + ".losses"));
  double worst_loss = 0, worst_norm = 0;
  for (size_t step = 0; step < kSteps; ++step) {
    const double expected = golden.at(reference + ".losses")[step];
    worst_loss = std::max(worst_loss, std::fabs(curve.losses[step] / expected - 1));
  }
  for (const auto& [name, value] : curve.norms) {
    ASSERT_TRUE(golden.contains(reference + "." + name)) << name;
    const double expected = golden.at(reference + "." + name)[0];
    // A key's bias has no gradient but rounding: softmax does not see it.
    const double error = std::fabs(value - expected) / std::max(expected, 1e-2);
    worst_norm = std::max(worst_norm, error);
    EXPECT_LT(error, norm) << reference << " " << name;
  }
  std::printf("losses within %.1e, gradient norms within %.1e of PyTorch's in %s\n", worst_loss,
              worst_norm, reference.c_str());
  EXPECT_LT(worst_loss, loss) << reference;
}
void Check(const std::string& precision, double loss, double norm) {
  ExpectNear(Train(precision), precision, loss, norm);
}

TEST(GoldenPrecisionTest, Fp32) { Check("fp32", 2e-5, 1e-5); }
// The engine rounds attention's probabilities, PyTorch its scores. Both are about as far from fp32,
// where gradients are small on different sides of it.
TEST(GoldenPrecisionTest, Bf16IsAsNearToFp32AsAutocast) {
  const Curve curve = Train("bf16");
  ExpectNear(curve, "fp32", 1e-3, 2e-2);
  ExpectNear(curve, "bf16", 1e-3, 3e-2);
}
TEST(GoldenPrecisionTest, Fp16IsAutocasts) { Check("fp16", 1e-4, 2e-3); }

// The curves are those of 16 bits, not of fp32: PyTorch's own distance from fp32 is of that size.
TEST(GoldenPrecisionTest, RoundingIsSeen) {
  const Curve full = Train("fp32"), half = Train("bf16");
  double distance = 0;
  for (size_t step = 0; step < kSteps; ++step) {
    distance = std::max(distance, std::fabs(half.losses[step] / full.losses[step] - 1));
  }
  EXPECT_GT(distance, 1e-5);
  EXPECT_LT(distance, 1e-2);
}

TEST(GoldenPrecisionTest, ScalesAreThoseOfGradScaler) {
  const auto golden = ReadGolden("precision.txt").values;
  ASSERT_TRUE(golden.contains("scaler"));
  const std::vector<double>& rows = golden.at("scaler");  // scale, overflow, weight after
  TrainSpec spec = GptSpecOf("fp16");
  spec.optimizer = SgdSpec{.lr = 0.125};
  spec.loss_scale = {.init = 65536, .growth = 2, .backoff = 0.5, .interval = 3};
  const auto plan = std::dynamic_pointer_cast<const CompiledPlan>(Plan::Compile(spec).value());
  const Memory64 state = Allocate(plan->state_bytes()), arena = Allocate(plan->arena_bytes());
  const auto executor = Executor::Create(plan, {state.get(), arena.get()}).value();
  executor->InitState();
  // One weight of gradient 1, scaled; as many targets as nominal.
  auto* const weight = reinterpret_cast<float*>(static_cast<char*>(executor->BeginLoad()) +
                                                plan->Entry("transformer.wte.weight").offset);
  *weight = 1;
  executor->EndLoad();
  const auto slot =
      std::find_if(plan->layout().slots.begin(), plan->layout().slots.end(),
                   [](const GradientSlot& s) { return s.parameter == "transformer.wte.weight"; });
  const auto count = static_cast<size_t>(plan->gradient_count());
  int64_t updates = 0;
  for (size_t step = 0; step < rows.size() / 3; ++step) {
    const bool overflow = rows[3 * step + 1] != 0;
    std::vector<float> gradients(count);
    gradients[static_cast<size_t>(slot->begin)] =
        overflow ? std::numeric_limits<float>::infinity() : static_cast<float>(rows[3 * step]);
    gradients[static_cast<size_t>(plan->layout().target_count) + 1] =
        static_cast<float>(plan->nominal_targets());
    const GradientSlice whole{0, plan->gradient_count(), gradients.data()};
    const StepResult result =
        executor->Update(static_cast<int64_t>(step) + 1, absl::MakeConstSpan(&whole, 1)).value();
    EXPECT_EQ(result.loss_scale, rows[3 * step]) << step;
    EXPECT_EQ(result.skipped, overflow) << step;
    EXPECT_EQ(static_cast<double>(*weight), rows[3 * step + 2]) << step;
    updates += overflow ? 0 : 1;
  }
  EXPECT_GT(updates, 10);
}

}  // namespace
}  // namespace lockstep::engine
