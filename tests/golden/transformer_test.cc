// SPDX-License-Identifier: Apache-2.0
// GPT-2 and BERT against PyTorch: every gradient of the first step and the losses of 10 steps, on
// the same weights and samples. tools/gen_golden_transformers.py makes the files.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "engine/exec/plan.h"
#include "tests/golden/golden.h"

namespace lockstep::engine {
namespace {

constexpr int kSteps = 10;
constexpr int64_t kBatch = 3, kLength = 11, kTokens = 61, kPadded = 64, kClasses = 5;

using Ints = std::vector<int32_t>;
Ints Numbers(uint64_t site, int64_t count, int64_t below) {
  Ints values;
  for (int64_t i = 0; i < count; ++i) {
    values.push_back(
        static_cast<int32_t>(Uniform(site, static_cast<uint64_t>(i)) * static_cast<float>(below)));
  }
  return values;
}

// The fields of a batch, by name.
std::map<std::string, Ints> MakeBatch(int step, float ignored) {
  const uint64_t site = 10000 + 10 * static_cast<uint64_t>(step);
  constexpr int64_t kPlaces = kBatch * kLength;
  std::map<std::string, Ints> batch;
  batch["tokens"] = Numbers(site, kPlaces, kTokens);
  batch["labels"] = Numbers(site + 1, kPlaces, kTokens);
  batch["segments"] = Numbers(site + 4, kPlaces, 2);
  batch["lengths"] = Numbers(site + 5, kBatch, kLength);
  for (int32_t& length : batch["lengths"]) ++length;
  batch["label"] = Numbers(site + 6, kBatch, kClasses);
  for (uint64_t i = 0; i < kPlaces; ++i) {
    if (Uniform(site + 2, i) < ignored) batch["labels"][i] = -1;
    batch["attention_mask"].push_back(Uniform(site + 3, i) < 0.8f || i % kLength == 0 ? 1 : 0);
  }
  return batch;
}

FieldSpec Field(const std::string& name, std::vector<int64_t> shape, int64_t limit) {
  return {name, FieldSpec::Type::kInt32, std::move(shape), limit};
}

TrainSpec SpecOf(ModelSpec model, std::vector<FieldSpec> fields, int64_t classes) {
  TrainSpec spec;
  spec.model = std::move(model);
  spec.input = {std::move(fields), classes};
  spec.optimizer = SgdSpec{.lr = 0.05, .momentum = 0.9};
  spec.label_smoothing = 0.1;
  spec.micro_batch = kBatch;
  spec.eval_block = 2;
  return spec;
}

// Largest error over the largest value of each gradient, scaled to the mean over valid targets.
void ExpectGradients(const CompiledPlan& plan, const std::vector<float>& gradients, double factor,
                     const GoldenLists& golden) {
  ASSERT_EQ(golden.names.size(), plan.layout().slots.size() + 1);
  for (const GradientSlot& slot : plan.layout().slots) {
    ASSERT_TRUE(golden.values.contains(slot.parameter)) << slot.parameter;
    const std::vector<double>& expected = golden.values.at(slot.parameter);
    ASSERT_EQ(static_cast<int64_t>(expected.size()), slot.count) << slot.parameter;
    double largest = 1e-3, error = 0;
    for (size_t i = 0; i < expected.size(); ++i) {
      const double is =
          static_cast<double>(gradients[static_cast<size_t>(slot.begin) + i]) * factor;
      largest = std::max(largest, std::fabs(expected[i]));
      error = std::max(error, std::fabs(is - expected[i]));
    }
    EXPECT_LT(error / largest, 1e-5) << slot.parameter;
  }
}

void Check(const std::string& name, const TrainSpec& spec, float ignored,
           const std::vector<std::string>& fields) {
  const GoldenLists golden = ReadGolden(name + ".txt");
  ASSERT_FALSE(golden.names.empty()) << name;
  const auto plan = std::dynamic_pointer_cast<const CompiledPlan>(Plan::Compile(spec).value());
  std::vector<std::string> names = {"losses"};
  for (const ParameterSpec& parameter : plan->model().parameters()) {
    names.push_back(parameter.name);
  }
  ASSERT_EQ(names, golden.names);
  const Memory64 state = Allocate(plan->state_bytes()), arena = Allocate(plan->arena_bytes());
  const auto executor = Executor::Create(plan, {state.get(), arena.get()}).value();
  executor->InitState();
  SetTransformerWeights(*plan, static_cast<char*>(executor->BeginLoad()));
  executor->EndLoad();
  std::vector<float> gradients(static_cast<size_t>(plan->gradient_count()));
  for (int step = 0; step < kSteps; ++step) {
    std::map<std::string, Ints> batch = MakeBatch(step, ignored);
    std::vector<const void*> pointers;
    for (const std::string& field : fields) pointers.push_back(batch.at(field).data());
    ASSERT_TRUE(executor->RunShard(step + 1, 0, 0, pointers, gradients.data(), {}).ok());
    const GradientSlice whole{0, plan->gradient_count(), gradients.data()};
    const StepResult result = executor->Update(step + 1, absl::MakeConstSpan(&whole, 1)).value();
    if (step == 0) {
      const double factor =
          static_cast<double>(plan->nominal_targets()) / static_cast<double>(result.valid_targets);
      ASSERT_NO_FATAL_FAILURE(ExpectGradients(*plan, gradients, factor, golden));
    }
    const double expected = golden.values.at("losses")[static_cast<size_t>(step)];
    ASSERT_NEAR(result.loss, expected, 2e-5 * expected) << name << " step " << step;
  }
}

GptSpec SmallGpt() {
  GptSpec gpt;
  gpt.layers = gpt.heads = 2;
  gpt.width = 16;
  gpt.vocab = kPadded;
  gpt.dropout = 0;
  return gpt;
}
BertSpec SmallBert() {
  BertSpec bert;
  bert.layers = bert.heads = 2;
  bert.width = 16;
  bert.vocab = kPadded;
  bert.dropout = 0;
  return bert;
}

TEST(GoldenTransformerTest, Gpt) {
  TrainSpec spec =
      SpecOf(SmallGpt(), {Field("tokens", {kLength}, kTokens), Field("labels", {kLength}, kTokens)},
             kTokens);
  Check("gpt", spec, 0.1f, {"tokens", "labels"});
  spec.passes.fuse = false;
  Check("gpt", spec, 0.1f, {"tokens", "labels"});
}

TEST(GoldenTransformerTest, BertMaskedLanguageModel) {
  const TrainSpec spec =
      SpecOf(SmallBert(),
             {Field("tokens", {kLength}, kTokens), Field("segments", {kLength}, 2),
              Field("attention_mask", {kLength}, 2), Field("labels", {kLength}, kTokens)},
             kTokens);
  Check("bert", spec, 0.6f, {"tokens", "segments", "attention_mask", "labels"});
}

TEST(GoldenTransformerTest, BertClassifier) {
  const TrainSpec spec = SpecOf(
      SmallBert(),
      {Field("tokens", {kLength}, kTokens), Field("lengths", {}, 0), Field("labels", {}, kClasses)},
      kClasses);
  Check("bert_classifier", spec, 0, {"tokens", "lengths", "label"});
}

}  // namespace
}  // namespace lockstep::engine
