// SPDX-License-Identifier: Apache-2.0
// Transformers through the executor: addressed dropout, ties, fusion, memory.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "engine/exec/plan.h"
#include "tests/unit/engine/gradient_slots.h"
#include "tests/unit/engine/mlp_job.h"

namespace lockstep::engine {
namespace {

constexpr int64_t kLength = 9, kVocab = 29;

TrainSpec SmallGpt(double dropout) {
  TrainSpec spec;
  GptSpec& gpt = spec.model.emplace<GptSpec>();
  gpt.layers = gpt.heads = 2;
  gpt.width = 24;
  gpt.vocab = 32;
  gpt.dropout = dropout;
  const auto type = FieldSpec::Type::kInt32;
  spec.input = {{{"tokens", type, {kLength}, kVocab}, {"labels", type, {kLength}, kVocab}}, kVocab};
  spec.optimizer = SgdSpec{.lr = 0.1, .momentum = 0.9};
  spec.micro_batch = 4;
  spec.shards = 4;
  spec.eval_block = 4;
  spec.seed = 3;
  return spec;
}

// A sequence in which each token follows from the one before; sample `i` of the shard.
struct Samples {
  std::vector<int32_t> tokens, labels;
  Samples(int64_t step, int shard, int64_t first, int64_t count) {
    for (int64_t i = first; i < first + count; ++i) {
      auto token = static_cast<int32_t>(
          MixBits(static_cast<uint64_t>((step * 64 + shard) * 1024 + i)) % kVocab);
      for (int64_t t = 0; t < kLength; ++t) {
        tokens.push_back(token);
        token = static_cast<int32_t>((token * 5 + 3) % kVocab);
        labels.push_back(token);
      }
    }
  }
};

std::vector<float> ShardGradients(Job* job, int64_t step, int shard) {
  const TrainSpec& spec = job->plan->spec();
  std::vector<float> out(static_cast<size_t>(job->plan->gradient_count()), NAN);
  for (int micro = 0; micro < spec.accumulate; ++micro) {
    const Samples samples(step, shard, micro * spec.micro_batch, spec.micro_batch);
    const void* fields[] = {samples.tokens.data(), samples.labels.data()};
    EXPECT_TRUE(job->executor->RunShard(step, shard, micro, fields, out.data(), {}).ok());
  }
  return out;
}

std::vector<float> Sum(std::vector<float> a, const std::vector<float>& b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}

StepResult Update(Job* job, int64_t step, const std::vector<float>& gradients) {
  const GradientSlice whole{0, job->plan->gradient_count(), gradients.data()};
  return job->executor->Update(step, absl::MakeConstSpan(&whole, 1)).value();
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * 4) == 0;
}

double Distance(const std::vector<float>& a, const std::vector<float>& b) {
  double most = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const float size = std::max(1.0f, std::fabs(a[i]));  // the sum of losses at the end is large
    most = std::max(most, static_cast<double>(std::fabs(a[i] - b[i]) / size));
  }
  return most;
}

TEST(TransformerTest, DealOfShardsWithDropoutDoesNotChangeTheState) {
  // One runs all shards in order; two others run two each, in another order and with other threads.
  TrainSpec spec = SmallGpt(0.2);
  Job one(spec);
  spec.threads = 2;
  Job left(spec), right(spec);
  StepResult first, last;
  for (int64_t step = 1; step <= 30; ++step) {
    const std::vector<float> a = ShardGradients(&one, step, 0), b = ShardGradients(&one, step, 1);
    const std::vector<float> c = ShardGradients(&one, step, 2), d = ShardGradients(&one, step, 3);
    last = Update(&one, step, Sum(Sum(a, b), Sum(c, d)));
    if (step == 1) first = last;
    if (step > 3) continue;
    right.arena.FillWithNan();
    const std::vector<float> d2 = ShardGradients(&right, step, 3);
    const std::vector<float> c2 = ShardGradients(&right, step, 2);
    const std::vector<float> b2 = ShardGradients(&left, step, 1);
    const std::vector<float> a2 = ShardGradients(&left, step, 0);
    const std::vector<float> sum = Sum(Sum(a2, b2), Sum(c2, d2));
    Update(&left, step, sum);
    Update(&right, step, sum);
    ASSERT_EQ(left.StateBytes(), right.StateBytes());
    ASSERT_EQ(left.StateBytes(), one.StateBytes()) << step;
  }
  EXPECT_NEAR(first.loss, std::log(29.0), 0.1);
  EXPECT_LT(last.loss, first.loss * 0.8);
}

