// SPDX-License-Identifier: Apache-2.0
// Building, verifying and dumping graphs.
#include "engine/graph/graph.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/ops/ops.h"
#include "engine/passes/graph_matcher.h"

namespace lockstep::engine {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr DType kF32 = DType::kF32;

// relu(x W^T + b), and both gradients of a layer norm's weights, an op with two outputs.
Graph Example() {
  Graph graph;
  const Value x = graph.AddLeaf(ops::kInput, {kF32, {2, 3}}, "x");
  const Value w = graph.AddLeaf(ops::kParameter, {kF32, {4, 3}}, "fc.weight");
  const Value b = graph.AddLeaf(ops::kParameter, {kF32, {4}}, "fc.bias");
  const Value y = graph.Add(ops::kLinear, {x, w, b}, {{"activation", std::string("relu")}}, "fc");
  const Value flat = graph.Add(ops::kReshape, {y}, {{"shape", Shape{8}}});
  const Value norm = graph.Add(ops::kLayerNorm, {y, b, b});
  graph.AddOutput("flat", flat);
  graph.AddOutput("mean", {norm.node, 1});
  return graph;
}

// Nodes are const to everyone; these tests damage them as a wrong pass would.
Node& Damage(const Graph& graph, int id) { return const_cast<Node&>(graph.node(id)); }

TEST(GraphMatcherTest, AnOutputIsAReaderButNoNode) {
  const Graph graph = Example();
  const GraphMatcher match(&graph);
  const int linear = 3, flat = 4, norm = 5;
  EXPECT_TRUE(match.Is(linear, ops::kLinear));
  EXPECT_FALSE(match.Is(linear, ops::kReshape));
  EXPECT_FALSE(match.IsPlain(linear));
  EXPECT_TRUE(match.IsPlain(norm));
  EXPECT_EQ(match.Input(norm, 0), linear);
  EXPECT_THAT(match.Readers(linear), testing::ElementsAre(flat, norm));
  ASSERT_THAT(match.Readers(norm, 1), testing::SizeIs(1)) << "the graph's output";
  const int output = match.Readers(norm, 1)[0];
  EXPECT_TRUE(match.IsOutput(output));
  EXPECT_FALSE(match.Is(output, ops::kLinear));
  EXPECT_FALSE(match.IsOutput(norm));
  EXPECT_EQ(match.OnlyReader(0), linear);
  EXPECT_EQ(match.OnlyReader(linear), -1) << "two";
  EXPECT_EQ(match.OnlyReader(flat), -1) << "no node";
  EXPECT_EQ(match.OnlyReader(norm), -1) << "of two outputs";
}

TEST(GraphTest, ARightGraphIsVerified) {
  const Graph graph = Example();
  EXPECT_TRUE(graph.status().ok()) << graph.status();
  EXPECT_TRUE(graph.Verify().ok()) << graph.Verify();
  EXPECT_EQ(graph.Find("fc"), 3);
  EXPECT_EQ(graph.Find("nothing"), -1);
  EXPECT_GE(graph.Flops(), 2.0 * 2 * 3 * 4) << "those of the linear layer";
}

TEST(GraphTest, ReadersAreInOrderAndOutputsCount) {
  const auto readers = Example().Readers();
  EXPECT_EQ(readers[0][0], std::vector<int>{3});
  EXPECT_EQ(readers[2][0], (std::vector<int>{3, 5, 5}));
  EXPECT_EQ(readers[3][0], (std::vector<int>{4, 5}));
  EXPECT_EQ(readers[4][0], std::vector<int>{6}) << "an output of the graph";
  ASSERT_EQ(readers[5].size(), 3u);
  EXPECT_TRUE(readers[5][0].empty());
  EXPECT_EQ(readers[5][1], std::vector<int>{6});
}

TEST(GraphTest, TheFirstErrorStays) {
  Graph graph;
  const Value x = graph.AddLeaf(ops::kInput, {kF32, {2, 3}}, "x");
  const Value w = graph.AddLeaf(ops::kParameter, {kF32, {4, 5}}, "w");
  EXPECT_FALSE(graph.Add(ops::kLinear, {x, w}, {}, "fc1").valid());
  EXPECT_FALSE(graph.AddLeaf(ops::kInput, {kF32, {0}}, "empty").valid());
  EXPECT_EQ(graph.nodes().size(), 2u);
  EXPECT_EQ(graph.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(graph.status().message(), AllOf(HasSubstr("fc1"), HasSubstr("f32[4,5]")));
  EXPECT_EQ(graph.Verify(), graph.status());
}

TEST(GraphTest, AnExtentBelowOneIsNoShape) {
  Graph graph;
  EXPECT_FALSE(graph.AddLeaf(ops::kInput, {kF32, {2, 0}}, "images").valid());
  EXPECT_THAT(graph.status().message(), AllOf(HasSubstr("images"), HasSubstr("[2,0]")));
}

TEST(GraphTest, MoreValuesThanANodeMayHave) {
  const int64_t most = int64_t{1} << 40;
  for (const Shape& shape : {Shape{most + 1}, Shape{most, 2}, Shape{most, most, most},
                             Shape{int64_t{1} << 32, int64_t{1} << 32}}) {
    Graph graph;
    EXPECT_FALSE(graph.AddLeaf(ops::kParameter, {kF32, shape}, "conv.weight").valid());
    EXPECT_EQ(graph.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(graph.status().message(),
                AllOf(HasSubstr("conv.weight"), HasSubstr("more than 2^40 values")));
  }
  Graph graph;
  const Value x = graph.AddLeaf(ops::kInput, {kF32, {most >> 10, 1}}, "x");
  const Value few = graph.AddLeaf(ops::kParameter, {kF32, {1 << 10, 1}}, "few");
  const Value many = graph.AddLeaf(ops::kParameter, {kF32, {1 << 11, 1}}, "many");
  EXPECT_TRUE(graph.Add(ops::kLinear, {x, few}, {}, "fc1").valid()) << graph.status();
  EXPECT_FALSE(graph.Add(ops::kLinear, {x, many}, {}, "fc2").valid());
  EXPECT_EQ(graph.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(graph.status().message(),
              AllOf(HasSubstr("linear fc2"), HasSubstr("more than 2^40 values")));
}

TEST(GraphVerifyTest, TwoLeavesOfOneName) {
  Graph graph;
  graph.AddLeaf(ops::kParameter, {kF32, {2}}, "w");
  graph.AddLeaf(ops::kParameter, {kF32, {2}}, "w");
  EXPECT_EQ(graph.Verify().code(), absl::StatusCode::kInternal);
  EXPECT_THAT(graph.Verify().message(), HasSubstr("two leaves are named w"));
}

TEST(GraphVerifyTest, ANodeThatReadsALaterOne) {
  const Graph graph = Example();
  Damage(graph, 3).inputs[0] = {4, 0};
  EXPECT_THAT(graph.Verify().message(), AllOf(HasSubstr("%3 linear"), HasSubstr("later node")));
  Damage(graph, 3).inputs[0] = {3, 0};  // itself
  EXPECT_THAT(graph.Verify().message(), HasSubstr("later node"));
  Damage(graph, 3).inputs[0] = Value();
  EXPECT_EQ(graph.Verify().code(), absl::StatusCode::kInternal);
}

TEST(GraphVerifyTest, AnOutputThatIsNotThere) {
  const Graph graph = Example();
  Damage(graph, 5).inputs[0] = {3, 1};
  EXPECT_THAT(graph.Verify().message(), AllOf(HasSubstr("%5 layer_norm"), HasSubstr("not there")));
}

TEST(GraphVerifyTest, ShapesThatDoNotFollow) {
  const Graph graph = Example();
  Damage(graph, 3).outputs[0].shape = {2, 5};
  EXPECT_THAT(graph.Verify().message(), AllOf(HasSubstr("%3 linear"), HasSubstr("follow")));
}

TEST(GraphVerifyTest, AttributesThatTheOpRejects) {
  const Graph graph = Example();
  Damage(graph, 3).attrs.Set("activation", std::string("sine"));
  EXPECT_THAT(graph.Verify().message(), AllOf(HasSubstr("%3 linear"), HasSubstr("sine")));
}

TEST(GraphDumpTest, Text) {
  EXPECT_EQ(Example().ToText(),
            "%0 = input() : f32[2,3]  # x\n"
            "%1 = parameter() : f32[4,3]  # fc.weight\n"
            "%2 = parameter() : f32[4]  # fc.bias\n"
            "%3 = linear(%0, %1, %2) activation=relu : f32[2,4]  # fc\n"
            "%4 = reshape(%3) shape=[8] : f32[8]\n"
            "%5 = layer_norm(%3, %2, %2) : f32[2,4] f32[2] f32[2]\n"
            "flat = %4\n"
            "mean = %5.1\n");
}

TEST(GraphDumpTest, Dot) {
  const std::string dot = Example().ToDot();
  EXPECT_EQ(dot.find("digraph step {"), 0u);
  EXPECT_THAT(dot, HasSubstr("n3 [label=\"linear\\nfc\"];"));
  EXPECT_THAT(dot, HasSubstr("n0 [label=\"input\\nx\", style=rounded];"));
  EXPECT_THAT(dot, HasSubstr("n3 -> n4 [label=\"f32[2,4]\"];"));
  EXPECT_THAT(dot, HasSubstr("n5 -> o1;"));
  EXPECT_EQ(dot.substr(dot.size() - 2), "}\n");
}

TEST(AttrsTest, ValuesByNameInOrder) {
  Attrs attrs{{"scale", 0.5}, {"axis", int64_t{1}}};
  attrs.Set("shape", Shape{2, 3});
  attrs.Set("axis", int64_t{2});
  EXPECT_EQ(attrs.ToString(), "axis=2 scale=0.5 shape=[2,3]");
  EXPECT_EQ(attrs.Int("axis"), 2);
  EXPECT_EQ(attrs.Int("none", 7), 7);
  EXPECT_TRUE(attrs.Extents("none").empty());
  EXPECT_DEATH(attrs.Int("scale"), "attribute scale has another type");
}

}  // namespace
}  // namespace lockstep::engine
