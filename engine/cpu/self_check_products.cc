// SPDX-License-Identifier: Apache-2.0
// Kernels of simd.h: products, packing, sums, elementwise ones.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/philox.h"
#include "engine/cpu/kernel_comparison.h"

namespace lockstep::engine {
namespace {

// ---- products ----

constexpr int64_t kDepth = 13;  // the unrolled steps and a rest
constexpr int64_t kMostRows = 16;
constexpr int64_t kMostColumns = 64;

// The step of a sum that two elements make: numbers, or pairs of bf16.
float Step(float a, float b, bool pairs, float sum) {
  if (!pairs) return std::fmaf(a, b, sum);
  const auto x = std::bit_cast<uint32_t>(a), y = std::bit_cast<uint32_t>(b);
  const auto half = [](uint32_t bits) { return std::bit_cast<float>(bits); };
  return std::fmaf(half(x << 16), half(y << 16),
                   std::fmaf(half(x & 0xffff0000), half(y & 0xffff0000), sum));
}

// Pairs of bf16 in [-2, 2).
std::vector<float> MadePairs(uint64_t site, size_t count) {
  const std::vector<float> values = MadeValues(site, 2 * count);
  std::vector<float> pairs(count);
  for (size_t i = 0; i < count; ++i) {
    pairs[i] = std::bit_cast<float>(std::bit_cast<uint32_t>(values[2 * i]) >> 16 |
                                    (std::bit_cast<uint32_t>(values[2 * i + 1]) & 0xffff0000));
  }
  return pairs;
}

// A product of the largest tile's size, as every layout of its operands gives it.
struct TileCase {
  TileCase(const SimdKernels& simd, bool pairs)
      : rows(simd.tile_rows),
        columns(simd.tile_columns),
        a(pairs ? MadePairs(6, kMostRows * kDepth) : MadeValues(6, kMostRows * kDepth)),
        b(pairs ? MadePairs(7, kDepth * kMostColumns) : MadeValues(7, kDepth * kMostColumns)),
        more(MadeValues(8, 3 * kMostRows * kMostColumns)),
        before(MadeValues(9, kMostRows * kMostColumns)),
        from_zero(before.size()),
        from_before(before) {
    for (int64_t i = 0; i < kMostRows; ++i) {
      for (int64_t j = 0; j < kMostColumns; ++j) {
        const auto at = static_cast<size_t>(i * kMostColumns + j);
        for (int64_t p = 0; p < kDepth; ++p) {
          from_zero[at] = Step(A(i, p), B(p, j), pairs, from_zero[at]);
          from_before[at] = Step(A(i, p), B(p, j), pairs, from_before[at]);
        }
      }
    }
  }
  float A(int64_t i, int64_t p) const { return a[static_cast<size_t>(i * kDepth + p)]; }
  float B(int64_t p, int64_t j) const { return b[static_cast<size_t>(p * kMostColumns + j)]; }

