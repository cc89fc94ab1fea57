// SPDX-License-Identifier: Apache-2.0
// Biases that are rounded before the products of a GPU, and those that are added as they are.
#include "engine/passes/rounded_biases.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/cpu/backend.h"
#include "engine/cuda/backend.h"
#include "engine/graph/op.h"
#include "engine/ops/ops.h"

namespace lockstep::engine {
namespace {

// x in bf16 and products of it with one weight and one bias.
class RoundedBiasesTest : public testing::Test {
 protected:
  explicit RoundedBiasesTest(const OpDef& leaf = ops::kParameter) {
    x_ = graph_.AddLeaf(ops::kInput, {DType::kBF16, {32, 40}}, "x");
    weight_ = graph_.AddLeaf(ops::kInput, {DType::kBF16, {24, 40}}, "weight");
    bias_ = graph_.AddLeaf(leaf, {DType::kF32, {24}}, "bias");
  }
  void Multiply(DType type, const std::string& activation = "none", bool residual = false) {
    Attrs attrs;
    if (IsHalf(type)) attrs.Set(kDTypeAttr, std::string(Name(type)));
    if (activation != "none") attrs.Set("activation", activation);
    std::vector<Value> inputs = {x_, weight_, bias_};
    if (residual) inputs.push_back(graph_.AddLeaf(ops::kInput, {type, {32, 24}}, "residual"));
    const Value made = graph_.Add(ops::kLinear, inputs, attrs);
    graph_.AddOutput("product" + std::to_string(made.node), made);
  }
  // Casts after the pass, whose graph is sound, for a GPU.
  int Casts(const Backend& backend = CudaBackend()) const {
    EXPECT_TRUE(graph_.status().ok()) << graph_.status();
    const Graph made = RoundBiasesBefore(graph_, backend);
    EXPECT_TRUE(made.Verify().ok()) << made.Verify();
    EXPECT_EQ(made.outputs().size(), graph_.outputs().size());
    int casts = 0;
    for (const Node& node : made.nodes()) casts += node.op == &ops::kCast ? 1 : 0;
    for (const Node& node : made.nodes()) {
      if (node.op != &ops::kLinear || casts == 0) continue;
      EXPECT_EQ(made.node(node.inputs[2].node).op, &ops::kCast);
      EXPECT_EQ(made.type(node.inputs[2]), (TensorType{node.outputs[0].dtype, {24}}));
    }
    return casts;
  }

  Graph graph_;
  Value x_, weight_, bias_;
};

TEST_F(RoundedBiasesTest, OneCopyIsForAllProducts) {
  Multiply(DType::kBF16);
  Multiply(DType::kBF16, "relu");
  EXPECT_EQ(Casts(), 1);
}

TEST_F(RoundedBiasesTest, ACopyThatIsThereIsTaken) {
  const Value rounded =
      graph_.Add(ops::kCast, {bias_}, {{kDTypeAttr, std::string(Name(DType::kBF16))}});
  graph_.AddOutput("rounded", rounded);
  Multiply(DType::kBF16);
  EXPECT_EQ(Casts(), 1);
}

TEST_F(RoundedBiasesTest, ASumThatIsRoundedLaterTakesTheBiasAsItIs) {
  Multiply(DType::kF32);
  Multiply(DType::kBF16, "gelu");
  Multiply(DType::kBF16, "none", /*residual=*/true);
  EXPECT_EQ(Casts(), 0);
}

TEST_F(RoundedBiasesTest, TheCpuAddsTheBiasAsItIs) {
  Multiply(DType::kBF16);
  EXPECT_EQ(Casts(CpuBackend(CpuTarget{})), 0);
}

class InputBiasesTest : public RoundedBiasesTest {
 protected:
  InputBiasesTest() : RoundedBiasesTest(ops::kInput) {}
};

TEST_F(InputBiasesTest, WhatIsNoParameterIsNotRoundedBefore) {
  Multiply(DType::kBF16);
  EXPECT_EQ(Casts(), 0);
}

}  // namespace
}  // namespace lockstep::engine
