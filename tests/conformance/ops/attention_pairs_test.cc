// SPDX-License-Identifier: Apache-2.0
// Attention whose products take pairs of bf16 as they are, on each of its cases and on longer ones.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "engine/cpu/converting_kernel.h"
#include "engine/cpu/kernels.h"
#include "engine/ops/ops.h"
#include "tests/conformance/ops/made_case.h"
#include "tests/conformance/ops/reference.h"
#include "tests/conformance/ops/run_node.h"

namespace lockstep::engine {
namespace {

// Half a unit of the last place of 1.
constexpr double kRounding = 0x1p-8;
// Rows that are about as large as one between them, however few columns it has.
constexpr int64_t kNear = 8;

// Of rows that are near `row`.
double Largest(const Doubles& values, int64_t columns, int64_t row) {
  const auto rows = static_cast<int64_t>(values.size()) / columns;
  double largest = 0;
  for (int64_t i = std::max<int64_t>(row - kNear, 0) * columns;
       i < std::min(row + kNear + 1, rows) * columns; ++i) {
    largest = std::max(largest, std::fabs(values[static_cast<size_t>(i)]));
  }
  return largest;
}

// Results in bf16 are rounded once more than ExpectRoundedOnce has it: the probabilities, or the
// gradients of the scores, are rounded before they are multiplied. A row of a result is a sum of
// rows with these as weights. Each is rounded by at most 2^-8 of itself, one up, another down, so
// the sum moves by less than 2^-8 of what the largest such sums are.
void ExpectRoundedTwice(const Node& node, const std::vector<Doubles>& is,
                        const std::vector<Doubles>& expected, double tolerance) {
  ASSERT_EQ(is.size(), expected.size());
  for (size_t o = 0; o < is.size(); ++o) {
    const double rounding = IsHalf(node.outputs[o].dtype) ? kRounding : 0;
    const int64_t columns = node.outputs[o].shape.back();
    double largest = 0;
    for (size_t i = 0; i < is[o].size(); ++i) {
      const auto at = static_cast<int64_t>(i);
      if (at % columns == 0) largest = Largest(expected[o], columns, at / columns);
      const double want = expected[o][i];
      ASSERT_NEAR(is[o][i], want,
                  rounding * (std::fabs(want) + largest) + tolerance * (1 + std::fabs(want)))
          << "output " << o << " element " << i;
    }
  }
}

// Several strips of queries, and blocks of them, the last ones shorter.
OpCase LongCase(bool backward, bool causal, int64_t length, int64_t heads, int64_t width) {
  const auto f = [](int64_t rows, int64_t columns) {
    return TensorType{DType::kF32, {rows, columns}};
  };
  OpCase test;
  if (backward) {
    test.inputs = {f(length, width), f(length, width), {DType::kF32, {1, heads, length}}};
  }
  test.inputs.push_back(f(length, 3 * width));
  test.classes = 2;
  test.attrs = {{"heads", heads},       {"length", length},           {"causal", int64_t{causal}},
                {"masked", int64_t{0}}, {"rate", causal ? 0.1 : 0.0}, {"key", int64_t{12345}}};
  if (causal) test.inputs.push_back({DType::kI32, {4}});
  return test;
}
std::vector<OpCase> AllCases(const OpDef& op, bool backward) {
  std::vector<OpCase> cases = op.cases();
  for (const bool causal : {false, true}) {
    cases.push_back(LongCase(backward, causal, 333, 2, 12));
    cases.push_back(LongCase(backward, causal, 300, 1, 66));
  }
  cases.push_back(LongCase(backward, false, 305, 1, 33));
  return cases;
}

class AttentionPairsTest : public testing::TestWithParam<const OpDef*> {};

TEST_P(AttentionPairsTest, AgreesWithFloat64) {
  const OpDef& op = *GetParam();
  const bool backward = &op == &ops::kAttentionBackward;
  int taken = 0;
  for (const OpCase& plain : AllCases(op, backward)) {
    OpCase test = HalfCase(plain, DType::kBF16, 1);
    if (backward) test.inputs[2].dtype = DType::kF32;  // the logarithms of sums
    SCOPED_TRACE(Describe(op, test));
    Prepared p = Prepare(op, test);
    for (size_t i = 0; i < p.inputs.size(); ++i) {
      p.inputs[i] = Rounded(test.inputs[i].dtype, std::move(p.inputs[i]));
    }
    const Node& node = p.graph.node(p.made.node);
    const std::vector<Doubles> expected = Reference(op, plain, node.outputs, p.inputs);
    const auto shape = *ops::AttentionShape::Of(plain.inputs, plain.attrs, backward ? 3 : 0);
    const bool takes = CpuKernelOf(op).takes_half(p.graph, node, {});
    ASSERT_EQ(takes, shape.width / shape.heads % 2 == 0);
    if (!takes) continue;
    ++taken;
    std::vector<Doubles> portable;
    for (const Isa isa : UsableIsas()) {
      for (const bool pairs : {false, true}) {
        const std::vector<Doubles> first =
            RunNode(p.graph, node, p.inputs, {isa, 1, 0, false, pairs});
        ASSERT_NO_FATAL_FAILURE(ExpectRoundedTwice(node, first, expected, 2 * Tolerance(plain)));
        if (portable.empty()) portable = first;
        ASSERT_EQ(first, portable) << Name(isa) << (pairs ? " pairs" : "");
        // Threads and alignment leave the bits alone.
        ASSERT_EQ(RunNode(p.graph, node, p.inputs, {isa, 3, 1, false, pairs}), first);
      }
    }
  }
  EXPECT_GT(taken, 0);
}

INSTANTIATE_TEST_SUITE_P(All, AttentionPairsTest,
                         testing::Values(&ops::kAttention, &ops::kAttentionBackward),
                         [](const auto& info) { return std::string(info.param->name); });

}  // namespace
}  // namespace lockstep::engine
