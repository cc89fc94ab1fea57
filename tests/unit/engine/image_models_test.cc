// SPDX-License-Identifier: Apache-2.0
// Models with convolutions and batch norm: bits that do not depend on the deal of shards, on
// threads or on the memory plan; running statistics; fusion; what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "tests/unit/engine/mlp_job.h"

namespace lockstep::engine {
namespace {

using Kind = LayerSpec::Kind;

TrainSpec SmallCnn() {
  TrainSpec spec = SmallMlp();
  spec.model = CnnSpec{.channels = {5, 18}, .kernel = 3, .batch_norm = true, .hidden = {17}};
  spec.input = ClassificationInput({3, 9, 8}, 10);
  spec.accumulate = 2;
  spec.micro_batch = 6;
  return spec;
}

TrainSpec SmallResnet() {
  TrainSpec spec = SmallCnn();
  spec.model = ResnetSpec{.depth = 18, .stem = "cifar", .zero_init = false, .width = 3};
  return spec;
}

// Every kind of layer that a job file may name.
TrainSpec SmallLayers() {
  TrainSpec spec = SmallCnn();
  std::vector<LayerSpec> body = {{.kind = Kind::kConv, .width = 6, .kernel = 3, .padding = 1},
                                 {.kind = Kind::kBatchNorm},
                                 {.kind = Kind::kSilu}};
  spec.model = LayersSpec{{{.kind = Kind::kConv, .width = 6, .kernel = 3, .padding = 1},
                           {.kind = Kind::kLayerNorm},
                           {.kind = Kind::kGelu},
                           {.kind = Kind::kDropout, .rate = 0.1},
                           {.kind = Kind::kMaxPool, .kernel = 2},
                           {.kind = Kind::kResidual, .body = std::move(body)},
                           {.kind = Kind::kGelu, .tanh = true},
                           {.kind = Kind::kAvgPool, .kernel = 2},
                           {.kind = Kind::kLinear, .width = 31},
                           {.kind = Kind::kLayerNorm, .eps = 1e-6},
                           {.kind = Kind::kTanh},
                           {.kind = Kind::kDropout, .rate = 0.1},
                           {.kind = Kind::kLinear, .width = 20},
                           {.kind = Kind::kSigmoid},
                           {.kind = Kind::kLinear}}};
  spec.optimizer = SgdSpec{.lr = 0.2, .momentum = 0.9};
  return spec;
}

// Convolutions that pool as they go: directly, and by Winograd's algorithm with relu behind it.
TrainSpec PooledLayers() {
  TrainSpec spec = SmallCnn();
  spec.input = ClassificationInput({3, 13, 12}, 10);
  spec.model = LayersSpec{{{.kind = Kind::kConv, .width = 37, .kernel = 3, .padding = 1},
                           {.kind = Kind::kRelu},
                           {.kind = Kind::kMaxPool, .kernel = 2},
                           {.kind = Kind::kConv, .width = 18, .kernel = 3, .padding = 1},
                           {.kind = Kind::kMaxPool, .kernel = 2},
                           {.kind = Kind::kRelu},
                           {.kind = Kind::kConv, .width = 9, .kernel = 3},
                           {.kind = Kind::kBatchNorm},
                           {.kind = Kind::kRelu},
                           {.kind = Kind::kLinear}}};
  return spec;
}

// A convolution that pools directly, and one that ends a branch before relu.
TrainSpec BranchedLayers() {
  TrainSpec spec = SmallCnn();
  spec.input = ClassificationInput({2, 14, 12}, 10);
  std::vector<LayerSpec> body = {{.kind = Kind::kConv, .width = 8, .kernel = 3, .padding = 1},
                                 {.kind = Kind::kRelu},
                                 {.kind = Kind::kConv, .width = 8, .kernel = 1}};
  spec.model = LayersSpec{{{.kind = Kind::kConv, .width = 8, .kernel = 3, .padding = 1},
                           {.kind = Kind::kRelu},
                           {.kind = Kind::kMaxPool, .kernel = 2},
                           {.kind = Kind::kResidual, .body = std::move(body)},
                           {.kind = Kind::kRelu},
                           {.kind = Kind::kLinear}}};
  return spec;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * 4) == 0;
}

std::vector<float> Gradients(Job* job, int64_t step, int shard) {
  std::vector<float> out(static_cast<size_t>(job->plan->gradient_count()),
                         std::numeric_limits<float>::quiet_NaN());
  EXPECT_TRUE(job->RunShard(step, shard, out.data()).ok());
  return out;
}

const float* At(const Job& job, const std::string& name) {
  for (const StateEntry& entry : job.plan->state()) {
    if (entry.name == name) {
      return reinterpret_cast<const float*>(
          static_cast<const char*>(const_cast<Job&>(job).state.data()) + entry.offset);
    }
  }
  LS_CHECK(false) << name;
  return nullptr;
}

// Inputs of many magnitudes, so that sums in another order differ.
void Spread(TestBatch* batch) {
  for (size_t i = 0; i < batch->inputs.size(); ++i) {
    batch->inputs[i] = std::ldexp(batch->inputs[i], static_cast<int>(MixBits(i) % 7) - 3);
  }
}

class ImageModelsTest : public testing::TestWithParam<TrainSpec (*)()> {};

TEST_P(ImageModelsTest, LossFalls) {
  Job job(GetParam()());
  const StepResult first = job.Step(1);
  StepResult last;
  for (int step = 2; step <= 20; ++step) last = job.Step(step);
  EXPECT_EQ(first.valid_targets, 48);
  EXPECT_LT(last.loss, first.loss * 0.8);
}

// The sums over shards meet in the same tree, whoever runs them: S in {4, 5, 6} with 1, 2, 3
// workers.
TEST_P(ImageModelsTest, DealOfShardsDoesNotChangeTheState) {
  for (const int shards : {4, 5, 6}) {
    TrainSpec spec = GetParam()();
    spec.shards = shards;
    Job one(spec), first(spec), second(spec), third(spec);
    const auto count = static_cast<size_t>(one.plan->gradient_count());
    for (int step = 1; step <= 3; ++step) {
      one.Step(step);
      // Shards 0 and 1, 2 and 3, and the rest: the tree splits at 4, then at 2.
      std::vector<float> a(count), b(count), c(count);
      first.SumShards(step, 0, 2, a.data());
      second.SumShards(step, 2, 4, b.data());
      for (size_t i = 0; i < count; ++i) a[i] += b[i];
      if (shards > 4) {
        third.SumShards(step, 4, shards, c.data());
        for (size_t i = 0; i < count; ++i) a[i] += c[i];
      }
      const GradientSlice slices[] = {{0, 48, a.data()},
                                      {48, one.plan->gradient_count(), a.data() + 48}};
      for (Job* job : {&first, &second, &third}) job->executor->Update(step, slices).value();
    }
    EXPECT_EQ(one.StateBytes(), first.StateBytes()) << shards;
    EXPECT_EQ(one.StateBytes(), third.StateBytes()) << shards;
  }
}

TEST_P(ImageModelsTest, MemoryAndThreadsDoNotChangeTheBits) {
  TrainSpec spec = GetParam()();
  Job planned(spec);
  spec.threads = 3;
  spec.passes.reuse_memory = spec.passes.in_place = false;
  Job unplanned(spec);
  EXPECT_LT(planned.plan->arena_bytes(), unplanned.plan->arena_bytes());
  for (int step = 1; step <= 2; ++step) {
    planned.arena.FillWithNan();
    unplanned.arena.FillWithNan();
    EXPECT_TRUE(SameBits(Gradients(&planned, step, 1), Gradients(&unplanned, step, 1)));
    planned.Step(step);
    unplanned.Step(step);
  }
  EXPECT_EQ(planned.StateBytes(), unplanned.StateBytes());
}

TEST_P(ImageModelsTest, FusionChangesRoundingOnly) {
  TrainSpec spec = GetParam()();
  Job fused(spec);
  spec.passes.fuse = false;
  Job plain(spec);
  EXPECT_NE(fused.plan->hash(), plain.plan->hash());
  fused.Step(1);
  plain.Step(1);
  for (const StateEntry& entry : fused.plan->state()) {
    if (entry.type != StateEntry::Type::kFloat32) continue;
    const float *x = At(fused, entry.name), *y = At(plain, entry.name);
    for (size_t i = 0; i < entry.bytes / 4; ++i) {
      ASSERT_NEAR(x[i], y[i], 1e-5 * (1 + std::fabs(y[i]))) << entry.name << " " << i;
    }
  }
  const TestBatch batch = MakeBatch(spec, 99, 0, 0, 20);
  EvalSums a, b;
  ASSERT_TRUE(fused.executor->Evaluate(batch.fields(), 20, &a).ok());
  ASSERT_TRUE(plain.executor->Evaluate(batch.fields(), 20, &b).ok());
  EXPECT_NEAR(a.loss, b.loss, 1e-4 * b.loss);
  EXPECT_THAT(plain.plan->DumpText(), testing::Not(testing::HasSubstr("fold_batch_norm")));
  EXPECT_THAT(fused.plan->DumpText(), testing::HasSubstr("fold_batch_norm"));
}

std::string NameOf(const testing::TestParamInfo<TrainSpec (*)()>& info) {
  if (info.param == &PooledLayers) return "pooled";
  if (info.param == &BranchedLayers) return "branched";
  return info.param == &SmallCnn ? "cnn" : info.param == &SmallResnet ? "resnet" : "layers";
}
INSTANTIATE_TEST_SUITE_P(All, ImageModelsTest,
                         testing::Values(&SmallCnn, &SmallResnet, &SmallLayers, &PooledLayers),
                         NameOf);

TEST(PooledLayersTest, PoolAsTheyGo) {
  for (const char* precision : {"fp32", "bf16", "pure_bf16"}) {
    TrainSpec spec = PooledLayers();
    spec.precision = precision;
    Job job(spec);
    const std::string text = job.plan->DumpText();
    EXPECT_THAT(text, testing::HasSubstr("conv2d_max_pool(")) << precision;
    EXPECT_THAT(text, testing::HasSubstr("conv2d_max_pool_backward_weight(")) << precision;
    EXPECT_THAT(text, testing::HasSubstr("max_unpool2d(")) << precision;
    EXPECT_THAT(text, testing::Not(testing::HasSubstr("max_pool2d("))) << precision;
  }
}

// Dropout is for training: evaluation sees every value.
TEST(DropoutLayerTest, ChangesTrainingAlone) {
  TrainSpec mlp = SmallMlp(), cnn = SmallCnn();
  std::get<MlpSpec>(mlp.model).dropout = 0.5;
  std::get<CnnSpec>(cnn.model).dropout = 0.5;
  for (const TrainSpec& spec : {mlp, cnn}) {
    TrainSpec without = spec;
    if (auto* model = std::get_if<MlpSpec>(&without.model)) model->dropout = 0;
    if (auto* model = std::get_if<CnnSpec>(&without.model)) model->dropout = 0;
    Job dropped(spec), plain(without);
    // The first weights are those of the same names.
    ASSERT_EQ(dropped.plan->parameter_count(), plain.plan->parameter_count());
    const TestBatch batch = MakeBatch(spec, 99, 0, 0, 20);
    EvalSums a, b;
    ASSERT_TRUE(dropped.executor->Evaluate(batch.fields(), 20, &a).ok());
    ASSERT_TRUE(plain.executor->Evaluate(batch.fields(), 20, &b).ok());
    EXPECT_EQ(a.loss, b.loss);
    EXPECT_FALSE(SameBits(Gradients(&dropped, 1, 0), Gradients(&plain, 1, 0)));
    EXPECT_TRUE(SameBits(Gradients(&dropped, 1, 0), Gradients(&dropped, 1, 0)));
    EXPECT_FALSE(SameBits(Gradients(&dropped, 1, 0), Gradients(&dropped, 2, 0)));
  }
  std::get<MlpSpec>(mlp.model).dropout = 1;
  EXPECT_THAT(std::string(Plan::Compile(mlp).status().message()), testing::HasSubstr("[0, 1)"));
  std::get<CnnSpec>(cnn.model).dropout = -0.1;
  EXPECT_THAT(std::string(Plan::Compile(cnn).status().message()), testing::HasSubstr("dropout1"));
}

// An inference plan in memory of its own.
struct Served {
  explicit Served(const TrainSpec& spec)
      : plan(*Plan::CompileInference(spec)),
        state(plan->state_bytes()),
        arena(plan->arena_bytes()),
        executor(*Executor::Create(plan, {state.data(), arena.data()})) {
    arena.FillWithNan();
    executor->InitState();
  }
  // Loads the weights of `job`, parameters times `factor`.
  void Load(const Job& job, float factor) {
    auto* const loaded = static_cast<char*>(executor->BeginLoad());
    for (const StateEntry& entry : plan->state()) {
      if (entry.role == StateEntry::Role::kScalar) continue;
      std::memcpy(loaded + entry.offset, At(job, entry.name), entry.bytes);
      if (entry.role != StateEntry::Role::kParameter) continue;
      if (factor == 1) continue;  // weights of 16 bits are as they are
      auto* const values = reinterpret_cast<float*>(loaded + entry.offset);
      for (size_t i = 0; i < entry.bytes / 4; ++i) values[i] *= factor;
    }
    executor->EndLoad();
  }
  std::vector<float> Answers(const TestBatch& batch) {
    const auto logits = executor->Predict(batch.fields(), 20);
    EXPECT_TRUE(logits.ok()) << logits.status();
    return logits.ok() ? std::vector<float>(logits->begin(), logits->end()) : std::vector<float>();
  }

