// SPDX-License-Identifier: Apache-2.0
// linear_softmax_cross_entropy whose products take pairs of bf16 as they are, and the last count of
// an odd number alone: the gradient of the logits is rounded before it is multiplied.
#include <gtest/gtest.h>

#include <cmath>
#include <tuple>

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

// Of `m` rows with labels among the first `classes` of `n` columns.
OpCase HeadCase(int64_t m, int64_t n, int64_t k, int64_t classes, bool bias) {
  const auto f = [](Shape shape) { return TensorType{DType::kF32, std::move(shape)}; };
  OpCase test{{f({m, k}), f({n, k}), {DType::kI32, {m}}, f({1})},
              {{"classes", classes}, {"label_smoothing", 0.1}},
              classes};
  if (bias) test.inputs.push_back(f({n}));
  return test;
}

// What |gradient of the logits| times |x| and |weight| sum to: a rounding moves dx and dw by at
// most kRounding of it.
struct Magnitudes {
  Doubles dx, dw;
};
Magnitudes MagnitudesOf(const OpCase& test, const std::vector<Doubles>& in) {
  const auto m = static_cast<size_t>(test.inputs[0].shape[0]);
  const auto k = static_cast<size_t>(test.inputs[0].shape[1]);
  const auto n = static_cast<size_t>(test.inputs[1].shape[0]);
  Doubles logits(m * n);
  for (size_t i = 0; i < m; ++i) {
    for (size_t j = 0; j < n; ++j) {
      double sum = in.size() == 5 ? in[4][j] : 0;
      for (size_t p = 0; p < k; ++p) sum += in[0][i * k + p] * in[1][j * k + p];
      logits[i * n + j] = sum;
    }
  }
  const TensorType type{DType::kF32, {static_cast<int64_t>(m), static_cast<int64_t>(n)}};
  const OpCase softmax{{type, test.inputs[2], test.inputs[3]}, test.attrs, test.classes};
  const Doubles gradient =
      Reference(ops::kSoftmaxCrossEntropyBackward, softmax, {type}, {logits, in[2], in[3]})[0];
  Magnitudes sums{Doubles(m * k), Doubles(n * k)};
  for (size_t i = 0; i < m; ++i) {
    for (size_t j = 0; j < n; ++j) {
      const double g = std::fabs(gradient[i * n + j]);
      for (size_t p = 0; p < k; ++p) {
        sums.dx[i * k + p] += g * std::fabs(in[1][j * k + p]);
        sums.dw[j * k + p] += g * std::fabs(in[0][i * k + p]);
      }
    }
  }
  return sums;
}

void ExpectNear(const Doubles& is, const Doubles& expected, const Doubles& slack, double rounding,
                double tolerance) {
  ASSERT_EQ(is.size(), expected.size());
  for (size_t i = 0; i < is.size(); ++i) {
    ASSERT_NEAR(is[i], expected[i],
                kRounding * slack[i] + rounding * std::fabs(expected[i]) +
                    tolerance * (1 + std::fabs(expected[i])))
        << "element " << i;
  }
}

std::vector<RunOptions> EveryWay() {
  std::vector<RunOptions> ways;
  for (const Isa isa : UsableIsas()) {
    for (const bool pairs : {false, true}) ways.push_back({isa, 1, 0, false, pairs});
  }
  return ways;
}

