// SPDX-License-Identifier: Apache-2.0
// Drawing tokens, and texts longer than the model's positions.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "common/json.h"
#include "worker/commands/saved_model.h"
#include "worker/commands/text_writer.h"
#include "worker/commands/token_sampler.h"

namespace lockstep::worker {
namespace {

TEST(TokenSampler, AtTemperatureZeroTheLikeliestWins) {
  TokenSampler sampler(0, 0, 1);
  const std::vector<float> logits = {0.5f, 2, -1, 2};
  for (int i = 0; i < 10; ++i) EXPECT_EQ(sampler.Pick(logits, i), 1);  // the first of two equals
}

TEST(TokenSampler, DrawsByTheSoftmaxOfTheLogits) {
  const std::vector<float> logits = {0, 1, 2, -1};
  for (const double temperature : {0.5, 1.0, 2.0}) {
    TokenSampler sampler(temperature, 0, 7);
    std::vector<double> expected, counts(4);
    for (const float logit : logits) expected.push_back(std::exp(logit / temperature));
    const double sum = std::accumulate(expected.begin(), expected.end(), 0.0);
    constexpr int kDraws = 40000;
    for (int i = 0; i < kDraws; ++i) counts[static_cast<size_t>(sampler.Pick(logits, i))] += 1;
    for (size_t t = 0; t < 4; ++t) {
      const double p = expected[t] / sum;
      // Five standard deviations.
      EXPECT_NEAR(counts[t], kDraws * p, 5 * std::sqrt(kDraws * p * (1 - p))) << temperature;
    }
  }
}

TEST(TokenSampler, TopKLeavesOutTheRest) {
  const std::vector<float> logits = {0, 3, 3, 3, -1};
  TokenSampler two(1, 2, 3), one(1, 1, 3), all(1, 99, 3);
  std::vector<int> counts(5), every(5);
  for (int i = 0; i < 3000; ++i) {
    ++counts[static_cast<size_t>(two.Pick(logits, i))];
    ++every[static_cast<size_t>(all.Pick(logits, i))];
    EXPECT_EQ(one.Pick(logits, i), 1);
  }
  EXPECT_GT(counts[1], 1000);
  EXPECT_GT(counts[2], 1000);
  EXPECT_EQ(counts[0] + counts[3] + counts[4], 0);  // of equal ones the lower numbers stay
  EXPECT_GT(every[3], 500);
}

TEST(TokenSampler, IsAFunctionOfSeedAndPlace) {
  const std::vector<float> logits(100, 0);
  TokenSampler a(1, 0, 5), b(1, 0, 5), other(1, 0, 6);
  int same = 0;
  for (int64_t i = 50; i-- > 0;) {
    const int32_t token = a.Pick(logits, i);
    EXPECT_EQ(b.Pick(logits, i), token);
    same += other.Pick(logits, i) == token;
  }
  EXPECT_LT(same, 10);
}

// Records what it is asked to decode; the logits of token t name t + 1.
class FakeDecoder : public engine::Decoding {
 public:
  absl::StatusOr<absl::Span<const float>> Decode(int32_t token, int64_t position) override {
    decoded.emplace_back(token, position);
    logits_.assign(8, 0);
    logits_[static_cast<size_t>(token + 1) % 8] = 1 + added;
    return absl::MakeConstSpan(logits_);
  }
  std::vector<std::pair<int32_t, int64_t>> decoded;
  float added = 0;