  std::shared_ptr<const Plan> plan;
  Pages state, arena;
  std::unique_ptr<Executor> executor;
};

class ServedModelsTest : public testing::TestWithParam<TrainSpec (*)()> {};

TEST_P(ServedModelsTest, GiveTheAnswersOfTraining) {
  for (const char* precision : {"fp32", "bf16", "fp16", "pure_bf16", "pure_fp16"}) {
    TrainSpec spec = GetParam()();
    spec.precision = precision;
    Job job(spec);
    job.Step(1);
    Served served(spec);
    served.Load(job, 1);
    for (const int seed : {98, 99}) {
      TestBatch batch = MakeBatch(spec, seed, 0, 0, 20);
      Spread(&batch);
      EvalSums trained, answered;
      ASSERT_TRUE(job.executor->Evaluate(batch.fields(), 20, &trained).ok());
      ASSERT_TRUE(served.executor->Evaluate(batch.fields(), 20, &answered).ok());
      EXPECT_EQ(trained.loss, answered.loss) << precision << " " << seed;
      EXPECT_EQ(trained.correct, answered.correct) << precision << " " << seed;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, ServedModelsTest,
                         testing::Values(&SmallCnn, &SmallResnet, &SmallLayers, &PooledLayers,
                                         &BranchedLayers),
                         NameOf);

// In bf16. One channel is large and cancels in the end: what of the other one was added meanwhile
// is rounded, and shows the order.
TEST(ServedModelTest, PooledConvolutionsAddInTheOrderOfTraining) {
  constexpr size_t kRows = 3, kFilters = 8, kPixels = 48 * 44;
  TrainSpec spec = SmallCnn();
  spec.input = ClassificationInput({2, 48, 44}, 10);
  spec.model = LayersSpec{{{.kind = Kind::kConv, .width = kFilters, .kernel = kRows},
                           {.kind = Kind::kRelu},
                           {.kind = Kind::kMaxPool, .kernel = 2},
                           {.kind = Kind::kLinear}}};
  spec.precision = "bf16";
  Job job(spec);
  job.executor->BeginLoad();
  auto* const weight = const_cast<float*>(At(job, "0.weight"));
  for (size_t filter = 0; filter < kFilters; ++filter) {
    for (size_t row = 0; row < kRows; ++row) {
      float* const taps = weight + (filter * 2 * kRows + row) * kRows;
      taps[1] = -taps[0];
      taps[2] = 0;
    }
  }
  job.executor->EndLoad();
  Served served(spec);
  served.Load(job, 1);
  TestBatch batch = MakeBatch(spec, 98, 0, 0, 20);
  for (size_t at = 0; at < batch.inputs.size(); ++at) {
    if (at / kPixels % 2 == 0) batch.inputs[at] = 16384;
  }
  EvalSums trained, answered;
  ASSERT_TRUE(job.executor->Evaluate(batch.fields(), 20, &trained).ok());
  ASSERT_TRUE(served.executor->Evaluate(batch.fields(), 20, &answered).ok());
  EXPECT_EQ(trained.loss, answered.loss);
  EXPECT_EQ(trained.correct, answered.correct);
}

TEST_P(ImageModelsTest, WhatIsKeptOfTheWeightsChangesNoBitOfAnAnswer) {
  Job job(GetParam()());
  job.Step(1);
  TrainSpec spec = job.plan->spec();
  Served kept(spec);
  spec.threads = 3;
  spec.passes.keep_constants = false;
  Served made_again(spec);
  spec.passes.keep_constants = true;
  spec.passes.reuse_memory = spec.passes.in_place = false;
  Served unplanned(spec);
  EXPECT_LT(kept.plan->arena_bytes(), unplanned.plan->arena_bytes());
  std::vector<float> before;
  for (const float factor : {1.0f, 1.5f, 1.0f}) {
    for (Served* served : {&kept, &made_again, &unplanned}) served->Load(job, factor);
    for (const int seed : {98, 99}) {
      const TestBatch batch = MakeBatch(spec, seed, 0, 0, 20);
      const std::vector<float> answers = kept.Answers(batch);
      EXPECT_TRUE(SameBits(answers, made_again.Answers(batch)));
      EXPECT_TRUE(SameBits(answers, unplanned.Answers(batch)));
      EXPECT_FALSE(SameBits(answers, before));
      before = answers;
    }
  }
}

// running = (1 - m) running + m x the mean over shards and micro-batches.
TEST(StatisticsTest, RunningStatisticsAreMeansOverMicroBatches) {
  TrainSpec spec = SmallCnn();
  spec.model = LayersSpec{{{.kind = Kind::kBatchNorm, .name = "bn", .momentum = 0.25},
                           {.kind = Kind::kLinear, .name = "fc"}}};
  spec.shards = 3;
  Job job(spec);
  std::vector<double> mean(3), variance(3);
  const int64_t pixels = 72, rows = spec.micro_batch * pixels;
  for (int shard = 0; shard < spec.shards; ++shard) {
    for (int micro = 0; micro < spec.accumulate; ++micro) {
      const TestBatch batch = MakeBatch(spec, 1, shard, micro);
      for (size_t c = 0; c < 3; ++c) {
        double sum = 0, square = 0;
        for (int64_t i = 0; i < rows; ++i) {
          const int64_t at = (i / pixels * 3 + static_cast<int64_t>(c)) * pixels + i % pixels;
          const double x = static_cast<double>(batch.inputs[static_cast<size_t>(at)]);
          sum += x;
          square += x * x;
        }
        const double n = static_cast<double>(rows);
        mean[c] += sum / n / 6;
        variance[c] += (square - sum * sum / n) / (n - 1) / 6;
      }
    }
  }
  job.Step(1);
  for (size_t c = 0; c < 3; ++c) {
    EXPECT_NEAR(At(job, "bn.running_mean")[c], 0.25 * mean[c], 1e-6);
    EXPECT_NEAR(At(job, "bn.running_var")[c], 0.75 + 0.25 * variance[c], 1e-6);
  }
  EXPECT_EQ(job.Scalar<int64_t>("bn.num_batches_tracked"), 1);
  // Evaluation and a skipped step leave them alone.
  const std::vector<char> before = job.StateBytes();
  const TestBatch batch = MakeBatch(spec, 1, 0, 0, 20);
  EvalSums sums;
  ASSERT_TRUE(job.executor->Evaluate(batch.fields(), 20, &sums).ok());
  EXPECT_EQ(before, job.StateBytes());
  std::vector<float> g(static_cast<size_t>(job.plan->gradient_count()), INFINITY);
  const GradientSlice whole{0, job.plan->gradient_count(), g.data()};
  EXPECT_TRUE(job.executor->Update(2, absl::MakeConstSpan(&whole, 1)).value().skipped);
  EXPECT_EQ(job.Scalar<int64_t>("bn.num_batches_tracked"), 1);
}

TEST(LayersTest, PlacesNameTheParameters) {
  TrainSpec spec = SmallCnn();
  const LayerSpec conv{.kind = Kind::kConv, .width = 4, .kernel = 3, .padding = 1};
  spec.model = LayersSpec{{conv,
                           {.kind = Kind::kResidual,
                            .body = {conv, {.kind = Kind::kBatchNorm}, {.kind = Kind::kRelu}},
                            .shortcut = {}},
                           {.kind = Kind::kAvgPool, .kernel = 2},
                           {.kind = Kind::kFlatten},
                           {.kind = Kind::kLinear}}};
  const auto plan = Plan::Compile(spec);
  ASSERT_TRUE(plan.ok()) << plan.status();
  std::vector<std::string> names;
  for (const StateEntry& entry : (*plan)->state()) {
    if (entry.role == StateEntry::Role::kParameter || entry.role == StateEntry::Role::kStatistic) {
      names.push_back(entry.name);
    }
  }
  EXPECT_THAT(names, testing::ElementsAre("0.weight", "0.bias", "1.body.0.weight", "1.body.0.bias",
                                          "1.body.1.weight", "1.body.1.bias", "4.weight", "4.bias",
                                          "1.body.1.running_mean", "1.body.1.running_var",
                                          "1.body.1.num_batches_tracked"));
}

std::string Refusal(const ModelSpec& model) {
  TrainSpec spec = SmallCnn();
  spec.model = model;
  const auto plan = Plan::Compile(spec);
  EXPECT_EQ(plan.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(plan.status().message());
}

TEST(LayersTest, WrongModelsAreRefused) {
  using testing::HasSubstr;
  const LayerSpec conv{.kind = Kind::kConv, .width = 1};
  const LayerSpec narrow{.kind = Kind::kLinear, .width = 1}, head{.kind = Kind::kLinear};
  const LayerSpec flatten{.kind = Kind::kFlatten}, norm{.kind = Kind::kLayerNorm};
  EXPECT_THAT(Refusal(LayersSpec{{conv, norm, head}}),
              HasSubstr("layer 1: a layer_norm of one value gives 0 everywhere, and the image has "
                        "one channel: put flatten before it"));
  EXPECT_THAT(Refusal(LayersSpec{{narrow, norm, head}}),
              testing::EndsWith("a layer_norm of one value gives 0 everywhere"));
  TrainSpec flat = SmallCnn();
  flat.model = LayersSpec{{conv, flatten, norm, head}};
  EXPECT_TRUE(Plan::Compile(flat).ok());
  EXPECT_THAT(Refusal(ResnetSpec{.depth = 19}), HasSubstr("18, 34, 50 or 101"));
  EXPECT_THAT(Refusal(CnnSpec{.channels = {4}, .kernel = 4}), HasSubstr("odd kernel"));
  EXPECT_THAT(Refusal(CnnSpec{.channels = {4, 4, 4, 4}}), HasSubstr("does not fit"));
  EXPECT_THAT(Refusal(LayersSpec{}), HasSubstr("no layers"));
  EXPECT_THAT(Refusal(LayersSpec{{{.kind = Kind::kFlatten}, {.kind = Kind::kConv, .width = 3}}}),
              HasSubstr("layer 1: a convolution needs an image"));
  EXPECT_THAT(Refusal(LayersSpec{{{.kind = Kind::kLinear, .width = 11}}}),
              HasSubstr("11 values for 10 classes: its features must be 10; leave them out"));
  EXPECT_THAT(Refusal(LayersSpec{{{.kind = Kind::kLinear, .width = 10},
                                  {.kind = Kind::kFlatten},
                                  {.kind = Kind::kLinear, .width = 5},
                                  {.kind = Kind::kRelu}}}),
              HasSubstr("5 values for 10 classes: end with a linear layer"));
  EXPECT_THAT(Refusal(LayersSpec{{{.kind = Kind::kLinear}, {.kind = Kind::kLinear}}}),
              HasSubstr("layer 0: a linear layer needs features, from 1 to 1048576; only the last "
                        "layer may leave them out"));
  EXPECT_THAT(
      Refusal(LayersSpec{
          {{.kind = Kind::kResidual, .body = {{.kind = Kind::kConv, .width = 5}}, .shortcut = {}},
           {.kind = Kind::kLinear}}}),
      HasSubstr("the body gives 5 x 9 x 8, but the shortcut 3 x 9 x 8"));
}

}  // namespace
}  // namespace lockstep::engine
