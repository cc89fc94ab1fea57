// SPDX-License-Identifier: Apache-2.0
// Gradients of values that are used several times, of which only some are wanted.
#include "engine/passes/autodiff.h"
#include "engine/ops/ops.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "common/philox.h"
#include "engine/graph/op.h"
#include "tests/unit/engine/run_graph.h"

namespace lockstep::engine {
namespace {

constexpr DType kF32 = DType::kF32;

std::vector<float> Values(int64_t count, uint64_t site) {
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t bits = MixBits(site * 1000003 + static_cast<uint64_t>(i));
    values.push_back(UniformFloat(static_cast<uint32_t>(bits)) * 2 - 1);
  }
  return values;
}

// tanh(tanh(x W^T) W^T): W is used twice. The seed weighs the outputs.
struct Shared {
  Shared() {
    x = graph.AddLeaf(ops::kInput, {kF32, {3, 4}}, "x");
    w = graph.AddLeaf(ops::kParameter, {kF32, {4, 4}}, "w");
    seed = graph.AddLeaf(ops::kInput, {kF32, {3, 4}}, "seed");
    first = graph.Add(ops::kLinear, {x, w});
    second = graph.Add(ops::kLinear, {graph.Add(ops::kTanh, {first}), w});
    y = graph.Add(ops::kTanh, {second});
    tensors = {{"x", Values(12, 1)}, {"w", Values(16, 2)}, {"seed", Values(12, 3)}};
  }
  // <y, seed>, in double.
  double Loss(const Tensors& leaves) const {
    Graph forward = graph;
    forward.AddOutput("y", y);
    const std::vector<float> out = RunGraph(forward, leaves).at("y");
    double loss = 0;
    for (size_t i = 0; i < out.size(); ++i) {
      loss += static_cast<double>(out[i]) * static_cast<double>(leaves.at("seed")[i]);
    }
    return loss;
  }
  void ExpectFiniteDifferences(const std::string& leaf, const std::vector<float>& gradient) const {
    constexpr float kStep = 1e-2f;
    for (size_t i = 0; i < gradient.size(); ++i) {
      Tensors up = tensors, down = tensors;
      up.at(leaf)[i] += kStep;
      down.at(leaf)[i] -= kStep;
      const double slope = (Loss(up) - Loss(down)) / (2 * static_cast<double>(kStep));
      EXPECT_NEAR(static_cast<double>(gradient[i]), slope, 2e-3) << leaf << " " << i;
    }
  }

  Graph graph;
  Value x, w, seed, first, second, y;
  Tensors tensors;
};

TEST(AutodiffTest, ASharedParameterGetsTheSumOfItsUses) {
  Shared net;
  Graph graph = net.graph;
  const auto gradients = Differentiate(&graph, {{net.y, net.seed}}, {net.w, net.x});
  ASSERT_TRUE(gradients.ok()) << gradients.status();
  graph.AddOutput("dw", (*gradients)[0]);
  graph.AddOutput("dx", (*gradients)[1]);
  ASSERT_TRUE(graph.Verify().ok()) << graph.Verify();
  const Tensors out = RunGraph(graph, net.tensors);
  net.ExpectFiniteDifferences("w", out.at("dw"));
  net.ExpectFiniteDifferences("x", out.at("dx"));
}

// The order of a float addition is part of the promise.
TEST(AutodiffTest, TheLastUseComesFirstInTheSum) {
  Shared net;
  Graph graph = net.graph;
  const auto gradients = Differentiate(&graph, {{net.y, net.seed}}, {net.w});
  ASSERT_TRUE(gradients.ok()) << gradients.status();
  const Node& sum = graph.node((*gradients)[0].node);
  ASSERT_STREQ(sum.op->name, "add");
  const Node& of_second = graph.node(sum.inputs[0].node);
  const Node& of_first = graph.node(sum.inputs[1].node);
  ASSERT_STREQ(of_second.op->name, "linear_backward_weight");
  ASSERT_STREQ(of_first.op->name, "linear_backward_weight");
  EXPECT_EQ(of_first.inputs[1], net.x);
  EXPECT_EQ(of_second.inputs[1], graph.node(net.second.node).inputs[0]);
}

TEST(AutodiffTest, WhatNobodyWantsIsNotComputed) {
  Shared net;
  Graph graph = net.graph;
  const size_t before = graph.nodes().size();
  ASSERT_TRUE(Differentiate(&graph, {{net.y, net.seed}}, {net.w}).ok());
  int input_gradients = 0;
  for (size_t i = before; i < graph.nodes().size(); ++i) {
    input_gradients += std::string(graph.nodes()[i].op->name) == "linear_backward_input" ? 1 : 0;
  }
  EXPECT_EQ(input_gradients, 1) << "through the second layer alone";
}

TEST(AutodiffTest, WhatNoSeedDependsOnHasNoGradient) {
  Shared net;
  Graph graph = net.graph;
  const Value other = graph.AddLeaf(ops::kParameter, {kF32, {4}}, "other");
  const auto gradients = Differentiate(&graph, {{net.y, net.seed}}, {other, net.w});
  ASSERT_TRUE(gradients.ok()) << gradients.status();
  EXPECT_FALSE((*gradients)[0].valid());
  EXPECT_TRUE((*gradients)[1].valid());
}

// One value with two seeds, and a value that is its own gradient's base: x + x.
TEST(AutodiffTest, TwoReadsByOneNodeAndTwoSeedsAddUp) {
  Graph graph;
  const Value x = graph.AddLeaf(ops::kParameter, {kF32, {2, 2}}, "x");
  const Value seed = graph.AddLeaf(ops::kInput, {kF32, {2, 2}}, "seed");
  const Value y = graph.Add(ops::kAdd, {x, x});
  const auto gradients = Differentiate(&graph, {{y, seed}, {y, seed}}, {x});
  ASSERT_TRUE(gradients.ok()) << gradients.status();
  graph.AddOutput("dx", (*gradients)[0]);
  const Tensors out = RunGraph(graph, {{"x", {1, 2, 3, 4}}, {"seed", {1, 10, 100, 1000}}});
  EXPECT_THAT(out.at("dx"), ::testing::ElementsAre(4, 40, 400, 4000));
}

TEST(AutodiffTest, AnOpWithoutGradientIsNamed) {
  Graph graph;
  const Value logits = graph.AddLeaf(ops::kParameter, {kF32, {4, 3}}, "logits");
  const Value labels = graph.AddLeaf(ops::kInput, {DType::kI32, {4}}, "labels");
  const Value sums = graph.Add(ops::kClassificationSums, {logits, labels}, {}, "score");
  ASSERT_TRUE(graph.status().ok()) << graph.status();
  const auto gradients = Differentiate(&graph, {{sums, sums}}, {logits});
  EXPECT_EQ(gradients.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(gradients.status().message(), ::testing::HasSubstr("classification_sums score"));
}

}  // namespace
}  // namespace lockstep::engine
