// SPDX-License-Identifier: Apache-2.0
// The innermost loops, compiled once for each instruction set from simd_kernels.inc and chosen at
// run time. Each is defined down to the bits (docs/same_bits.md): every instruction set computes
// the same, so that which one runs is a matter of speed alone. Thread-safety: pure functions on
// disjoint memory.
#ifndef LOCKSTEP_ENGINE_CPU_SIMD_SIMD_H_
#define LOCKSTEP_ENGINE_CPU_SIMD_SIMD_H_

#include <cstdint>

#include "engine/cpu/isa.h"

namespace lockstep::engine {

// What happens to a finished tile of a matrix product: c = act(sum + bias + residual), and c = 0
// where mask <= 0.
struct TileEpilogue {
  const float* bias = nullptr;      // [n]
  const float* residual = nullptr;  // [m, n], row stride residual_stride
  int64_t residual_stride = 0;
  bool relu = false;
  const float* mask = nullptr;  // [m, n], row stride mask_stride
  int64_t mask_stride = 0;
};

// A tile of C (rows x tile_columns) = sum over p of A(i, p) * B(p, j): one chain of fused
// multiplications and additions over ascending p, begun with C or with 0. A product may so be cut
// into blocks of k anywhere.
struct Tile {
  int64_t k = 0;
  // A(i, p) at a[i * a_row + p * a_k]: a_k is 1 or a_row is 1 (fastest then: a_k is tile_rows).
  const float* a = nullptr;
  int64_t a_row = 0;
  int64_t a_k = 0;
  const float* b = nullptr;  // B(p, j) at b[p * b_stride + j]; tile_columns readable
  int64_t b_stride = 0;
  float* c = nullptr;
  int64_t c_stride = 0;
  int64_t columns = 0;      // valid ones, at most tile_columns
  bool accumulate = false;  // the chain begins with C
  bool last = true;         // the epilogue applies
  TileEpilogue epilogue;
  // What is asked for from memory in the course of the product, into the second-level cache: two
  // cache lines for each four of k, ahead_step floats further each time. Null: nothing.
  const float* ahead = nullptr;
  int64_t ahead_step = 0;
  // The next tile's C, where it is needed as soon as that begins. Null: this tile's is asked for.
  float* ahead_c = nullptr;
  bool adds = false;  // the chain begins with 0, and its sum is added to C
  // B is asked for so many counts of k before it is needed, into the first-level cache, and half as
  // many more before, into the second. 0: not. Tiles of kMostFewRows rows or fewer, but not of
  // tile_rows, do so.
  int64_t ahead_rows = 0;
};

// C (rows x columns) = sum over p of A(i, p) * B(p, j), each element the chain of a tile, for so
// few rows that reading B is all the work.
struct FewRows {
  int64_t k = 0;
  const float* a = nullptr;  // A(i, p) at a[i * a_row + p]
  int64_t a_row = 0;
  // B(p, j) at b[p * b_stride + j] or, with b_columns, at b[j * b_stride + p]: floats or, with
  // bf16, uint16_t. Then k, and the stride of columns, are even, and of each two counts of k the
  // second is the first step of the chain; A has the numbers in that order (widen_pairs).
  const void* b = nullptr;
  int64_t b_stride = 0;
  bool b_columns = false;
  bool bf16 = false;
  float* c = nullptr;
  int64_t c_stride = 0;
  int64_t columns = 0;
  bool accumulate = false;  // the chain begins with C
  TileEpilogue epilogue;
};
inline constexpr int64_t kMostFewRows = 8;

// One parameter's SGD step on n elements; see optim/sgd.h for the formula.
struct SgdArgs {
  float scale = 1;  // of the gradient
  float lr = 0;
  float momentum = 0;
  float keep = 1;  // 1 - dampening
  float weight_decay = 0;
  bool nesterov = false;
  bool first = false;  // the momentum buffer becomes the gradient
};

struct SimdKernels {
  int tile_rows;
  int tile_columns;
  // How large products are cut best: the longest block of k, and whether rows of A are copied to
  // strips (pack_rows) instead of being read where they lie.
  int k_block;
  // How many floats before their use panels of few rows are asked for: what was measured best, with
  // AVX2 on Zen 3 and with AVX-512 on Zen 5.
  int few_ahead;
  bool packs_rows;
  // tile[r] works on r rows, 1 <= r <= tile_rows.
  void (*tile[17])(const Tile& tile);
  // The same for factors in bf16: an element of A and of B is a pair of them, those of two k in a
  // row in the low and the high half of 32 bits, k counts pairs, and a step adds two products: that
  // of the high halves, then that of the low ones.
  // REQUIRES: a_k is 1 or as pack_pair_rows leaves it; B is a panel.
  void (*pair_tile[17])(const Tile& tile);
  // The same of pairs in B and, in A, their numbers as widen_pairs has them; a_k is 1, and k counts
  // pairs. r rows, 1 <= r <= kMostFewRows and r < tile_rows. Null where pair_tile has an
  // instruction for pairs.
  void (*widened_tile[kMostFewRows + 1])(const Tile& tile);
  // few_rows[r] works on r rows, 1 <= r <= kMostFewRows.
  void (*few_rows[kMostFewRows + 1])(const FewRows& product);
  // panel[p * tile_columns + j] = src[j * stride + p] for j < columns, 0 beyond; p < k.
  void (*pack_transposed)(const float* src, int64_t stride, int64_t k, int64_t columns,
                          float* panel);
  // panel[p * tile_columns + j] = src[p * stride + j] for j < columns, 0 beyond; p < k.
  void (*pack)(const float* src, int64_t stride, int64_t k, int64_t columns, float* panel);
  // The panels of `columns` columns one after the other, each as `pack` makes it.
  void (*pack_panels)(const float* src, int64_t stride, int64_t k, int64_t columns, float* panels);
  // packed[(i / tile_rows * k + p) * tile_rows + i % tile_rows] = a[i * a_row + p * a_k] for i <
  // rows and p < k; the other places of the last strip, and 16 floats behind it, are undefined.
  // a_row or a_k is 1.
  void (*pack_rows)(const float* a, int64_t a_row, int64_t a_k, int64_t rows, int64_t k,
                    float* packed);
  // pack_transposed, and pack_rows of a_k = 1, of pairs of bf16, each of which becomes two counts,
  // as split_pairs makes them; k counts pairs.
  void (*pack_split_transposed)(const float* src, int64_t stride, int64_t k, int64_t columns,
                                float* panel);
  void (*pack_split_rows)(const float* a, int64_t a_row, int64_t rows, int64_t k, float* packed);
  // pack_panels and pack_rows for bf16 operands whose k is not their last dimension: each element
  // is made of two rows of src, 2p and 2p + 1; k counts pairs; a_row is 1.
  void (*pack_pair_panels)(const uint16_t* src, int64_t stride, int64_t k, int64_t columns,
                           float* panels);
  void (*pack_pair_rows)(const uint16_t* a, int64_t stride, int64_t rows, int64_t k, float* packed);
  // The same with each pair as two counts, as split_pairs makes them.
  void (*pack_split_pair_panels)(const uint16_t* src, int64_t stride, int64_t k, int64_t columns,
                                 float* panels);
  void (*pack_split_pair_rows)(const uint16_t* a, int64_t stride, int64_t rows, int64_t k,
                               float* packed);
  // Pairs of bf16 as numbers in the order of a sum of their products, the high half's first:
  // to[2 i] and to[2 i + 1] are the halves of pair i < count.
  void (*widen_pairs)(const float* pairs, int64_t count, float* to);
  // The same of 2 count numbers in fp32, rounded to bf16 as narrow_bf16 does (half_kernels.h).
  void (*round_pairs)(const float* values, int64_t count, float* to);
  // The same of rows of `width` pairs, which become two rows each. `values` is 2 * count * width
  // floats, the pairs lie in the second half of them, and 16 floats behind it are undefined.
  void (*split_pairs)(int64_t count, int64_t width, float* values);
  // dst[j, i] = act(src[i, j] + bias[i]) for src of rows x columns.
  void (*transpose)(const float* src, int64_t src_stride, int64_t rows, int64_t columns,
                    const float* bias, bool relu, float* dst, int64_t dst_stride);
  // out[j] = sum over ascending i of src[i * stride + j], begun with out[j] or with 0.
  void (*sum_rows)(const float* src, int64_t stride, int64_t rows, int64_t columns, bool accumulate,
                   float* out);
  // y = max(x, 0); dx = y > 0 ? dy : 0.
  void (*relu)(const float* x, int64_t n, float* y);
  void (*relu_backward)(const float* dy, const float* y, int64_t n, float* dx);
  // y = a + b; y (+)= factor * x.
  void (*add)(const float* a, const float* b, int64_t n, float* y);
  void (*scale)(const float* x, float factor, int64_t n, bool accumulate, float* y);
  // The largest of x[0..n) that is not NaN; the sum of exp(x - max) in sixteen lanes of fp32, which
  // are added in fp64, and the exponentials to y unless it is null.
  float (*max)(const float* x, int64_t n);
  double (*exp_sum)(const float* x, float max, int64_t n, float* y);
  bool (*all_finite)(const float* x, int64_t n);
  // `velocity` may be null when momentum is 0.
  void (*sgd)(const SgdArgs& args, const float* gradient, int64_t n, float* velocity,
              float* parameter);
};

// The loops for `isa` (cpu/arch.h). REQUIRES: this CPU has it.
const SimdKernels& SimdFor(Isa isa);

namespace simd {
extern const SimdKernels kPortableKernels;
extern const SimdKernels kAvx2Kernels;
extern const SimdKernels kAvx512Kernels;
extern const SimdKernels kAvx512Bf16Kernels;
}  // namespace simd

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_CPU_SIMD_SIMD_H_
