// SPDX-License-Identifier: Apache-2.0
// Attention by the kernels of sm_90a against float64, on the emulated GPU, whose products are made
// as early and as late as they may be, and on this machine's where it has such instructions.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "common/half.h"
#include "engine/cuda/kernels/all.h"
#include "engine/ops/ops.h"
#include "tests/conformance/ops/made_case.h"
#include "tests/conformance/ops/reference.h"
#include "tests/conformance/ops/run_cuda_node.h"
#include "tests/emulation/emulation.h"

namespace lockstep::engine {
namespace {

constexpr char kNoWarpgroups[] = "this GPU is no sm_90, or LOCKSTEP_WARPGROUPS is 0";

enum class Mask { kNone, kByKey, kByLength };
struct Form {
  int64_t batch, length, heads, depth;
  bool packed, causal;
  Mask mask;
  double rate;
};
// Lengths within one tile of 64, of whole tiles, and of blocks and more; every path of masks, with
// and without dropout; the last one has so many tiles that each place for them is filled anew.
const Form kForms[] = {{1, 64, 1, 64, true, false, Mask::kNone, 0},
                       {2, 9, 2, 40, false, true, Mask::kNone, 0.3},
                       {1, 128, 2, 64, true, false, Mask::kNone, 0.3},
                       {1, 200, 1, 64, true, true, Mask::kNone, 0},
                       {1, 330, 1, 64, true, true, Mask::kNone, 0.1},
                       {2, 130, 1, 48, false, false, Mask::kByKey, 0.3},
                       {3, 201, 1, 56, false, false, Mask::kByLength, 0.5},
                       {2, 193, 2, 64, false, true, Mask::kByLength, 0.1},
                       {1, 256, 1, 64, true, true, Mask::kByKey, 0.2},
                       {1, 470, 1, 64, true, false, Mask::kNone, 0.1}};

OpCase CaseOf(const Form& f, bool backward) {
  OpCase test;
  const int64_t rows = f.batch * f.length, width = f.heads * f.depth;
  test.classes = f.mask == Mask::kByLength ? f.length : 2;
  if (backward) {
    test.inputs = {{DType::kF32, {rows, width}},
                   {DType::kF32, {rows, width}},
                   {DType::kF32, {f.batch, f.heads, f.length}}};
  }
  for (int i = 0; i < (f.packed ? 1 : 3); ++i) {
    test.inputs.push_back({DType::kF32, {rows, f.packed ? 3 * width : width}});
  }
  if (f.mask == Mask::kByKey) test.inputs.push_back({DType::kI32, {f.batch, f.length}});
  if (f.mask == Mask::kByLength) test.inputs.push_back({DType::kI32, {f.batch}});
  if (f.rate > 0) test.inputs.push_back({DType::kI32, {ops::kAddressWords}});
  test.attrs = {{"heads", f.heads},
                {"length", f.length},
                {"causal", int64_t{f.causal}},
                {"masked", int64_t{f.mask != Mask::kNone}},
                {"rate", f.rate},
                {"key", int64_t{12345}}};
  return test;
}

void Check(const Gpu& gpu, bool backward) {
  const OpDef& op = backward ? ops::kAttentionBackward : ops::kAttention;
  int each = 0;
  for (const Form& form : kForms) {
    const OpCase plain = CaseOf(form, backward);
    const DType type = each++ % 2 == 0 ? DType::kBF16 : DType::kF16;
    const OpCase test = HalfCase(plain, type, 1);
    SCOPED_TRACE(Describe(op, test));
    Prepared p = Prepare(op, test);
    for (size_t i = 0; i < p.inputs.size(); ++i) {
      p.inputs[i] = Rounded(test.inputs[i].dtype, std::move(p.inputs[i]));
    }
    if (form.rate > 0) p.inputs.back() = {3, 1, 2, 1};  // a run's place, which is never negative
    const Node& node = p.graph.node(p.made.node);
    const std::vector<Doubles> expected = Reference(op, plain, node.outputs, p.inputs);
    const double tolerance = 2 * Tolerance(plain) + InnerRounding(op, test, type, expected);
    const int64_t before = emulation::GroupProducts();
    emulation::SetOrder(emulation::Order::kForward);
    const std::vector<Doubles> first = RunNode(gpu, p, 0, false);
    if (&gpu == &EmulatedWarpgroups()) {
      EXPECT_GT(emulation::GroupProducts(), before) << "other kernels did it";
    }
    ASSERT_NO_FATAL_FAILURE(ExpectRoundedOnce(node, first, expected, tolerance));
    emulation::SetOrder(emulation::Order::kBackward);
    ASSERT_EQ(Bits(RunNode(gpu, p, 0, false)), Bits(first)) << "a second run has other bits";
  }
}

// Places in a row's bytes are ints there.
TEST(WarpgroupAttentionTest, WiderRowsThanTheKernelsCanAddressAreForOthers) {
  cuda::AttentionArgs args;
  args.warpgroups = true;
  args.length = args.queries = 64;
  args.depth = 64;
  args.width = 64;
  args.stride = (int64_t{1} << 30) - 8;
  args.q.type = args.k.type = args.v.type = args.y.type = cuda::Type::kBF16;
  EXPECT_TRUE(cuda::AttentionFitsTensorCores(args));
  EXPECT_TRUE(cuda::AttentionFitsWarpgroups(args));
  args.stride += 8;
  EXPECT_FALSE(cuda::AttentionFitsTensorCores(args));
  EXPECT_FALSE(cuda::AttentionFitsWarpgroups(args));
}

// Numbers in [-1, 1) in 16 bits.
class Numbers {
 public:
  Numbers(cuda::Type type, int64_t count, uint64_t site) : type_(type) {
    for (const double x : MakeValues({DType::kF32, {count}}, site, 2)) {
      const auto value = static_cast<float>(x);
      bits_.push_back(type == cuda::Type::kBF16 ? BFloat16::FromFloat(value).bits
                                                : Float16::FromFloat(value).bits);
    }
    bits_.resize(bits_.size() + 8);
    shift_ = (16 - reinterpret_cast<uintptr_t>(bits_.data()) % 16) % 16 / 2;
    std::copy_backward(bits_.begin(), bits_.end() - 8, bits_.end() - 8 + Shift());
  }
  cuda::View At(int64_t element) { return {bits_.data() + Shift() + element, type_}; }

