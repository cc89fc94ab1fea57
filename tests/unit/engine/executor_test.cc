// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string>

#include "absl/strings/str_format.h"
#include "common/float8.h"
#include "common/hash_bytes.h"
#include "engine/cpu/isa.h"
#include "engine/exec/batches.h"
#include "tests/unit/engine/mlp_job.h"

namespace lockstep::engine {
namespace {

std::vector<float> Gradients(Job* job, int64_t step, int shard) {
  std::vector<float> out(static_cast<size_t>(job->plan->gradient_count()),
                         std::numeric_limits<float>::quiet_NaN());
  EXPECT_TRUE(job->RunShard(step, shard, out.data()).ok());
  return out;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * 4) == 0;
}

TEST(ExecutorTest, LossFallsOverSteps) {
  Job job(SmallMlp());
  const StepResult first = job.Step(1);
  EXPECT_NEAR(first.loss, std::log(10.0), 0.3);
  EXPECT_EQ(first.valid_targets, 64);
  StepResult last;
  for (int step = 2; step <= 40; ++step) last = job.Step(step);
  EXPECT_LT(last.loss, first.loss / 3);
  EXPECT_EQ(job.executor->committed_step(), 40);
}

TEST(ExecutorTest, ShardIsAPureFunction) {
  TrainSpec spec = SmallMlp();
  spec.accumulate = 2;
  Job a(spec), b(spec);
  const std::vector<float> first = Gradients(&a, 1, 2);
  Gradients(&b, 5, 1);  // other work before it changes nothing
  b.arena.FillWithNan();
  EXPECT_TRUE(SameBits(first, Gradients(&b, 1, 2)));
  EXPECT_FALSE(SameBits(first, Gradients(&b, 1, 3)));
  for (const float x : first) ASSERT_TRUE(std::isfinite(x));
}

TEST(ExecutorTest, DealOfShardsDoesNotChangeTheState) {
  // One executor runs all four shards; two others run two each: their sums meet in the same tree.
  Job one(SmallMlp()), left(SmallMlp()), right(SmallMlp());
  const auto count = static_cast<size_t>(one.plan->gradient_count());
  for (int step = 1; step <= 3; ++step) {
    one.Step(step);
    std::vector<float> a(count), b(count);
    left.SumShards(step, 0, 2, a.data());
    right.SumShards(step, 2, 4, b.data());
    for (size_t i = 0; i < count; ++i) a[i] += b[i];
    // Cut anywhere at multiples of 16.
    const int64_t end = one.plan->gradient_count();
    const GradientSlice slices[] = {
        {0, 48, a.data()}, {48, 1024, a.data() + 48}, {1024, end, a.data() + 1024}};
    left.executor->Update(step, slices).value();
    right.executor->Update(step, slices).value();
  }
  EXPECT_EQ(one.StateBytes(), left.StateBytes());
  EXPECT_EQ(one.StateBytes(), right.StateBytes());
}

TEST(ExecutorTest, PlannedMemoryGivesTheSameBits) {
  TrainSpec spec = SmallMlp();
  spec.model = MlpSpec{{33, 64, 17}};
  Job planned(spec);
  spec.passes.reuse_memory = spec.passes.in_place = false;
  Job unplanned(spec);
  EXPECT_LT(planned.plan->arena_bytes(), unplanned.plan->arena_bytes());
  EXPECT_EQ(planned.plan->hash(), unplanned.plan->hash());
  for (int step = 1; step <= 3; ++step) {
    planned.arena.FillWithNan();
    unplanned.arena.FillWithNan();
    EXPECT_TRUE(SameBits(Gradients(&planned, step, 0), Gradients(&unplanned, step, 0)));
    planned.Step(step);
    unplanned.Step(step);
  }
  EXPECT_EQ(planned.StateBytes(), unplanned.StateBytes());
}

TEST(ExecutorTest, ArenaIsNotWrittenBeyondThePlan) {
  Job job(SmallMlp());
  job.arena.FillWithNan();
  Gradients(&job, 1, 0);
  EvalSums sums;
  const TestBatch batch = MakeBatch(job.plan->spec(), 1, 0, 0, 20);
  ASSERT_TRUE(job.executor->Evaluate(batch.fields(), 20, &sums).ok());
  for (size_t i = 0; i < 1024; ++i) {  // the region has a page more than the plan
    ASSERT_TRUE(std::isnan(job.arena.floats()[job.plan->arena_bytes() / 4 + i])) << i;
  }
}

TEST(ExecutorTest, FusionChangesRoundingOnly) {
  TrainSpec spec = SmallMlp();
  spec.model = MlpSpec{{33, 40}};
  Job fused(spec);
  spec.passes.fuse = false;
  Job plain(spec);
  EXPECT_NE(fused.plan->hash(), plain.plan->hash());
  // The order of the slots may depend on readiness: compare the parameters that a step makes.
  fused.Step(1);
  plain.Step(1);
  const std::vector<char> a = fused.StateBytes(), b = plain.StateBytes();
  for (const StateEntry& entry : fused.plan->state()) {
    if (entry.role == StateEntry::Role::kScalar) continue;
    const auto* x = reinterpret_cast<const float*>(a.data() + entry.offset);
    const auto* y = reinterpret_cast<const float*>(b.data() + entry.offset);
    for (size_t i = 0; i < entry.bytes / 4; ++i) {
      ASSERT_NEAR(x[i], y[i], 1e-6) << entry.name << " " << i;
    }
  }
}

TEST(ExecutorTest, ThreadsDoNotChangeTheBits) {
  TrainSpec spec = SmallMlp();
  spec.model = MlpSpec{{100, 33}};
  Job one(spec);
  spec.threads = 3;
  Job three(spec);
  for (int step = 1; step <= 2; ++step) {
    EXPECT_TRUE(SameBits(Gradients(&one, step, 1), Gradients(&three, step, 1)));
    one.Step(step);
    three.Step(step);
  }
  EXPECT_EQ(one.StateBytes(), three.StateBytes());
}

TEST(ExecutorTest, AccumulationAddsMicroBatches) {
  TrainSpec spec = SmallMlp();
  spec.accumulate = 3;
  Job job(spec);
  const std::vector<float> sum = Gradients(&job, 1, 0);
  std::vector<double> expected(sum.size());
  for (int micro = 0; micro < 3; ++micro) {
    const TestBatch batch = MakeBatch(spec, 1, 0, micro);
    std::vector<float> one(sum.size());
    ASSERT_TRUE(job.executor->RunShard(1, 0, 0, batch.fields(), one.data(), {}).ok());
    for (size_t i = 0; i < one.size(); ++i) expected[i] += one[i];
  }
  for (size_t i = 0; i < sum.size(); ++i) {
    ASSERT_NEAR(sum[i], expected[i], 1e-7 + 1e-6 * std::fabs(expected[i])) << i;
  }
}

TEST(ExecutorTest, HooksComeInOrder) {
  TrainSpec spec = SmallMlp();
  spec.accumulate = 2;
  spec.passes.bucket_elements = 16;
  Job job(spec);
  ASSERT_GT(job.plan->buckets().size(), 2u);
  const float untouched = 12345;
  std::vector<float> gradients(static_cast<size_t>(job.plan->gradient_count()), untouched);
  std::vector<int> ready;
  int waits = 0;
  Executor::Hooks hooks;
  hooks.before_gradients = [&] {
    if (waits++ == 0) {
      for (const float x : gradients) EXPECT_EQ(x, untouched);
    }
    EXPECT_TRUE(ready.empty());
    return absl::OkStatus();
  };
  hooks.bucket_ready = [&](int bucket) {
    const Bucket& b = job.plan->buckets()[static_cast<size_t>(bucket)];
    for (int64_t i = b.begin; i < b.end; ++i) {
      EXPECT_NE(gradients[static_cast<size_t>(i)], untouched);
    }
    ready.push_back(bucket);
    return absl::OkStatus();
  };
  ASSERT_TRUE(job.RunShard(1, 0, gradients.data(), hooks).ok());
  EXPECT_EQ(waits, 2);  // one for each micro-batch
  std::vector<int> all;
  for (size_t i = 0; i < job.plan->buckets().size(); ++i) all.push_back(static_cast<int>(i));
  EXPECT_EQ(ready, all);
  EXPECT_EQ(job.plan->buckets().front().begin, 0);
  EXPECT_EQ(job.plan->buckets().back().end, job.plan->gradient_count());
}

TEST(ExecutorTest, HookErrorsAndCancelEndTheShard) {
  Job job(SmallMlp());
  std::vector<float> gradients(static_cast<size_t>(job.plan->gradient_count()), 7);
  Executor::Hooks hooks;
  hooks.before_gradients = [] { return absl::AbortedError("generation 2 ended"); };
  EXPECT_EQ(job.RunShard(1, 0, gradients.data(), hooks).message(), "generation 2 ended");
  EXPECT_THAT(gradients, testing::Each(7));
  hooks = {};
  int polls = 0;
  hooks.cancelled = [&] { return ++polls == 6; };
  EXPECT_EQ(job.RunShard(1, 0, gradients.data(), hooks).code(), absl::StatusCode::kAborted);
  EXPECT_EQ(polls, 6);
}

TEST(ExecutorTest, WrongLabelIsDataLoss) {
  Job job(SmallMlp());
  TestBatch batch = MakeBatch(job.plan->spec(), 1, 0);
  batch.labels[3] = 10;
  std::vector<float> gradients(static_cast<size_t>(job.plan->gradient_count()));
  const absl::Status status = job.executor->RunShard(1, 0, 0, batch.fields(), gradients.data(), {});
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("sample 3"));
}

