// SPDX-License-Identifier: Apache-2.0
// Generation one position at a time gives what the whole forward pass gives.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/unit/engine/mlp_job.h"

namespace lockstep::engine {
namespace {

using testing::HasSubstr;

constexpr int64_t kLength = 13, kVocab = 29, kTable = 32;

TrainSpec GptSpecFor(bool tied, int threads, int64_t length = kLength) {
  TrainSpec spec;
  GptSpec& gpt = spec.model.emplace<GptSpec>();
  gpt.layers = gpt.heads = 2;
  gpt.width = 24;
  gpt.vocab = kTable;
  gpt.dropout = 0.1;  // which inference leaves out
  gpt.tied_head = tied;
  const auto type = FieldSpec::Type::kInt32;
  spec.input = {{{"tokens", type, {length}, kVocab}, {"labels", type, {length}, kVocab}}, kVocab};
  spec.optimizer = SgdSpec{.lr = 0.1};
  spec.micro_batch = 1;
  spec.eval_block = 2;
  spec.seed = 3;
  spec.threads = threads;
  spec.decode = true;
  return spec;
}

int32_t TokenAt(int64_t position) { return static_cast<int32_t>((position * 7 + 5) % kVocab); }

struct Server {
  explicit Server(const TrainSpec& spec)
      : plan(Plan::CompileInference(spec).value()),
        state(plan->state_bytes()),
        arena(plan->arena_bytes()),
        executor(Executor::Create(plan, {state.data(), arena.data()}).value()) {
    executor->InitState();
    arena.FillWithNan();
  }
  std::vector<float> Decode(int32_t token, int64_t position) {
    const auto logits = executor->Decode(token, position);
    LS_CHECK(logits.ok()) << logits.status();
    return {logits->begin(), logits->end()};
  }
  void Prefill(int64_t count, int64_t position) {
    std::vector<int32_t> tokens;
    for (int64_t t = position; t < position + count; ++t) tokens.push_back(TokenAt(t));
    const absl::Status status = executor->Prefill(tokens, position);
    LS_CHECK(status.ok()) << status;
  }
  // The rows of sample 0.
  std::vector<float> Forward(const std::vector<int32_t>& tokens) {
    std::vector<int32_t> batch(2 * kLength), labels(2 * kLength);
    std::copy(tokens.begin(), tokens.end(), batch.begin());
    const void* fields[] = {batch.data(), labels.data()};
    const auto logits = executor->Predict(fields, 1);
    LS_CHECK(logits.ok()) << logits.status();
    return {logits->begin(), logits->begin() + kLength * kTable};
  }

