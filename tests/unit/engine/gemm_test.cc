// SPDX-License-Identifier: Apache-2.0
// Products with few and with more rows are the chains that docs/same_bits.md defines, on every
// instruction set and with any number of threads.
#include "engine/cpu/gemm.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "common/half.h"
#include "common/philox.h"
#include "engine/cpu/isa.h"
#include "tests/unit/engine/step_job.h"

namespace lockstep::engine {
namespace {

std::vector<float> Drawn(uint64_t which, int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  for (uint64_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(MixBits(which << 32 | i) >> 40) * 0x1p-24f - 0.5f;
  }
  return values;
}

struct Operands {
  explicit Operands(const GemmShape& shape)
      : a(Drawn(1, shape.m * shape.k)),
        b(Drawn(2, shape.n * shape.k)),
        c(Drawn(3, shape.m * shape.n)),
        bias(Drawn(4, shape.n)),
        residual(Drawn(5, shape.m * shape.n)),
        mask(Drawn(6, shape.m * shape.n)) {}
  const std::vector<float> a, b, c, bias, residual, mask;
};

// Where element p of row i of op(A) lies, and element p of column j of op(B).
size_t PlaceInA(const GemmShape& shape, int64_t i, int64_t p) {
  return static_cast<size_t>(shape.a_transposed ? p * shape.m + i : i * shape.k + p);
}
size_t PlaceInB(const GemmShape& shape, int64_t j, int64_t p) {
  return static_cast<size_t>(shape.b_transposed ? j * shape.k + p : p * shape.n + j);
}

// `finish`: with the whole epilogue; else the product is added to C.
std::vector<float> Defined(const GemmShape& shape, const Operands& of, bool finish) {
  std::vector<float> c = of.c;
  for (int64_t i = 0; i < shape.m; ++i) {
    for (int64_t j = 0; j < shape.n; ++j) {
      const auto at = static_cast<size_t>(i * shape.n + j);
      float sum = finish ? 0 : of.c[at];
      for (int64_t p = 0; p < shape.k; ++p) {
        sum = std::fma(of.a[PlaceInA(shape, i, p)], of.b[PlaceInB(shape, j, p)], sum);
      }
      if (finish) {
        sum = std::max(sum + of.bias[static_cast<size_t>(j)] + of.residual[at], 0.0f);
        if (of.mask[at] <= 0) sum = 0;
      }
      c[at] = sum;
    }
  }
  return c;
}

// The upper halves of values are numbers in bf16.
std::vector<uint16_t> Narrow(const std::vector<float>& values) {
  std::vector<uint16_t> halves(values.size() + 16);
  for (size_t i = 0; i < values.size(); ++i) {
    halves[i] = static_cast<uint16_t>(std::bit_cast<uint32_t>(values[i]) >> 16);
  }
  return halves;
}

// The nearest numbers in bf16 instead, to even.
std::vector<uint16_t> Rounded(const std::vector<float>& values) {
  std::vector<uint16_t> halves(values.size() + 16);
  for (size_t i = 0; i < values.size(); ++i) halves[i] = BFloat16::FromFloat(values[i]).bits;
  return halves;
}

// Of each two of k the second product is added first; then the bias.
std::vector<float> DefinedOfBf16(const GemmShape& shape, const std::vector<uint16_t>& a,
                                 const std::vector<uint16_t>& b, const std::vector<float>& bias) {
  const auto value = [](const std::vector<uint16_t>& halves, size_t i) {
    return std::bit_cast<float>(uint32_t{halves[i]} << 16);
  };
  std::vector<float> c(static_cast<size_t>(shape.m * shape.n));
  for (int64_t i = 0; i < shape.m; ++i) {
    for (int64_t j = 0; j < shape.n; ++j) {
      float sum = 0;
      for (int64_t p = 0; p < shape.k; ++p) {
        const int64_t at = p ^ 1;
        sum = std::fma(value(a, PlaceInA(shape, i, at)), value(b, PlaceInB(shape, j, at)), sum);
      }
      c[static_cast<size_t>(i * shape.n + j)] = sum + bias[static_cast<size_t>(j)];
    }
  }
  return c;
}

// The factors are of the shape's type. With B packed beforehand, where there is such an order, the
// bits are the same.
std::vector<float> Multiplied(const GemmShape& shape, const void* a, const void* b,
                              std::vector<float> c, bool accumulate, const GemmEpilogue& epilogue,
                              Isa isa, int threads) {
  const Gemm gemm(shape, isa, threads);
  ThreadPool pool(threads);
  struct alignas(64) Line {
    float values[16];
  };
  std::vector<Line> scratch(gemm.scratch_bytes() / sizeof(Line) + 1);
  std::vector<float> packed_c = c;
  gemm.Run(a, b, c.data(), accumulate, epilogue, scratch[0].values, &pool);
  if (gemm.packed_bytes() > 0) {
    std::vector<Line> packed(gemm.packed_bytes() / sizeof(Line) + 1);
    gemm.PackAll(b, packed[0].values, scratch[0].values, &pool);
    gemm.RunPacked(a, packed[0].values, packed_c.data(), accumulate, epilogue, scratch[0].values,
                   &pool);
    EXPECT_TRUE(EqualBits(packed_c, c))
        << Name(isa) << ", " << threads << " threads, packed: " << shape.m << " x " << shape.n
        << " x " << shape.k;
  }
  return c;
}

std::vector<float> Multiplied(const GemmShape& shape, const Operands& of, bool finish, Isa isa,
                              int threads) {
  GemmEpilogue epilogue;
  if (finish) epilogue = {of.bias.data(), of.residual.data(), true, of.mask.data(), {}};
  return Multiplied(shape, of.a.data(), of.b.data(), of.c, !finish, epilogue, isa, threads);
}

class GemmTest : public testing::TestWithParam<bool> {};

TEST_P(GemmTest, IsTheDefinedChains) {
  for (const int64_t m : {1, 2, 3, 4, 5, 6, 7, 8, 9}) {
    for (const int64_t n : {1, 10, 75, 150}) {
      for (const int64_t k : {1, 5, 40, 333}) {
        const GemmShape shape{.m = m, .n = n, .k = k, .b_transposed = GetParam()};
        const Operands of(shape);
        const std::vector<float> right = Defined(shape, of, true);
        for (const Isa isa : UsableIsas()) {
          for (const int threads : {1, 3}) {
            ASSERT_TRUE(EqualBits(Multiplied(shape, of, true, isa, threads), right))
                << Name(isa) << ", " << threads << " threads: " << m << " x " << n << " x " << k;
          }
        }
        // Transposed products are never added.
        if (shape.b_transposed && m < n) continue;
        ASSERT_TRUE(
            EqualBits(Multiplied(shape, of, false, DetectIsa(), 2), Defined(shape, of, false)))
            << m << " x " << n << " x " << k;
      }
    }
  }
}

// Whether pairs are multiplied, widened while they are packed or, with few rows, where they lie.
TEST_P(GemmTest, OfBf16IsTheDefinedChains) {
  for (const int64_t m : {1, 2, 3, 5, 8, 9}) {
    for (const int64_t n : {1, 10, 75, 150}) {
      for (const int64_t k : {2, 6, 40, 334, 520}) {
        GemmShape shape{.m = m, .n = n, .k = k, .b_transposed = GetParam(), .bf16 = true};
        const Operands of(shape);
        const std::vector<uint16_t> a = Narrow(of.a), b = Narrow(of.b);
        const std::vector<float> right = DefinedOfBf16(shape, a, b, of.bias);
        for (const Isa isa : UsableIsas()) {
          for (const bool pairs : {false, true}) {
            for (const int threads : {1, 3}) {
              shape.pairs = pairs;
              const std::vector<float> c = Multiplied(shape, a.data(), b.data(), of.c, false,
                                                      {.bias = of.bias.data()}, isa, threads);
              ASSERT_TRUE(EqualBits(c, right))
                  << Name(isa) << ", " << threads << " threads: " << m << " x " << n << " x " << k;
            }
          }
        }
      }
    }
  }
}

// Packed, several of few rows gather the results of some panels before they write them: of more
// panels than these, and not to the end of the last ones.
TEST(LargeGemmTest, FewRowsOfManyColumnsAreTheDefinedChains) {
  for (const int64_t m : {1, 3, 8}) {
    GemmShape shape{.m = m, .n = 597, .k = 38};
    const Operands of(shape);
    const std::vector<uint16_t> a = Narrow(of.a), b = Narrow(of.b);
    const std::vector<float> right = Defined(shape, of, true), added = Defined(shape, of, false);
    shape.bf16 = true;
    const std::vector<float> right_of_bf16 = DefinedOfBf16(shape, a, b, of.bias);
    for (const Isa isa : UsableIsas()) {
      for (const int threads : {1, 2, 7}) {
        const auto what = [&] {
          return testing::Message() << Name(isa) << ", " << threads << " threads, " << m << " rows";
        };
        shape.bf16 = false;
        EXPECT_TRUE(EqualBits(Multiplied(shape, of, true, isa, threads), right)) << what();
        EXPECT_TRUE(EqualBits(Multiplied(shape, of, false, isa, threads), added)) << what();
        shape.bf16 = true;
        EXPECT_TRUE(EqualBits(Multiplied(shape, a.data(), b.data(), of.c, false,
                                         {.bias = of.bias.data()}, isa, threads),
                              right_of_bf16))
            << what();
      }
    }
  }
}

// Several strips of rows and blocks of k, with B small enough to stay in L2 and not; products with
// A stored [k, m] of few and of more k; one that is transposed as a whole; and one of fewer parts
// than threads.
constexpr GemmShape kLarge[] = {
    {.m = 131, .n = 70, .k = 784},
    {.m = 131, .n = 70, .k = 784, .b_transposed = true},
    {.m = 70, .n = 300, .k = 784, .b_transposed = true},
    {.m = 131, .n = 230, .k = 784},
    {.m = 131, .n = 200, .k = 784, .b_transposed = true},
    {.m = 131, .n = 200, .k = 64, .a_transposed = true},
    {.m = 131, .n = 70, .k = 400, .a_transposed = true},
    {.m = 20, .n = 96, .k = 200},
};

TEST(LargeGemmTest, IsTheDefinedChains) {
  for (GemmShape shape : kLarge) {
    const Operands of(shape);
    const std::vector<uint16_t> a = Narrow(of.a), b = Narrow(of.b);
    const std::vector<float> right = Defined(shape, of, true);
    shape.bf16 = true;
    const std::vector<float> right_of_bf16 = DefinedOfBf16(shape, a, b, of.bias);
    for (const Isa isa : UsableIsas()) {
      for (const int threads : {1, 2, 5}) {
        const auto what = [&] {
          return testing::Message() << Name(isa) << ", " << threads << " threads: " << shape.m
                                    << " x " << shape.n << " x " << shape.k;
        };
        shape.bf16 = false;
        EXPECT_TRUE(EqualBits(Multiplied(shape, of, true, isa, threads), right)) << what();
        shape.bf16 = true;
        for (const bool pairs : {false, true}) {
          shape.pairs = pairs;
          EXPECT_TRUE(EqualBits(Multiplied(shape, a.data(), b.data(), of.c, false,
                                           {.bias = of.bias.data()}, isa, threads),
                                right_of_bf16))
              << what() << (pairs ? ", pairs" : ", widened");
        }
      }
    }
  }
}

// As if B had been rounded before: with few rows, many, and those that are transposed as a whole.
TEST(LargeGemmTest, RoundsBAsItPacksIt) {
  std::vector<GemmShape> shapes = {{.m = 3, .n = 70, .k = 40},
                                   {.m = 5, .n = 3, .k = 40, .b_transposed = true}};
  for (const GemmShape& shape : kLarge) {
    if (!shape.a_transposed) shapes.push_back(shape);
  }
  for (GemmShape shape : shapes) {
    shape.bf16 = true;
    shape.rounds_b = true;
    const Operands of(shape);
    const std::vector<uint16_t> a = Narrow(of.a);
    const std::vector<float> right = DefinedOfBf16(shape, a, Rounded(of.b), of.bias);
    for (const Isa isa : UsableIsas()) {
      for (const bool pairs : {false, true}) {
        for (const int threads : {1, 2, 5}) {
          shape.pairs = pairs;
          EXPECT_TRUE(EqualBits(Multiplied(shape, a.data(), of.b.data(), of.c, false,
                                           {.bias = of.bias.data()}, isa, threads),
                                right))
              << Name(isa) << (pairs ? ", pairs, " : ", widened, ") << threads
              << " threads: " << shape.m << " x " << shape.n << " x " << shape.k;
        }
      }
    }
  }
}

// Rows of A that lie farther apart than they are long are those of a dense A.
TEST(LargeGemmTest, TakesRowsOfALongerStride) {
  std::vector<GemmShape> shapes;
  for (const int64_t m : {1, 2, 3, 5, 8, 9, 131}) {
    shapes.push_back({.m = m, .n = 150, .k = 334});
    shapes.push_back({.m = m, .n = 70, .k = 40, .a_transposed = true});
  }
  for (GemmShape shape : shapes) {
    const Operands of(shape);
    const int64_t rows = shape.a_transposed ? shape.k : shape.m;
    const int64_t length = shape.a_transposed ? shape.m : shape.k;
    const int64_t stride = (length + 1) / 2 * 2 + 4;
    std::vector<float> apart(static_cast<size_t>(rows * stride), std::nanf(""));
    for (int64_t row = 0; row < rows; ++row) {
      std::copy_n(of.a.begin() + row * length, length, apart.begin() + row * stride);
    }
    const std::vector<uint16_t> a = Narrow(of.a), b = Narrow(of.b), apart_halves = Narrow(apart);
    const GemmEpilogue epilogue{.bias = of.bias.data()};
    for (const Isa isa : UsableIsas()) {
      for (const int threads : {1, 3}) {
        const auto multiply = [&](const void* from, const void* by, int64_t apart_by) {
          shape.a_stride = apart_by;
          return Multiplied(shape, from, by, of.c, false, epilogue, isa, threads);
        };
        const auto what = [&] {
          return testing::Message() << Name(isa) << ", " << threads << " threads: " << shape.m
                                    << " x " << shape.n << " x " << shape.k;
        };
        shape.bf16 = shape.pairs = false;
        EXPECT_TRUE(EqualBits(multiply(apart.data(), of.b.data(), stride),
                              multiply(of.a.data(), of.b.data(), 0)))
            << what();
        shape.bf16 = true;
        for (const bool pairs : {false, true}) {
          shape.pairs = pairs;
          EXPECT_TRUE(EqualBits(multiply(apart_halves.data(), b.data(), stride),
                                multiply(a.data(), b.data(), 0)))
              << what() << (pairs ? ", pairs" : ", widened");
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, GemmTest, testing::Bool());

}  // namespace
}  // namespace lockstep::engine