  const int64_t rows, columns;
  // `before`: what C holds; the products whose sums begin with 0 and with that.
  const std::vector<float> a, b, more, before;
  std::vector<float> from_zero, from_before;
};

// Row by row, as pack_rows leaves it, column by column.
constexpr int kLayouts = 3;
// Plain, everything on a whole tile, everything on one at the right edge, and these two with a sum
// that is added.
constexpr int kForms = 5;

// Returns whether the tile of `r` rows is right for one layout of A and of B and one form. `widen`:
// what makes of A's pairs the numbers that the tile reads, if it does.
bool TileIsRight(const TileCase& c, void (*run)(const Tile&), int64_t r, int layout, bool packed_b,
                 int form, void (*widen)(const float*, int64_t, float*) = nullptr) {
  const int64_t a_row = layout == 0 ? kDepth : 1;
  const int64_t a_k = layout == 0 ? 1 : layout == 1 ? c.rows : kMostRows + 3;
  std::vector<float> a(static_cast<size_t>(kDepth * (kMostRows + 3) + kMostRows * kDepth), 0.0f);
  for (int64_t i = 0; i < r; ++i) {
    for (int64_t p = 0; p < kDepth; ++p) a[static_cast<size_t>(i * a_row + p * a_k)] = c.A(i, p);
  }
  std::vector<float> wide(2 * a.size());
  if (widen != nullptr) widen(a.data(), std::ssize(a), wide.data());
  const int64_t b_stride = packed_b ? c.columns : kMostColumns;
  std::vector<float> b(static_cast<size_t>(kDepth * b_stride));
  for (int64_t p = 0; p < kDepth; ++p) {
    for (int64_t j = 0; j < c.columns; ++j) b[static_cast<size_t>(p * b_stride + j)] = c.B(p, j);
  }
  const int64_t stride = kMostColumns;
  std::vector<float> result = c.before;
  Tile tile{.k = kDepth,
            .a = widen == nullptr ? a.data() : wide.data(),
            .a_row = widen == nullptr ? a_row : 2 * a_row,
            .a_k = a_k,
            .b = b.data(),
            .b_stride = b_stride,
            .c = result.data(),
            .c_stride = stride,
            .columns = c.columns,
            .accumulate = form == 1 || form == 2,
            .last = true,
            .epilogue = {}};
  if (form == 2 || form == 4) tile.columns -= 3;
  tile.adds = form > 2;
  TileEpilogue& e = tile.epilogue;
  const float* more = c.more.data();
  const int64_t part = kMostRows * kMostColumns;
  if (form > 0) e = {more, more + part, stride, true, more + 2 * part, stride};
  run(tile);
  for (int64_t i = 0; i < kMostRows; ++i) {
    for (int64_t j = 0; j < stride; ++j) {
      const auto at = static_cast<size_t>(i * stride + j);
      float value = c.before[at];
      if (i < r && j < tile.columns) {
        value = tile.adds  ? value + c.from_zero[at]
                : form > 0 ? c.from_before[at]
                           : c.from_zero[at];
        if (form > 0) {
          value = std::max(value + e.bias[j] + e.residual[at], 0.0f);
          value = e.mask[at] <= 0 ? 0 : value;
        }
      }
      if (!SameBits(result[at], value)) return false;
    }
  }
  return true;
}

void CheckTiles(KernelComparison* compare) {
  const SimdKernels& simd = *compare->tables().simd;
  if (simd.tile_rows > kMostRows || simd.tile_columns > kMostColumns) {
    return compare->Fail("tile size");
  }
  const TileCase c(simd, false), pairs(simd, true);
  for (int r = 1; r <= simd.tile_rows; ++r) {
    for (int form = 0; form < kForms; ++form) {
      if (TileIsRight(pairs, simd.pair_tile[r], r, 0, true, form) &&
          TileIsRight(pairs, simd.pair_tile[r], r, 1, true, form) &&
          (r > kMostFewRows || simd.widened_tile[r] == nullptr ||
           TileIsRight(pairs, simd.widened_tile[r], r, 0, true, form, simd.widen_pairs))) {
        continue;
      }
      return compare->Fail(absl::StrCat("tile of ", r, " rows of bf16"));
    }
    for (int layout = 0; layout < kLayouts; ++layout) {
      for (int form = 0; form < kForms; ++form) {
        for (const bool packed : {false, true}) {
          if (TileIsRight(c, simd.tile[r], r, layout, packed, form)) continue;
          return compare->Fail(absl::StrCat("tile of ", r, r == 1 ? " row" : " rows"));
        }
      }
    }
  }
}

// Both layouts of B, with and without everything that the product can have beside it, and more
// columns than whole vectors.
bool FewRowsAreRight(const SimdKernels& simd, int64_t rows, bool b_columns, bool bf16, bool more) {
  constexpr int64_t columns = 75, stride = 80;
  const int64_t k = bf16 ? 44 : 37;
  const std::vector<float> a = MadeValues(12, kMostFewRows * k),
                           b = MadeValues(13, stride * stride);
  std::vector<uint16_t> halves(b.size());
  for (size_t i = 0; i < b.size(); ++i) {
    halves[i] = static_cast<uint16_t>(std::bit_cast<uint32_t>(b[i]) >> 16);
  }
  const std::vector<float> beside = MadeValues(14, 3 * kMostFewRows * stride);
  const std::vector<float> before = MadeValues(15, kMostFewRows * stride);
  std::vector<float> c = before;
  FewRows f{.k = k,
            .a = a.data(),
            .a_row = k,
            .b = bf16 ? static_cast<const void*>(halves.data()) : b.data(),
            .b_stride = stride,
            .b_columns = b_columns,
            .bf16 = bf16,
            .c = c.data(),
            .c_stride = stride,
            .columns = columns,
            .accumulate = more,
            .epilogue = {}};
  const float* const part = beside.data() + kMostFewRows * stride;
  if (more) f.epilogue = {beside.data(), part, stride, true, part + kMostFewRows * stride, stride};
  simd.few_rows[rows](f);
  for (int64_t i = 0; i < kMostFewRows; ++i) {
    for (int64_t j = 0; j < stride; ++j) {
      const auto at = static_cast<size_t>(i * stride + j);
      float value = before[at];
      if (i < rows && j < columns) {
        if (!more) value = 0;
        for (int64_t p = 0; p < k; ++p) {
          const int64_t count = bf16 ? p ^ 1 : p;
          const auto from =
              static_cast<size_t>(b_columns ? j * stride + count : count * stride + j);
          const float factor = bf16 ? std::bit_cast<float>(uint32_t{halves[from]} << 16) : b[from];
          value = std::fmaf(a[static_cast<size_t>(i * k + p)], factor, value);
        }
        if (more) {
          value = std::max(value + f.epilogue.bias[j] + f.epilogue.residual[at], 0.0f);
          value = f.epilogue.mask[at] <= 0 ? 0 : value;
        }
      }
      if (!SameBits(c[at], value)) return false;
    }
  }
  return true;
}

void CheckFewRows(KernelComparison* compare) {
  for (int64_t rows = 1; rows <= kMostFewRows; ++rows) {
    for (int form = 0; form < 8; ++form) {
      const bool b_columns = form % 2 > 0, bf16 = form / 2 % 2 > 0, more = form / 4 > 0;
      if (FewRowsAreRight(*compare->tables().simd, rows, b_columns, bf16, more)) continue;
      return compare->Fail(
          absl::StrCat("product of ", rows, rows == 1 ? " row" : " rows", bf16 ? " of bf16" : ""));
    }
  }
}

// Packing follows the set's tile, so it is held to what simd.h says instead of to the portable one.
void CheckPacking(KernelComparison* compare) {
  const SimdKernels& simd = *compare->tables().simd;
  const int64_t width = simd.tile_columns, height = simd.tile_rows, k = 19;
  const int64_t columns = 2 * width + 5, rows = 2 * height + 1, stride = columns + 3;
  const std::vector<float> source =
      MadeValues(10, static_cast<size_t>((columns + rows) * (stride + k)));
  std::vector<float> packed(static_cast<size_t>((columns + rows) * (2 * stride + k)));
  const auto panel_is = [&](int64_t valid, int64_t row, int64_t column, const float* panel) {
    for (int64_t p = 0; p < k; ++p) {
      for (int64_t j = 0; j < width; ++j) {
        const float value = j < valid ? source[static_cast<size_t>(p * row + j * column)] : 0;
        if (panel[p * width + j] != value) return false;
      }
    }
    return true;
  };
  for (const int64_t valid : {width, width - 3}) {
    simd.pack_transposed(source.data(), k + 2, k, valid, packed.data());
    if (!panel_is(valid, 1, k + 2, packed.data())) return compare->Fail("pack_transposed");
    simd.pack(source.data(), stride, k, valid, packed.data());
    if (!panel_is(valid, stride, 1, packed.data())) return compare->Fail("pack");
  }
  simd.pack_panels(source.data(), stride, k, columns, packed.data());
  for (int64_t j = 0; j < columns; j += width) {
    for (int64_t p = 0; p < k; ++p) {
      for (int64_t l = 0; l < width; ++l) {
        const float value = j + l < columns ? source[static_cast<size_t>(p * stride + j + l)] : 0;
        if (packed[static_cast<size_t>(j * k + p * width + l)] != value) {
          return compare->Fail("pack_panels");
        }
      }
    }
  }
  for (const bool along : {true, false}) {
    const int64_t a_row = along ? k + 1 : 1, a_k = along ? 1 : rows + 2;
    simd.pack_rows(source.data(), a_row, a_k, rows, k, packed.data());
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t p = 0; p < k; ++p) {
        const auto at = static_cast<size_t>((i / height * k + p) * height + i % height);
        if (packed[at] != source[static_cast<size_t>(i * a_row + p * a_k)]) {
          return compare->Fail("pack_rows");
        }
      }
    }
  }
}

