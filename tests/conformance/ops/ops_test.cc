// SPDX-License-Identifier: Apache-2.0
// Every op of the table on each of its cases: the kernel against float64, on aligned and misaligned
// memory, on every instruction set of this machine and several threads, writing and adding; the
// gradient rule's nodes against central differences of the reference.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <limits>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/philox.h"
#include "engine/cpu/converting_kernel.h"
#include "engine/cpu/kernels.h"
#include "engine/cuda/kernels.h"
#include "engine/ops/counts.h"
#include "engine/ops/ops.h"
#include "engine/ops/registry.h"
#include "engine/passes/autodiff.h"
#include "tests/conformance/ops/made_case.h"
#include "tests/conformance/ops/reference.h"
#include "tests/conformance/ops/run_node.h"

namespace lockstep::engine {
namespace {

void ExpectNear(const std::vector<Doubles>& is, const std::vector<Doubles>& expected,
                const RunOptions& options, double tolerance) {
  ASSERT_EQ(is.size(), expected.size());
  for (size_t o = 0; o < is.size(); ++o) {
    ASSERT_EQ(is[o].size(), expected[o].size());
    for (size_t i = 0; i < is[o].size(); ++i) {
      const double want = expected[o][i] + (options.accumulate ? 1 : 0);
      ASSERT_NEAR(is[o][i], want, tolerance * (1 + std::fabs(want)))
          << Name(options.isa) << " threads " << options.threads << " output " << o << " element "
          << i;
    }
  }
}

class OpsTest : public testing::TestWithParam<const OpDef*> {};

TEST_P(OpsTest, KernelAgreesWithFloat64) {
  const OpDef& op = *GetParam();
  for (const OpCase& test : op.cases()) {
    SCOPED_TRACE(Describe(op, test));
    const Prepared p = Prepare(op, test);
    const Node& node = p.graph.node(p.made.node);
    const std::vector<Doubles> expected = Reference(op, test, node.outputs, p.inputs);
    std::vector<Doubles> portable, portable_added;
    for (const Isa isa : UsableIsas()) {
      const RunOptions plain{isa, 1, 0, false};
      const std::vector<Doubles> first = RunNode(p.graph, node, p.inputs, plain);
      // So does the instruction set.
      if (isa == Isa::kPortable) portable = first;
      ASSERT_EQ(first, portable) << Name(isa);
      ASSERT_NO_FATAL_FAILURE(ExpectNear(first, expected, plain, Tolerance(test)));
      // Threads and alignment leave the bits alone.
      ASSERT_EQ(RunNode(p.graph, node, p.inputs, {isa, 3, 1, false}), first);
      if (!op.accumulates) continue;
      const RunOptions adding{isa, 2, 3, true};
      const std::vector<Doubles> added = RunNode(p.graph, node, p.inputs, adding);
      if (isa == Isa::kPortable) portable_added = added;
      ASSERT_EQ(added, portable_added) << Name(isa);
      // The fused loss adds its sums; its gradient of the logits is never born in the vector.
      std::vector<Doubles> sums = added, wanted = expected;
      if (std::string(op.name) == "batch_norm_backward") {  // nor is that of x
        sums.erase(sums.begin());
        wanted.erase(wanted.begin());
      } else if (std::string(op.name) == "linear_softmax_cross_entropy") {  // here it is one too
        sums.erase(sums.begin() + 2);
        wanted.erase(wanted.begin() + 2);
      } else if (sums.size() == 3) {
        sums.pop_back();
        wanted.pop_back();
      }
      ASSERT_NO_FATAL_FAILURE(ExpectNear(sums, wanted, adding, Tolerance(test)));
    }
  }
}

// The first NaN of a window is the largest, and takes the gradient.
TEST(MaxPoolTest, NanTakesTheGradient) {
  const OpDef& op = ops::kMaxPool2dBackward;
  for (const OpCase& test : op.cases()) {
    SCOPED_TRACE(Describe(op, test));
    Prepared p = Prepare(op, test);
    PutUnusual(&p.inputs[1]);
    const Node& node = p.graph.node(p.made.node);
    const std::vector<Doubles> expected = Reference(op, test, node.outputs, p.inputs);
    for (const Isa isa : UsableIsas()) {
      const RunOptions options{isa, 1, 0, false};
      ASSERT_NO_FATAL_FAILURE(ExpectNear(RunNode(p.graph, node, p.inputs, options), expected,
                                         options, Tolerance(test)));
    }
  }
}

// Ops of several products, whose operands between them are rounded where these take pairs.
bool RoundsBetween(const OpDef& op) {
  const std::string name = op.name;
  return name == "attention" || name == "attention_backward" ||
         name == "linear_softmax_cross_entropy";
}

// AddressSanitizer looks at memory, not at numbers: each type once is enough for it.
#ifdef LOCKSTEP_SANITIZE_ADDRESS
constexpr bool kEveryCombination = false;
#else
constexpr bool kEveryCombination = true;
#endif

TEST_P(OpsTest, HalfOperandsAreRoundedOnce) {
  const OpDef& op = *GetParam();
  if (op.infers_types) GTEST_SKIP() << "types are part of the op's own cases";
  for (const OpCase& plain : op.cases()) {
    for (const DType type : {DType::kBF16, DType::kF16}) {
      for (const size_t every : {size_t{1}, size_t{2}}) {
        if (!kEveryCombination && (type == DType::kBF16) != (every == 1)) continue;
        const OpCase test = HalfCase(plain, type, every);
        SCOPED_TRACE(Describe(op, test));
        Prepared p = Prepare(op, test);
        for (size_t i = 0; i < p.inputs.size(); ++i) {
          p.inputs[i] = Rounded(test.inputs[i].dtype, std::move(p.inputs[i]));
        }
        const Node& node = p.graph.node(p.made.node);
        for (size_t o = 0; o < node.outputs.size(); ++o) {
          const bool activation = (op.half.activations >> o & 1) != 0;
          ASSERT_EQ(node.outputs[o].dtype == type, activation) << "output " << o;
        }
        const std::vector<Doubles> expected = Reference(op, plain, node.outputs, p.inputs);
        const auto takes = CpuKernelOf(op).takes_half;
        // Some round in between: attention_pairs_test.cc, head_pairs_test.cc.
        if (takes != nullptr && takes(p.graph, node, {}) && RoundsBetween(op)) continue;
        std::vector<Doubles> portable;
        for (const Isa isa : UsableIsas()) {
          for (const bool pairs : {false, true}) {
            if (pairs && takes == nullptr) continue;
            const std::vector<Doubles> first =
                RunNode(p.graph, node, p.inputs, {isa, 1, 0, false, pairs});
            if (portable.empty()) portable = first;
            ASSERT_EQ(first, portable) << Name(isa) << (pairs ? " pairs" : "");
            // Sums over blocks are made in another order than the whole's: one more rounding each.
            ASSERT_NO_FATAL_FAILURE(ExpectRoundedOnce(node, first, expected, 2 * Tolerance(plain)));
            ASSERT_EQ(RunNode(p.graph, node, p.inputs, {isa, 3, 1, false, pairs}), first);
          }
        }
      }
    }
  }
}

// What the made values of the cases are not: one that is not finite says nothing of the scale and
// stays NaN; zeros, and nothing else, have no scale.
TEST(QuantizeFp8Test, SpecialValues) {
  const OpDef& op = ops::kQuantizeFp8;
  for (const OpCase& test : op.cases()) {
    SCOPED_TRACE(Describe(op, test));
    Prepared p = Prepare(op, test);
    const Node& node = p.graph.node(p.made.node);
    const int64_t count = node.outputs[0].elements();
    for (const Doubles& values : {Doubles(static_cast<size_t>(count), 0), SpecialValues(count)}) {
      p.inputs[0] = Rounded(test.inputs[0].dtype, values);
      const Doubles expected = Reference(op, test, node.outputs, p.inputs)[0];
      const Doubles is = RunNode(p.graph, node, p.inputs, {DetectIsa(), 3, 1, false})[0];
      for (size_t i = 0; i < is.size(); ++i) {
        ASSERT_EQ(std::isnan(is[i]), std::isnan(expected[i])) << i;
        if (!std::isnan(is[i])) {
          ASSERT_EQ(is[i], expected[i]) << "element " << i;
        }
      }
    }
  }
}

// Large enough that a node with 16-bit operands runs in several blocks of rows, the last one
// shorter.
std::vector<std::pair<const OpDef*, OpCase>> BlockedCases() {
  const auto f = [](Shape shape) { return TensorType{DType::kF32, std::move(shape)}; };
  const auto i = [](Shape shape) { return TensorType{DType::kI32, std::move(shape)}; };
  const Attrs pad = {{"padding", Shape{1, 1}}};
  return {
      {&ops::kLinear,
       {{f({2100, 60}), f({33, 60}), f({33})}, {{"activation", std::string("relu")}}}},
      {&ops::kLinearBackwardInput, {{f({2100, 60}), f({60, 33}), f({2100, 33})}, {}}},
      {&ops::kLinearBackwardWeight, {{f({2100, 130}), f({2100, 33})}, {}}},
      {&ops::kBiasBackward, {{f({2100, 130})}, {}}},
      {&ops::kLayerNorm, {{f({333, 500}), f({500}), f({500})}, {{"eps", 1e-5}}}},
      {&ops::kLayerNormBackwardInput,
       {{f({333, 500}), f({333, 500}), f({500}), f({333}), f({333}), f({333, 500})}, {}}},
      {&ops::kLayerNormBackwardWeight, {{f({333, 500}), f({333, 500}), f({333}), f({333})}, {}}},
      {&ops::kSoftmax, {{f({333, 500})}, {}}},
      {&ops::kSoftmaxCrossEntropy, {{f({333, 500}), i({333})}, {}, 500}},
      {&ops::kSoftmaxCrossEntropyBackward, {{f({333, 500}), i({333}), f({1})}, {}, 500}},
      {&ops::kSoftmaxCrossEntropyWithGradient, {{f({333, 500}), i({333}), f({1})}, {}, 500}},
      {&ops::kClassificationSums, {{f({333, 500}), i({333})}, {}, 500}},
      {&ops::kGeluBackward, {{f({70, 1001}), f({70, 1001})}, {}}},
      {&ops::kAdd, {{f({70, 1001}), f({70, 1001})}, {}}},
      {&ops::kConv2d, {{f({9, 20, 22, 17}), f({33, 17, 3, 3})}, pad}},
      {&ops::kConv2dBackwardWeight,
       {{f({21, 20, 22, 33}), f({21, 20, 22, 17})},
        {{"padding", Shape{1, 1}}, {"kernel", Shape{3, 3}}}}},
      {&ops::kConv2dMaxPool, {{f({21, 20, 22, 17}), f({33, 17, 3, 3})}, pad}},
      {&ops::kConv2dMaxPoolBackwardWeight,
       {{f({21, 10, 11, 33}), i({21, 10, 11, 33}), f({21, 20, 22, 17})},
        {{"padding", Shape{1, 1}}, {"kernel", Shape{3, 3}}},
        4}},
      {&ops::kMaxPool2dBackward,
       {{f({9, 10, 11, 65}), f({9, 20, 22, 65})},
        {{"kernel", Shape{2, 2}}, {"stride", Shape{2, 2}}}}},
  };
}

// Products whose factors stay in bf16: all shapes that Gemm packs in ways of its own, on every set.
TEST(PairsTest, ProductsOfBf16AreThoseOfFloat64) {
  const auto f = [](int64_t rows, int64_t columns) {
    return TensorType{DType::kF32, {rows, columns}};
  };
  const std::vector<std::pair<const OpDef*, OpCase>> cases = {
      {&ops::kLinear, {{f(1, 2), f(1, 2)}, {}}},
      {&ops::kLinear, {{f(40, 66), f(300, 66), f(1, 300)}, {}}},  // C^T
      {&ops::kLinear, {{f(40, 66), f(66, 35)}, {{"in_out", int64_t{1}}}}},
      {&ops::kLinear, {{f(301, 700), f(131, 700)}, {{"activation", std::string("relu")}}}},
      {&ops::kLinear, {{f(301, 700), f(700, 131)}, {{"in_out", int64_t{1}}}}},
      {&ops::kLinearBackwardInput, {{f(301, 130), f(130, 77)}, {}}},
      {&ops::kLinearBackwardInput, {{f(301, 130), f(77, 130)}, {{"in_out", int64_t{1}}}}},
      {&ops::kLinearBackwardWeight, {{f(62, 17), f(62, 5)}, {}}},
      {&ops::kLinearBackwardWeight, {{f(1030, 133), f(1030, 149)}, {}}},
      {&ops::kLinearBackwardWeight, {{f(1030, 133), f(1030, 149)}, {{"sums", int64_t{1}}}}},
      {&ops::kLinearBackwardWeight, {{f(62, 17), f(62, 5)}, {{"sums", int64_t{2}}}}},
  };
  for (const auto& [each, listed] : cases) {
    OpCase plain = listed;
    if (plain.inputs.size() == 3 && each == &ops::kLinear) plain.inputs[2].shape = {300};
    const OpDef& op = *each;
    const OpCase test = HalfCase(plain, DType::kBF16, 1);
    SCOPED_TRACE(Describe(op, test));
    Prepared p = Prepare(op, test);
    for (size_t i = 0; i < p.inputs.size(); ++i) {
      p.inputs[i] = Rounded(test.inputs[i].dtype, std::move(p.inputs[i]));
    }
    const Node& node = p.graph.node(p.made.node);
    const std::vector<Doubles> expected = Reference(op, plain, node.outputs, p.inputs);
    std::vector<Doubles> portable;
    for (const Isa isa : UsableIsas()) {
      for (const bool pairs : {false, true}) {
        const std::vector<Doubles> first =
            RunNode(p.graph, node, p.inputs, {isa, 1, 0, false, pairs});
        ASSERT_NO_FATAL_FAILURE(ExpectRoundedOnce(node, first, expected, 2 * Tolerance(plain)));
        if (portable.empty()) portable = first;
        ASSERT_EQ(first, portable) << Name(isa) << (pairs ? " pairs" : "");
        ASSERT_EQ(RunNode(p.graph, node, p.inputs, {isa, 3, 1, false, pairs}), first);
      }
    }
  }
}

TEST(BlocksTest, PartsOfANodeMakeTheWhole) {
  for (const auto& [each, plain] : BlockedCases()) {
    const OpDef& op = *each;
    const OpCase test = HalfCase(plain, DType::kBF16, 2);  // others fp32: they move too
    SCOPED_TRACE(Describe(op, test));
    Prepared p = Prepare(op, test);
    for (size_t i = 0; i < p.inputs.size(); ++i) {
      p.inputs[i] = Rounded(test.inputs[i].dtype, std::move(p.inputs[i]));
    }
    const Node& node = p.graph.node(p.made.node);
    size_t whole = 0;  // what fp32 copies of all operands would take
    for (const std::vector<TensorType>& types : {test.inputs, node.outputs}) {
      for (const TensorType& type : types) whole += IsHalf(type.dtype) ? 2 * type.bytes() : 0;
    }
    const CpuTarget target{DetectIsa(), 1};
    const size_t inner = CpuKernelOf(op).scratch_bytes == nullptr
                             ? 0
                             : KernelScratchBytes(Prepare(op, plain).graph,
                                                  Prepare(op, plain).graph.nodes().back(), target);
    EXPECT_LT(KernelScratchBytes(p.graph, node, target), whole + inner) << "not cut";
    const std::vector<Doubles> expected = Reference(op, plain, node.outputs, p.inputs);
    const std::vector<Doubles> first = RunNode(p.graph, node, p.inputs, {DetectIsa(), 1, 0, false});
    ASSERT_NO_FATAL_FAILURE(ExpectRoundedOnce(node, first, expected, 2 * Tolerance(plain)));
    ASSERT_EQ(RunNode(p.graph, node, p.inputs, {DetectIsa(), 3, 1, false}), first);
    if (!op.accumulates) continue;
    // Added to 1: the first block adds to what is there, the others to what it leaves.
    const std::vector<Doubles> added = RunNode(p.graph, node, p.inputs, {DetectIsa(), 1, 0, true});
    for (size_t o = 0; o < added.size(); ++o) {
      if ((op.half.sums >> o & 1) == 0) continue;
      for (size_t i = 0; i < added[o].size(); ++i) {
        ASSERT_NEAR(added[o][i], expected[o][i] + 1,
                    2 * Tolerance(plain) * (2 + std::fabs(expected[o][i])));
      }
    }
  }
}

// Evaluates a graph node by node.
std::vector<std::vector<Doubles>> Interpret(const Graph& graph,
                                            const std::vector<Doubles>& leaves) {
  std::vector<std::vector<Doubles>> values;
  size_t leaf = 0;
  for (const Node& node : graph.nodes()) {
    if (node.op->leaf) {
      values.push_back({leaves[leaf++]});
      continue;
    }
    std::vector<Doubles> inputs;
    for (const Value& input : node.inputs) {
      inputs.push_back(values[static_cast<size_t>(input.node)][static_cast<size_t>(input.output)]);
    }
    values.push_back(RunNode(graph, node, inputs, {DetectIsa(), 1, 0, false}));
  }
  return values;
}

// d <projection, first output> / d input[i], by central differences of the reference.
double Slope(const OpDef& op, const OpCase& test, const std::vector<TensorType>& outputs,
             std::vector<Doubles> inputs, const Doubles& projection, size_t input, size_t i) {
  constexpr double kStep = 1e-5;
  const auto project = [&] {
    const Doubles y = Reference(op, test, outputs, inputs)[0];
    double sum = 0;
    for (size_t e = 0; e < y.size(); ++e) sum += y[e] * projection[e];
    return sum;
  };
  inputs[input][i] += kStep;
  const double up = project();
  inputs[input][i] -= 2 * kStep;
  return (up - project()) / (2 * kStep);
}

TEST_P(OpsTest, GradientAgreesWithFiniteDifferences) {
  const OpDef& op = *GetParam();
  if (op.gradient == nullptr) {
    ASSERT_NE(op.no_gradient, nullptr);
    GTEST_SKIP() << op.name << " has no gradient: " << op.no_gradient;
  }
  if (std::string(op.name) == "cast") GTEST_SKIP() << "rounding has steps, no slope";
  for (const OpCase& test : op.cases()) {
    SCOPED_TRACE(Describe(op, test));
    Prepared p = Prepare(op, test);
    const std::vector<TensorType> outputs = p.graph.node(p.made.node).outputs;
    const Value weights = p.graph.AddLeaf(ops::kInput, outputs[0], "weights");
    const Doubles projection = MakeValues(outputs[0], 77, 0);
    std::vector<Value> wrt;
    for (const Value& leaf : p.leaves) {
      if (p.graph.type(leaf).dtype == DType::kF32) wrt.push_back(leaf);
    }
    const auto gradients = Differentiate(&p.graph, {{p.made, weights}}, wrt);
    ASSERT_TRUE(gradients.ok()) << gradients.status();
    ASSERT_TRUE(p.graph.Verify().ok()) << p.graph.Verify();
    std::vector<Doubles> leaves = p.inputs;
    leaves.push_back(projection);
    const auto values = Interpret(p.graph, leaves);
    for (size_t w = 0; w < wrt.size(); ++w) {
      const auto input = static_cast<size_t>(wrt[w].node);
      const Value g = (*gradients)[w];
      ASSERT_TRUE(g.valid());
      const Doubles& is = values[static_cast<size_t>(g.node)][static_cast<size_t>(g.output)];
      ASSERT_EQ(is.size(), p.inputs[input].size());
      const size_t stride = is.size() / 8 + 1;  // about 8 elements of each input
      for (size_t i = 0; i < is.size(); i += stride) {
        const double slope = Slope(op, test, outputs, p.inputs, projection, input, i);
        ASSERT_NEAR(is[i], slope, 1e-6 * (1 + std::fabs(slope)) + Tolerance(test))
            << "input " << input << " element " << i;
      }
    }
  }
}

std::vector<const OpDef*> ComputingOps() {
  std::vector<const OpDef*> ops;
  for (const OpDef* op : AllOps()) {
    if (!op->leaf) ops.push_back(op);
  }
  return ops;
}

INSTANTIATE_TEST_SUITE_P(All, OpsTest, testing::ValuesIn(ComputingOps()),
                         [](const auto& info) { return std::string(info.param->name); });

TEST(OpTableTest, EveryOpIsComplete) {
  std::set<std::string> names;
  for (const OpDef* each : AllOps()) {
    const OpDef& op = *each;
    const CpuKernelDef* const kernel = FindCpuKernel(op);
    SCOPED_TRACE(op.name);
    EXPECT_NE(op.doc, nullptr);
    EXPECT_TRUE(names.insert(op.name).second) << "two ops of one name";
    EXPECT_TRUE((op.gradient == nullptr) != (op.no_gradient == nullptr))
        << "a gradient, or the reason why there is none";
    EXPECT_EQ(kernel == nullptr, op.leaf || op.view) << "no CPU kernel";
    if (op.leaf) continue;
    EXPECT_NE(op.infer, nullptr);
    ASSERT_NE(op.cases, nullptr);
    EXPECT_GE(op.cases().size(), 2u);
    if (kernel != nullptr) {
      EXPECT_NE(kernel->prepare, nullptr);
    }
  }
}

// An op without one is listed here; there is none.
TEST(OpTableTest, MissingCudaKernelsAreListed) {
  int missing = 0;
  for (const OpDef* op : AllOps()) {
    if (op->leaf || op->view || FindCudaKernel(*op) != nullptr) continue;
    if (op->no_cuda != nullptr) continue;
    std::printf("no CUDA kernel yet: %s\n", op->name);
    ++missing;
  }
  std::printf("CUDA kernels missing: %d\n", missing);
  EXPECT_EQ(missing, 0);
}

TEST(CountsTest, SumsOfSplitsAreExact) {
  float high = 0, low = 0;
  int64_t sum = 0;
  for (int64_t i = 0; i < kMaxCountSplits; ++i) {
    const int64_t count = (1 << 24) - 1 - i * 37;
    const SplitCount split = Split(count);
    high += split.high;
    low += split.low;
    sum += count;
  }
  EXPECT_EQ(Join({high, low}), sum);
}

}  // namespace
}  // namespace lockstep::engine