StepResult OneShardStep(Job* job, const TestBatch& b) {
  std::vector<float> g(static_cast<size_t>(job->plan->gradient_count()));
  LS_CHECK(job->executor->RunShard(1, 0, 0, b.fields(), g.data(), {}).ok());
  const GradientSlice whole{0, job->plan->gradient_count(), g.data()};
  return job->executor->Update(1, absl::MakeConstSpan(&whole, 1)).value();
}

TEST(ExecutorTest, IgnoredLabelsScaleTheMean) {
  // Half of the targets ignored = the mean over the other half.
  TrainSpec spec = SmallMlp();
  spec.shards = 1;
  Job all(spec);
  TestBatch batch = MakeBatch(spec, 1, 0);
  for (size_t i = 8; i < 16; ++i) batch.labels[i] = -100;
  const StepResult half = OneShardStep(&all, batch);
  spec.micro_batch = 8;
  Job eight(spec);
  const StepResult few = OneShardStep(&eight, batch);
  EXPECT_EQ(half.valid_targets, 8);
  EXPECT_NEAR(half.loss, few.loss, 1e-6);
  const std::vector<char> a = all.StateBytes(), b = eight.StateBytes();
  const auto* x = reinterpret_cast<const float*>(a.data());
  const auto* y = reinterpret_cast<const float*>(b.data());
  for (int i = 0; i < 31 * 33; ++i) ASSERT_NEAR(x[i], y[i], 1e-6) << i;
}

