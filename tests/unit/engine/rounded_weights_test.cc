// SPDX-License-Identifier: Apache-2.0
// Weights that products round themselves: which casts go, and which stay.
#include "engine/passes/rounded_weights.h"

#include <gtest/gtest.h>

#include <string>

#include "engine/cpu/backend.h"
#include "engine/graph/op.h"
#include "engine/ops/ops.h"
#include "tests/unit/engine/step_job.h"

namespace lockstep::engine {
namespace {

// x of `rows` rows in bf16, and a product with a weight that is rounded for it.
struct Product {
  Graph graph;
  Value weight, rounded, product;

  Product(int64_t rows, int64_t k, const OpDef& leaf = ops::kParameter) {
    const Value x = graph.AddLeaf(ops::kInput, {DType::kBF16, {rows, k}}, "x");
    weight = graph.AddLeaf(leaf, {DType::kF32, {24, k}}, "weight");
    rounded = graph.Add(ops::kCast, {weight}, {{kDTypeAttr, std::string(Name(DType::kBF16))}});
    product = graph.Add(ops::kLinear, {x, rounded});
    graph.AddOutput("product", product);
  }
  // Casts after the pass; the graph is sound.
  int Casts() const {
    EXPECT_TRUE(graph.status().ok()) << graph.status();
    const Graph made = RoundWeightsInProducts(graph, CpuBackend(CpuTarget{}));
    EXPECT_TRUE(made.Verify().ok()) << made.Verify();
    int casts = 0;
    for (const Node& node : made.nodes()) casts += node.op == &ops::kCast ? 1 : 0;
    return casts;
  }
};

TEST(RoundedWeightsTest, OfManyRowsAreReadByTheirProduct) { EXPECT_EQ(Product(32, 40).Casts(), 0); }

TEST(RoundedWeightsTest, StayWhereTheKernelDoesNotRound) {
  EXPECT_EQ(Product(4, 40).Casts(), 1) << "few rows read the weight where it lies";
  EXPECT_EQ(Product(32, 41).Casts(), 1) << "no pairs along k";
}

TEST(RoundedWeightsTest, StayWhereAnotherReadsThemToo) {
  Product two(32, 40);
  two.graph.AddOutput("rounded", two.rounded);
  EXPECT_EQ(two.Casts(), 1);
  EXPECT_EQ(Product(32, 40, ops::kInput).Casts(), 1) << "what is no parameter is not kept";
}

TEST(RoundedWeightsTest, AreOfTheTrainingStep) {
  TrainSpec spec = TinyBert();
  spec.precision = "bf16";
  const auto rounding = Plan::Compile(spec).value();
  spec.passes.patterns.weights = false;
  const auto copies = Plan::Compile(spec).value();
  const auto casts = [](const Plan& plan) {
    const std::string text = plan.DumpText();
    int count = 0;
    for (size_t at = 0; (at = text.find("= cast(", at)) != std::string::npos; ++at) ++count;
    return count;
  };
  EXPECT_LT(casts(*rounding), casts(*copies));
}

}  // namespace
}  // namespace lockstep::engine
