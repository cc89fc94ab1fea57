// SPDX-License-Identifier: Apache-2.0
// Attention by the kernels of sm_90a against float64, on the emulated GPU, whose products are made
// as early and as late as they may be, and on this machine's where it has such instructions.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
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
  cuda::View At(int64_t element) { return {Data() + element, type_}; }
  uint16_t* Data() { return bits_.data() + Shift(); }
  // All that lies at At(0).
  std::vector<uint16_t> Raw() const { return {bits_.begin() + Shift(), bits_.end() - 8 + Shift()}; }

 private:
  int64_t Shift() const { return static_cast<int64_t>(shift_); }
  cuda::Type type_;
  std::vector<uint16_t> bits_;
  size_t shift_ = 0;
};

// The arrays of a form, packed, and its arguments on the emulated GPU.
struct Arrays {
  Arrays(const Form& form, cuda::Type type)
      : form(form),
        width(form.heads * form.depth),
        count(form.batch * form.length * width),
        units(form.batch * form.heads),
        padded((form.length + 63) / 64 * 64),
        qkv(type, 3 * count, 1),
        y(type, count, 2),
        dy(type, count, 3),
        out(type, 3 * count, 4),
        log_sums(static_cast<size_t>(units * form.length), 1),
        delta(log_sums),
        rows(static_cast<size_t>(2 * units * padded), NAN),
        kept(static_cast<size_t>(units * padded * padded / 16), 0x5a5a),
        by_key(static_cast<size_t>(form.batch * form.length)) {
    for (size_t i = 0; i < by_key.size(); ++i) by_key[i] = i % 3 != 1;
    for (int64_t i = 0; i < form.batch; ++i) {
      by_length.push_back(static_cast<int32_t>(form.length - 1 - 50 * i));
    }
    cuda::AttentionArgs& f = args.forward;
    f.batch = form.batch;
    f.heads = form.heads;
    f.length = f.queries = form.length;
    f.depth = form.depth;
    f.width = width;
    f.stride = 3 * width;
    f.scale = 0.5f;
    f.causal = form.causal;
    f.warpgroups = true;
    // Thresholds with and without the highest bit.
    if (form.rate > 0) f.drop = {7, form.rate > 0.2 ? 45000u : 20000u, 1.5f, address};
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
    args.rows = rows.data();
    args.kept = kept.data();
  }
  // With the form's mask.
  Arrays& Mask() {
    if (form.mask == Mask::kByKey) args.forward.by_key = by_key.data();
    if (form.mask == Mask::kByLength) args.forward.by_length = by_length.data();
    return *this;
  }
  void Forward() {
    const Gpu& gpu = EmulatedWarpgroups();
    gpu.Check(gpu.tables->kernels->attention(args.forward, gpu.stream), "attention");
  }
  void Backward() {
    const Gpu& gpu = EmulatedWarpgroups();
    gpu.Check(gpu.tables->kernels->attention_backward(args, gpu.stream), "its gradient");
  }
  // How many keys of each sample count at most.
  int64_t Keys(int64_t sample) const {
    return args.forward.by_length != nullptr ? by_length[static_cast<size_t>(sample)] : form.length;
  }

  const Form form;
  const int64_t width, count, units, padded;
  Numbers qkv, y, dy, out;
  std::vector<float> log_sums, delta, rows;
  std::vector<uint16_t> kept;
  std::vector<int32_t> by_key, by_length;
  const int32_t address[4] = {3, 1, 2, 1};
  cuda::AttentionBackwardArgs args;
};