TEST(ExecutorTest, SkippedStepsAdvanceTheStepAlone) {
  Job job(SmallMlp());
  job.Step(1);
  const auto count = static_cast<size_t>(job.plan->gradient_count());
  std::vector<char> before = job.StateBytes();
  std::vector<float> g(count, 0.5f);
  g[count - 16 + 1] = 0;
  g[count - 16 + 2] = 0;  // no valid target
  const GradientSlice whole{0, static_cast<int64_t>(count), g.data()};
  StepResult result = job.executor->Update(2, absl::MakeConstSpan(&whole, 1)).value();
  EXPECT_TRUE(result.skipped && result.finite);
  EXPECT_TRUE(std::isnan(result.loss)) << "a mean of nothing";
  EXPECT_EQ(result.skipped_in_a_row, 0) << "it has not diverged";
  g[count - 16 + 2] = 64;
  for (const float bad : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
    g[37] = bad;
    result =
        job.executor->Update(job.executor->committed_step() + 1, absl::MakeConstSpan(&whole, 1))
            .value();
    EXPECT_TRUE(result.skipped && !result.finite);
    EXPECT_EQ(result.nonfinite, "2.weight");  // element 37 of the vector, which begins with it
  }
  EXPECT_EQ(job.Scalar<int64_t>("step"), 4);
  EXPECT_EQ(job.Scalar<int64_t>("update_count"), 1);
  std::vector<char> after = job.StateBytes();
  for (const StateEntry& entry : job.plan->state()) {
    if (entry.name != "step" && entry.name != "skip_count") continue;
    std::memset(before.data() + entry.offset, 0, entry.bytes);
    std::memset(after.data() + entry.offset, 0, entry.bytes);
  }
  EXPECT_EQ(before, after);
}