TEST(TransformerTest, MasksDependOnStepAndShard) {
  Job job(SmallGpt(0.5));
  const Samples samples(1, 0, 0, 4);
  const void* fields[] = {samples.tokens.data(), samples.labels.data()};
  const auto run = [&](int64_t step, int shard) {
    std::vector<float> out(static_cast<size_t>(job.plan->gradient_count()));
    EXPECT_TRUE(job.executor->RunShard(step, shard, 0, fields, out.data(), {}).ok());
    return out;
  };
  const std::vector<float> base = run(1, 0);
  EXPECT_TRUE(SameBits(base, run(1, 0)));
  EXPECT_FALSE(SameBits(base, run(2, 0)));
  EXPECT_FALSE(SameBits(base, run(1, 1)));
}

TEST(TransformerTest, AccumulationDropsTheSameElements) {
  // The address counts through the shard: two micro-batches of two are one of four, but for the
  // order of the sums.
  TrainSpec spec = SmallGpt(0.3);
  Job whole(spec);
  spec.micro_batch = 2;
  spec.accumulate = 2;
  Job parts(spec);
  const std::vector<float> a = ShardGradients(&whole, 1, 1), b = ShardGradients(&parts, 1, 1);
  EXPECT_LT(Distance(a, b), 1e-6);
  EXPECT_GT(Distance(a, ShardGradients(&whole, 1, 2)), 1e-4);
}

TEST(TransformerTest, FusionChangesRoundingOnly) {
  TrainSpec spec = SmallGpt(0.3);
  Job fused(spec);
  spec.passes.fuse = false;
  Job plain(spec);
  EXPECT_NE(fused.plan->hash(), plain.plan->hash());
  const std::vector<float> a = ShardGradients(&fused, 1, 1), b = ShardGradients(&plain, 1, 1);
  const auto of_plain = SlotsOf(*plain.plan);
  for (const auto& [name, slot] : SlotsOf(*fused.plan)) {
    const int64_t shift = of_plain.at(name).first - slot.first;
    for (int64_t i = slot.first; i < slot.second; ++i) {
      ASSERT_NEAR(a[static_cast<size_t>(i)], b[static_cast<size_t>(i + shift)], 2e-7) << name;
    }
  }
}

TEST(TransformerTest, PlannedMemoryGivesTheSameBits) {
  TrainSpec spec = SmallGpt(0.1);
  Job planned(spec);
  spec.passes.reuse_memory = spec.passes.in_place = false;
  Job unplanned(spec);
  EXPECT_LT(planned.plan->arena_bytes(), unplanned.plan->arena_bytes());
  planned.arena.FillWithNan();
  unplanned.arena.FillWithNan();
  EXPECT_TRUE(SameBits(ShardGradients(&planned, 1, 0), ShardGradients(&unplanned, 1, 0)));
}

TEST(TransformerTest, TiedWeightIsOneParameterBornOnce) {
  Job job(SmallGpt(0));
  int tables = 0;
  for (const StateEntry& entry : job.plan->state()) {
    if (entry.role == StateEntry::Role::kParameter && entry.shape == std::vector<int64_t>{32, 24}) {
      ++tables;
    }
  }
  EXPECT_EQ(tables, 1);
  const std::string text = job.plan->DumpText();
  EXPECT_EQ(text.find("deposit"), std::string::npos) << "a gradient is copied";
  // Padded rows: no gradient.
  const std::vector<float> gradients = ShardGradients(&job, 1, 0);
  const auto [begin, end] = SlotsOf(*job.plan).at("transformer.wte.weight");
  for (int64_t i = begin + kVocab * 24; i < end; ++i) {
    ASSERT_EQ(gradients[static_cast<size_t>(i)], 0);
  }
}

