// SPDX-License-Identifier: Apache-2.0
// Memory plans of random graphs, checked against the rules of in-place writing and lives that are
// found anew here, and by running: a plan changes no bit of the results.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "engine/cpu/backend.h"
#include "engine/cpu/kernels.h"
#include "engine/graph/op.h"
#include "engine/ops/ops.h"
#include "engine/passes/memory.h"
#include "tests/unit/engine/run_graph.h"

namespace lockstep::engine {
namespace {

constexpr DType kF32 = DType::kF32;

// Grows a graph of matrices by random ops: in-place ones, views, ops with several outputs and with
// scratch; some values are read often, some never.
class RandomGraph {
 public:
  explicit RandomGraph(uint32_t seed) : random_(seed) {
    for (int i = 0; i < 2; ++i) {
      Leaf(ops::kInput, {kF32, {Pick(1, 9), Pick(1, 40)}});
    }
    const int nodes = Pick(5, 40);
    for (int i = 0; i < nodes; ++i) Grow();
    for (int i = 0; i < 3; ++i) graph.AddOutput(absl::StrCat("out", i), AnyMatrix());
  }

  Graph graph;
  Tensors leaves;

 private:
  int Pick(int low, int high) {  // both included
    return low + static_cast<int>(random_() % static_cast<uint32_t>(high - low + 1));
  }
  Value Leaf(const OpDef& op, const TensorType& type) {
    const std::string name = absl::StrCat("leaf", leaves.size());
    std::vector<float> data(static_cast<size_t>(type.elements()));
    for (float& value : data) value = static_cast<float>(Pick(-1000, 1000)) / 1000;
    leaves[name] = std::move(data);
    const Value value = graph.AddLeaf(op, type, name);
    matrices_.push_back(value);
    return value;
  }
  Value AnyMatrix() {
    // Recent ones more often, so that chains form.
    const int count = static_cast<int>(matrices_.size());
    const int at = Pick(0, 2) == 0 ? Pick(0, count - 1) : Pick(std::max(0, count - 4), count - 1);
    return matrices_[static_cast<size_t>(at)];
  }
  // A value of the type of `like`: perhaps the same one.
  Value Like(Value like) {
    std::vector<Value> same;
    for (const Value value : matrices_) {
      if (graph.type(value) == graph.type(like)) same.push_back(value);
    }
    return same[static_cast<size_t>(Pick(0, static_cast<int>(same.size()) - 1))];
  }

  void Grow() {
    const Value x = AnyMatrix();
    const Shape shape = graph.type(x).shape;
    static const OpDef* const kUnary[] = {&ops::kRelu, &ops::kTanh, &ops::kSigmoid, &ops::kGelu,
                                          &ops::kSoftmax};
    static const OpDef* const kBinary[] = {&ops::kAdd, &ops::kReluBackward, &ops::kTanhBackward,
                                           &ops::kSoftmaxBackward};
    switch (Pick(0, 6)) {
      case 0:
      case 1:
        matrices_.push_back(graph.Add(*kUnary[Pick(0, 4)], {x}));
        break;
      case 2:
      case 3:
        matrices_.push_back(graph.Add(*kBinary[Pick(0, 3)], {x, Like(x)}));
        break;
      case 4:
        matrices_.push_back(graph.Add(ops::kReshape, {x}, {{"shape", Shape{shape[1], shape[0]}}}));
        break;
      case 5: {
        const Value w = Leaf(ops::kParameter, {kF32, {Pick(1, 40), shape[1]}});
        matrices_.push_back(graph.Add(ops::kLinear, {x, w}));
        break;
      }
      default: {
        const Value w =
            graph.AddLeaf(ops::kParameter, {kF32, {shape[1]}}, absl::StrCat("leaf", leaves.size()));
        leaves[graph.node(w.node).name].assign(static_cast<size_t>(shape[1]), 0.5f);
        const Value norm = graph.Add(ops::kLayerNorm, {x, w, w});
        matrices_.push_back(norm);
        graph.AddOutput(absl::StrCat("mean", norm.node), {norm.node, 1});
        break;
      }
    }
  }

  std::mt19937 random_;
  std::vector<Value> matrices_;
};

// A stretch of the arena and when it is needed, by the graph alone.
struct Life {
  Value value;  // of scratch: {node, -1}
  size_t begin, end;
  int first, last;
};

class PlanChecker {
 public:
  PlanChecker(const Graph& graph, const MemoryPlan& plan) : graph_(graph), plan_(plan) {}

