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

// `finish`: with the whole epilogue; else the product is added to C.
std::vector<float> Defined(const GemmShape& shape, const Operands& of, bool finish) {
  std::vector<float> c = of.c;
  for (int64_t i = 0; i < shape.m; ++i) {
    for (int64_t j = 0; j < shape.n; ++j) {
      const auto at = static_cast<size_t>(i * shape.n + j);
      float sum = finish ? 0 : of.c[at];
      for (int64_t p = 0; p < shape.k; ++p) {
        const int64_t from = shape.b_transposed ? j * shape.k + p : p * shape.n + j;
        sum = std::fma(of.a[static_cast<size_t>(i * shape.k + p)], of.b[static_cast<size_t>(from)],
                       sum);
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
    gemm.PackAll(b, packed[0].values, &pool);
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

// Of each two of k the second product is added first, whether pairs are multiplied, widened while
// they are packed or, with few rows, where they lie.
TEST_P(GemmTest, OfBf16IsTheDefinedChains) {
  const auto narrow = [](const std::vector<float>& values) {
    std::vector<uint16_t> halves(values.size() + 16);
    for (size_t i = 0; i < values.size(); ++i) {
      halves[i] = static_cast<uint16_t>(std::bit_cast<uint32_t>(values[i]) >> 16);
    }
    return halves;
  };
  const auto value = [](const std::vector<uint16_t>& halves, int64_t i) {
    return std::bit_cast<float>(uint32_t{halves[static_cast<size_t>(i)]} << 16);
  };
  for (const int64_t m : {1, 2, 3, 5, 8, 9}) {
    for (const int64_t n : {1, 10, 75, 150}) {
      for (const int64_t k : {2, 6, 40, 334, 520}) {
        GemmShape shape{.m = m, .n = n, .k = k, .b_transposed = GetParam(), .bf16 = true};
        const Operands of(shape);
        const std::vector<uint16_t> a = narrow(of.a), b = narrow(of.b);
        std::vector<float> right(of.c.size());
        for (int64_t i = 0; i < m; ++i) {
          for (int64_t j = 0; j < n; ++j) {
            float sum = 0;
            for (int64_t p = 0; p < k; ++p) {
              const int64_t at = p ^ 1;
              const int64_t from = shape.b_transposed ? j * k + at : at * n + j;
              sum = std::fma(value(a, i * k + at), value(b, from), sum);
            }
            right[static_cast<size_t>(i * n + j)] = sum + of.bias[static_cast<size_t>(j)];
          }
        }
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

INSTANTIATE_TEST_SUITE_P(Layouts, GemmTest, testing::Bool());

}  // namespace
}  // namespace lockstep::engine