  std::shared_ptr<const Plan> plan;
  Pages state, arena;
  std::unique_ptr<Executor> executor;
};

std::vector<int32_t> Tokens(int32_t factor) {
  std::vector<int32_t> tokens;
  for (int32_t t = 0; t < kLength; ++t) tokens.push_back((t * factor + 5) % kVocab);
  return tokens;
}

class DecodeTest : public testing::TestWithParam<std::tuple<bool, int>> {};

TEST_P(DecodeTest, EveryPositionHasTheLogitsOfTheForwardPass) {
  const auto [tied, threads] = GetParam();
  Server server(GptSpecFor(tied, threads));
  ASSERT_EQ(server.plan->decode_positions(), kLength);
  const std::vector<int32_t> tokens = Tokens(7);
  const std::vector<float> expected = server.Forward(tokens);
  for (int64_t t = 0; t < kLength; ++t) {
    // The evaluation program may run in between: what is kept lies beyond its memory.
    if (t == 4) server.Forward(Tokens(3));
    const std::vector<float> logits = server.Decode(tokens[static_cast<size_t>(t)], t);
    ASSERT_EQ(logits.size(), static_cast<size_t>(kTable));
    for (size_t v = 0; v < logits.size(); ++v) {
      ASSERT_NEAR(logits[v], expected[static_cast<size_t>(t * kTable) + v], 2e-6)
          << "position " << t << " token " << v;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, DecodeTest, testing::Combine(testing::Bool(), testing::Values(1, 2)));

// The forward pass rounds attention's probabilities too, so the two differ by roundings of bf16.
TEST(DecodeTest, ReadsWeightsInTheirPrecision) {
  const size_t fp32_bytes = Server(GptSpecFor(true, 1)).plan->state_bytes();
  for (const char* precision : {"bf16", "pure_bf16", "pure_fp16"}) {
    TrainSpec spec = GptSpecFor(true, 1);
    spec.precision = precision;
    Server server(spec);
    EXPECT_LT(server.plan->state_bytes(), fp32_bytes * 6 / 10) << precision;
    const std::vector<int32_t> tokens = Tokens(7);
    const std::vector<float> expected = server.Forward(tokens);
    float largest = 0;
    for (const float x : expected) largest = std::max(largest, std::fabs(x));
    for (int64_t t = 0; t < kLength; ++t) {
      const std::vector<float> logits = server.Decode(tokens[static_cast<size_t>(t)], t);
      for (size_t v = 0; v < logits.size(); ++v) {
        ASSERT_NEAR(logits[v], expected[static_cast<size_t>(t * kTable) + v], largest / 64)
            << precision << " position " << t << " token " << v;
      }
    }
  }
}

TEST(DecodeTest, GoingBackForgetsWhatFollowed) {
  Server fresh(GptSpecFor(true, 1)), used(GptSpecFor(true, 1));
  const std::vector<int32_t> first = Tokens(7), second = Tokens(11);
  for (int64_t t = 0; t < kLength; ++t) used.Decode(first[static_cast<size_t>(t)], t);
  for (int64_t t = 0; t < 6; ++t) {
    const int32_t token = second[static_cast<size_t>(t)];
    ASSERT_EQ(used.Decode(token, t), fresh.Decode(token, t)) << t;  // the same bits
  }
  EXPECT_THAT(std::string(used.executor->Decode(1, 7).status().message()),
              HasSubstr("position 7 after 6"));
}

TEST(DecodeTest, PrefillKeepsWhatSingleStepsKeep) {
  constexpr int64_t kPositions = 300;  // more than a long block
  for (const char* precision : {"fp32", "bf16", "pure_bf16", "pure_fp16"}) {
    TrainSpec spec = GptSpecFor(true, 2, kPositions);
    spec.precision = precision;
    std::get<GptSpec>(spec.model).width = 32;  // heads of 16 dimensions
    Server steps(spec), blocks(spec);
    std::vector<std::vector<float>> expected;
    for (int64_t t = 0; t < kPositions; ++t) expected.push_back(steps.Decode(TokenAt(t), t));
    for (const int64_t count : {1, 7, 8, 63, 64, 65, 192, 193, 256, 257, 299}) {
      blocks.Prefill(count, 0);
      for (int64_t t = count; t < std::min(count + 3, kPositions); ++t) {
        ASSERT_EQ(blocks.Decode(TokenAt(t), t), expected[static_cast<size_t>(t)])  // the same bits
            << precision << " position " << t << " after " << count;
      }
    }
    blocks.Prefill(20, 5);  // goes on after some, and forgets what followed
    ASSERT_EQ(blocks.Decode(TokenAt(25), 25), expected[25]) << precision;
  }
}

TEST(DecodeTest, PrefillTakesWhatDecodeTakes) {
  Server server(GptSpecFor(true, 1));
  const auto message = [&](std::vector<int32_t> tokens, int64_t position) {
    return std::string(server.executor->Prefill(tokens, position).message());
  };
  EXPECT_EQ(message({}, 0), "");
  EXPECT_THAT(message(std::vector<int32_t>(9, kVocab), 0), HasSubstr("from 0 to 28"));
  EXPECT_THAT(message(std::vector<int32_t>(9, 1), 1), HasSubstr("position 1 after 0"));
  EXPECT_THAT(message(std::vector<int32_t>(kLength + 1, 1), 0), HasSubstr("at most 13"));
  TrainSpec spec = GptSpecFor(true, 1);
  spec.decode = false;
  EXPECT_FALSE(Server(spec).executor->Prefill(std::vector<int32_t>(9, 1), 0).ok());
}

TEST(DecodeTest, ErrorsSayWhatIsPossible) {
  Server server(GptSpecFor(true, 1));
  const auto message = [&](int32_t token, int64_t position) {
    return std::string(server.executor->Decode(token, position).status().message());
  };
  EXPECT_THAT(message(-1, 0), HasSubstr("from 0 to 28"));
  EXPECT_THAT(message(kVocab, 0), HasSubstr("from 0 to 28"));
  EXPECT_THAT(message(0, 1), HasSubstr("position 1 after 0"));
  for (int64_t t = 0; t < kLength; ++t) server.Decode(0, t);
  EXPECT_THAT(message(0, kLength), HasSubstr("at most 13"));

  TrainSpec spec = SmallMlp();
  spec.decode = true;
  EXPECT_THAT(std::string(Plan::CompileInference(spec).status().message()),
              HasSubstr("does not generate"));
  spec = GptSpecFor(true, 1);
  EXPECT_FALSE(Plan::Compile(spec).ok());  // a training plan has no decode program
  spec.decode = false;
  Server without(spec);
  EXPECT_EQ(without.plan->decode_positions(), 0);
  EXPECT_FALSE(without.executor->Decode(0, 0).ok());
}

}  // namespace
}  // namespace lockstep::engine