  std::vector<std::string> Errors() {
    FindLives();
    for (size_t b = 0; b < lives_.size(); ++b) {
      if (lives_[b].end > plan_.arena_bytes) errors_.push_back("beyond the arena");
      if (lives_[b].begin % 64 != 0) errors_.push_back("not aligned");
      for (size_t a = 0; a < b; ++a) CheckPair(lives_[a], lives_[b]);
    }
    return errors_;
  }
  size_t peak() const { return plan_.arena_bytes; }
  int in_place() const { return in_place_; }

 private:
  Value RootOf(Value value) const {
    while (graph_.node(value.node).op->view) value = graph_.node(value.node).inputs[0];
    return value;
  }
  const Storage& StorageOf(Value value) const {
    return plan_.operands[static_cast<size_t>(value.node)]
        .outputs[static_cast<size_t>(value.output)];
  }

  void FindLives() {
    std::map<Value, int> last;
    for (int id = 0; id < static_cast<int>(graph_.nodes().size()); ++id) {
      for (const Value input : graph_.node(id).inputs) {
        last[RootOf(input)] = id;
        const Storage& from = StorageOf(input);
        const auto& read = plan_.operands[static_cast<size_t>(id)].inputs;
        if (std::find(read.begin(), read.end(), from) == read.end()) {
          errors_.push_back(absl::StrCat("node ", id, " reads elsewhere than was written"));
        }
      }
    }
    for (const auto& [name, value] : graph_.outputs()) {
      last[RootOf(value)] = static_cast<int>(graph_.nodes().size());
    }
    for (int id = 0; id < static_cast<int>(graph_.nodes().size()); ++id) {
      const Node& node = graph_.node(id);
      if (node.op->leaf || node.op->view) continue;
      for (int o = 0; o < static_cast<int>(node.outputs.size()); ++o) {
        const Storage& storage = StorageOf({id, o});
        if (storage.region != Region::kArena) continue;
        const auto it = last.find({id, o});
        lives_.push_back({{id, o},
                          storage.offset,
                          storage.offset + graph_.type({id, o}).bytes(),
                          id,
                          it == last.end() ? id : it->second});
      }
      const CpuKernelDef& kernel = CpuKernelOf(*node.op);
      if (kernel.scratch_bytes == nullptr) continue;
      const size_t bytes = kernel.scratch_bytes(graph_, node, CpuTarget());
      const size_t at = plan_.operands[static_cast<size_t>(id)].scratch.offset;
      if (bytes > 0) lives_.push_back({{id, -1}, at, at + bytes, id, id});
    }
  }

  void CheckPair(const Life& a, const Life& b) {
    if (a.end <= b.begin || b.end <= a.begin) return;  // other places
    if (a.last < b.first || b.last < a.first) return;  // other times
    if (IsInPlace(a, b)) {
      ++in_place_;
      return;
    }
    errors_.push_back(absl::StrCat("%", a.value.node, ".", a.value.output, " and %", b.value.node,
                                   ".", b.value.output, " share memory while both live"));
  }

  // Returns whether b is written over a by a rule of b's op, at a's last read, by the only input
  // there.
  bool IsInPlace(const Life& a, const Life& b) const {
    if (a.value.output < 0 || b.value.output < 0) return false;
    if (a.last != b.first || a.begin != b.begin) return false;
    const Node& node = graph_.node(b.value.node);
    int reads = 0;
    bool declared = false;
    for (int i = 0; i < static_cast<int>(node.inputs.size()); ++i) {
      const Value input = node.inputs[static_cast<size_t>(i)];
      if (RootOf(input) != a.value) continue;
      ++reads;
      for (const auto& [from, to] : node.op->in_place) {
        declared |= from == i && to == b.value.output && graph_.type(input) == graph_.type(b.value);
      }
    }
    return declared && reads == 1;
  }

