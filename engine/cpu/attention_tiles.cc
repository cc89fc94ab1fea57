// SPDX-License-Identifier: Apache-2.0
#include "engine/cpu/attention_tiles.h"

#include <algorithm>
#include <cmath>

namespace lockstep::engine::cpu {
namespace {

int64_t RoundUp(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

constexpr int64_t kLine = 16;  // floats
// Of every instruction set's tiles.
constexpr int64_t kMaxColumns = 32;
// Every instruction set's tile rows divide it.
constexpr int64_t kStripUnit = 12;
constexpr int64_t kMinStrip = 24;
// A strip's scores: with them, its gradients and one head's operands stay in L2.
constexpr int64_t kStripFloats = 16 * 1024;
// A strip's queries stay in L1.
constexpr int64_t kQueryFloats = 5 * 1024;

// The longer the strip, the longer the sums over its queries, and the fewer passes over what they
// are added to. Strips are as equal as can be.
int64_t StripOf(int64_t queries, int64_t keys, int64_t depth) {
  const int64_t fits = std::min(kStripFloats / keys, kQueryFloats / depth);
  const int64_t most = std::clamp(fits, kMinStrip, kMaxStrip);
  const int64_t strips = (queries + most - 1) / most;
  return RoundUp((queries + strips - 1) / strips, kStripUnit);
}

// Of pairs, whose fp32 scores are needed block by block: a block's stay near L1.
constexpr int64_t kBlockFloats = 8 * 1024;
// A strip's probabilities and gradients stay in L2 with the rest. The sums over its queries take
// half as many steps as those of fp32, so it is longer.
constexpr int64_t kPairStripFloats = 32 * 1024;
constexpr int64_t kMinPairStrip = 48;
constexpr int64_t kMinBlock = 12;

int64_t EqualParts(int64_t count, int64_t most) {
  const int64_t parts = (count + most - 1) / most;
  return RoundUp((count + parts - 1) / parts, kStripUnit);
}
int64_t PairStripOf(int64_t queries, int64_t keys) {
  return EqualParts(queries, std::clamp(kPairStripFloats / keys, kMinPairStrip, kMaxStrip));
}
int64_t BlockOf(int64_t strip, int64_t keys) {
  return EqualParts(strip, std::clamp(kBlockFloats / keys, kMinBlock, kMaxStrip));
}

// The score of a key that does not count: its exponential is 0 beside any real one.
constexpr float kHidden = -1e30f;

}  // namespace

HeadShape::HeadShape(const ops::AttentionShape& shape, const SimdKernels& simd, Factors factors)
    : length(shape.length),
      queries(shape.queries),
      depth(shape.width / shape.heads),
      padded_length(RoundUp(length, simd.tile_columns)),
      padded_depth(RoundUp(depth, simd.tile_columns)),
      row((RoundUp(padded_length, kLine) / kLine | 1) * kLine),
      stride(shape.packed ? 3 * shape.width : shape.width),
      strip(factors == Factors::kPairs ? PairStripOf(queries, length)
                                       : StripOf(queries, length, padded_depth)),
      block(BlockOf(strip, length)),
      pair_row((RoundUp(padded_length, 2 * kLine) / (2 * kLine) | 1) * kLine),
      key_pairs((length + 1) / 2),
      depth_pairs(depth / 2),
      causal(shape.causal),
      scale(static_cast<float>(1 / std::sqrt(static_cast<double>(depth)))) {}

void HeadTiles::PackTransposed(const float* src, float* panels) const {
  const int64_t width = simd_.tile_columns;
  for (int64_t j = 0; j < s_.length; j += width) {
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
  return s_.causal ? std::min(RoundUp(query + 1, simd_.tile_rows), keys) : keys;
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
    // Queries before the tile's first key do not look at it.
    const int64_t first = s_.causal ? std::max<int64_t>(i - strip.first, 0) : 0;
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
    simd_.pack_transposed(reinterpret_cast<const float*>(src + j * s_.stride), s_.stride / 2,
                          s_.depth_pairs, std::min(width, s_.length - j),
                          panels + j * s_.depth_pairs);
  }
}

void HeadTiles::PackPairs(const uint16_t* src, int64_t stride, int64_t rows, float* panels) const {
  const int64_t width = simd_.tile_columns;
  const int64_t pairs = (rows + 1) / 2, whole = rows / 2;
  for (int64_t j = 0; j < s_.depth; j += width) {
    const int64_t columns = std::min(width, s_.depth - j);
    float* panel = panels + j * pairs;
    simd_.pack_pair_panels(src + j, stride, whole, columns, panel);
    if (whole == pairs) continue;
    uint16_t last[2 * kMaxColumns] = {};
    std::copy_n(src + 2 * whole * stride + j, columns, last);
    simd_.pack_pair_panels(last, kMaxColumns, 1, columns, panel + whole * width);
  }
}

void HeadTiles::PairsByKeys(const Strip& strip, const uint16_t* a, int64_t a_stride,
                            const float* b_panels, float* out) const {
  const int64_t height = simd_.tile_rows;
  Tile tile;
  tile.k = s_.depth_pairs;
  tile.a_row = a_stride / 2;
  tile.a_k = 1;
  tile.b_stride = tile.columns = simd_.tile_columns;
  tile.c_stride = s_.row;
  for (int64_t j = 0; j < strip.keys; j += simd_.tile_columns) {
    tile.b = b_panels + j * s_.depth_pairs;
    const int64_t first = s_.causal ? std::max<int64_t>(j - strip.first, 0) / height * height : 0;
    for (int64_t i = first; i < strip.rows; i += height) {
      tile.a = reinterpret_cast<const float*>(a + i * a_stride);
      tile.c = out + i * s_.row + j;
      simd_.pair_tile[std::min(height, strip.rows - i)](tile);
    }
  }
}

void HeadTiles::PairsByDepth(const Strip& strip, const float* p, const float* b_panels,
                             float* out) const {
  const int64_t height = simd_.tile_rows;
  Tile tile;
  tile.a_row = s_.pair_row;
  tile.a_k = 1;
  tile.b_stride = tile.columns = simd_.tile_columns;
  tile.c_stride = s_.padded_depth;
  for (int64_t j = 0; j < s_.depth; j += simd_.tile_columns) {
    tile.b = b_panels + j * s_.key_pairs;
    for (int64_t i = 0; i < strip.rows; i += height) {
      tile.k = (Reach(strip.first + i, strip.keys) + 1) / 2;
      tile.a = p + i * s_.pair_row;
      tile.c = out + i * s_.padded_depth + j;
      simd_.pair_tile[std::min(height, strip.rows - i)](tile);
    }
  }
}

// The last strip of rows is whole, and behind it the packing stores a vector.
int64_t HeadTiles::OuterFloats() const {
  return RoundUp(s_.length, simd_.tile_rows) * (s_.strip / 2) + kLine;
}

void HeadTiles::AddPairsOuter(const Strip& strip, const float* p, const float* b_panels,
                              bool accumulate, float* packed, float* out) const {
  const int64_t height = simd_.tile_rows;
  const int64_t pairs = (strip.rows + 1) / 2;
  simd_.pack_pair_rows(reinterpret_cast<const uint16_t*>(p), 2 * s_.pair_row, strip.keys, pairs,
                       packed);
  Tile tile;
  tile.a_row = 1;
  tile.a_k = height;
  tile.b_stride = tile.columns = simd_.tile_columns;
  tile.c_stride = s_.padded_depth;
  tile.accumulate = accumulate;
  for (int64_t i = 0; i < strip.keys; i += height) {
    // Queries before the tile's first key do not look at it: an even number, as tiles' rows are.
    const int64_t first = s_.causal ? std::max<int64_t>(i - strip.first, 0) / 2 : 0;
    tile.k = pairs - first;
    tile.a = packed + i * pairs + first * height;
    for (int64_t j = 0; j < s_.depth; j += simd_.tile_columns) {
      tile.b = b_panels + j * pairs + first * simd_.tile_columns;
      tile.c = out + i * s_.padded_depth + j;
      simd_.pair_tile[std::min(height, strip.keys - i)](tile);
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