TEST(ExecutorTest, EvaluateCountsValidSamples) {
  Job job(SmallMlp());
  for (int step = 1; step <= 40; ++step) job.Step(step);
  TestBatch batch = MakeBatch(job.plan->spec(), 99, 0, 0, 20);
  EvalSums whole, part, rest;
  ASSERT_TRUE(job.executor->Evaluate(batch.fields(), 20, &whole).ok());
  EXPECT_EQ(whole.samples, 20);
  EXPECT_GE(whole.correct, 18);
  for (size_t i = 13; i < 20; ++i) batch.labels[i] = 9999;  // padding is not looked at
  ASSERT_TRUE(job.executor->Evaluate(batch.fields(), 13, &part).ok());
  EXPECT_EQ(part.samples, 13);
  EXPECT_LT(part.loss, whole.loss);
  ASSERT_TRUE(job.executor->Evaluate(batch.fields(), 0, &rest).ok());
  EXPECT_EQ(rest.samples, 0);
  EXPECT_FALSE(job.executor->Evaluate(batch.fields(), 21, &rest).ok());
}

TEST(ExecutorTest, EvaluationAsksBeforeEachNodeAndCanBeGivenUp) {
  Job job(SmallMlp());
  const TestBatch batch = MakeBatch(job.plan->spec(), 99, 0, 0, 20);
  EvalSums plain, asking;
  ASSERT_TRUE(job.executor->Evaluate(batch.fields(), 20, &plain).ok());
  int asked = 0;
  const auto go_on = [&asked] { return ++asked < 0; };
  ASSERT_TRUE(
      job.executor->Evaluate(batch.fields(), 20, &asking, Weights::kCurrent, {.cancelled = go_on})
          .ok());
  EXPECT_GT(asked, 2);
  EXPECT_EQ(asking.loss, plain.loss);
  asked = 0;
  const auto give_up = [&asked] { return ++asked == 2; };
  EXPECT_EQ(
      job.executor->Evaluate(batch.fields(), 20, &asking, Weights::kCurrent, {.cancelled = give_up})
          .code(),
      absl::StatusCode::kAborted);
  EXPECT_EQ(asked, 2);
}

TEST(ExecutorTest, InitialStateDependsOnSeedAndNameAlone) {
  TrainSpec spec = SmallMlp();
  Job a(spec);
  spec.shards = 1;
  spec.micro_batch = 64;
  spec.threads = 2;
  Job b(spec);
  EXPECT_EQ(a.StateBytes(), b.StateBytes());
  spec.seed = 8;
  Job c(spec);
  EXPECT_NE(a.StateBytes(), c.StateBytes());
  // U(-1/sqrt(31), 1/sqrt(31)): the bound, the mean and the variance.
  const float* w = a.state.floats();
  double sum = 0, squares = 0, most = 0;
  for (int i = 0; i < 31 * 33; ++i) {
    sum += w[i];
    squares += static_cast<double>(w[i]) * w[i];
    most = std::max(most, std::fabs(static_cast<double>(w[i])));
  }
  EXPECT_LE(most, 1 / std::sqrt(31.0) + 1e-7);
  EXPECT_GT(most, 0.99 / std::sqrt(31.0));
  EXPECT_NEAR(sum / 1023, 0, 0.01);
  EXPECT_NEAR(squares / 1023, 1 / (3 * 31.0), 0.001);
}

