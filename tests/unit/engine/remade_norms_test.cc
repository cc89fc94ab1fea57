// SPDX-License-Identifier: Apache-2.0
// Residuals that are layer normalisations: which are made again, and which are left alone.
#include "engine/passes/remade_norms.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/graph/op.h"
#include "engine/ops/ops.h"
#include "engine/passes/launch_groups.h"
#include "tests/unit/engine/step_job.h"

namespace lockstep::engine {
namespace {

constexpr DType kF32 = DType::kF32;

// x, its normalisation y, what is rounded of that, and a normalised sum of y and a branch.
struct NormNet {
  Graph graph;
  Value x, w, y, rounded, branch, sum, normed;

  // The sum has `drops` of the branch; y comes first in it unless `last`.
  explicit NormNet(bool drops = false, bool last = true, DType type = kF32) {
    x = graph.AddLeaf(ops::kInput, {type, {4, 8}}, "x");
    w = graph.AddLeaf(ops::kParameter, {kF32, {8}}, "w");
    branch = graph.AddLeaf(ops::kInput, {type, {4, 8}}, "branch");
    const Value address = graph.AddLeaf(ops::kInput, {DType::kI32, {4}}, "address");
    y = Norm(x);
    rounded = Cast(y);
    graph.AddOutput("rounded", rounded);
    if (drops) {
      sum = graph.Add(ops::kDropout, {branch, address, y}, {{"rate", 0.1}, {"key", int64_t{7}}});
    } else {
      sum = last ? graph.Add(ops::kAdd, {branch, y}) : graph.Add(ops::kAdd, {y, branch});
    }
    normed = Norm(sum);
    graph.AddOutput("normed", normed);
  }
  Value Norm(Value value) {
    const DType type = graph.type(x).dtype;
    if (type == kF32) return graph.Add(ops::kLayerNorm, {value, w, w});
    return graph.Add(ops::kLayerNorm, {value, w, w}, {{kDTypeAttr, std::string(Name(type))}});
  }
  Value Cast(Value value) {
    return graph.Add(ops::kCast, {value}, {{kDTypeAttr, std::string(Name(DType::kBF16))}});
  }
  // x is kept, as a backward pass keeps it.
  NormNet& Keep() {
    graph.AddOutput("kept", graph.Add(ops::kAdd, {x, normed}));
    return *this;
  }
  // Normalisations more than there were; the graph is sound.
  int Remade() const {
    EXPECT_TRUE(graph.status().ok()) << graph.status();
    const Graph made = RemakeNorms(graph);
    EXPECT_TRUE(made.Verify().ok()) << made.Verify();
    EXPECT_EQ(made.outputs().size(), graph.outputs().size());
    const auto more = static_cast<int>(made.nodes().size() - graph.nodes().size());
    EXPECT_EQ(Norms(made) - Norms(graph), more);
    if (more == 0) {
      EXPECT_EQ(made.ToText(), graph.ToText());
    }
    return more;
  }
  static int Norms(const Graph& graph) {
    int count = 0;
    for (const Node& node : graph.nodes()) count += node.op == &ops::kLayerNorm ? 1 : 0;
    return count;
  }
};

TEST(RemadeNormsTest, AResidualIsMadeAgainInTheLaunchOfItsSum) {
  for (const bool drops : {false, true}) {
    for (const bool last : {false, true}) {
      NormNet net(drops, last);
      net.Keep();
      EXPECT_EQ(net.Remade(), 1);
      const Graph made = RemakeNorms(net.graph);
      const std::vector<int> groups = LaunchGroups(made);
      const int again = net.sum.node;  // it stands where the sum stood
      ASSERT_EQ(made.node(again).op, &ops::kLayerNorm);
      EXPECT_EQ(made.node(again).inputs, (std::vector<Value>{net.x, net.w, net.w}));
      EXPECT_EQ(groups[static_cast<size_t>(again)], again + 2) << "with the sum and its own";
      const std::vector<Value>& inputs = made.node(again + 1).inputs;
      EXPECT_EQ(inputs[drops ? 2 : last ? 1 : 0], (Value{again, 0}));
      EXPECT_EQ(made.Origin({again, 0}), net.y);
      EXPECT_EQ(made.Origin({again + 1, 0}), net.sum);
      EXPECT_EQ(groups[static_cast<size_t>(net.y.node)], net.rounded.node);
      // Without the pass the residual is no part of the launch.
      EXPECT_EQ(LaunchGroups(net.graph)[static_cast<size_t>(net.y.node)], net.rounded.node);
    }
  }
}

TEST(RemadeNormsTest, EachOfTwoSumsHasItsOwn) {
  NormNet net;
  const Value sum = net.graph.Add(ops::kAdd, {net.y, net.branch});
  net.graph.AddOutput("second", net.Norm(sum));
  net.Keep();
  EXPECT_EQ(net.Remade(), 2);
}

TEST(RemadeNormsTest, WhatIsWrittenAnywayIsReadThere) {
  EXPECT_EQ(NormNet().Remade(), 0) << "x would be kept for it alone";
  NormNet output;
  output.graph.AddOutput("y", output.y);
  EXPECT_EQ(output.Keep().Remade(), 0) << "an output of the graph";
  NormNet other;
  other.graph.AddOutput("relu", other.graph.Add(ops::kRelu, {other.y}));
  EXPECT_EQ(other.Keep().Remade(), 0) << "another reader";
  NormNet late;
  late.graph.AddOutput("cast", late.Cast(late.y));
  EXPECT_EQ(late.Keep().Remade(), 0) << "a cast that is no part of its launch";
  NormNet twice;
  twice.graph.AddOutput("twice", twice.Norm(twice.graph.Add(ops::kAdd, {twice.y, twice.y})));
  EXPECT_EQ(twice.Keep().Remade(), 0) << "the branch is the residual too";
  NormNet bare;
  bare.graph.AddOutput("bare", bare.graph.Add(ops::kAdd, {bare.y, bare.branch}));
  EXPECT_EQ(bare.Keep().Remade(), 0) << "a sum that is not normalised";
}

TEST(RemadeNormsTest, SixteenBitsAreReadAsTheyAre) {
  NormNet net(/*drops=*/false, /*last=*/true, DType::kBF16);
  ASSERT_TRUE(net.graph.status().ok()) << net.graph.status();
  EXPECT_EQ(net.Keep().Remade(), 0);
}

int64_t NormsOf(TrainSpec spec, DeviceKind device, const char* precision) {
  spec.device = device;
  spec.precision = precision;
  int64_t count = 0;
  for (const NodeInfo& node : Plan::Compile(spec).value()->Nodes(ProgramKind::kTraining)) {
    count += node.op == "layer_norm" ? 1 : 0;
  }
  return count;
}

// BERT's residuals are normalisations, GPT's are sums; a CPU has no launches.
TEST(RemadeNormsTest, PlansForGpusHaveThem) {
  TrainSpec spec = TinyBert();
  const int64_t cpu = NormsOf(spec, DeviceKind::kCpu, "bf16");
  EXPECT_GT(NormsOf(spec, DeviceKind::kCuda, "bf16"), cpu);
  EXPECT_EQ(NormsOf(spec, DeviceKind::kCuda, "fp32"), cpu);
  EXPECT_EQ(NormsOf(spec, DeviceKind::kCuda, "pure_bf16"), cpu);
  EXPECT_EQ(NormsOf(TinyGpt(), DeviceKind::kCuda, "bf16"),
            NormsOf(TinyGpt(), DeviceKind::kCpu, "bf16"));
  for (const bool fuse : {false, true}) {
    spec.passes.fuse = fuse;
    spec.passes.patterns.residuals = false;
    EXPECT_EQ(NormsOf(spec, DeviceKind::kCuda, "bf16"), cpu);
  }
}

}  // namespace
}  // namespace lockstep::engine