// rowsum(dy y) has the bits that other kernels get from a launch of its own.
void CheckDelta(const Form& form, cuda::Type type) {
  Arrays a(form, type);
  a.args.delta = a.delta.data();
  a.args.forward.warpgroups = false;
  a.Backward();
  a.args.forward.warpgroups = true;
  a.args.delta = nullptr;
  const int64_t before = emulation::Launches();
  a.Backward();
  EXPECT_EQ(emulation::Launches() - before, 2) << "of dq, and of dk and dv";
  for (int64_t unit = 0; unit < a.units; ++unit) {
    for (int64_t query = 0; query < a.padded; ++query) {
      const float* const row = a.rows.data() + 2 * (unit * a.padded + query);
      const bool inside = query < form.length;
      const float expected = inside ? a.delta[static_cast<size_t>(unit * form.length + query)] : 0;
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

// Bits from the forward pass to the backward pass.
class KeptDropoutTest : public testing::Test {
 protected:
  // What the forward and the backward pass make.
  struct Results {
    explicit Results(const Arrays& a)
        : y(a.y.Raw()), gradients(a.out.Raw()), log_sums(a.log_sums) {}
    bool operator==(const Results&) const = default;
    std::vector<uint16_t> y, gradients;
    std::vector<float> log_sums;
  };
  static Results Run(Arrays* a) {
    a->Forward();
    a->Backward();
    return Results(*a);
  }
  // Of all forms with dropout up to that length.
  static void EachForm(int64_t longest, const std::function<void(const Form&, cuda::Type)>& check) {
    int each = 0;
    for (const Form& form : kForms) {
      if (form.rate == 0 || form.length > longest) continue;
      SCOPED_TRACE(form.length);
      check(form, each++ % 2 == 0 ? cuda::Type::kBF16 : cuda::Type::kF16);
    }
  }
  // Compares the bits of all pairs that are seen with those that were drawn.
  static void ExpectSeenBits(const Arrays& a, const uint16_t* left) {
    for (int64_t unit = 0; unit < a.units; ++unit) {
      for (int64_t query = 0; query < a.form.length; ++query) {
        for (int64_t key = 0; key < a.Keys(unit / a.form.heads); ++key) {
          if (a.form.causal && key > query) break;
          const int64_t at =
              ((unit * (a.padded / 64) + key / 64) * 4 + key % 8 / 2) * a.padded + query;
          const auto bit = [&](const uint16_t* bits) {
            return bits[at] >> (key % 64 / 8 * 2 + key % 2) & 1;
          };
          ASSERT_EQ(bit(left), bit(a.kept.data())) << unit << ", " << query << ", " << key;
        }
      }
    }
  }
};

// They are those that the backward pass draws, and no result has other bits.
TEST_F(KeptDropoutTest, TheForwardPassLeavesWhatTheBackwardPassWouldDraw) {
  EachForm(470, [](const Form& form, cuda::Type type) {
    Arrays drawn(form, type), read(form, type);
    const Results expected = Run(&drawn.Mask());
    Numbers left(type, static_cast<int64_t>(read.kept.size()), 5);
    read.Mask().args.forward.kept = left.Data();
    read.args.kept = nullptr;  // nobody draws
    const int64_t before = emulation::Launches(), products = emulation::GroupProducts();
    EXPECT_TRUE(Run(&read) == expected);
    EXPECT_EQ(emulation::Launches() - before, 3);
    EXPECT_GT(emulation::GroupProducts(), products);
    ASSERT_NO_FATAL_FAILURE(ExpectSeenBits(drawn, left.Data()));
  });
}

// Two numbers are compared with the threshold at once: at both ends of it, and where its highest
// bit changes. Of so many numbers some are the threshold.
TEST_F(KeptDropoutTest, EachNumberIsComparedAsByItself) {
  const Form form = {1, 470, 1, 64, true, false, Mask::kNone, 0.1};
  for (const uint32_t threshold : {1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
    Arrays a(form, cuda::Type::kBF16);
    Numbers left(cuda::Type::kBF16, static_cast<int64_t>(a.kept.size()), 5);
    cuda::AttentionArgs& f = a.args.forward;
    f.drop.threshold = threshold;
    f.kept = left.Data();
    a.Forward();
    f.kept = a.kept.data();
    f.warpgroups = false;
    a.Forward();
    ASSERT_NO_FATAL_FAILURE(ExpectSeenBits(a, left.Data())) << threshold;
  }
}

// Bits of the wrong pair of columns are seen, of the wrong half, and of the wrong query.
TEST_F(KeptDropoutTest, OtherBitsMakeOtherGradients) {
  EachForm(130, [](const Form& form, cuda::Type type) {
    Arrays a(form, type);
    Numbers left(type, static_cast<int64_t>(a.kept.size()), 5);
    a.Mask().args.forward.kept = left.Data();
    const Results expected = Run(&a);
    const std::vector<uint16_t> bits(left.Data(), left.Data() + a.kept.size());
    const auto padded = static_cast<size_t>(a.padded);
    for (const size_t distance : {padded, 2 * padded, size_t{1}, size_t{8}}) {
      std::rotate_copy(bits.begin(), bits.begin() + static_cast<int64_t>(distance), bits.end(),
                       left.Data());
      a.Backward();
      EXPECT_FALSE(Results(a) == expected) << distance;
    }
    std::copy(bits.begin(), bits.end(), left.Data());
    a.Backward();
    EXPECT_TRUE(Results(a) == expected);
  });
}

// Whatever kernels do the forward pass the bits are there: a result that does not lie for the
// kernels of sm_90a, or a GPU without them.
TEST_F(KeptDropoutTest, OtherKernelsOfTheForwardPassLeaveThemToo) {
  EachForm(201, [](const Form& form, cuda::Type type) {
    Arrays drawn(form, type);
    drawn.Mask().Forward();
    drawn.Backward();
    const Results expected(drawn);
    for (const bool warpgroups : {false, true}) {
      Arrays other(form, type);
      Numbers left(type, static_cast<int64_t>(other.kept.size()), 5);
      cuda::AttentionArgs& f = other.Mask().args.forward;
      f.kept = left.Data();
      f.warpgroups = warpgroups;
      f.y = other.y.At(1);
      EXPECT_FALSE(cuda::AttentionFitsWarpgroups(f));
      const int64_t before = emulation::GroupProducts();
      other.Forward();
      EXPECT_EQ(emulation::GroupProducts(), before);
      // The gradient of the same results.
      other.y = drawn.y;
      other.log_sums = drawn.log_sums;
      f.y = other.y.At(0);
      f.log_sums.data = other.log_sums.data();
      f.warpgroups = true;
      other.args.kept = nullptr;
      other.Backward();
      EXPECT_GT(emulation::GroupProducts(), before);
      EXPECT_TRUE(Results(other) == expected);
      ASSERT_NO_FATAL_FAILURE(ExpectSeenBits(drawn, left.Data()));
    }
  });
}

// Where the backward pass is done by other kernels, or cannot load the bits, it draws.
TEST_F(KeptDropoutTest, OtherKernelsOfTheBackwardPassDraw) {
  EachForm(130, [](const Form& form, cuda::Type type) {
    for (const bool odd : {false, true}) {  // the bits lie between two places
      Arrays a(form, type);
      Numbers left(type, static_cast<int64_t>(a.kept.size()), 5);
      a.Mask().Forward();
      a.args.delta = a.delta.data();
      a.args.forward.warpgroups = false;
      a.Backward();
      const Results expected(a);
      a.args.forward.warpgroups = true;
      a.args.forward.kept = left.Data();
      a.args.kept = nullptr;
      if (odd) {
        a.args.forward.kept = left.Data() + 1;
      } else {
        a.args.rows = nullptr;
      }
      EXPECT_FALSE(cuda::AttentionBackwardFitsWarpgroups(a.args));
      const int64_t before = emulation::GroupProducts();
      a.Backward();
      EXPECT_EQ(emulation::GroupProducts(), before);
      EXPECT_TRUE(Results(a) == expected);
      // With room of its own for them it draws there.
      if (!odd) continue;
      a.args.kept = a.kept.data();
      EXPECT_TRUE(cuda::AttentionBackwardFitsWarpgroups(a.args));
    }
  });
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
