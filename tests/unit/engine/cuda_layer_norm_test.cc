// SPDX-License-Identifier: Apache-2.0
// Layer normalisation on the emulated GPU: of sums whose residual is one, and its gradients in one
// launch.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include "common/half.h"
#include "engine/cuda/kernels/tables.h"
#include "tests/emulation/emulation.h"

namespace lockstep::engine::cuda {
namespace {

// Numbers in [-1, 1), that many elements off an aligned place.
class Array {
 public:
  Array(Type type, int64_t count, uint32_t seed, int64_t shift)
      : type_(type), count_(count), words_(static_cast<size_t>(2 * (count + shift) + 32)) {
    const auto address = reinterpret_cast<uintptr_t>(words_.data());
    first_ = (64 - address % 64) % 64 / 2 + static_cast<size_t>(shift) * bytes() / 2;
    for (int64_t i = 0; i < count; ++i) {
      seed = seed * 1664525 + 1013904223;
      const float x = static_cast<float>(seed >> 8) * 0x1p-23f - 1;
      if (type == Type::kF32) {
        std::memcpy(at(i), &x, sizeof(x));
      } else {
        const uint16_t bits = BFloat16::FromFloat(x).bits;
        std::memcpy(at(i), &bits, sizeof(bits));
      }
    }
  }
  View view() { return {words_.data() + first_, type_}; }
  float* floats() { return reinterpret_cast<float*>(words_.data() + first_); }
  std::vector<uint16_t> all() const {
    const auto begin = words_.begin() + static_cast<int64_t>(first_);
    return {begin, begin + count_ * static_cast<int64_t>(bytes()) / 2};
  }

