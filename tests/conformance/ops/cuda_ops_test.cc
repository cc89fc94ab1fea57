// SPDX-License-Identifier: Apache-2.0
// Every op's CUDA kernel on each of its cases against float64: on the emulated GPU, where threads
// run in two orders, and on this machine's GPU. Without one these tests are skipped and counted.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string_view>

#include "common/check.h"
#include "common/half.h"
#include "engine/cuda/kernels.h"
#include "engine/cuda/module.h"
#include "engine/ops/ops.h"
#include "engine/ops/registry.h"
#include "tests/conformance/ops/made_case.h"
#include "tests/conformance/ops/reference.h"
#include "tests/emulation/emulation.h"

namespace lockstep::engine {
namespace {

// The GPU under test.
struct Gpu {
  const cuda::Tables* tables = nullptr;
  cuda::Stream stream = nullptr;
  void* workspace = nullptr;

  void Check(cuda::Code code, const char* what) const {
    const absl::Status status = cuda::StatusOf(*tables, code, what);
    LS_CHECK(status.ok()) << status;
  }
  explicit Gpu(const cuda::Tables* tables) : tables(tables) {
    Check(tables->runtime->set_device(0), "set_device");
    Check(tables->runtime->create_stream(&stream), "create_stream");
    Check(tables->runtime->allocate(kCudaWorkspaceBytes, &workspace), "allocate");
  }
  void Copy(void* to, const void* from, size_t bytes) const {
    Check(tables->runtime->copy(to, from, bytes, stream), "copy");
    Check(tables->runtime->wait_stream(stream), "a kernel");
  }
};

const Gpu& Emulated() {
  static const Gpu* const gpu = new Gpu(cuda::EmulatedTables());
  return *gpu;
}
// Null without a GPU.
const Gpu* Real() {
  static const Gpu* const gpu = [] {
    const auto devices = cuda::ListDevices();
    return devices.ok() ? new Gpu(*cuda::LoadModule()) : nullptr;
  }();
  return gpu;
}

// Device memory of one value, `shift` elements off its alignment, with canaries around it.
class Buffer {
 public:
  Buffer(const Gpu& gpu, const TensorType& type, size_t bytes, size_t shift)
      : gpu_(gpu),
        type_(type),
        bytes_(bytes),
        words_(bytes / 2 + shift * SizeOf(type.dtype) / 2 + 2 * kBorder, kCanary) {
    first_ = kBorder + shift * SizeOf(type.dtype) / 2;
    gpu_.Check(gpu_.tables->runtime->allocate(words_.size() * 2, &device_), "allocate");
  }
  ~Buffer() { gpu_.tables->runtime->release(device_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  Storage storage() const {
    return {Region::kAbsolute, reinterpret_cast<size_t>(device_) + first_ * 2};
  }
  void Set(const Doubles& values) {
    for (size_t i = 0; i < values.size(); ++i) {
      const auto value = static_cast<float>(values[i]);
      if (type_.dtype == DType::kBF16) {
        Put(i, BFloat16::FromFloat(value).bits);
      } else if (type_.dtype == DType::kF16) {
        Put(i, Float16::FromFloat(value).bits);
      } else if (type_.dtype == DType::kI32) {
        Put(i, static_cast<int32_t>(values[i]));
      } else {
        Put(i, value);
      }
    }
  }
  void Upload() { gpu_.Copy(device_, words_.data(), words_.size() * 2); }
  // Brings the memory back; false when a canary is dead.
  bool Download() {
    gpu_.Copy(words_.data(), device_, words_.size() * 2);
    for (size_t i = 0; i < words_.size(); ++i) {
      const bool inside = i >= first_ && i < first_ + bytes_ / 2;
      if (!inside && words_[i] != kCanary) return false;
    }
    return true;
  }
  Doubles Get() const {
    Doubles values;
    for (int64_t i = 0; i < type_.elements(); ++i) values.push_back(At(static_cast<size_t>(i)));
    return values;
  }

 private:
  static constexpr uint16_t kCanary = 0x7FDE;
#ifdef LOCKSTEP_SANITIZE_ADDRESS
  static constexpr size_t kBorder = 0;  // it watches the borders itself, reads too
#else
  static constexpr size_t kBorder = 128;
#endif
  template <typename T>
  void Put(size_t i, T value) {
    std::memcpy(reinterpret_cast<char*>(words_.data() + first_) + i * sizeof(T), &value, sizeof(T));
  }
  template <typename T>
  T Take(size_t i) const {
    T value;
    const auto* from = reinterpret_cast<const char*>(words_.data() + first_) + i * sizeof(T);
    std::memcpy(&value, from, sizeof(T));
    return value;
  }
  double At(size_t i) const {
    if (type_.dtype == DType::kBF16) {
      return static_cast<double>(BFloat16{Take<uint16_t>(i)}.ToFloat());
    }
    if (type_.dtype == DType::kF16)
      return static_cast<double>(Float16{Take<uint16_t>(i)}.ToFloat());
    if (type_.dtype == DType::kF64) return Take<double>(i);
    if (type_.dtype == DType::kI32) return static_cast<double>(Take<int32_t>(i));
    return static_cast<double>(Take<float>(i));
  }

  const Gpu& gpu_;
  const TensorType type_;
  const size_t bytes_;
  std::vector<uint16_t> words_;
  size_t first_ = 0;
  void* device_ = nullptr;
};

// Runs one node on its own buffers. Outputs start as 1 when they are added to.
std::vector<Doubles> RunNode(const Gpu& gpu, const Prepared& p, size_t shift, bool accumulate,
                             bool fp8 = false) {
  const Node& node = p.graph.node(p.made.node);
  if (node.op->view) return {p.inputs[0]};
  const CudaKernelDef& def = CudaKernelOf(*node.op);
  std::vector<std::unique_ptr<Buffer>> in, out;
  KernelOperands operands;
  for (size_t i = 0; i < p.inputs.size(); ++i) {
    const TensorType& type = p.graph.type(node.inputs[i]);
    in.push_back(std::make_unique<Buffer>(gpu, type, type.bytes(), shift));
    in.back()->Set(p.inputs[i]);
    in.back()->Upload();
    operands.inputs.push_back(in.back()->storage());
  }
  for (const TensorType& type : node.outputs) {
    out.push_back(std::make_unique<Buffer>(gpu, type, type.bytes(), shift));
    if (accumulate) out.back()->Set(Doubles(static_cast<size_t>(type.elements()), 1));
    out.back()->Upload();
    operands.outputs.push_back(out.back()->storage());
    if (accumulate) operands.outputs.back().region = Region::kGradients;  // its base is null here
  }
  const size_t scratch_bytes = def.scratch_bytes == nullptr ? 0 : def.scratch_bytes(p.graph, node);
  Buffer scratch(gpu, {}, scratch_bytes, 0);
  scratch.Upload();
  operands.scratch = scratch.storage();
  CudaContext context;
  context.accumulate = accumulate;
  context.stream = gpu.stream;
  context.workspace = gpu.workspace;
  const auto kernel = def.prepare(p.graph, node, operands, {gpu.tables, false, nullptr, fp8});
  LS_CHECK(kernel.ok()) << kernel.status();
  gpu.Check((*kernel)(context), node.op->name);
  std::vector<Doubles> results;
  for (const auto& buffer : out) {
    EXPECT_TRUE(buffer->Download()) << node.op->name << " writes beyond its output";
    results.push_back(buffer->Get());
  }
  EXPECT_TRUE(scratch.Download()) << node.op->name << " writes beyond its scratch";
  return results;
}

// The bits of all results, so that NaN is equal to itself.
std::vector<uint64_t> Bits(const std::vector<Doubles>& values) {
  std::vector<uint64_t> bits;
  for (const Doubles& output : values) {
    for (const double x : output) bits.push_back(std::bit_cast<uint64_t>(x));
  }
  return bits;
}

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

// Where the library has no such epilogue, the product is rounded before gelu, as it is by itself.
bool RoundsTheProduct(const OpCase& test) {
  return test.attrs.Int("keep") != 0 || test.attrs.String("third") == "gelu_tanh";
}

// Tensor cores take attention's probabilities in 16 bits: the sums of products with them have an
// error of as many units of the largest one. Where they cannot do it nothing is rounded inside.
double InnerRounding(const OpDef& op, const OpCase& test, DType type,
                     const std::vector<Doubles>& expected) {
  const std::string name = op.name;
  const bool attention = name == "attention" || name == "attention_backward";
  if (!attention && !RoundsTheProduct(test)) return 0;
  const size_t first = name == "attention" ? 0 : 3;  // of q, k and v
  for (size_t i = 0; attention && i < test.inputs.size(); ++i) {
    if (test.inputs[i].dtype == DType::kF32 && (i == 0 || i >= first)) return 0;
  }
  double most = 1;
  for (const Doubles& output : expected) {
    for (const double x : output) most = std::max(most, std::fabs(x));
  }
  return most * (type == DType::kBF16 ? 0x1p-8 : 0x1p-11);
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

// Bytes hold what bf16 holds: the sums are the same up to their order. Extents that the library
// does not take in bytes are multiplied in bf16, as on older GPUs.
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
    const int64_t before = emulation::Fp8ProductsRun();
    ASSERT_NO_FATAL_FAILURE(
        ExpectRoundedOnce(node, RunNode(gpu, p, 0, false, fp8), expected, 2 * Tolerance(test)));
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
