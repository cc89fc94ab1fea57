// SPDX-License-Identifier: Apache-2.0
// One head of one sequence, as attention's kernels see it: strips of queries against all keys they
// may look at. A strip's scores are the only ones in memory. Threads take whole heads, so sums do
// not depend on their number.
// Thread-safety: a Head is confined to one thread; its scratch is its own.
#ifndef LOCKSTEP_ENGINE_CPU_ATTENTION_TILES_H_
#define LOCKSTEP_ENGINE_CPU_ATTENTION_TILES_H_

#include <cstddef>
#include <cstdint>

#include "engine/cpu/kernel.h"
#include "engine/cpu/random_address.h"
#include "engine/cpu/simd/simd.h"
#include "engine/ops/ops.h"

namespace lockstep::engine::cpu {

// Sizes that all heads of a node share.
struct HeadShape {
  HeadShape(const ops::AttentionShape& shape, const SimdKernels& simd, Factors factors);

  int64_t length = 0;         // T, all keys
  int64_t queries = 0;        // the first of T that ask
  int64_t depth = 0;          // of a head
  int64_t padded_length = 0;  // multiples of the tile's columns
  int64_t padded_depth = 0;
  int64_t row = 0;     // floats between rows of scores, an odd number of cache lines
  int64_t stride = 0;  // values between rows of q, k and v
  int64_t strip = 0;   // queries that are done together; a multiple of every set's tile rows
  // Of pairs: the queries of a strip whose scores are in memory at a time, as `strip`; elements
  // between rows of bf16 probabilities, as `row`; elements of all keys and of a head's depth.
  int64_t block = 0;
  int64_t pair_row = 0;
  int64_t key_pairs = 0;
  int64_t depth_pairs = 0;
  int64_t pair_floats = 1;  // that a pair is in panels, 2 of widened ones
  bool causal = false;
  float scale = 1;  // 1 / sqrt(depth)
};

// Which keys count for one sequence. At most one of the two is set.
struct KeyMask {
  const int32_t* by_key = nullptr;     // [T], 0: does not count
  const int32_t* by_length = nullptr;  // keys from *by_length on do not count
};

// The most queries of a strip.
inline constexpr int64_t kMaxStrip = 132;

class HeadTiles {
 public:
  HeadTiles(const HeadShape& shape, const SimdKernels& simd) : s_(shape), simd_(simd) {}

  // Row i of a head, of rows that are `stride` apart, is on its way to the cache, to be read or to
  // be written: they lie too far apart for the processor to see that they go on. There need not be
  // one.
  template <typename T>
  void FetchRow(const T* rows, int64_t stride, int64_t i) const {
    constexpr int64_t kLine = 64 / sizeof(T);
    for (int64_t j = 0; j < s_.depth; j += kLine) __builtin_prefetch(rows + i * stride + j);
  }
  // Keys that queries below `query_end` may look at.
  int64_t KeysOf(int64_t query_end) const { return s_.causal ? query_end : s_.length; }
  // Of these `keys`, the ones whose probabilities for `query` are read: with a causal mask, to the
  // end of the unit of 12 that the query is in.
  int64_t Reach(int64_t query, int64_t keys) const;

  // panels[column block][p][j] of src^T: the operand B of src's rows as columns; padded_length *
  // depth floats.
  void PackTransposed(const float* src, float* panels) const;
  // panels[column block][row][j] of src: padded_depth * length floats.
  void Pack(const float* src, float* panels) const;
  // out[i, :depth] = factor * src's rows [begin, end), padded_depth apart, zeros in the padding.
  void CopyStrip(const float* src, int64_t stride, int64_t begin, int64_t end, float factor,
                 float* out) const;

  // The products of a strip: row i is query first + i. With a causal mask they leave out the tiles
  // that no query of theirs looks at.
  struct Strip {
    int64_t first = 0;
    int64_t rows = 0;
    int64_t keys = 0;
  };
  // out[i, j] = sum over p < depth of a[i, p] b(p, j) for the strip's rows and keys; a is
  // padded_depth apart, b of PackTransposed, out `row` apart. Columns up to the next tile
  // border are written too, those that are left out are not.
  void ByKeys(const Strip& strip, const float* a, const float* b_panels, float* out) const;
  // out[i, :] = sum over key < Reach of p[i, key] * b(key, :): p is `row` apart, b of Pack,
  // out padded_depth apart.
  void ByDepth(const Strip& strip, const float* p, const float* b_panels, float* out) const;
  // out[key, :] (+)= sum over i of p[i, key] * b[i, :], for the strip's keys; b and out are
  // padded_depth apart.
  void AddOuter(const Strip& strip, const float* p, const float* b, bool accumulate,
                float* out) const;

  // The same of pairs of bf16, of which panels have pair_floats each. Panels of src^T, pairs along
  // the depth: padded_length * depth_pairs pairs.
  void PackPairsTransposed(const uint16_t* src, float* panels) const;
  // Panels of `rows` rows of src, pairs along the rows, a zero row behind an odd number: half as
  // many * padded_depth pairs.
  void PackPairs(const uint16_t* src, int64_t stride, int64_t rows, float* panels) const;
  // As ByKeys: a is `a_stride` values apart, b of PackPairsTransposed; a strip is at most a block.
  // `wide`: WideFloats() of memory.
  void PairsByKeys(const Strip& strip, const uint16_t* a, int64_t a_stride, const float* b_panels,
                   float* wide, float* out) const;
  // As ByDepth: p is pair_row pairs apart, b of PackPairs of all keys. Where Reach is odd, p's next
  // value is 0.
  void PairsByDepth(const Strip& strip, const float* p, const float* b_panels, float* wide,
                    float* out) const;
  int64_t WideFloats() const;
  // As AddOuter: b of PackPairs of the strip's rows; p as for PairsByDepth, with a row of zeros
  // behind an odd number of rows. It is copied to `packed`, OuterFloats() of memory.
  void AddPairsOuter(const Strip& strip, const float* p, const float* b_panels, bool accumulate,
                     float* packed, float* out) const;
  int64_t OuterFloats() const;

  // Makes scores of keys that do not count for query `query` very small, and returns how many
  // columns the query looks at. Columns from there to `keys` are for the caller to clear.
  int64_t Mask(const KeyMask& mask, int64_t query, int64_t keys, float* scores) const;

 private:
  bool widened() const { return s_.pair_floats == 2; }
  void RunPairTile(int64_t rows, const Tile& tile) const {
    (widened() ? simd_.tile : simd_.pair_tile)[rows](tile);
  }

  const HeadShape& s_;
  const SimdKernels& simd_;
};

}  // namespace lockstep::engine::cpu

#endif  // LOCKSTEP_ENGINE_CPU_ATTENTION_TILES_H_