// As simd.h says.
void CheckPairPacking(KernelComparison* compare) {
  const SimdKernels& simd = *compare->tables().simd;
  const int64_t width = simd.tile_columns, height = simd.tile_rows, k = 19;
  const int64_t columns = 2 * width + 5, rows = 2 * height + 1, stride = columns + rows;
  std::vector<uint16_t> source(static_cast<size_t>(2 * k * stride));
  for (size_t i = 0; i < source.size(); ++i) source[i] = static_cast<uint16_t>(MixBits(i));
  const auto pair = [&](int64_t p, int64_t j) {
    const auto at = static_cast<size_t>(2 * p * stride + j);
    return source[at] | static_cast<uint32_t>(source[at + static_cast<size_t>(stride)]) << 16;
  };
  std::vector<float> packed(static_cast<size_t>(2 * (columns + width) * k + 16));
  const auto bits_at = [&](int64_t at) {
    return std::bit_cast<uint32_t>(packed[static_cast<size_t>(at)]);
  };
  // Returns whether place `at` of the lines of count p, which are so wide, holds what it must.
  const auto is = [&](bool split, int64_t line, int64_t places, int64_t at, uint32_t bits) {
    if (!split) return bits_at(line * places + at) == bits;
    return bits_at(2 * line * places + at) == (bits & 0xffff0000) &&
           bits_at((2 * line + 1) * places + at) == bits << 16;
  };
  for (const bool split : {false, true}) {
    (split ? simd.pack_split_pair_panels : simd.pack_pair_panels)(source.data(), stride, k, columns,
                                                                  packed.data());
    for (int64_t j = 0; j < (columns + width - 1) / width * width; ++j) {
      for (int64_t p = 0; p < k; ++p) {
        if (!is(split, j / width * k + p, width, j % width, j < columns ? pair(p, j) : 0)) {
          return compare->Fail(split ? "pack_split_pair_panels" : "pack_pair_panels");
        }
      }
    }
    (split ? simd.pack_split_pair_rows : simd.pack_pair_rows)(source.data(), stride, rows, k,
                                                              packed.data());
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t p = 0; p < k; ++p) {
        if (!is(split, i / height * k + p, height, i % height, pair(p, i))) {
          return compare->Fail(split ? "pack_split_pair_rows" : "pack_pair_rows");
        }
      }
    }
  }
}

