// SPDX-License-Identifier: Apache-2.0
#include "engine/cpu/attention_tiles.h"

#include <algorithm>
#include <cmath>

#include "common/round_up.h"

namespace lockstep::engine::cpu {
namespace {

constexpr int64_t kLine = 16;  // floats
// Of every instruction set's tiles.
constexpr int64_t kMaxColumns = 32;
// Every instruction set's tile rows divide it. Sums leave out what a causal mask hides in steps of
// it, so that they have the same terms everywhere.
constexpr int64_t kStripUnit = 12;
constexpr int64_t kMinStrip = 24;
// A strip's scores: with them, its gradients and one head's operands stay in L2.
constexpr int64_t kStripFloats = 16 * 1024;
// A strip's queries stay in L1.
constexpr int64_t kQueryFloats = 5 * 1024;

// The longer the strip, the longer the sums over its queries, and the fewer passes over what they
// are added to. Strips are as equal as can be. Sums over queries are made strip by strip, so their
// order follows from this: nothing here may depend on the instruction set.
int64_t StripOf(int64_t queries, int64_t keys, int64_t depth) {
  const int64_t fits = std::min(kStripFloats / keys, kQueryFloats / depth);
  const int64_t most = std::clamp(fits, kMinStrip, kMaxStrip);
  const int64_t strips = DivideUp(queries, most);
  return RoundUp(DivideUp(queries, strips), kStripUnit);
}

// Of pairs, whose fp32 scores are needed block by block: a block's stay near L1.
constexpr int64_t kBlockFloats = 8 * 1024;
// A strip's probabilities and gradients stay in L2 with the rest. The sums over its queries take
// half as many steps as those of fp32, so it is longer.
constexpr int64_t kPairStripFloats = 32 * 1024;
constexpr int64_t kMinPairStrip = 48;
constexpr int64_t kMinBlock = 12;

int64_t EqualParts(int64_t count, int64_t most) {
  const int64_t parts = DivideUp(count, most);
  return RoundUp(DivideUp(count, parts), kStripUnit);
}
int64_t PairStripOf(int64_t queries, int64_t keys) {
  return EqualParts(queries, std::clamp(kPairStripFloats / keys, kMinPairStrip, kMaxStrip));
}
int64_t BlockOf(int64_t strip, int64_t keys) {
  return EqualParts(strip, std::clamp(kBlockFloats / keys, kMinBlock, kMaxStrip));
}

int64_t UnitOf(int64_t key) { return key / kStripUnit * kStripUnit; }

// The score of a key that does not count: its exponential is 0 beside any real one.
constexpr float kHidden = -1e30f;

}  // namespace

HeadShape::HeadShape(const ops::AttentionShape& shape, const SimdKernels& simd, Factors factors)
    : length(shape.length),
      queries(shape.queries),
      depth(shape.width / shape.heads),
      padded_length(RoundUp(length, simd.tile_columns)),
      padded_depth(RoundUp(depth, simd.tile_columns)),
      row((DivideUp(padded_length, kLine) | 1) * kLine),
      stride(shape.packed ? 3 * shape.width : shape.width),
      strip(factors != Factors::kFloats ? PairStripOf(queries, length)
                                        : StripOf(queries, length, RoundUp(depth, kMaxColumns))),
      block(BlockOf(strip, length)),
      pair_row((DivideUp(padded_length, 2 * kLine) | 1) * kLine),
      key_pairs((length + 1) / 2),
      depth_pairs(depth / 2),
      pair_floats(factors == Factors::kWidenedPairs ? 2 : 1),
      causal(shape.causal),
      scale(static_cast<float>(1 / std::sqrt(static_cast<double>(depth)))) {}

void HeadTiles::PackTransposed(const float* src, float* panels) const {
  const int64_t width = simd_.tile_columns;
  for (int64_t j = 0; j < s_.length; j += width) {
    for (int64_t i = j + width; i < std::min(j + 2 * width, s_.length); ++i) {
      FetchRow(src, s_.stride, i);
    }
    simd_.pack_transposed(src + j * s_.stride, s_.stride, s_.depth, std::min(width, s_.length - j),
                          panels + j * s_.depth);
  }
}

void HeadTiles::Pack(const float* src, float* panels) const {
  const int64_t width = simd_.tile_columns;
  for (int64_t j = 0; j < s_.depth; j += width) {
    simd_.pack(src + j, s_.stride, s_.length, std::min(width, s_.depth - j),
               panels + j * s_.length);
  }
}

void HeadTiles::CopyStrip(const float* src, int64_t stride, int64_t begin, int64_t end,
                          float factor, float* out) const {
  for (int64_t i = begin; i < end; ++i, out += s_.padded_depth) {
    simd_.scale(src + i * stride, factor, s_.depth, false, out);
    std::fill(out + s_.depth, out + s_.padded_depth, 0.0f);
  }
}

int64_t HeadTiles::Reach(int64_t query, int64_t keys) const {
  return s_.causal ? std::min(RoundUp(query + 1, kStripUnit), keys) : keys;
}

void HeadTiles::ByKeys(const Strip& strip, const float* a, const float* b_panels,
                       float* out) const {
  const int64_t height = simd_.tile_rows;
  Tile tile;
  tile.k = s_.depth;
  tile.a_row = s_.padded_depth;
  tile.a_k = 1;
  tile.b_stride = tile.columns = simd_.tile_columns;
  tile.c_stride = s_.row;
  for (int64_t j = 0; j < strip.keys; j += simd_.tile_columns) {
    tile.b = b_panels + j * s_.depth;
    const int64_t first = s_.causal ? std::max<int64_t>(j - strip.first, 0) / height * height : 0;
    for (int64_t i = first; i < strip.rows; i += height) {
      tile.a = a + i * s_.padded_depth;
      tile.c = out + i * s_.row + j;
      simd_.tile[std::min(height, strip.rows - i)](tile);
    }
  }
}

void HeadTiles::ByDepth(const Strip& strip, const float* p, const float* b_panels,
                        float* out) const {
  const int64_t height = simd_.tile_rows;
  Tile tile;
  tile.a_row = s_.row;
  tile.a_k = 1;
  tile.b_stride = tile.columns = simd_.tile_columns;
  tile.c_stride = s_.padded_depth;
  for (int64_t j = 0; j < s_.depth; j += simd_.tile_columns) {
    tile.b = b_panels + j * s_.length;
    for (int64_t i = 0; i < strip.rows; i += height) {
      tile.k = Reach(strip.first + i, strip.keys);
      tile.a = p + i * s_.row;
      tile.c = out + i * s_.padded_depth + j;
      simd_.tile[std::min(height, strip.rows - i)](tile);
    }
  }
}

void HeadTiles::AddOuter(const Strip& strip, const float* p, const float* b, bool accumulate,
                         float* out) const {
  const int64_t height = simd_.tile_rows;
  Tile tile;
  tile.a_row = 1;
  tile.a_k = s_.row;
  tile.b_stride = tile.c_stride = s_.padded_depth;
  tile.columns = simd_.tile_columns;
  tile.accumulate = accumulate;
  // Keys outside: their columns of p are read from memory once, and all of b stays in L1.
  for (int64_t i = 0; i < strip.keys; i += height) {
    // Queries before the first key of the tile's unit do not look at it.
    const int64_t first = s_.causal ? std::max<int64_t>(UnitOf(i) - strip.first, 0) : 0;
    tile.k = strip.rows - first;
    tile.a = p + first * s_.row + i;
    for (int64_t j = 0; j < s_.depth; j += simd_.tile_columns) {
      tile.b = b + first * s_.padded_depth + j;
      tile.c = out + i * s_.padded_depth + j;
      simd_.tile[std::min(height, strip.keys - i)](tile);
    }
  }
}

void HeadTiles::PackPairsTransposed(const uint16_t* src, float* panels) const {
  const int64_t width = simd_.tile_columns;
  for (int64_t j = 0; j < s_.length; j += width) {
    float* const panel = panels + j * s_.depth_pairs * s_.pair_floats;
    (widened() ? simd_.pack_split_transposed : simd_.pack_transposed)(
        reinterpret_cast<const float*>(src + j * s_.stride), s_.stride / 2, s_.depth_pairs,
        std::min(width, s_.length - j), panel);
  }
}

void HeadTiles::PackPairs(const uint16_t* src, int64_t stride, int64_t rows, float* panels) const {
  const int64_t width = simd_.tile_columns;
  const int64_t pairs = (rows + 1) / 2, whole = rows / 2;
  for (int64_t j = 0; j < s_.depth; j += width) {
    const int64_t columns = std::min(width, s_.depth - j);
    float* const panel = panels + j * pairs * s_.pair_floats;
    const auto pack = widened() ? simd_.pack_split_pair_panels : simd_.pack_pair_panels;
    pack(src + j, stride, whole, columns, panel);
    if (whole != pairs) {
      uint16_t last[2 * kMaxColumns] = {};
      std::copy_n(src + 2 * whole * stride + j, columns, last);
      pack(last, kMaxColumns, 1, columns, panel + whole * width * s_.pair_floats);
    }
  }
}

int64_t HeadTiles::WideFloats() const {
  if (!widened()) return 0;
  return std::max(s_.block * 2 * s_.depth_pairs, kStripUnit * 2 * s_.pair_row);
}

void HeadTiles::PairsByKeys(const Strip& strip, const uint16_t* a, int64_t a_stride,
                            const float* b_panels, float* wide, float* out) const {
  const int64_t height = simd_.tile_rows;
  Tile tile;
  tile.k = s_.depth_pairs * s_.pair_floats;
  tile.a_row = widened() ? tile.k : a_stride / 2;
  const float* const rows = widened() ? wide : reinterpret_cast<const float*>(a);
  for (int64_t i = 0; widened() && i < strip.rows; ++i) {
    simd_.widen_pairs(reinterpret_cast<const float*>(a + i * a_stride), s_.depth_pairs,
                      wide + i * tile.k);
  }
  tile.a_k = 1;
  tile.b_stride = tile.columns = simd_.tile_columns;
  tile.c_stride = s_.row;
  for (int64_t j = 0; j < strip.keys; j += simd_.tile_columns) {
    tile.b = b_panels + j * tile.k;
    const int64_t first = s_.causal ? std::max<int64_t>(j - strip.first, 0) / height * height : 0;
    for (int64_t i = first; i < strip.rows; i += height) {
      tile.a = rows + i * tile.a_row;
      tile.c = out + i * s_.row + j;
      RunPairTile(std::min(height, strip.rows - i), tile);
    }
  }
}

void HeadTiles::PairsByDepth(const Strip& strip, const float* p, const float* b_panels, float* wide,
                             float* out) const {
  const int64_t height = simd_.tile_rows;
  Tile tile;
  tile.a_row = s_.pair_row * s_.pair_floats;
  tile.a_k = 1;
  tile.b_stride = tile.columns = simd_.tile_columns;
  tile.c_stride = s_.padded_depth;
  for (int64_t i = 0; i < strip.rows; i += height) {
    const int64_t rows = std::min(height, strip.rows - i);
    const int64_t pairs = (Reach(strip.first + i, strip.keys) + 1) / 2;
    tile.k = pairs * s_.pair_floats;
    tile.a = widened() ? wide : p + i * s_.pair_row;
    for (int64_t r = 0; widened() && r < rows; ++r) {
      simd_.widen_pairs(p + (i + r) * s_.pair_row, pairs, wide + r * tile.a_row);
    }
    for (int64_t j = 0; j < s_.depth; j += simd_.tile_columns) {
      tile.b = b_panels + j * s_.key_pairs * s_.pair_floats;
      tile.c = out + i * s_.padded_depth + j;
      RunPairTile(rows, tile);
    }
  }
}

// The last strip of rows is whole, and behind it the packing stores a vector.
int64_t HeadTiles::OuterFloats() const {
  return RoundUp(s_.length, simd_.tile_rows) * (s_.strip / 2) * s_.pair_floats + kLine;
}

void HeadTiles::AddPairsOuter(const Strip& strip, const float* p, const float* b_panels,
                              bool accumulate, float* packed, float* out) const {
  const int64_t height = simd_.tile_rows, each = s_.pair_floats;
  const int64_t pairs = (strip.rows + 1) / 2;
  (widened() ? simd_.pack_split_pair_rows : simd_.pack_pair_rows)(
      reinterpret_cast<const uint16_t*>(p), 2 * s_.pair_row, strip.keys, pairs, packed);
  Tile tile;
  tile.a_row = 1;
  tile.a_k = height;
  tile.b_stride = tile.columns = simd_.tile_columns;
  tile.c_stride = s_.padded_depth;
  tile.accumulate = accumulate;
  for (int64_t i = 0; i < strip.keys; i += height) {
    // Queries before the first key of the tile's unit do not look at it: an even number.
    const int64_t first = s_.causal ? std::max<int64_t>(UnitOf(i) - strip.first, 0) / 2 : 0;
    tile.k = (pairs - first) * each;
    tile.a = packed + (i * pairs + first * height) * each;
    for (int64_t j = 0; j < s_.depth; j += simd_.tile_columns) {
      tile.b = b_panels + (j * pairs + first * simd_.tile_columns) * each;
      tile.c = out + i * s_.padded_depth + j;
      RunPairTile(std::min(height, strip.keys - i), tile);
    }
  }
}

int64_t HeadTiles::Mask(const KeyMask& mask, int64_t query, int64_t keys, float* scores) const {
  int64_t seen = s_.causal ? query + 1 : keys;
  if (mask.by_length != nullptr) {
    seen = std::clamp<int64_t>(*mask.by_length, 0, seen);
  }
  if (mask.by_key != nullptr) {
    bool any = false;
    for (int64_t key = 0; key < seen; ++key) {
      if (mask.by_key[key] == 0) {
        scores[key] = kHidden;
      } else {
        any = true;
      }
    }
    if (!any) seen = 0;
  }
  return seen;
}

}  // namespace lockstep::engine::cpu
