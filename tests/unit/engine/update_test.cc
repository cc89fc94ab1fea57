// SPDX-License-Identifier: Apache-2.0
// What training controls do to the state: the same bits for every deal, number of threads and cut,
// for every optimizer with clipping and averages on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/exec/plan.h"
#include "engine/optim/groups.h"
#include "tests/unit/engine/mlp_job.h"
#include "tests/unit/engine/step_job.h"
#include "tests/unit/engine/update_job.h"

namespace lockstep::engine {
namespace {

using ::testing::HasSubstr;

TEST(UpdateTest, DealsAndThreadsGiveTheSameBits) {
  for (const auto& [name, optimizer] : AllOptimizers()) {
    SCOPED_TRACE(name);
    const TrainSpec spec = Controlled(optimizer);
    Job reference(spec);
    std::vector<std::unique_ptr<Job>> others;
    for (int workers = 1; workers <= 4; ++workers) {
      TrainSpec own = spec;
      own.threads = workers == 1 ? 3 : 1;
      others.push_back(std::make_unique<Job>(own));
    }
    const int64_t count = reference.plan->gradient_count();
    for (int step = 1; step <= 4; ++step) {
      Pages sum(static_cast<size_t>(count) * 4);
      reference.SumShards(step, 0, spec.shards, sum.floats());
      const GradientSlice whole{0, count, sum.floats()};
      const StepResult result =
          reference.executor->Update(step, absl::MakeConstSpan(&whole, 1)).value();
      ASSERT_FALSE(result.skipped);
      EXPECT_GT(result.gradient_norm, spec.clip_norm);  // so that clipping acts
      for (int workers = 1; workers <= 4; ++workers) {
        const Dealt dealt(sum.floats(), count, workers);
        Job& job = *others[static_cast<size_t>(workers - 1)];
        EXPECT_EQ(job.executor->Update(step, dealt.slices).value().gradient_norm,
                  result.gradient_norm);
      }
    }
    for (const auto& job : others) EXPECT_EQ(job->StateBytes(), reference.StateBytes());
  }
}

TEST(UpdateTest, EveryOptimizerLearns) {
  for (const auto& [name, optimizer] : AllOptimizers()) {
    SCOPED_TRACE(name);
    TrainSpec spec = SmallMlp();
    spec.optimizer = optimizer;
    Job job(spec);
    const double first = job.Step(1).loss;
    double last = 0;
    for (int step = 2; step <= 40; ++step) last = job.Step(step).loss;
    EXPECT_LT(last, first - 0.25);
  }
}

TEST(UpdateTest, NothingOfTheArenaIsReadOrWrittenBeyondThePlan) {
  MuonSpec muon;
  TrainSpec spec = Controlled(muon);
  spec.threads = 2;
  Job job(spec);
  Pages sum(static_cast<size_t>(job.plan->gradient_count()) * 4);
  job.SumShards(1, 0, spec.shards, sum.floats());
  job.arena.FillWithNan();
  const GradientSlice whole{0, job.plan->gradient_count(), sum.floats()};
  job.executor->Update(1, absl::MakeConstSpan(&whole, 1)).value();
  for (const StateEntry& entry : job.plan->state()) {
    if (entry.role == StateEntry::Role::kScalar) continue;
    for (size_t i = 0; i < entry.bytes / 4; ++i) {
      ASSERT_TRUE(std::isfinite(job.state.floats()[entry.offset / 4 + i])) << entry.name;
    }
  }
  for (size_t i = 0; i < 1024; ++i) {
    ASSERT_TRUE(std::isnan(job.arena.floats()[job.plan->arena_bytes() / 4 + i])) << i;
  }
}

TEST(UpdateTest, AccumulationIsALargerBatch) {
  // The same samples: one micro-batch of 12, or three of 4.
  TrainSpec spec = SmallMlp();
  spec.shards = 1;
  spec.micro_batch = 12;
  Job whole(spec);
  spec.micro_batch = 4;
  spec.accumulate = 3;
  Job parts(spec);
  std::vector<float> a(static_cast<size_t>(whole.plan->gradient_count()));
  std::vector<float> b(static_cast<size_t>(parts.plan->gradient_count()));
  ASSERT_EQ(a.size(), b.size());
  for (int step = 1; step <= 5; ++step) {
    const TestBatch batch = MakeBatch(spec, step, 0, 0, 12);
    ASSERT_TRUE(whole.executor->RunShard(step, 0, 0, batch.fields(), a.data(), {}).ok());
    for (int micro = 0; micro < 3; ++micro) {
      const void* fields[] = {batch.inputs.data() + micro * 4 * 31,
                              batch.labels.data() + micro * 4};
      ASSERT_TRUE(parts.executor->RunShard(step, 0, micro, fields, b.data(), {}).ok());
    }
    const GradientSlice one{0, whole.plan->gradient_count(), a.data()};
    const GradientSlice other{0, parts.plan->gradient_count(), b.data()};
    const StepResult x = whole.executor->Update(step, absl::MakeConstSpan(&one, 1)).value();
    const StepResult y = parts.executor->Update(step, absl::MakeConstSpan(&other, 1)).value();
    EXPECT_NEAR(x.loss, y.loss, 1e-6);
    EXPECT_EQ(x.valid_targets, y.valid_targets);
  }
  for (int i = 0; i < 31 * 33; ++i) {
    ASSERT_NEAR(whole.state.floats()[i], parts.state.floats()[i], 1e-6) << i;
  }
}

TEST(UpdateTest, AccumulatingDealsGiveTheSameBits) {
  TrainSpec spec = Controlled(AdamSpec{.lr = 1e-2, .decoupled = true});
  spec.accumulate = 3;
  Job one(spec), two(spec);
  const int64_t count = one.plan->gradient_count();
  for (int step = 1; step <= 2; ++step) {
    one.Step(step);
    std::vector<float> a(static_cast<size_t>(count)), b(static_cast<size_t>(count));
    two.SumShards(step, 0, 2, a.data());
    two.SumShards(step, 2, 4, b.data());
    for (size_t i = 0; i < a.size(); ++i) a[i] += b[i];
    two.executor->Update(step, Dealt(a.data(), count, 3).slices).value();
  }
  EXPECT_EQ(one.StateBytes(), two.StateBytes());
}

TEST(UpdateTest, NonFiniteStepsAreNamedAndCounted) {
  for (const double clip : {0.0, 1.0}) {
    TrainSpec spec = SmallMlp();
    spec.clip_norm = clip;
    const auto plan = CompiledPlan::Make(spec).value();
    Job job(spec);
    job.Step(1);
    std::vector<float> g(static_cast<size_t>(job.plan->gradient_count()));
    const GradientSlice whole{0, job.plan->gradient_count(), g.data()};
    const auto at = [&](const std::string& name) {
      for (const GradientSlot& slot : plan->layout().slots) {
        if (slot.parameter == name) return static_cast<size_t>(slot.begin + slot.count - 1);
      }
      return size_t{0};
    };
    g[static_cast<size_t>(plan->layout().target_count) + 1] = 64;
    g[at("2.bias")] = std::nanf("");
    g[at("0.bias")] = std::numeric_limits<float>::infinity();
    StepResult result = job.executor->Update(2, absl::MakeConstSpan(&whole, 1)).value();
    EXPECT_FALSE(result.finite);
    EXPECT_EQ(result.nonfinite, "0.bias");  // the first in the order of the state
    g[at("0.bias")] = 0;
    result = job.executor->Update(3, absl::MakeConstSpan(&whole, 1)).value();
    EXPECT_EQ(result.nonfinite, "2.bias");
    EXPECT_EQ(result.skipped_in_a_row, 2);
    g[at("2.bias")] = 0;
    g[static_cast<size_t>(plan->layout().loss)] = std::nanf("");
    result = job.executor->Update(4, absl::MakeConstSpan(&whole, 1)).value();
    EXPECT_EQ(result.nonfinite, "the loss");
    EXPECT_EQ(result.skipped_in_a_row, 3);
    EXPECT_EQ(job.Step(5).skipped_in_a_row, 0);
  }
}

// They would stay in the running statistics: no later step brings an infinity back.
TEST(UpdateTest, StatisticsThatAreNotFiniteSkipTheStep) {
  for (const double clip : {0.0, 0.5}) {
    for (const bool sharded : {false, true}) {
      SCOPED_TRACE(absl::StrCat("clip_norm ", clip, sharded ? ", in parts" : ""));
      TrainSpec spec = NormedCnn();
      spec.clip_norm = clip;
      Job whole(spec);
      spec.shard_moments = true;
      WholeInHalves halves(spec);
      const auto plan = std::dynamic_pointer_cast<const CompiledPlan>(whole.plan);
      whole.SumShards(1, 0, spec.shards, halves.vector.floats());
      for (const GradientSlot& statistic : plan->layout().statistics) {
        float& one = halves.vector.floats()[statistic.begin];
        const float before = std::exchange(one, std::numeric_limits<float>::infinity());
        const int64_t step = (sharded ? halves.job : whole).executor->begun_step() + 1;
        const StepResult result =
            sharded ? halves.Begin(step) : whole.executor->Update(step, {halves.all()}).value();
        EXPECT_TRUE(result.skipped);
        EXPECT_EQ(result.nonfinite, StepResult::kStatistics);
        one = before;
      }
    }
  }
}

TEST(UpdateTest, AverageIsEvaluated) {
  TrainSpec spec = SmallMlp();
  spec.ema_decay = 0.99;
  Job job(spec);
  job.Step(1);
  const TestBatch batch = MakeBatch(spec, 99, 0, 0, 20);
  const auto loss = [&](Weights weights) {
    EvalSums sums;
    EXPECT_TRUE(job.executor->Evaluate(batch.fields(), 20, &sums, weights).ok());
    return sums.loss;
  };
  // The first update starts the average; then it lags behind weights that learn.
  EXPECT_EQ(loss(Weights::kCurrent), loss(Weights::kAverage));
  for (int step = 2; step <= 30; ++step) job.Step(step);
  EXPECT_LT(loss(Weights::kCurrent), loss(Weights::kAverage));
}

TEST(UpdateTest, EvaluationHasNoSmoothingAndCountsFirstFive) {
  TrainSpec spec = SmallMlp();
  Job plain(spec);
  spec.label_smoothing = 0.2;
  Job smooth(spec);
  EXPECT_NE(plain.plan->hash(), smooth.plan->hash());
  const TestBatch batch = MakeBatch(spec, 99, 0, 0, 20);
  EvalSums a, b;
  ASSERT_TRUE(plain.executor->Evaluate(batch.fields(), 20, &a).ok());
  ASSERT_TRUE(smooth.executor->Evaluate(batch.fields(), 20, &b).ok());
  EXPECT_EQ(a.loss, b.loss);
  EXPECT_GT(a.correct_top5, a.correct);
  EXPECT_LE(a.correct_top5, 20);
  EXPECT_NE(plain.Step(1).loss, smooth.Step(1).loss);
}

TEST(UpdateTest, TrackingIsState) {
  Job a(SmallMlp()), b(SmallMlp());
  EXPECT_EQ(a.executor->tracking().evaluated_step, 0);
  a.executor->SetTracking({.evaluated_step = 3, .best_step = 2, .best = 0.5});
  const std::vector<char> bytes = a.StateBytes();
  std::memcpy(b.executor->BeginLoad(), bytes.data(), bytes.size());
  b.executor->EndLoad();
  EXPECT_EQ(b.executor->tracking().best, 0.5);
  EXPECT_EQ(b.executor->tracking().evaluated_step, 3);
}

TEST(UpdateTest, SettingsThatDecideAreInTheHash) {
  const TrainSpec spec = SmallMlp();
  std::vector<TrainSpec> others(6, spec);
  others[0].clip_norm = 1;
  others[1].ema_decay = 0.5;
  others[2].groups = {{"0.*", 2, std::nullopt}};
  others[3].optimizer = AdamSpec{};
  others[4].optimizer = AdamSpec{.decoupled = true};
  others[5].schedule = {.kind = ScheduleSpec::Kind::kExponential, .gamma = 0.5};
  std::vector<std::string> hashes = {Plan::Compile(spec).value()->hash()};
  for (const TrainSpec& other : others) hashes.push_back(Plan::Compile(other).value()->hash());
  std::sort(hashes.begin(), hashes.end());
  EXPECT_EQ(std::adjacent_find(hashes.begin(), hashes.end()), hashes.end());
}

TEST(UpdateTest, WrongSettingsAreSaid) {
  const auto error = [](TrainSpec spec) {
    return std::string(Plan::Compile(spec).status().message());
  };
  TrainSpec spec = SmallMlp();
  spec.groups = {{"bn*", 1, std::nullopt}};
  EXPECT_THAT(error(spec), HasSubstr("'bn*' matches no parameter; the first is '0.weight'"));
  spec = SmallMlp();
  spec.optimizer = MuonSpec{.adamw_match = {"0.*", "haed*"}};
  EXPECT_THAT(error(spec), HasSubstr("muon.exclude 'haed*' matches no parameter; the first is"));
  spec = SmallMlp();
  spec.schedule = {.kind = ScheduleSpec::Kind::kLinear, .total_updates = 5, .warmup_updates = 5};
  EXPECT_THAT(error(spec), HasSubstr("the linear schedule has 5 updates"));
  spec = SmallMlp();
  spec.optimizer = AdamSpec{.beta2 = 1};
  EXPECT_THAT(error(spec), HasSubstr("adam.beta2 is 1: it must be in [0, 1)"));
  spec = SmallMlp();
  spec.ema_decay = 1;
  EXPECT_THAT(error(spec), HasSubstr("ema.decay"));
  spec = SmallMlp();
  spec.schedule.kind = ScheduleSpec::Kind::kStep;
  EXPECT_THAT(error(spec), HasSubstr("'every' or 'milestones'"));
}

TEST(UpdateTest, GlobsMatchNames) {
  EXPECT_TRUE(Matches("*.bias", "layers.0.bias"));
  EXPECT_TRUE(Matches("h.?.attn.*weight", "h.1.attn.c_proj.weight"));
  EXPECT_TRUE(Matches("**", "x"));
  EXPECT_TRUE(Matches("a*b*c", "abbbcbc"));
  EXPECT_FALSE(Matches("a*b*c", "abbbcb"));
  EXPECT_FALSE(Matches("bias", "0.bias"));
  EXPECT_FALSE(Matches("?", ""));
  EXPECT_TRUE(Matches("*", ""));
}

TEST(UpdateTest, HalvesOnShardedMomentsGiveTheSameBits) {
  constexpr int kWorld = 3, kShards = 7;
  for (const auto& [name, optimizer] : AllOptimizers()) {
    if (name == "lamb" || name == "muon") continue;
    SCOPED_TRACE(name);
    TrainSpec spec = Controlled(optimizer);
    Job reference(spec);
    spec.shard_moments = true;
    std::vector<std::unique_ptr<ShardedRank>> ranks;
    for (int rank = 0; rank < kWorld; ++rank) {
      spec.threads = rank + 1;
      ranks.push_back(std::make_unique<ShardedRank>(spec, rank, kWorld, kShards));
    }
    EXPECT_EQ(ranks[0]->job.plan->hash(), reference.plan->hash());
    const int64_t count = reference.plan->gradient_count();
    for (int step = 1; step <= 4; ++step) {
      Pages sum(static_cast<size_t>(count) * 4);
      reference.SumShards(step, 0, spec.shards, sum.floats());
      // The third step is not finite, so it is skipped by all.
      if (step == 3) sum.floats()[100] = std::numeric_limits<float>::infinity();
      const Dealt dealt(sum.floats(), count, kWorld);
      reference.executor->Update(step, dealt.slices).value();
      for (const auto& rank : ranks) {
        Executor& executor = *rank->job.executor;
        const StepResult result = executor.BeginUpdate(step, dealt.slices).value();
        EXPECT_EQ(result.skipped, step == 3);
        EXPECT_EQ(executor.begun_step(), step);
        EXPECT_EQ(executor.committed_step(), step == 3 ? step : step - 1);
      }
      for (const auto& rank : ranks) {
        if (step == 3) continue;
        EXPECT_TRUE(rank->job.executor->FinishUpdate(step, Gathered(ranks)).ok());
        EXPECT_EQ(rank->job.executor->committed_step(), step);
      }
    }
    for (const auto& rank : ranks) ExpectPart(rank.get(), reference.StateBytes());
  }
}

TEST(UpdateTest, APartOfTheGradientsAndAllSumsGiveTheSameStep) {
  for (const double clip : {0.0, 0.5}) {
    TrainSpec spec = Controlled(AdamSpec{.lr = 0.01});
    spec.clip_norm = clip;
    spec.threads = 2;
    Job reference(spec);
    spec.shard_moments = true;
    WholeInHalves whole(spec);
    for (int step = 1; step <= 4; ++step) {
      reference.SumShards(step, 0, spec.shards, whole.vector.floats());
      if (step == 3) whole.vector.floats()[100] = std::numeric_limits<float>::quiet_NaN();
      const StepResult wanted = reference.executor->Update(step, {whole.all()}).value();
      const StepResult result = whole.Begin(step);
      EXPECT_EQ(result.loss, wanted.loss);
      EXPECT_EQ(result.skipped, step == 3);
      EXPECT_EQ(result.nonfinite, wanted.nonfinite);
      if (step == 3) continue;  // its norm is NaN
      EXPECT_EQ(result.gradient_norm, wanted.gradient_norm);
      ASSERT_TRUE(whole.job.executor->FinishUpdate(step, {whole.all()}).ok());
    }
    EXPECT_EQ(whole.job.StateBytes(), reference.StateBytes());
  }
}

TEST(UpdateTest, SaysWhatCannotHaveShardedMoments) {
  for (const auto& [name, optimizer] : AllOptimizers()) {
    TrainSpec spec = Controlled(optimizer);
    spec.shard_moments = true;
    const auto plan = Plan::Compile(spec);
    const bool whole = name == "lamb" || name == "muon";
    EXPECT_EQ(plan.ok(), !whole) << name;
    if (whole) {
      EXPECT_THAT(std::string(plan.status().message()), HasSubstr("zero_stage 1"));
    }
  }
  TrainSpec spec = SmallMlp();
  spec.shard_moments = true;
  spec.precision = "pure_bf16";
  EXPECT_THAT(std::string(Plan::Compile(spec).status().message()), HasSubstr("pure_bf16"));
}

}  // namespace
}  // namespace lockstep::engine