TEST(HeadPairsTest, AgreesWithFloat64) {
  const OpDef& op = ops::kLinearSoftmaxCrossEntropy;
  for (const OpCase& plain :
       {HeadCase(2, 2, 2, 2, false), HeadCase(30, 34, 6, 34, true), HeadCase(600, 70, 10, 65, true),
        HeadCase(512, 130, 48, 130, false), HeadCase(258, 66, 33, 66, true),
        HeadCase(257, 66, 32, 66, false), HeadCase(1, 1, 1, 1, true),
        HeadCase(512, 71, 10, 71, true), HeadCase(263, 71, 33, 67, true)}) {
    OpCase test = plain;
    test.inputs[0].dtype = test.inputs[1].dtype = DType::kBF16;
    test.attrs.Set(kDTypeAttr, std::string("bf16"));
    SCOPED_TRACE(Describe(op, test));
    Prepared p = Prepare(op, test);
    for (size_t i = 0; i < p.inputs.size(); ++i) {
      p.inputs[i] = Rounded(test.inputs[i].dtype, std::move(p.inputs[i]));
    }
    const Node& node = p.graph.node(p.made.node);
    const std::vector<Doubles> expected = Reference(op, plain, node.outputs, p.inputs);
    const Magnitudes slack = MagnitudesOf(plain, p.inputs);
    const double tolerance = 2 * Tolerance(plain);
    ASSERT_TRUE(CpuKernelOf(op).takes_half(p.graph, node, {}));
    const Shape& x = plain.inputs[0].shape;
    std::vector<Doubles> portable;
    for (const RunOptions& options : EveryWay()) {
      const std::vector<Doubles> first = RunNode(p.graph, node, p.inputs, options);
      if (portable.empty()) portable = first;
      ASSERT_EQ(first, portable) << Name(options.isa) << (options.bf16_pairs ? " pairs" : "");
      ASSERT_NO_FATAL_FAILURE(ExpectNear(first[2], expected[2], slack.dx, kRounding, tolerance));
      ASSERT_NO_FATAL_FAILURE(ExpectNear(first[3], expected[3], slack.dw, 0, tolerance));
      // The loss and the bias' gradient see no rounding.
      for (const size_t o : {0, 1, 4}) {
        if (o >= first.size()) continue;
        ASSERT_NO_FATAL_FAILURE(ExpectNear(first[o], expected[o], Doubles(first[o].size()), 0,
                                           tolerance * static_cast<double>(o == 0 ? x[0] : 1)));
      }
      // Threads and alignment leave the bits alone.
      ASSERT_EQ(RunNode(p.graph, node, p.inputs, {options.isa, 3, 1, false, options.bf16_pairs}),
                first);
    }
  }
}

// Rows of `from` columns, with zeros to `rows` rows of `to`.
Doubles Widened(const Doubles& values, int64_t from, int64_t rows, int64_t to) {
  Doubles wide(static_cast<size_t>(rows * to));
  for (size_t i = 0; i < values.size(); ++i) {
    const auto at = static_cast<int64_t>(i);
    wide[static_cast<size_t>(at / from * to + at % from)] = values[i];
  }
  return wide;
}

// An odd extent is an even one whose last count is zeros, bit for bit: a word that is no class, a
// row whose label is ignored, a column of x and of the weight.
TEST(HeadPairsTest, AnOddExtentIsOneOfZerosMore) {
  const OpDef& op = ops::kLinearSoftmaxCrossEntropy;
  for (const auto& [m, n, k] : std::vector<std::tuple<int64_t, int64_t, int64_t>>{
           {30, 35, 6}, {31, 34, 6}, {30, 34, 7}, {513, 131, 33}, {261, 67, 64}, {1, 1, 1}}) {
    OpCase odd = HeadCase(m, n, k, n, true);
    const int64_t rows = m + m % 2, columns = n + n % 2, depth = k + k % 2;
    OpCase even = HeadCase(rows, columns, depth, n, true);
    for (OpCase* test : {&odd, &even}) {
      test->inputs[0].dtype = test->inputs[1].dtype = DType::kBF16;
      test->attrs.Set(kDTypeAttr, std::string("bf16"));
    }
    SCOPED_TRACE(Describe(op, odd));
    Prepared p = Prepare(op, odd), q = Prepare(op, even);
    for (size_t i = 0; i < p.inputs.size(); ++i) {
      p.inputs[i] = Rounded(odd.inputs[i].dtype, std::move(p.inputs[i]));
    }
    q.inputs = {Widened(p.inputs[0], k, rows, depth), Widened(p.inputs[1], k, columns, depth),
                p.inputs[2], p.inputs[3], Widened(p.inputs[4], n, 1, columns)};
    q.inputs[2].resize(static_cast<size_t>(rows), -1);
    for (const RunOptions& options : EveryWay()) {
      const std::vector<Doubles> is =
          RunNode(p.graph, p.graph.node(p.made.node), p.inputs, options);
      const std::vector<Doubles> wide =
          RunNode(q.graph, q.graph.node(q.made.node), q.inputs, options);
      ASSERT_EQ(is[0], wide[0]);
      ASSERT_EQ(is[1], wide[1]);
      ASSERT_EQ(Widened(is[2], k, rows, depth), wide[2]) << Name(options.isa);
      ASSERT_EQ(Widened(is[3], k, columns, depth), wide[3]) << Name(options.isa);
      ASSERT_EQ(Widened(is[4], n, 1, columns), wide[4]) << Name(options.isa);
    }
  }
}

}  // namespace
}  // namespace lockstep::engine