  const Graph& graph_;
  const MemoryPlan& plan_;
  std::vector<Life> lives_;
  std::vector<std::string> errors_;
  int in_place_ = 0;
};

class MemoryPlanFuzz : public ::testing::TestWithParam<int> {};

TEST_P(MemoryPlanFuzz, NoTwoLiveBuffersOverlap) {
  int in_place = 0;
  size_t saved = 0;
  for (uint32_t seed = 0; seed < 25; ++seed) {
    RandomGraph made(static_cast<uint32_t>(GetParam()) * 1000 + seed);
    ASSERT_TRUE(made.graph.Verify().ok()) << made.graph.Verify();
    const auto fixed = BindTensors(made.graph, &made.leaves);
    const size_t whole =
        PlanMemory(made.graph, fixed, CpuBackend(CpuTarget()), {.reuse = false, .in_place = false})
            .arena_bytes;
    for (const bool write_in_place : {false, true}) {
      const MemoryPlan plan = PlanMemory(made.graph, fixed, CpuBackend(CpuTarget()),
                                         {.reuse = true, .in_place = write_in_place});
      PlanChecker checker(made.graph, plan);
      const std::vector<std::string> errors = checker.Errors();
      ASSERT_TRUE(errors.empty()) << errors[0] << "\n" << made.graph.ToText() << plan.ToText();
      if (!write_in_place) {
        EXPECT_EQ(checker.in_place(), 0);
      }
      EXPECT_LE(checker.peak(), whole);
      in_place += checker.in_place();
      saved += whole - checker.peak();
    }
  }
  EXPECT_GT(in_place, 0) << "the graphs have chances to write in place";
  EXPECT_GT(saved, 0u);
}

// The lowest place for each buffer beside those that are larger, found by looking at them all.
size_t LowestOffset(const std::vector<ArenaBuffer>& buffers, const ArenaBuffer& buffer) {
  const auto before = [&](const ArenaBuffer& other) {
    return other.bytes > buffer.bytes || (other.bytes == buffer.bytes && &other < &buffer);
  };
  for (size_t offset = 0;; offset += 64) {
    const bool taken = std::any_of(buffers.begin(), buffers.end(), [&](const ArenaBuffer& other) {
      return before(other) && other.first <= buffer.last && buffer.first <= other.last &&
             other.offset < offset + buffer.bytes && offset < other.offset + other.bytes;
    });
    if (!taken) return offset;
  }
}

TEST_P(MemoryPlanFuzz, EachBufferLiesAtTheLowestPlaceThatIsFreeInItsLife) {
  for (uint32_t seed = 0; seed < 25; ++seed) {
    RandomGraph made(static_cast<uint32_t>(GetParam()) * 1000 + seed);
    const auto fixed = BindTensors(made.graph, &made.leaves);
    for (const bool keep : {false, true}) {
      const MemoryPlan plan = PlanMemory(made.graph, fixed, CpuBackend(CpuTarget()),
                                         {.in_place = false, .keep_constants = keep});
      for (const ArenaBuffer& buffer : plan.buffers) {
        EXPECT_EQ(buffer.offset, LowestOffset(plan.buffers, buffer)) << buffer.what << "\n"
                                                                     << plan.ToText();
      }
    }
  }
}

TEST_P(MemoryPlanFuzz, ThePlanChangesNoBit) {
  for (uint32_t seed = 0; seed < 25; ++seed) {
    const RandomGraph made(static_cast<uint32_t>(GetParam()) * 1000 + seed);
    const Tensors plain = RunGraph(made.graph, made.leaves, {.reuse = false, .in_place = false});
    for (const MemoryOptions options :
         {MemoryOptions{true, false}, MemoryOptions{true, true}, MemoryOptions{true, true, true}}) {
      for (const auto& [name, values] : RunGraph(made.graph, made.leaves, options)) {
        const std::vector<float>& expected = plain.at(name);
        ASSERT_EQ(values.size(), expected.size());
        ASSERT_EQ(std::memcmp(values.data(), expected.data(), values.size() * sizeof(float)), 0)
            << name << "\n"
            << made.graph.ToText();
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, MemoryPlanFuzz, ::testing::Range(1, 5));

TEST(MemoryPlanTest, ADumpNamesEachBuffer) {
  Graph graph;
  const Value x = graph.AddLeaf(ops::kInput, {kF32, {2, 8}}, "x");
  const Value a = graph.Add(ops::kRelu, {x});
  graph.AddOutput("y", graph.Add(ops::kTanh, {a}));
  Tensors leaves = {{"x", std::vector<float>(16)}};
  const auto fixed = BindTensors(graph, &leaves);
  EXPECT_EQ(PlanMemory(graph, fixed, CpuBackend(CpuTarget()), {}).ToText(),
            "arena[0, 64) nodes 1..3: %1\narena_bytes = 64\n");
  EXPECT_EQ(PlanMemory(graph, fixed, CpuBackend(CpuTarget()), {.in_place = false}).ToText(),
            "arena[0, 64) nodes 1..2: %1\narena[64, 128) nodes 2..3: %2\narena_bytes = 128\n");
}

// The scaled filters are gone when they are packed; the bias and the packed filters stay.
TEST(MemoryPlanTest, WhatDependsOnParametersAloneRunsOnceAndIsKept) {
  Graph graph;
  const Value x = graph.AddLeaf(ops::kInput, {kF32, {1, 8, 8, 4}}, "x");
  const Value w = graph.AddLeaf(ops::kParameter, {kF32, {16, 4, 1, 1}}, "w");
  const Value b = graph.AddLeaf(ops::kParameter, {kF32, {16}}, "b");
  const Value filters = graph.Add(ops::kScale, {w}, {{"factor", 2.0}});
  const Value bias = graph.Add(ops::kRelu, {b});
  const Value y = graph.Add(ops::kConv2d, {x, filters, bias});
  graph.AddOutput("y", graph.Add(ops::kTanh, {y}));
  ASSERT_TRUE(graph.Verify().ok()) << graph.Verify();
  Tensors leaves = {
      {"x", std::vector<float>(256)}, {"w", std::vector<float>(64)}, {"b", std::vector<float>(16)}};
  const auto fixed = BindTensors(graph, &leaves);
  const MemoryPlan plan =
      PlanMemory(graph, fixed, CpuBackend(CpuTarget()), {.keep_constants = true});
  EXPECT_EQ(plan.once, (std::vector<bool>{false, false, false, true, true, false, false}));
  EXPECT_TRUE(plan.Packs(5));
  const std::string text = plan.ToText();
  EXPECT_THAT(text, testing::HasSubstr("times 3..5: %3\n"));
  EXPECT_THAT(text, testing::HasSubstr("times 4..14: %4\n"));
  EXPECT_THAT(text, testing::HasSubstr("times 5..14: %5 packed\n"));
  EXPECT_THAT(text, testing::HasSubstr("times 12..14: %5\n"));
  EXPECT_THAT(text, testing::HasSubstr("once before: %3 %4 %5.Pack\n"));
}

// As many values as those of a network of some thousand layers, all read again in the other order,
// as by a backward pass: whatever looks at each one for each one takes longer than a test may.
TEST(MemoryPlanTest, ADeepGraphIsPlannedInTime) {
  constexpr int kDeep = 40'000;
  Graph graph;
  std::vector<Value> values = {graph.AddLeaf(ops::kInput, {kF32, {1, 1}}, "x")};
  for (int i = 0; i < kDeep; ++i) values.push_back(graph.Add(ops::kTanh, {values.back()}));
  Value sum = values.back();
  for (int i = kDeep; i > 0; --i) {
    sum = graph.Add(ops::kAdd, {sum, values[static_cast<size_t>(i)]});
  }
  graph.AddOutput("y", sum);
  Tensors leaves = {{"x", std::vector<float>(1)}};
  const auto fixed = BindTensors(graph, &leaves);
  for (const bool in_place : {false, true}) {  // the values, and the first sum of them
    const MemoryPlan plan =
        PlanMemory(graph, fixed, CpuBackend(CpuTarget()), {.in_place = in_place});
    EXPECT_EQ(plan.arena_bytes, size_t{64} * (kDeep + 1));
  }
}

TEST(MemoryPlanTest, ALeafIsNeverWrittenOver) {
  Graph graph;
  const Value x = graph.AddLeaf(ops::kInput, {kF32, {2, 8}}, "x");
  const Value view = graph.Add(ops::kReshape, {x}, {{"shape", Shape{8, 2}}});
  const Value y = graph.Add(ops::kRelu, {view});
  graph.AddOutput("y", y);
  Tensors leaves = {{"x", std::vector<float>(16, -1)}};
  const MemoryPlan plan =
      PlanMemory(graph, BindTensors(graph, &leaves), CpuBackend(CpuTarget()), {});
  EXPECT_EQ(plan.operands[2].outputs[0].region, Region::kArena);
  EXPECT_EQ(plan.operands[2].inputs[0].region, Region::kAbsolute);
}

}  // namespace
}  // namespace lockstep::engine