 private:
  int64_t Shift() const { return static_cast<int64_t>(shift_); }
  cuda::Type type_;
  std::vector<uint16_t> bits_;
  size_t shift_ = 0;
};

// rowsum(dy y) has the bits that other kernels get from a launch of its own.
void CheckDelta(const Form& form, cuda::Type type) {
  const int64_t width = form.heads * form.depth, count = form.batch * form.length * width;
  const int64_t units = form.batch * form.heads, padded = (form.length + 63) / 64 * 64;
  Numbers qkv(type, 3 * count, 1), y(type, count, 2), dy(type, count, 3), out(type, 3 * count, 4);
  std::vector<float> log_sums(static_cast<size_t>(units * form.length), 1), delta(log_sums);
  std::vector<float> rows(static_cast<size_t>(2 * units * padded), NAN);
  std::vector<uint16_t> kept(static_cast<size_t>(units * padded * padded / 16));
  const int32_t address[] = {3, 1, 2, 1};
  cuda::AttentionBackwardArgs args;
  cuda::AttentionArgs& f = args.forward;
  f.batch = form.batch;
  f.heads = form.heads;
  f.length = f.queries = form.length;
  f.depth = form.depth;
  f.width = width;
  f.stride = 3 * width;
  f.causal = form.causal;
  if (form.rate > 0) f.drop = {7, 20000, 1.5f, address};
  f.round_keys = cuda::RoundKeys(f.drop.key);
  f.q = qkv.At(0);
  f.k = qkv.At(width);
  f.v = qkv.At(2 * width);
  f.y = y.At(0);
  f.log_sums = {log_sums.data(), cuda::Type::kF32};
  args.dy = dy.At(0);
  args.dq = out.At(0);
  args.dk = out.At(width);
  args.dv = out.At(2 * width);
  args.delta = delta.data();
  args.rows = rows.data();
  args.kept = kept.data();
  const Gpu& gpu = EmulatedWarpgroups();
  gpu.Check(gpu.tables->kernels->attention_backward(args, gpu.stream), "delta by itself");
  f.warpgroups = true;
  args.delta = nullptr;
  const int64_t before = emulation::Launches();
  gpu.Check(gpu.tables->kernels->attention_backward(args, gpu.stream), "delta within");
  EXPECT_EQ(emulation::Launches() - before, 2) << "of dq, and of dk and dv";
  for (int64_t unit = 0; unit < units; ++unit) {
    for (int64_t query = 0; query < padded; ++query) {
      const float* const row = rows.data() + 2 * (unit * padded + query);
      const bool inside = query < form.length;
      const float expected = inside ? delta[static_cast<size_t>(unit * form.length + query)] : 0;
      ASSERT_EQ(std::bit_cast<uint32_t>(row[1]), std::bit_cast<uint32_t>(expected))
          << row[1] << " instead of " << expected << " for query " << query;
      ASSERT_EQ(std::isinf(row[0]), !inside) << query;
    }
  }
}

TEST(WarpgroupAttentionTest, DeltaIsThatOfALaunchOfItsOwn) {
  int each = 0;
  for (const Form& form : kForms) {
    SCOPED_TRACE(form.length);
    const cuda::Type type = each++ % 2 == 0 ? cuda::Type::kF16 : cuda::Type::kBF16;
    ASSERT_NO_FATAL_FAILURE(CheckDelta(form, type));
  }
}

TEST(WarpgroupAttentionTest, EmulatedForwardAgreesWithFloat64) {
  Check(EmulatedWarpgroups(), false);
}
TEST(WarpgroupAttentionTest, EmulatedBackwardAgreesWithFloat64) {
  Check(EmulatedWarpgroups(), true);
}
TEST(WarpgroupAttentionTest, DeviceForwardAgreesWithFloat64) {
  if (Real() == nullptr) GTEST_SKIP() << "no GPU: not run on a device";
  if (!Real()->warpgroups) GTEST_SKIP() << kNoWarpgroups;
  Check(*Real(), false);
}
TEST(WarpgroupAttentionTest, DeviceBackwardAgreesWithFloat64) {
  if (Real() == nullptr) GTEST_SKIP() << "no GPU: not run on a device";
  if (!Real()->warpgroups) GTEST_SKIP() << kNoWarpgroups;
  Check(*Real(), true);
}

}  // namespace
}  // namespace lockstep::engine