// Pairs along the rows of their operand, which become numbers on the way.
void CheckSplitPacking(KernelComparison* compare) {
  const SimdKernels& simd = *compare->tables().simd;
  const int64_t width = simd.tile_columns, height = simd.tile_rows, k = 19, stride = k + 2;
  const int64_t rows = 2 * std::max(width, height) + 1;
  const std::vector<float> source = MadePairs(16, static_cast<size_t>(rows * stride));
  std::vector<float> packed(static_cast<size_t>(2 * (rows + height) * k + 16));
  // The numbers of row i of the source, which is `at` of a line of so many places.
  const auto is = [&](int64_t i, const float* lines, int64_t places, int64_t at) {
    for (int64_t p = 0; p < k; ++p) {
      const auto pair = std::bit_cast<uint32_t>(source[static_cast<size_t>(i * stride + p)]);
      if (std::bit_cast<uint32_t>(lines[2 * p * places + at]) != (pair & 0xffff0000) ||
          std::bit_cast<uint32_t>(lines[(2 * p + 1) * places + at]) != pair << 16) {
        return false;
      }
    }
    return true;
  };
  for (const int64_t valid : {width, width - 3}) {
    simd.pack_split_transposed(source.data(), stride, k, valid, packed.data());
    for (int64_t j = 0; j < width; ++j) {
      bool right = j >= valid || is(j, packed.data(), width, j);
      for (int64_t p = 0; j >= valid && p < 2 * k; ++p) {
        right = right && SameBits(packed[static_cast<size_t>(p * width + j)], 0);
      }
      if (!right) return compare->Fail("pack_split_transposed");
    }
  }
  simd.pack_split_rows(source.data(), stride, rows, k, packed.data());
  for (int64_t i = 0; i < rows; ++i) {
    const float* const strip = packed.data() + i / height * height * 2 * k;
    if (!is(i, strip, height, i % height)) return compare->Fail("pack_split_rows");
  }
}