 private:
  std::vector<float> logits_;
};

// Of a model that was trained on samples of `length` tokens; `context`: its positions, 0: as many.
std::shared_ptr<const engine::Plan> PlanOf(int64_t length, int64_t context = 0) {
  engine::TrainSpec spec;
  auto& gpt = spec.model.emplace<engine::GptSpec>();
  gpt.layers = gpt.heads = 1;
  gpt.width = 4;
  gpt.vocab = 8;
  gpt.context = context;
  const auto type = FieldSpec::Type::kInt32;
  spec.input = {{{"tokens", type, {length}, 6}, {"labels", type, {length}, 6}}, 6};
  spec.eval_block = 1;
  spec.decode = true;
  return engine::Plan::CompileInference(spec).value();
}

using Decoded = std::vector<std::pair<int32_t, int64_t>>;

TEST(TextWriter, TheNewerHalfMovesToTheFrontWhenPositionsEnd) {
  const auto plan = PlanOf(4);
  FakeDecoder decoder;
  TextWriter writer(plan.get(), &decoder);
  const auto logits = writer.Begin({0, 1, 2});
  ASSERT_TRUE(logits.ok());
  EXPECT_EQ(logits->size(), 6u);  // without the padded table's rows
  EXPECT_EQ((*logits)[3], 1);
  ASSERT_TRUE(writer.Append(3).ok());
  EXPECT_EQ(decoder.decoded, (Decoded{{0, 0}, {1, 1}, {2, 2}, {3, 3}}));
  decoder.decoded.clear();
  ASSERT_TRUE(writer.Append(4).ok());
  ASSERT_TRUE(writer.Append(5).ok());
  EXPECT_EQ(decoder.decoded, (Decoded{{2, 0}, {3, 1}, {4, 2}, {5, 3}}));
}

TEST(TextWriter, OfALongPromptTheEndCounts) {
  const auto plan = PlanOf(3);
  FakeDecoder decoder;
  TextWriter writer(plan.get(), &decoder);
  ASSERT_TRUE(writer.Begin({0, 1, 2, 3, 4}).ok());
  EXPECT_EQ(decoder.decoded, (Decoded{{2, 0}, {3, 1}, {4, 2}}));
}

TEST(TextWriter, PositionsThatNoSampleReachedAreNotUsed) {
  const auto plan = PlanOf(3, 8);
  ASSERT_EQ(plan->decode_positions(), 8);
  FakeDecoder decoder;
  TextWriter writer(plan.get(), &decoder);
  ASSERT_TRUE(writer.Begin({0, 1, 2, 3}).ok());
  ASSERT_TRUE(writer.Append(4).ok());
  EXPECT_EQ(decoder.decoded, (Decoded{{1, 0}, {2, 1}, {3, 2}, {3, 0}, {4, 1}}));
}

TEST(TextWriter, OnePositionIsEnough) {
  const auto plan = PlanOf(1);
  FakeDecoder decoder;
  TextWriter writer(plan.get(), &decoder);
  ASSERT_TRUE(writer.Begin({2}).ok());
  ASSERT_TRUE(writer.Append(3).ok());
  ASSERT_TRUE(writer.Append(4).ok());
  EXPECT_EQ(decoder.decoded, (Decoded{{2, 0}, {3, 0}, {4, 0}}));
}

TEST(TextWriter, OutputsThatAreNotFiniteEndTheText) {
  const auto plan = PlanOf(4);
  FakeDecoder decoder;
  TextWriter writer(plan.get(), &decoder);
  ASSERT_TRUE(writer.Begin({2}).ok());
  decoder.added = std::numeric_limits<float>::infinity();
  EXPECT_EQ(writer.Append(3).status().code(), absl::StatusCode::kDataLoss);
  decoder.added = std::numeric_limits<float>::quiet_NaN();
  const auto begun = writer.Begin({1});
  EXPECT_EQ(begun.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(begun.status().message()),
              testing::HasSubstr("the model's outputs are not finite"));
}

TEST(JsonString, KeepsUtf8AndMarksTheRest) {
  EXPECT_EQ(JsonString("a\"\n\xC3\xA4"), "\"a\\\"\\u000a\xC3\xA4\"");
  EXPECT_EQ(JsonString("\xF0\x9F\x8C\xB3"), "\"\xF0\x9F\x8C\xB3\"");
  // A lone continuation, a cut character, an overlong one, half of a pair, one beyond the last.
  EXPECT_EQ(JsonString("\x80"), "\"\\ufffd\"");
  EXPECT_EQ(JsonString("\xC3"), "\"\\ufffd\"");
  EXPECT_EQ(JsonString("\xC0\xAF"), "\"\\ufffd\\ufffd\"");
  EXPECT_EQ(JsonString("\xED\xA0\x80"), "\"\\ufffd\\ufffd\\ufffd\"");
  EXPECT_EQ(JsonString("\xF4\x90\x80\x80!"), "\"\\ufffd\\ufffd\\ufffd\\ufffd!\"");
}

}  // namespace
}  // namespace lockstep::worker
