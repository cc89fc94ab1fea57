// SPDX-License-Identifier: Apache-2.0
// Every op's CUDA kernel on each of its cases against float64: on the emulated GPU, where threads
// run in two orders, and on this machine's GPU. Without one these tests are skipped and counted.
#include <gtest/gtest.h>

#include <cmath>
#include <string_view>

#include "common/check.h"
#include "engine/cuda/module.h"
#include "engine/ops/ops.h"
#include "engine/ops/registry.h"
#include "tests/conformance/ops/made_case.h"
#include "tests/conformance/ops/reference.h"
#include "tests/conformance/ops/run_cuda_node.h"
#include "tests/emulation/emulation.h"

namespace lockstep::engine {
namespace {

void ExpectNear(const std::vector<Doubles>& is, const std::vector<Doubles>& expected, double base,
                double tolerance) {
  ASSERT_EQ(is.size(), expected.size());
  for (size_t o = 0; o < is.size(); ++o) {
    ASSERT_EQ(is[o].size(), expected[o].size());
    for (size_t i = 0; i < is[o].size(); ++i) {
      const double want = expected[o][i] + base;
      ASSERT_NEAR(is[o][i], want, tolerance * (1 + std::fabs(want)))
          << "output " << o << " element " << i;
    }
  }
}

// Drops what is never born in the gradient vector is not added to.
void DropActivations(const OpDef& op, std::vector<Doubles>* values) {
  if (std::string(op.name) == "batch_norm_backward") {
    values->erase(values->begin());
  } else if (values->size() == 3) {
    values->pop_back();
  }
}

// AddressSanitizer makes the emulated GPU several times slower. It looks at memory, not at numbers:
// each case once in fp32 and once in 16 bits, of either type in turn, is enough for it.
#ifdef LOCKSTEP_SANITIZE_ADDRESS
constexpr bool kEveryCombination = false;
#else
constexpr bool kEveryCombination = true;
#endif

void CheckFloat(const Gpu& gpu, const OpDef& op) {
  for (const OpCase& test : op.cases()) {
    SCOPED_TRACE(Describe(op, test));
    const Prepared p = Prepare(op, test);
    const Node& node = p.graph.node(p.made.node);
    std::vector<Doubles> expected = Reference(op, test, node.outputs, p.inputs);
    emulation::SetOrder(emulation::Order::kForward);
    const std::vector<Doubles> first = RunNode(gpu, p, 0, false);
    ASSERT_NO_FATAL_FAILURE(ExpectNear(first, expected, 0, Tolerance(test)));
    emulation::SetOrder(emulation::Order::kBackward);
    if (kEveryCombination) {
      ASSERT_EQ(Bits(RunNode(gpu, p, 0, false)), Bits(first)) << "a second run has other bits";
    }
    ASSERT_NO_FATAL_FAILURE(ExpectNear(RunNode(gpu, p, 1, false), expected, 0, Tolerance(test)));
    if (!op.accumulates) continue;
    std::vector<Doubles> added = RunNode(gpu, p, 3, true);
    DropActivations(op, &added);
    DropActivations(op, &expected);
    ASSERT_NO_FATAL_FAILURE(ExpectNear(added, expected, 1, Tolerance(test)));
  }
}

void CheckHalf(const Gpu& gpu, const OpDef& op) {
  const std::vector<OpCase> cases = op.cases();
  for (size_t c = 0; c < cases.size(); ++c) {
    const OpCase& plain = cases[c];
    for (const DType type : {DType::kBF16, DType::kF16}) {
      for (const size_t every : {size_t{1}, size_t{2}}) {
        if (!kEveryCombination && (type == DType::kBF16) != (every == 1)) continue;
        if (!kEveryCombination && cases.size() > 1 && (type == DType::kBF16) != (c % 2 == 0))
          continue;
        const OpCase test = HalfCase(plain, type, every);
        SCOPED_TRACE(Describe(op, test));
        Prepared p = Prepare(op, test);
        for (size_t i = 0; i < p.inputs.size(); ++i) {
          p.inputs[i] = Rounded(test.inputs[i].dtype, std::move(p.inputs[i]));
        }
        const Node& node = p.graph.node(p.made.node);
        const std::vector<Doubles> expected = Reference(op, plain, node.outputs, p.inputs);
        const double inner = InnerRounding(op, test, type, expected);
        emulation::SetOrder(emulation::Order::kForward);
        const std::vector<Doubles> first = RunNode(gpu, p, 0, false);
        ASSERT_NO_FATAL_FAILURE(
            ExpectRoundedOnce(node, first, expected, 2 * Tolerance(plain) + inner));
        emulation::SetOrder(emulation::Order::kBackward);
        if (kEveryCombination) {
          ASSERT_EQ(Bits(RunNode(gpu, p, 0, false)), Bits(first)) << "a second run has other bits";
        }
        const std::vector<Doubles> second = RunNode(gpu, p, 1, false);
        const double again = RoundsTheProduct(test) ? inner : 0;
        ASSERT_NO_FATAL_FAILURE(
            ExpectRoundedOnce(node, second, expected, 2 * Tolerance(plain) + again));
      }
    }
  }
}

class CudaOpsTest : public testing::TestWithParam<const OpDef*> {};

TEST_P(CudaOpsTest, EmulatedKernelAgreesWithFloat64) { CheckFloat(Emulated(), *GetParam()); }

TEST_P(CudaOpsTest, EmulatedHalfOperandsAreRoundedOnce) {
  if (GetParam()->infers_types) GTEST_SKIP() << "types are part of the op's own cases";
  CheckHalf(Emulated(), *GetParam());
}

TEST_P(CudaOpsTest, DeviceKernelAgreesWithFloat64) {
  if (Real() == nullptr) GTEST_SKIP() << "no GPU: not run on a device";
  CheckFloat(*Real(), *GetParam());
}

TEST_P(CudaOpsTest, DeviceHalfOperandsAreRoundedOnce) {
  if (GetParam()->infers_types) GTEST_SKIP() << "types are part of the op's own cases";
  if (Real() == nullptr) GTEST_SKIP() << "no GPU: not run on a device";
  CheckHalf(*Real(), *GetParam());
}

// What the made values of the cases are not: one that is not finite says nothing of the scale and
// stays NaN; zeros, and nothing else, have no scale.
TEST(QuantizeFp8Test, EmulatedSpecialValues) {
  const OpDef& op = ops::kQuantizeFp8;
  for (const OpCase& test : op.cases()) {
    SCOPED_TRACE(Describe(op, test));
    Prepared p = Prepare(op, test);
    const Node& node = p.graph.node(p.made.node);
    const int64_t count = node.outputs[0].elements();
    for (const Doubles& values : {Doubles(static_cast<size_t>(count), 0), SpecialValues(count)}) {
      p.inputs[0] = Rounded(test.inputs[0].dtype, values);
      const Doubles expected = Reference(op, test, node.outputs, p.inputs)[0];
      const Doubles is = RunNode(Emulated(), p, 0, false)[0];
      for (size_t i = 0; i < is.size(); ++i) {
        ASSERT_EQ(std::isnan(is[i]), std::isnan(expected[i])) << i;
        if (!std::isnan(is[i])) {
          ASSERT_EQ(is[i], expected[i]) << "element " << i;
        }
      }
    }
  }
}

// As on a CPU: a gradient and a loss must show it. The first input of each op is NaN somewhere; of
// the gradient what the forward pass saved is.
TEST(ReluTest, EmulatedNanPasses) {
  for (const OpDef* op : {&ops::kRelu, &ops::kReluBackward}) {
    const size_t which = op == &ops::kRelu ? 0 : 1;
    for (const OpCase& plain : op->cases()) {
      for (const bool half : {false, true}) {
        const OpCase test = half ? HalfCase(plain, DType::kBF16, 1) : plain;
        SCOPED_TRACE(Describe(*op, test));
        Prepared p = Prepare(*op, test);
        p.inputs[0] = Rounded(test.inputs[0].dtype, std::move(p.inputs[0]));
        const size_t last = p.inputs[which].size() - 1;
        p.inputs[which][0] = p.inputs[which][last] = std::nan("");
        const Doubles is = RunNode(Emulated(), p, 0, false)[0];
        for (const size_t i : {size_t{0}, last}) {
          if (which == 0) {
            EXPECT_TRUE(std::isnan(is[i])) << i;
          } else {
            EXPECT_EQ(is[i], p.inputs[0][i]) << i;
          }
        }
      }
    }
  }
}

// As on a CPU: NaN is the largest of a window wherever it stands in it.
TEST(MaxPoolTest, EmulatedNanPasses) {
  const OpDef& op = ops::kMaxPool2d;
  for (const OpCase& plain : op.cases()) {
    for (const bool half : {false, true}) {
      const OpCase test = half ? HalfCase(plain, DType::kBF16, 1) : plain;
      SCOPED_TRACE(Describe(op, test));
      Prepared p = Prepare(op, test);
      p.inputs[0] = Rounded(test.inputs[0].dtype, std::move(p.inputs[0]));
      p.inputs[0][0] = std::nan("");
      const Doubles is = RunNode(Emulated(), p, 0, false)[0];
      EXPECT_TRUE(std::isnan(is[0])) << "the first window holds the first pixel";
    }
  }
}

// The first NaN of a window takes the gradient, whatever stands beside it.
TEST(MaxPoolTest, EmulatedNanTakesTheGradient) {
  const OpDef& op = ops::kMaxPool2dBackward;
  for (const OpCase& plain : op.cases()) {
    for (const bool half : {false, true}) {
      const OpCase test = half ? HalfCase(plain, DType::kBF16, 1) : plain;
      SCOPED_TRACE(Describe(op, test));
      Prepared p = Prepare(op, test);
      PutUnusual(&p.inputs[1]);
      for (size_t i = 0; i < p.inputs.size(); ++i) {
        p.inputs[i] = Rounded(test.inputs[i].dtype, std::move(p.inputs[i]));
      }
      const Node& node = p.graph.node(p.made.node);
      const std::vector<Doubles> expected = Reference(op, plain, node.outputs, p.inputs);
      ASSERT_NO_FATAL_FAILURE(ExpectRoundedOnce(node, RunNode(Emulated(), p, 0, false), expected,
                                                2 * Tolerance(plain)));
    }
  }
}

// A product whose factors are rounded to FP8.
struct Fp8Case {
  const OpDef* op;
  OpCase test;
  const char* formats;
};
std::vector<Fp8Case> Fp8Cases(int64_t m, int64_t k, int64_t n) {
  const auto half = [](Shape shape) { return TensorType{DType::kBF16, std::move(shape)}; };
  const auto single = [](Shape shape) { return TensorType{DType::kF32, std::move(shape)}; };
  const Attrs turned = {{"in_out", int64_t{1}}};
  const Attrs relu = {{"activation", std::string("relu")}};
  return {
      {&ops::kLinear, {{half({m, k}), half({n, k}), single({n})}, relu}, "e4m3,e4m3"},
      {&ops::kLinear, {{half({m, k}), half({k, n})}, turned}, "e4m3,e4m3"},
      {&ops::kLinearBackwardInput, {{half({m, n}), half({n, k}), half({m, k})}, {}}, "e5m2,e4m3"},
      {&ops::kLinearBackwardInput, {{half({m, n}), half({k, n})}, turned}, "e5m2,e4m3"},
      {&ops::kLinearBackwardWeight, {{half({m, n}), half({m, k})}, {}}, "e5m2,e4m3"},
      {&ops::kLinearBackwardWeight, {{half({m, k}), half({m, n})}, {}}, "e4m3,e5m2"}};
}

// The case's node on rounded factors.
Prepared PrepareFp8(const Fp8Case& each, OpCase* test) {
  *test = each.test;
  test->attrs.Set("fp8", std::string(each.formats));
  test->attrs.Set(kDTypeAttr, std::string("bf16"));
  Prepared p = Prepare(*each.op, *test);
  for (size_t i = 0; i < p.inputs.size(); ++i) {
    p.inputs[i] = Rounded(test->inputs[i].dtype, std::move(p.inputs[i]));
  }
  for (size_t i = 0; i < 2; ++i) {
    const std::string format(each.formats + 5 * i, 4);
    const OpCase rounding{{test->inputs[i]}, {{"format", format}}};
    p.inputs[i] = Reference(ops::kQuantizeFp8, rounding, {}, {p.inputs[i]})[0];
  }
  return p;
}

// What tensor cores may lose of each sum of products of bytes: they keep some 13 bits behind the
// point of an instruction's largest product and cut off the rest. That is less than 2^-12 of the
// sum of the products' magnitudes where few are much smaller than the largest, as here.
std::vector<Doubles> LostInBytes(const Fp8Case& each, const OpCase& test, const Node& node,
                                 std::vector<Doubles> inputs) {
  for (size_t i = 0; i < 2; ++i) {
    for (double& x : inputs[i]) x = std::fabs(x);
  }
  if (each.op == &ops::kLinear) inputs.resize(2);  // no bias
  std::vector<Doubles> lost = Reference(*each.op, test, node.outputs, inputs);
  for (Doubles& output : lost) {
    for (double& x : output) x *= 0x1p-12;
  }
  return lost;
}

// Bytes hold what bf16 holds: the sums are the same up to their order and what is lost in bytes.
// Extents that the library does not take in bytes are multiplied in bf16, as on older GPUs.
void CheckFp8(const Gpu& gpu, const std::vector<Fp8Case>& cases, bool fp8, int runs) {
  for (const Fp8Case& each : cases) {
    OpCase test;
    const Prepared p = PrepareFp8(each, &test);
    SCOPED_TRACE(Describe(*each.op, test));
    const Node& node = p.graph.node(p.made.node);
    // A GPU rounds the bias of a 16-bit product before it is added.
    std::vector<Doubles> inputs = p.inputs;
    const bool bias = each.op == &ops::kLinear && inputs.size() == 3;
    if (bias) inputs[2] = Rounded(DType::kBF16, std::move(inputs[2]));
    const std::vector<Doubles> expected = Reference(*each.op, test, node.outputs, inputs);
    std::vector<Doubles> lost;
    if (runs > 0) lost = LostInBytes(each, test, node, inputs);
    const int64_t before = emulation::Fp8ProductsRun();
    ASSERT_NO_FATAL_FAILURE(ExpectRoundedOnce(node, RunNode(gpu, p, {.fp8 = fp8}), expected,
                                              2 * Tolerance(test), lost));
    if (&gpu == &Emulated()) {
      EXPECT_EQ(emulation::Fp8ProductsRun() - before, runs);
    }
  }
}

TEST(Fp8ProductsTest, EmulatedBytesGiveWhatBf16Gives) {
  CheckFp8(Emulated(), Fp8Cases(48, 32, 80), true, 1);
  CheckFp8(Emulated(), Fp8Cases(48, 32, 80), false, 0);
  CheckFp8(Emulated(), Fp8Cases(31, 33, 80), true, 0);
}

TEST(Fp8ProductsTest, DeviceBytesGiveWhatBf16Gives) {
  if (Real() == nullptr) GTEST_SKIP() << "no GPU: not run on a device";
  CheckFp8(*Real(), Fp8Cases(48, 32, 80), true, 1);
}

std::vector<const OpDef*> ComputingOps() {
  std::vector<const OpDef*> ops;
  for (const OpDef* op : AllOps()) {
    if (!op->leaf && !op->view && op->no_cuda == nullptr) ops.push_back(op);
  }
  return ops;
}

INSTANTIATE_TEST_SUITE_P(All, CudaOpsTest, testing::ValuesIn(ComputingOps()),
                         [](const auto& info) { return std::string(info.param->name); });

// Says how much was left out, so that a run without a GPU is not taken for one with it.
TEST(CudaOpsCount, OpsThatDidNotRunOnADevice) {
  const auto devices = cuda::ListDevices();
  if (devices.ok()) {
    std::printf("%zu CUDA kernels ran on %s\n", ComputingOps().size(), (*devices)[0].name);
    return;
  }
  std::printf("CUDA kernels that did not run on a device: %zu (%s)\n", ComputingOps().size(),
              std::string(devices.status().message()).c_str());
  GTEST_SKIP() << ComputingOps().size() << " CUDA kernels did not run on a device";
}

}  // namespace
}  // namespace lockstep::engine