// As simd.h says, of the widths of panels, strips and others.
void CheckWidening(KernelComparison* compare) {
  const SimdKernels& simd = *compare->tables().simd;
  constexpr int64_t kPairs = 37;
  for (const int64_t width : {int64_t{1}, int64_t{simd.tile_rows}, int64_t{simd.tile_columns}}) {
    const int64_t count = kPairs * width;
    const std::vector<float> pairs = MadePairs(11, static_cast<size_t>(count));
    std::vector<float> values(static_cast<size_t>(2 * count + 16));
    std::copy(pairs.begin(), pairs.end(), values.begin() + count);
    const char* const name = width == 1 ? "widen_pairs" : "split_pairs";
    if (width == 1) {
      simd.widen_pairs(values.data() + count, count, values.data());
    } else {
      simd.split_pairs(kPairs, width, values.data());
    }
    for (int64_t i = 0; i < count; ++i) {
      const auto bits = std::bit_cast<uint32_t>(pairs[static_cast<size_t>(i)]);
      const auto at = static_cast<size_t>(i / width * 2 * width + i % width);
      if (std::bit_cast<uint32_t>(values[at]) == (bits & 0xffff0000) &&
          std::bit_cast<uint32_t>(values[at + static_cast<size_t>(width)]) == bits << 16) {
        continue;
      }
      return compare->Fail(name);
    }
  }
  // Numbers that rounding carries to the next exponent, ties, infinity and NaN among them.
  constexpr uint32_t kRounded[] = {0x3f7fffff, 0x3f808000, 0x3f818000, 0x7f800000,
                                   0x7f7fffff, 0x80000001, 0x7fc00000, 0xbf80ffff};
  compare->Run("round_pairs", [&](const KernelTables& t, float* out) {
    std::vector<float> values = MadeValues(12, 2 * kPairs);
    for (size_t i = 0; i < std::size(kRounded); ++i) {
      values[i] = std::bit_cast<float>(kRounded[i]);
    }
    t.simd->round_pairs(values.data(), kPairs, out);
  });
  // Whole blocks without NaN, and with one in each vector of a block.
  constexpr int64_t kBlocks = 5, kBlock = 64;
  compare->Run("round_pairs", [&](const KernelTables& t, float* out) {
    std::vector<float> values = MadeValues(13, kBlocks * kBlock);
    for (size_t i = 0; i < std::size(kRounded); ++i) {
      if (i != 6) values[8 * i + i] = std::bit_cast<float>(kRounded[i]);
    }
    for (size_t block = 1; block < kBlocks; ++block) {
      values[block * kBlock + 16 * block - 11] = std::bit_cast<float>(kRounded[6]);
    }
    t.simd->round_pairs(values.data(), kBlocks * kBlock / 2, out);
  });
}

// ---- the other kernels of products ----

void CheckOthers(KernelComparison* compare) {
  const float *x = compare->x(), *y = compare->y(), *z = compare->z();
  std::vector<float> odd(x, x + kCheckCount);
  odd[3] = odd[70] = std::numeric_limits<float>::quiet_NaN();
  odd[5] = -0.0f;
  compare->Run("transpose", [&](const KernelTables& t, float* out) {
    t.simd->transpose(x, 40, 37, 35, y, true, out, 48);
  });
  for (const bool add : {false, true}) {
    compare->Run("sum_rows", [&](const KernelTables& t, float* out) {
      t.simd->sum_rows(x, kCheckStride, kCheckRows, kCheckColumns, add, out);
    });
    compare->Run("scale", [&](const KernelTables& t, float* out) {
      t.simd->scale(x, 0.37f, kCheckCount, add, out);
    });
  }
  compare->Run("relu", [&](const KernelTables& t, float* out) {
    t.simd->relu(odd.data(), kCheckCount, out);
  });
  compare->Run("relu_backward", [&](const KernelTables& t, float* out) {
    t.simd->relu_backward(odd.data(), y, kCheckCount, out);
  });
  compare->Run("add",
               [&](const KernelTables& t, float* out) { t.simd->add(x, y, kCheckCount, out); });
  compare->Run("max", [&](const KernelTables& t, float* out) {
    for (int64_t n = 1; n <= kCheckCount; ++n) out[n] = t.simd->max(x, n);
  });
  compare->Run("exp_sum", [&](const KernelTables& t, float* out) {
    for (const int64_t n : kCheckCounts) {
      const double sum = t.simd->exp_sum(x, 2, n, out);
      out[512 + n] = static_cast<float>(sum);
      out[768 + n] = static_cast<float>(sum - static_cast<double>(static_cast<float>(sum)));
    }
  });
  compare->Run("all_finite", [&](const KernelTables& t, float* out) {
    std::vector<float> values(x, x + kCheckCount);
    out[kCheckCount] = t.simd->all_finite(values.data(), kCheckCount) ? 1 : 0;
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = std::numeric_limits<float>::infinity();
      out[i] = t.simd->all_finite(values.data(), kCheckCount) ? 1 : 0;
      values[i] = 0;
    }
  });
  for (int form = 0; form < 4; ++form) {
    const SgdArgs args{0.5f, 0.1f, 0.9f, 0.8f, 0.01f, (form & 1) != 0, (form & 2) != 0};
    compare->Run("sgd", [&](const KernelTables& t, float* out) {
      t.simd->sgd(args, z, kCheckCount, out, out + 256);
      t.simd->sgd(args, z, kCheckCount, nullptr, out + 512);
    });
  }
}

}  // namespace

void CheckProducts(KernelComparison* compare) {
  CheckTiles(compare);
  CheckFewRows(compare);
  CheckPacking(compare);
  CheckPairPacking(compare);
  CheckSplitPacking(compare);
  CheckWidening(compare);
  CheckOthers(compare);
}

}  // namespace lockstep::engine