 private:
  size_t bytes() const { return type_ == Type::kF32 ? 4 : 2; }
  uint16_t* at(int64_t i) { return words_.data() + first_ + static_cast<size_t>(i) * bytes() / 2; }
  Type type_;
  int64_t count_;
  std::vector<uint16_t> words_;
  size_t first_ = 0;
};

struct Case {
  int64_t rows;
  int64_t columns;
  Type type;
  bool residual;
  bool drops;
  bool adds;
  int64_t shift;     // of x
  int64_t launches;  // of both at once
};

// What the launches leave: dx in the place of dy, what is dropped of it, dgamma and dbeta.
std::vector<std::vector<uint16_t>> Made(const Case& c, bool at_once, int64_t* launches) {
  const int64_t count = c.rows * c.columns;
  Array dy(c.type, count, 1, 0), x(c.type, count, 2, c.shift), gamma(Type::kF32, c.columns, 3, 0);
  Array mean(Type::kF32, c.rows, 4, 0), rstd(Type::kF32, c.rows, 5, 0);
  Array residual(c.type, count, 6, 0), rounded(Type::kBF16, count, 7, 0);
  Array dgamma(Type::kF32, c.columns, 8, 0), dbeta(Type::kF32, c.columns, 9, 0);
  Array partial(Type::kF32, LayerNormPartialFloats(c.rows, c.columns), 10, 0);
  const int32_t address[] = {3, 1, 2, 0};
  LayerNormBackwardArgs args;
  LayerNormBackwardInputArgs& input = args.input;
  input.dy = args.weight.dy = input.dx = dy.view();
  input.x = args.weight.x = x.view();
  input.gamma = gamma.view();
  input.mean = args.weight.mean = mean.view();
  input.rstd = args.weight.rstd = rstd.view();
  if (c.residual) input.residual = residual.view();
  if (c.drops) {
    input.rounded = rounded.view();
    input.drop = {7, 20000, 1.5f, address};
  }
  input.rows = args.weight.rows = c.rows;
  input.columns = args.weight.columns = c.columns;
  args.weight.dgamma = dgamma.floats();
  args.weight.dbeta = dbeta.floats();
  args.weight.partial = partial.floats();
  args.weight.adds = c.adds;
  const Kernels& kernels = *EmulatedTables()->kernels;
  const int64_t before = emulation::Launches();
  if (at_once) {
    EXPECT_EQ(kernels.layer_norm_backward(args, nullptr), 0);
  } else {
    EXPECT_EQ(kernels.layer_norm_backward_weight(args.weight, nullptr), 0);
    EXPECT_EQ(kernels.layer_norm_backward_input(args.input, nullptr), 0);
  }
  *launches = emulation::Launches() - before;
  return {dy.all(), rounded.all(), dgamma.all(), dbeta.all()};
}

// Both at once are the bits of both one after another, in a launch less where rows fit into warps:
// rows of one lane to all chunks, fewer rows than a part has and many parts.
TEST(CudaLayerNormTest, BothGradientsAtOnceAreTheSameBits) {
  constexpr Type kF32 = Type::kF32, kBF16 = Type::kBF16;
  for (const Case& c :
       {Case{3, 8, kF32, false, false, false, 0, 2}, Case{70, 24, kBF16, true, true, true, 0, 2},
        Case{37, 768, kF32, true, true, false, 0, 2}, Case{18, 1600, kF32, false, true, true, 0, 2},
        Case{18, 2048, kBF16, true, false, false, 0, 2},
        Case{8200, 8, kF32, false, false, false, 0, 2},
        Case{20, 2056, kF32, true, false, false, 0, 4}, Case{20, 26, kF32, true, true, true, 0, 4},
        Case{20, 24, kF32, true, false, false, 1, 4}}) {
    int64_t together = 0, apart = 0;
    const auto one = Made(c, true, &together), two = Made(c, false, &apart);
    EXPECT_EQ(one, two) << c.rows << " x " << c.columns;
    EXPECT_EQ(together, c.launches) << c.rows << " x " << c.columns;
    EXPECT_EQ(apart, c.launches == 2 ? 3 : 4) << c.rows << " x " << c.columns;
  }
}

struct SumCase {
  int64_t rows;
  int64_t columns;
  Type type;  // of x; the sum has it too
  Type branch;
  bool drops;
  bool writes;    // y, beside what is rounded of it
  int64_t shift;  // of x and the branch
};

// What the launches leave of a sum whose residual is a normalisation of x: the sum, its
// normalisation, and that rounded, the means and the others.
std::vector<std::vector<uint16_t>> NormedSum(const SumCase& c, bool at_once, int64_t* launches) {
  constexpr Type kF32 = Type::kF32;
  const int64_t count = c.rows * c.columns;
  Array x(c.type, count, 1, c.shift), branch(c.branch, count, 2, c.shift), sum(c.type, count, 3, 0);
  Array residual(kF32, count, 4, 0), y(kF32, count, 5, 0), rounded(Type::kBF16, count, 6, 0);
  Array gammas[] = {{kF32, c.columns, 7, 0}, {kF32, c.columns, 8, 0}};
  Array betas[] = {{kF32, c.columns, 9, 0}, {kF32, c.columns, 10, 0}};
  Array mean(kF32, c.rows, 11, 0), rstd(kF32, c.rows, 12, 0);
  const int32_t address[] = {3, 1, 2, 0};
  const Kernels& kernels = *EmulatedTables()->kernels;
  LayerNormArgs args;
  args.rows = c.rows;
  args.columns = c.columns;
  args.mean = mean.floats();
  args.rstd = rstd.floats();
  args.x = x.view();
  const int64_t before = emulation::Launches();
  if (at_once) {
    args.residual_gamma = gammas[0].view();
    args.residual_beta = betas[0].view();
    args.residual_eps = 1e-3f;
  } else {
    args.gamma = gammas[0].view();
    args.beta = betas[0].view();
    args.eps = 1e-3f;
    args.y = residual.view();
    EXPECT_EQ(kernels.layer_norm(args, nullptr), 0);
    args.x = residual.view();
  }
  args.gamma = gammas[1].view();
  args.beta = betas[1].view();
  args.eps = 1e-5f;
  args.branch = branch.view();
  args.sum = sum.view();
  if (c.drops) args.drop = {7, 20000, 1.5f, address};
  args.y = y.view();
  args.rounded = rounded.view();
  if (at_once && !c.writes) args.y.data = nullptr;
  EXPECT_EQ(kernels.layer_norm(args, nullptr), 0);
  *launches = emulation::Launches() - before;
  if (!c.writes) return {sum.all(), rounded.all(), mean.all(), rstd.all()};
  return {sum.all(), rounded.all(), mean.all(), rstd.all(), y.all()};
}

// A residual that is made in the sum's launch is that of a launch of its own, whether its rows fit
// into warps or not; what nobody reads is not written.
TEST(CudaLayerNormTest, ResidualsMadeWithTheSumAreTheSameBits) {
  constexpr Type kF32 = Type::kF32, kBF16 = Type::kBF16;
  for (const SumCase& c :
       {SumCase{3, 8, kF32, kF32, false, true, 0}, SumCase{70, 24, kF32, kBF16, true, false, 0},
        SumCase{37, 768, kF32, kF32, true, true, 0}, SumCase{9, 1024, kF32, kBF16, true, false, 0},
        SumCase{5, 1032, kBF16, kBF16, true, false, 0},
        SumCase{6, 2048, kF32, kBF16, false, false, 0},
        SumCase{3, 2056, kF32, kBF16, true, false, 0}, SumCase{20, 26, kF32, kF32, true, true, 0},
        SumCase{20, 27, kBF16, kBF16, false, false, 0},
        SumCase{20, 24, kF32, kBF16, true, false, 1}}) {
    int64_t together = 0, apart = 0;
    const auto one = NormedSum(c, true, &together), two = NormedSum(c, false, &apart);
    EXPECT_EQ(one, two) << c.rows << " x " << c.columns;
    EXPECT_EQ(together, 1);
    EXPECT_EQ(apart, 2);
  }
}

// The parts of the sums are as many for any GPU.
TEST(CudaLayerNormTest, PartsAreThoseOfTheShape) {
  EXPECT_EQ(LayerNormParts(1), 1);
  EXPECT_EQ(LayerNormParts(16), 1);
  EXPECT_EQ(LayerNormParts(17), 2);
  EXPECT_EQ(LayerNormParts(8192), 512);
  EXPECT_EQ(LayerNormPartRows(8193), 17);
  EXPECT_EQ(LayerNormParts(32768), 512);
  EXPECT_EQ(LayerNormPartialFloats(17, 24), 2 * kColumnSumParts * 24);
}

}  // namespace
}  // namespace lockstep::engine::cuda
