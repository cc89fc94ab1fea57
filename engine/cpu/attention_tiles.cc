// SPDX-License-Identifier: Apache-2.0
#include "engine/cpu/attention_tiles.h"

#include <algorithm>
#include <cmath>

namespace lockstep::engine::cpu {
namespace {

int64_t RoundUp(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

// The score of a key that does not count: its exponential is 0 beside any real one.
constexpr float kHidden = -1e30f;

}  // namespace

HeadShape::HeadShape(const ops::AttentionShape& shape, const SimdKernels& simd)
    : length(shape.length),
      depth(shape.width / shape.heads),
      padded_length(RoundUp(length, simd.tile_columns)),
      padded_depth(RoundUp(depth, simd.tile_columns)),
      stride(shape.packed ? 3 * shape.width : shape.width),
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

void HeadTiles::ByKeys(const float* a, const float* b_panels, int64_t rows, int64_t keys,
                       float* out) const {
  Tile tile;
  tile.k = s_.depth;
  tile.a_row = s_.padded_depth;
  tile.a_k = 1;
  tile.b_stride = tile.columns = simd_.tile_columns;
  tile.c_stride = s_.padded_length;
  for (int64_t j = 0; j < keys; j += simd_.tile_columns) {
    tile.b = b_panels + j * s_.depth;
    for (int64_t i = 0; i < rows; i += simd_.tile_rows) {
      tile.a = a + i * s_.padded_depth;
      tile.c = out + i * s_.padded_length + j;
      simd_.tile[std::min<int64_t>(simd_.tile_rows, rows - i)](tile);
    }
  }
}

void HeadTiles::ByDepth(const float* p, const float* b_panels, int64_t rows, int64_t keys,
                        float* out) const {
  Tile tile;
  tile.k = keys;
  tile.a_row = s_.padded_length;
  tile.a_k = 1;
  tile.b_stride = tile.columns = simd_.tile_columns;
  tile.c_stride = s_.padded_depth;
  for (int64_t j = 0; j < s_.depth; j += simd_.tile_columns) {
    tile.b = b_panels + j * s_.length;
    for (int64_t i = 0; i < rows; i += simd_.tile_rows) {
      tile.a = p + i * s_.padded_length;
      tile.c = out + i * s_.padded_depth + j;
      simd_.tile[std::min<int64_t>(simd_.tile_rows, rows - i)](tile);
    }
  }
}

void HeadTiles::AddOuter(const float* p, const float* b, int64_t rows, int64_t keys,
                         bool accumulate, float* out) const {
  Tile tile;
  tile.k = rows;
  tile.a_row = 1;
  tile.a_k = s_.padded_length;
  tile.b_stride = tile.c_stride = s_.padded_depth;
  tile.columns = simd_.tile_columns;
  tile.accumulate = accumulate;
  for (int64_t j = 0; j < s_.depth; j += simd_.tile_columns) {
    tile.b = b + j;
    for (int64_t i = 0; i < keys; i += simd_.tile_rows) {
      tile.a = p + i;
      tile.c = out + i * s_.padded_depth + j;
      simd_.tile[std::min<int64_t>(simd_.tile_rows, keys - i)](tile);
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
