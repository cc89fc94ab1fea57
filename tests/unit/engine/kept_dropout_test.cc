// SPDX-License-Identifier: Apache-2.0
// Dropout's bits from attention to its gradient: which plans have them, and what they leave alone.
#include "engine/passes/kept_dropout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_replace.h"
#include "engine/exec/plan.h"
#include "engine/graph/op.h"
#include "engine/ops/ops.h"
#include "tests/unit/engine/step_job.h"

namespace lockstep::engine {
namespace {

using Mode = RecomputeSpec::Mode;

// Three blocks with heads of 64 columns on a GPU, for 4 sequences of 130 tokens.
TrainSpec WideGpt() {
  TrainSpec spec = TinyGpt();
  std::get<GptSpec>(spec.model).width = 128;
  for (FieldSpec& field : spec.input.fields) field.shape = {130};
  spec.precision = "bf16";
  spec.device = DeviceKind::kCuda;
  return spec;
}
// A bit for each of 192 x 192 pairs of 4 sequences in 2 heads.
constexpr size_t kBitsBytes = size_t{4} * 2 * 192 * 192 / 8;

std::shared_ptr<const CompiledPlan> PlanOf(const TrainSpec& spec) {
  return CompiledPlan::Make(spec).value();
}
std::shared_ptr<const CompiledPlan> PlanWithout(TrainSpec spec) {
  spec.passes.keep_dropout = false;
  return PlanOf(spec);
}

bool Keeps(const Node& node) { return node.attrs.Int(ops::kKeepsDropoutAttr) != 0; }
int KeepingNodes(const Graph& graph) {
  int count = 0;
  for (const Node& node : graph.nodes()) count += Keeps(node) ? 1 : 0;
  return count;
}

TEST(KeptDropoutTest, EachGradientReadsWhatItsAttentionLeaves) {
  const auto plan = PlanOf(WideGpt());
  const Graph& graph = plan->train().graph;
  int gradients = 0;
  for (const Node& node : graph.nodes()) {
    if (node.op != &ops::kAttentionBackward) continue;
    ++gradients;
    ASSERT_TRUE(Keeps(node));
    const Value bits = node.inputs.back(), log_sums = node.inputs[2];
    EXPECT_EQ(bits.node, log_sums.node);
    const Node& attention = graph.node(bits.node);
    EXPECT_EQ(attention.op, &ops::kAttention);
    EXPECT_TRUE(Keeps(attention));
    ASSERT_EQ(attention.outputs.size(), 3u);
    EXPECT_EQ(attention.outputs[2], (TensorType{DType::kI32, {4, 2, 3, 384}}));
    EXPECT_EQ(attention.outputs[2].bytes(), kBitsBytes);
  }
  EXPECT_EQ(gradients, 3);
  EXPECT_EQ(KeepingNodes(graph), 6);
  EXPECT_EQ(KeepingNodes(plan->evaluate().graph), 0);
}

// All but them is what it was, and the gradient's scratch has no place for bits.
TEST(KeptDropoutTest, NothingElseIsAnotherOne) {
  const auto with = PlanOf(WideGpt()), without = PlanWithout(WideGpt());
  const Graph& a = with->train().graph;
  const Graph& b = without->train().graph;
  ASSERT_EQ(a.nodes().size(), b.nodes().size());
  EXPECT_EQ(KeepingNodes(b), 0);
  for (int id = 0; id < static_cast<int>(a.nodes().size()); ++id) {
    const Node& one = a.node(id);
    const Node& other = b.node(id);
    EXPECT_EQ(one.op, other.op);
    EXPECT_EQ(one.name, other.name);
    EXPECT_EQ(a.Origin({id, 0}), b.Origin({id, 0}));
    std::vector<Value> inputs = one.inputs;
    std::vector<TensorType> outputs = one.outputs;
    std::string attrs = one.attrs.ToString();
    if (Keeps(one)) {
      if (one.op == &ops::kAttention) outputs.pop_back();
      if (one.op != &ops::kAttention) inputs.pop_back();
      attrs = absl::StrReplaceAll(attrs, {{"keeps_dropout=1 ", ""}});
    }
    EXPECT_EQ(inputs, other.inputs);
    EXPECT_EQ(outputs, other.outputs);
    EXPECT_EQ(attrs, other.attrs.ToString());
  }
  EXPECT_EQ(a.outputs(), b.outputs());
  EXPECT_EQ(with->evaluate().graph.ToText(), without->evaluate().graph.ToText());
  const auto scratch = [](const CompiledPlan& plan) {
    size_t bytes = 0;
    for (const NodeInfo& node : plan.Nodes(ProgramKind::kTraining)) {
      if (node.op == "attention_backward") bytes += node.scratch_bytes;
    }
    return bytes;
  };
  EXPECT_EQ(scratch(*without) - scratch(*with), 3 * kBitsBytes);
}

// A run goes on from what it saved without them, or before there were any.
TEST(KeptDropoutTest, TheyAreNoOtherMath) {
  for (const Mode mode : {Mode::kNone, Mode::kSelective, Mode::kBlocks}) {
    for (const bool constants : {false, true}) {
      for (const int accumulate : {1, 2}) {
        TrainSpec spec = WideGpt();
        spec.recompute.mode = mode;
        spec.passes.keep_constants = constants;
        spec.accumulate = accumulate;
        const auto with = PlanOf(spec), without = PlanWithout(spec);
        EXPECT_NE(with->hash(), without->hash());
        EXPECT_EQ(with->math_hash(), without->math_hash());
      }
    }
  }
  TrainSpec spec = WideGpt();
  spec.recompute.mode = Mode::kAuto;
  spec.recompute.arena_bytes = 1;
  EXPECT_EQ(PlanOf(spec)->math_hash(), PlanWithout(spec)->math_hash());
}

// They are those of the attention that is made again, and the first one leaves none.
TEST(KeptDropoutTest, WhatIsMadeAgainLeavesThem) {
  TrainSpec spec = WideGpt();
  spec.recompute.mode = Mode::kBlocks;
  const auto plan = PlanOf(spec);
  const Graph& graph = plan->train().graph;
  int again = 0, first = 0;
  for (const Node& node : graph.nodes()) {
    if (node.op != &ops::kAttentionBackward) continue;
    ASSERT_TRUE(Keeps(node));
    EXPECT_EQ(node.inputs.back().node, node.inputs[1].node);
  }
  for (const Node& node : graph.nodes()) {
    if (node.op != &ops::kAttention) continue;
    (Keeps(node) ? again : first) += 1;
  }
  EXPECT_EQ(again, 3);
  EXPECT_GT(first, 0);
  // One layer's lie there at a time.
  const size_t with = plan->train().memory.arena_bytes;
  EXPECT_LT(with, PlanWithout(spec)->train().memory.arena_bytes + 2 * kBitsBytes);
}

TEST(KeptDropoutTest, OthersHaveNone) {
  const auto count = [](const TrainSpec& spec) {
    return KeepingNodes(PlanOf(spec)->train().graph);
  };
  EXPECT_EQ(count(WideGpt()), 6);
  for (const char* precision : {"fp16", "pure_bf16"}) {
    TrainSpec spec = WideGpt();
    spec.precision = precision;
    EXPECT_EQ(count(spec), 6) << precision;
  }
  for (const char* precision : {"fp32", "tf32"}) {
    TrainSpec spec = WideGpt();
    spec.precision = precision;
    EXPECT_EQ(count(spec), 0) << precision;
  }
  TrainSpec cpu = WideGpt();
  cpu.device = DeviceKind::kCpu;
  EXPECT_EQ(count(cpu), 0);
  EXPECT_EQ(PlanOf(cpu)->hash(), PlanWithout(cpu)->hash());
  TrainSpec calm = WideGpt();
  std::get<GptSpec>(calm.model).dropout = 0;
  EXPECT_EQ(count(calm), 0);
  EXPECT_EQ(PlanOf(calm)->hash(), PlanWithout(calm)->hash());
  for (const int heads : {1, 4}) {  // of 128 columns, and of 32
    TrainSpec spec = WideGpt();
    std::get<GptSpec>(spec.model).heads = heads;
    EXPECT_EQ(count(spec), 0) << heads;
  }
}

// They grow with the square of the length: no more memory than queries, keys and values. Attention
// over a few tokens is bound by memory.
TEST(KeptDropoutTest, ShortAndLongSequencesHaveNone) {
  const auto count = [](int64_t length) {
    TrainSpec spec = WideGpt();
    std::get<GptSpec>(spec.model).layers = 1;
    for (FieldSpec& field : spec.input.fields) field.shape = {length};
    return KeepingNodes(PlanOf(spec)->train().graph);
  };
  EXPECT_EQ(count(128), 0);
  EXPECT_EQ(count(129), 2);
  EXPECT_EQ(count(3072), 2);
  EXPECT_EQ(count(3073), 0);
}

// A back end that wants them of the gradient alone, of the attention alone, or not at all.
TEST(KeptDropoutTest, BothAreAsked) {
  struct Asked : Backend {
    size_t ScratchBytes(const Graph&, const Node&) const override { return 0; }
    bool KeepsDropout(const Graph&, const Node& node) const override {
      return node.op == &ops::kAttention ? attention : gradient;
    }
    bool attention = false;
    bool gradient = false;
  };
  const Graph graph = PlanWithout(WideGpt())->train().graph;
  Asked backend;
  EXPECT_EQ(KeepDropout(graph, backend).ToText(), graph.ToText());
  backend.attention = true;
  EXPECT_EQ(KeepDropout(graph, backend).ToText(), graph.ToText());
  backend.attention = false;
  backend.gradient = true;
  EXPECT_EQ(KeepDropout(graph, backend).ToText(), graph.ToText());
  backend.attention = true;
  const Graph made = KeepDropout(graph, backend);
  EXPECT_TRUE(made.Verify().ok()) << made.Verify();
  EXPECT_EQ(KeepingNodes(made), 6);
}

// Bits of other shapes, or without dropout, are refused.
TEST(KeptDropoutTest, WrongBitsAreNoOperands) {
  const auto add = [&](double rate, int64_t queries, const Shape& bits) {
    Graph own;
    const Value q = own.AddLeaf(ops::kInput, {DType::kF32, {2 * queries, 64}}, "q");
    const Value k = own.AddLeaf(ops::kInput, {DType::kF32, {2 * 70, 64}}, "k");
    const Value y = own.AddLeaf(ops::kInput, {DType::kF32, {2 * queries, 64}}, "y");
    const Value sums = own.AddLeaf(ops::kInput, {DType::kF32, {2, 1, queries}}, "sums");
    const Value address = own.AddLeaf(ops::kInput, {DType::kI32, {4}}, "address");
    const Value kept = own.AddLeaf(ops::kInput, {DType::kI32, bits}, "kept");
    std::vector<Value> inputs = {y, y, sums, q, k, k};
    if (rate > 0) inputs.push_back(address);
    inputs.push_back(kept);
    own.Add(ops::kAttentionBackward, inputs,
            {{"heads", int64_t{1}},
             {"length", int64_t{70}},
             {"queries", queries},
             {"causal", int64_t{0}},
             {"masked", int64_t{0}},
             {"rate", rate},
             {"key", int64_t{7}},
             {ops::kKeepsDropoutAttr, int64_t{1}}});
    return std::string(own.status().message());
  };
  EXPECT_EQ(add(0.5, 70, {2, 1, 2, 256}), "");
  EXPECT_THAT(add(0.5, 70, {2, 1, 2, 128}), testing::HasSubstr("i32[2,1,2,256] is needed"));
  EXPECT_THAT(add(0, 70, {2, 1, 2, 256}), testing::HasSubstr("without dropout"));
  EXPECT_THAT(add(0.5, 7, {2, 1, 2, 256}), testing::HasSubstr("a part of the queries"));
}

}  // namespace
}  // namespace lockstep::engine
