// SPDX-License-Identifier: Apache-2.0
// 16-bit precisions through the executor, for every kind of model: which values are rounded,
// memory, bits that no deal and no plan changes, factors in FP8.
#include "engine/passes/precision.h"
#include "engine/cpu/isa.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <tuple>

#include "engine/exec/plan.h"
#include "tests/unit/engine/gradient_slots.h"
#include "tests/unit/engine/step_job.h"

namespace lockstep::engine {
namespace {

using testing::HasSubstr;
using testing::Not;

class PrecisionTest : public EveryModelTest {};
// AddressSanitizer looks at memory, not at numbers: for it either type once, and weights of either
// kind.
#ifdef LOCKSTEP_SANITIZE_ADDRESS
const std::string kPrecisions[] = {"bf16", "pure_fp16"};
constexpr int64_t kSteps = 1;
#else
const std::string kPrecisions[] = {"bf16", "fp16", "pure_bf16", "pure_fp16"};
constexpr int64_t kSteps = 3;
#endif
INSTANTIATE_TEST_SUITE_P(Models, PrecisionTest,
                         testing::Combine(testing::ValuesIn(kModelCases),
                                          testing::ValuesIn(kPrecisions)),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(Fp8, PrecisionTest,
                         testing::Combine(testing::ValuesIn(kFp8ModelCases),
                                          testing::Values("fp8")),
                         NameOf);

TEST_P(PrecisionTest, PlannedMemoryGivesTheSameBits) {
  TrainSpec spec = Spec();
  Job planned(spec);
  spec.passes.reuse_memory = spec.passes.in_place = false;
  Job unplanned(spec);
  EXPECT_LT(planned.plan->arena_bytes(), unplanned.plan->arena_bytes());
  for (int64_t step = 1; step <= 2; ++step) {
    const std::vector<float> a = PoisonedGradients(&planned, step, 1);
    EXPECT_TRUE(EqualBits(a, PoisonedGradients(&unplanned, step, 1)));
    for (const float x : a) ASSERT_TRUE(std::isfinite(x));
    UpdateWith(&planned, step, a);
    UpdateWith(&unplanned, step, a);
  }
  EXPECT_EQ(planned.StateBytes(), unplanned.StateBytes());
}

// One runs all four shards; two others two each, with other threads, in another order.
TEST_P(PrecisionTest, DealOfShardsDoesNotChangeTheState) {
  TrainSpec spec = Spec();
  Job one(spec);
  spec.threads = 2;
  Job left(spec), right(spec);
  for (int64_t step = 1; step <= kSteps; ++step) {
    const StepResult result = WholeStep(&one, step);
    EXPECT_TRUE(result.finite && !result.skipped);
    const std::vector<float> d = PoisonedGradients(&right, step, 3);
    const std::vector<float> c = PoisonedGradients(&right, step, 2);
    const std::vector<float> b = PoisonedGradients(&left, step, 1);
    const std::vector<float> a = PoisonedGradients(&left, step, 0);
    const std::vector<float> sum = SumOf(SumOf(a, b), SumOf(c, d));
    UpdateWith(&left, step, sum);
    UpdateWith(&right, step, sum);
    ASSERT_EQ(left.StateBytes(), right.StateBytes());
    ASSERT_EQ(left.StateBytes(), one.StateBytes()) << step;
  }
}

// The norm of the gradients and of the difference from `other`'s, over all parameters. (Norms,
// because a maximum that two values share after rounding sends its whole gradient elsewhere.)
std::pair<double, double> Compare(Job* job, const std::vector<float>& gradients, Job* other,
                                  const std::vector<float>& others, double scale) {
  const auto slots = SlotsOf(*other->plan);
  double norm = 0, difference = 0;
  for (const auto& [name, slot] : SlotsOf(*job->plan)) {
    const int64_t shift = slots.at(name).first - slot.first;
    for (int64_t i = slot.first; i < slot.second; ++i) {
      const double a = static_cast<double>(gradients[static_cast<size_t>(i)]) / scale;
      const double b = static_cast<double>(others[static_cast<size_t>(i + shift)]);
      norm += b * b;
      difference += (a - b) * (a - b);
    }
  }
  return {std::sqrt(norm), std::sqrt(difference)};
}

// Of the norm: some 20 roundings of 2^-9 (2^-12) each, on the way to a gradient. After batch norm
// many values lie near zero, and a rounding that crosses a ReLU's corner or changes which of a
// window's values is the largest moves a whole gradient elsewhere: there the bound is what was seen
// and a third more. (BatchNormWithoutCornersOnlyRounds takes the corners away; against float64,
// operator by operator, see the conformance suite; against PyTorch's autocast, the golden test.)
// FP8 has roundings of 2^-4 and 2^-3, most of which average out in sums.
double BoundOf(const std::string& model, const std::string& precision) {
  if (precision == "fp8") return 0.5;
  const bool fp16 = precision.ends_with("fp16");
  if (model == "cnn" || model == "resnet") return fp16 ? 0.14 : 0.5;
  return 20 * (fp16 ? 0x1p-12 : 0x1p-9);
}

TEST_P(PrecisionTest, GradientsAreThoseOfFp32UpToRounding) {
  TrainSpec spec = Spec();
  Job half(spec);
  spec.precision = "fp32";
  spec.fp8 = false;
  Job full(spec);
  const bool fp16 = std::get<1>(GetParam()).ends_with("fp16");
  const std::vector<float> a = PoisonedGradients(&half, 1, 0);
  const std::vector<float> b = PoisonedGradients(&full, 1, 0);
  const auto [norm, difference] = Compare(&half, a, &full, b, fp16 ? spec.loss_scale.init : 1);
  EXPECT_GT(difference, 0);
  EXPECT_LT(difference, norm * BoundOf(std::get<0>(GetParam()).name, std::get<1>(GetParam())));
}

// Smooth activations and averages instead of ReLU and maxima: batch norm itself only rounds.
TEST(PrecisionRulesTest, BatchNormWithoutCornersOnlyRounds) {
  using Kind = LayerSpec::Kind;
  TrainSpec spec = NormedCnn();
  spec.model = LayersSpec{{{.kind = Kind::kConv, .width = 5, .kernel = 3, .padding = 1},
                           {.kind = Kind::kBatchNorm},
                           {.kind = Kind::kTanh},
                           {.kind = Kind::kAvgPool, .kernel = 2},
                           {.kind = Kind::kConv, .width = 18, .kernel = 3, .padding = 1},
                           {.kind = Kind::kBatchNorm},
                           {.kind = Kind::kTanh},
                           {.kind = Kind::kAvgPool, .kernel = 2},
                           {.kind = Kind::kFlatten},
                           {.kind = Kind::kLinear, .width = 17},
                           {.kind = Kind::kTanh},
                           {.kind = Kind::kLinear}}};
  Job full(spec);
  const std::vector<float> b = PoisonedGradients(&full, 1, 0);
  for (const bool fp16 : {false, true}) {
    spec.precision = fp16 ? "fp16" : "bf16";
    Job half(spec);
    const std::vector<float> a = PoisonedGradients(&half, 1, 0);
    const auto [norm, difference] = Compare(&half, a, &full, b, fp16 ? spec.loss_scale.init : 1);
    EXPECT_LT(difference, norm * 20 * (fp16 ? 0x1p-12 : 0x1p-9)) << spec.precision;
  }
}

TEST_P(PrecisionTest, FusionChangesRoundingOnly) {
  TrainSpec spec = Spec();
  Job fused(spec);
  spec.passes.fuse = false;
  Job plain(spec);
  const auto [norm, difference] =
      Compare(&fused, PoisonedGradients(&fused, 1, 1), &plain, PoisonedGradients(&plain, 1, 1), 1);
  EXPECT_LT(difference, norm * BoundOf(std::get<0>(GetParam()).name, std::get<1>(GetParam())));
}

class PairsTest : public EveryModelTest {};
INSTANTIATE_TEST_SUITE_P(Models, PairsTest,
                         testing::Combine(testing::ValuesIn(kModelCases),
                                          testing::Values("bf16", "pure_bf16")),
                         NameOf);

// Factors multiplied as they are or widened while they are packed, on each instruction set.
TEST_P(PairsTest, LeaveTheBitsAlone) {
  TrainSpec spec = Spec();
  spec.passes.bf16_pairs = true;
  Job pairs(spec);
  spec.threads = 2;
  Job threads(spec);
  spec.threads = 1;
  const std::vector<float> gradients = PoisonedGradients(&pairs, 1, 1);
  EXPECT_TRUE(EqualBits(gradients, PoisonedGradients(&threads, 1, 1)));
  spec.passes.bf16_pairs = false;
  for (const Isa isa : UsableIsas()) {
    spec.passes.isa = Name(isa);
    Job widened(spec);
    EXPECT_TRUE(EqualBits(gradients, PoisonedGradients(&widened, 1, 1))) << Name(isa);
  }
}

TEST_P(PrecisionTest, EvaluatesCloseToFp32) {
  TrainSpec spec = Spec();
  Job half(spec);
  spec.precision = "fp32";
  spec.fp8 = false;
  Job full(spec);
  const AnyBatch batch(spec, 1, 0, 0, spec.eval_block);
  EvalSums a, b;
  half.arena.FillWithNan();
  ASSERT_TRUE(half.executor->Evaluate(batch.fields(), spec.eval_block - 1, &a).ok());
  ASSERT_TRUE(full.executor->Evaluate(batch.fields(), spec.eval_block - 1, &b).ok());
  EXPECT_EQ(a.samples, b.samples);
  EXPECT_NEAR(a.loss, b.loss, b.loss * 0.01);
}

TEST_P(PrecisionTest, GradientsAndStateAreFp32ButPureWeights) {
  Job job(Spec());
  const bool pure = std::get<1>(GetParam()).starts_with("pure");
  const bool fp16 = std::get<1>(GetParam()).ends_with("fp16");
  for (const StateEntry& entry : job.plan->state()) {
    using Type = StateEntry::Type;
    if (entry.role == StateEntry::Role::kMoment) {
      EXPECT_EQ(entry.type, Type::kFloat32) << entry.name;
    } else if (entry.role == StateEntry::Role::kParameter) {
      EXPECT_EQ(entry.type, !pure ? Type::kFloat32 : fp16 ? Type::kFloat16 : Type::kBFloat16);
    }
  }
  const auto& plan = dynamic_cast<const CompiledPlan&>(*job.plan);
  for (const auto& [name, value] : plan.train().graph.outputs()) {
    EXPECT_EQ(plan.train().graph.type(value).dtype, DType::kF32) << name;
  }
}

TEST(PrecisionRulesTest, AutocastsList) {
  TrainSpec spec = TinyGpt();
  spec.precision = "bf16";
  const std::string text = Plan::Compile(spec).value()->DumpText();
  // Products are in 16 bits, the residual stream is not, nor are statistics and gradients of
  // weights.
  EXPECT_THAT(text, HasSubstr("= linear("));
  EXPECT_THAT(text, HasSubstr(": bf16[36,72]"));                  // qkv
  EXPECT_THAT(text, HasSubstr(": bf16[36,24] f32[36] f32[36]"));  // layer norm, read by linears
  EXPECT_THAT(text, HasSubstr(": bf16[36,24] f32[4,2,9]"));       // attention and its sums
  EXPECT_THAT(text, HasSubstr(": f32[36,24]  # transformer.h.0.attn.resid_dropout"));
  EXPECT_THAT(text, Not(HasSubstr("linear_backward_weight(%1, %2) dtype")));
  spec.precision = "tf32";  // fp32 where there is no such hardware
  const std::string tf32 = Plan::Compile(spec).value()->DumpText();
  spec.precision = "fp32";
  EXPECT_EQ(tf32, Plan::Compile(spec).value()->DumpText());
}

TEST(PrecisionRulesTest, ActivationsTakeHalfTheMemory) {
  // Large enough that what is kept for the backward pass outweighs one node's copies.
  TrainSpec spec = TinyGpt();
  GptSpec& gpt = std::get<GptSpec>(spec.model);
  gpt.layers = 8;
  gpt.width = 64;
  gpt.vocab = 0;
  spec.micro_batch = 8;
  for (FieldSpec& field : spec.input.fields) field.shape = {64};
  const size_t fp32 = Plan::Compile(spec).value()->arena_bytes();
  spec.precision = "bf16";
  const size_t mixed = Plan::Compile(spec).value()->arena_bytes();
  spec.precision = "pure_bf16";
  const size_t pure = Plan::Compile(spec).value()->arena_bytes();
  EXPECT_LT(static_cast<double>(mixed), 0.65 * static_cast<double>(fp32));
  EXPECT_LT(static_cast<double>(pure), 0.58 * static_cast<double>(fp32));
}

TEST(PrecisionRulesTest, RefusesWhatItCannotKeep) {
  const auto refusal = [](const TrainSpec& spec) {
    return std::string(Plan::Compile(spec).status().message());
  };
  TrainSpec spec = DeepMlp();
  spec.precision = "fp8";
  EXPECT_THAT(refusal(spec), HasSubstr("use fp32, tf32, bf16, fp16, pure_bf16 or pure_fp16"));
  spec.precision = "pure_bf16";
  spec.ema_decay = 0.9;
  EXPECT_THAT(refusal(spec), HasSubstr("use bf16"));
  spec = DeepMlp();
  spec.precision = "fp16";
  spec.loss_scale.init = 1000;
  EXPECT_THAT(refusal(spec), HasSubstr("loss_scale.init is 1000: it must be a power of two"));
}

// ---- fp8 ----

// How often `part` is in `text`.
int Count(const std::string& text, const std::string& part) {
  int count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST(Fp8Test, EachFactorIsRoundedOnceInItsFormat) {
  TrainSpec spec = TinyGpt();
  spec.precision = "bf16";
  spec.fp8 = true;
  const std::string text = Plan::Compile(spec).value()->DumpText();
  const std::string train = text.substr(0, text.find("# evaluate"));
  // Three blocks of four layers; each has three products. The head is that of bf16.
  EXPECT_EQ(Count(train, "fp8=e4m3,e4m3"), 12);
  EXPECT_EQ(Count(train, "fp8=e5m2,e4m3") + Count(train, "fp8=e4m3,e5m2"), 24);
  EXPECT_EQ(Count(train, "linear(") + Count(train, "linear_backward_input(") +
                Count(train, "linear_backward_weight("),
            39);
  // An activation once for both products that read it, a gradient too, a weight for each.
  EXPECT_EQ(Count(train, "format=e4m3"), 12 + 24);
  EXPECT_EQ(Count(train, "format=e5m2"), 12);
  EXPECT_THAT(text.substr(train.size()), Not(HasSubstr("fp8")));
  // Weights are not rounded to bf16 first.
  spec.fp8 = false;
  spec.passes.patterns.weights = false;
  const std::string bf16 = Plan::Compile(spec).value()->DumpText();
  EXPECT_LE(Count(train, "= cast("),
            Count(bf16.substr(0, bf16.find("# evaluate")), "= cast(") - 24);
}

TEST(Fp8Test, TheFirstAndTheLastLayerStay) {
  TrainSpec spec = DeepMlp();  // six layers
  spec.precision = "bf16";
  spec.fp8 = true;
  const std::string text = Plan::Compile(spec).value()->DumpText();
  EXPECT_EQ(Count(text, "fp8=e4m3,e4m3"), 4);
  EXPECT_EQ(Count(text, "fp8=e5m2,e4m3"), 8);
}

// What overflows is seen, as in every precision, and leaves the weights alone.
TEST(Fp8Test, WhatIsNotFiniteSkipsTheStep) {
  TrainSpec spec = DeepMlp();
  spec.precision = "bf16";
  spec.fp8 = true;
  Job job(spec);
  const AnyBatch batch(spec, 1, 0, 0, spec.micro_batch);
  auto* inputs = static_cast<float*>(const_cast<void*>(batch.fields()[0]));
  inputs[7] = std::numeric_limits<float>::infinity();
  std::vector<float> out(static_cast<size_t>(job.plan->gradient_count()));
  ASSERT_TRUE(job.executor->RunShard(1, 0, 0, batch.fields(), out.data(), {}).ok());
  EXPECT_TRUE(UpdateWith(&job, 1, out).skipped);
  EXPECT_FALSE(WholeStep(&job, 2).skipped);
}

TEST(Fp8Test, Learns) {
  TrainSpec spec = TinyGpt();
  spec.precision = "bf16";
  spec.fp8 = true;
  Job job(spec);
  const double first = WholeStep(&job, 1).loss;
  double last = 0;
  for (int64_t step = 2; step <= 40; ++step) {
    // The same batch: it is learnt by heart.
    const std::vector<float> sum =
        SumOf(SumOf(PoisonedGradients(&job, 1, 0), PoisonedGradients(&job, 1, 1)),
              SumOf(PoisonedGradients(&job, 1, 2), PoisonedGradients(&job, 1, 3)));
    last = UpdateWith(&job, step, sum).loss;
  }
  EXPECT_LT(last, first * 0.9);
}

TEST(Fp8Test, RefusesWhatItIsNotFor) {
  TrainSpec spec = DeepMlp();
  spec.fp8 = true;
  EXPECT_THAT(std::string(Plan::Compile(spec).status().message()),
              HasSubstr("fp8 goes with precision bf16, not with fp32"));
  spec = TinyResnet();
  spec.precision = "bf16";
  spec.fp8 = true;
  EXPECT_THAT(std::string(Plan::Compile(spec).status().message()), HasSubstr("the model has none"));
}

}  // namespace
}  // namespace lockstep::engine