TEST(ExecutorTest, DeviceHashLeavesTheStateAlone) {
  const auto hash = [](Job* job) {
    Pages gradients(static_cast<size_t>(job->plan->gradient_count()) * 4);
    gradients.FillWithNan();
    return job->executor->DeviceHash(gradients.floats()).value();
  };
  Job a(SmallMlp()), b(SmallMlp());
  b.arena.FillWithNan();
  const std::vector<char> before = b.StateBytes();
  EXPECT_EQ(hash(&a), hash(&b));
  EXPECT_EQ(b.StateBytes(), before);
  TrainSpec spec = SmallMlp();
  spec.seed = 8;
  Job c(spec);
  EXPECT_NE(hash(&a), hash(&c));
  c.Step(1);
  EXPECT_DEATH(hash(&c), "not the initial ones");
}

// As it was before all NaNs were the same: a checkpoint of x86 says it.
TEST(ExecutorTest, TheHashOfNansIsThatOfTheOneThatX86Makes) {
  const auto hash = [](uint32_t nan) {
    std::vector<float> values = {1, FloatOfBits(nan), -2};
    return HashOfGradients(values.data(), 3);
  };
  const std::vector<uint32_t> bits = {0x3f800000, 0xffc00000, 0xc0000000};
  const std::string expected = absl::StrFormat("%016x", HashBytes(bits.data(), 12));
  for (const uint32_t nan : {0xffc00000u, 0x7fc00000u, 0x7fffffffu, 0xffc02000u}) {
    EXPECT_EQ(hash(nan), expected) << nan;
  }
}

// Which of the NaNs it is where fp16 overflows is no matter of the device.
TEST(ExecutorTest, TheDeviceHashOfAnOverflowIsThatOfEveryInstructionSet) {
  TrainSpec spec = SmallMlp();
  spec.model = CnnSpec{.channels = {16, 32}, .kernel = 3};
  spec.input = ClassificationInput({3, 15, 13}, 10);
  spec.precision = "fp16";
  spec.loss_scale.init = 0x1p26;
  std::set<std::string> hashes;
  for (const Isa isa : UsableIsas()) {
    spec.passes.isa = Name(isa);
    Job job(spec);
    Pages gradients(static_cast<size_t>(job.plan->gradient_count()) * 4);
    hashes.insert(job.executor->DeviceHash(gradients.floats()).value());
    const float* const values = gradients.floats();
    EXPECT_TRUE(std::any_of(values, values + job.plan->gradient_count(), [](float x) {
      return std::isnan(x);
    })) << "nothing overflows";
  }
  EXPECT_EQ(hashes.size(), 1u);
}

TEST(ExecutorTest, StateCanBeLoadedAndIsReadOnlyElsewhere) {
  Job a(SmallMlp()), b(SmallMlp());
  a.Step(1);
  const std::vector<char> bytes = a.StateBytes();
  std::memcpy(b.executor->BeginLoad(), bytes.data(), bytes.size());
  b.executor->EndLoad();
  EXPECT_EQ(b.executor->committed_step(), 1);
  a.Step(2);
  b.Step(2);
  EXPECT_EQ(a.StateBytes(), b.StateBytes());
#ifndef NDEBUG
  EXPECT_DEATH(b.state.floats()[0] = 1, "");
#endif
}

TEST(ExecutorTest, ImagesAreFlattenedByAView) {
  TrainSpec spec = SmallMlp();
  Job flat(spec);
  spec.input = ClassificationInput({1, 31, 1}, spec.input.classes);
  Job image(spec);
  EXPECT_TRUE(SameBits(Gradients(&flat, 1, 0), Gradients(&image, 1, 0)));
  EXPECT_EQ(flat.plan->arena_bytes(), image.plan->arena_bytes());
}

}  // namespace
}  // namespace lockstep::engine