TEST(TransformerTest, EvaluationDropsNothingAndCountsTokens) {
  Job dropping(SmallGpt(0.5)), plain(SmallGpt(0));
  const Samples samples(1, 0, 0, 4);
  const void* fields[] = {samples.tokens.data(), samples.labels.data()};
  EvalSums a, b;
  ASSERT_TRUE(dropping.executor->Evaluate(fields, 3, &a).ok());
  ASSERT_TRUE(plain.executor->Evaluate(fields, 3, &b).ok());
  EXPECT_EQ(a.loss, b.loss);
  EXPECT_EQ(a.samples, 3 * kLength);
}

TEST(TransformerTest, RefusesWhatDoesNotFit) {
  const auto refused = [](const TrainSpec& spec) {
    return Plan::Compile(spec).status().code() == absl::StatusCode::kInvalidArgument;
  };
  TrainSpec spec = SmallGpt(0);
  std::get<GptSpec>(spec.model).heads = 5;
  EXPECT_TRUE(refused(spec));
  spec = SmallGpt(0);
  std::get<GptSpec>(spec.model).preset = "gpt5";
  EXPECT_TRUE(refused(spec));
  spec = SmallGpt(0);
  std::get<GptSpec>(spec.model).vocab = kVocab - 1;
  EXPECT_TRUE(refused(spec));
  spec = SmallGpt(0);
  std::get<GptSpec>(spec.model).context = kLength - 1;
  EXPECT_TRUE(refused(spec));
  spec = SmallGpt(1);
  EXPECT_TRUE(refused(spec));
  spec = SmallGpt(0);
  spec.input = ClassificationInput({31}, 10);
  EXPECT_TRUE(refused(spec));
  EXPECT_EQ(Plan::Compile(spec).status().message(),
            "gpt takes samples of tokens: data.text, data.tokens, or data.npy with vocab");
  spec.model = BertSpec{};
  EXPECT_EQ(Plan::Compile(spec).status().message(),
            "bert takes samples of tokens: data.npy with vocab, or data.text with masked");
}

TEST(TransformerTest, ClassifierLeavesOtherTokensOutFromTheLastAttentionOn) {
  TrainSpec spec;
  spec.model = BertSpec{.preset = "bert-tiny", .layers = 2, .heads = 2, .width = 8};
  const auto type = FieldSpec::Type::kInt32;
  spec.input = {{{"tokens", type, {kLength}, kVocab}, {"labels", type, {}, 3}}, 3};
  spec.micro_batch = spec.eval_block = 4;
  const auto plan = CompiledPlan::Make(spec);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const auto rows_of = [&](const std::string& name) {
    int64_t rows = 0;
    for (const Node& node : (*plan)->train().graph.nodes()) {
      if (node.name == name) rows = node.outputs[0].shape[0];
    }
    return rows;
  };
  EXPECT_EQ(rows_of("bert.encoder.layer.0.output.dense"), 4 * kLength);
  EXPECT_EQ(rows_of("bert.encoder.layer.1.attention.self.key"), 4 * kLength);
  EXPECT_EQ(rows_of("bert.encoder.layer.1.attention.self.query"), 4);
  EXPECT_EQ(rows_of("bert.encoder.layer.1.attention.output.dense"), 4);
  EXPECT_EQ(rows_of("bert.encoder.layer.1.output.dense"), 4);
}

TEST(TransformerTest, PresetsHaveTheirSizes) {
  TrainSpec spec = SmallGpt(0);
  spec.model = GptSpec();
  const auto type = FieldSpec::Type::kInt32;
  spec.input = {{{"tokens", type, {1024}, 50257}, {"labels", type, {1024}, 50257}}, 50257};
  spec.micro_batch = spec.eval_block = 1;
  const auto plan = Plan::Compile(spec);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ((*plan)->parameter_count(), 124439808);  // GPT-2 124M
}

}  // namespace
}  // namespace lockstep::engine
