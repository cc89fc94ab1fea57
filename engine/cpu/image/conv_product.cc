// SPDX-License-Identifier: Apache-2.0
#include "engine/cpu/image/conv_product.h"

#include <algorithm>

#include "common/check.h"

namespace lockstep::engine {
namespace {

constexpr int64_t kKBlock = 384;      // a panel of 16 columns is then 24 KiB: it stays in L1
constexpr int64_t kChunk = 96;        // pixels whose patches stay in L2; whole tiles of every set
constexpr int64_t kOuterChunk = 256;  // pixels that are summed in registers

int64_t DivideUp(int64_t a, int64_t b) { return (a + b - 1) / b; }
size_t Aligned(int64_t floats) { return static_cast<size_t>(DivideUp(floats, 16) * 16); }

}  // namespace

int64_t PixelGrid::PixelOf(int64_t p) const {
  const int64_t image = p / (rows * columns), i = p % (rows * columns) / columns, j = p % columns;
  return (image * image_rows + first_row + i * row_step) * image_columns + first_column +
         j * column_step;
}

PatchProduct::PatchProduct(const PatchShape& patches, const PixelGrid& grid, int64_t images,
                           int64_t columns, int64_t y_stride, Isa isa, int threads)
    : simd_(SimdFor(isa)),
      threads_(static_cast<size_t>(threads)),
      patches_(patches),
      grid_(grid),
      pixels_(images * patches_.pixels()),
      columns_(columns),
      y_stride_(y_stride) {
  const int64_t k = std::max<int64_t>(patches_.depth(), 1);
  k_block_ = DivideUp(DivideUp(k, DivideUp(k, kKBlock)), 8) * 8;
  block_floats_ = patches_.is_image() ? 0 : Aligned(kChunk * k_block_);
  thread_floats_ = block_floats_ + (grid_.dense() ? 0 : Aligned(kChunk * columns_));
}

int64_t PatchProduct::PanelFloats(int64_t depth, int64_t columns, Isa isa) {
  const int64_t width = SimdFor(isa).tile_columns;
  return DivideUp(columns, width) * width * depth;
}

void PatchProduct::Run(const float* x, const float* panels, float* y, const TileEpilogue& epilogue,
                       float* scratch, ThreadPool* pool) const {
  const int64_t chunks = DivideUp(pixels_, kChunk);
  pool->Run([&](int index) {
    const auto [begin, end] = PartOf(chunks, index, static_cast<int>(threads_));
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      RunChunk(x, panels, y, epilogue, chunk,
               scratch + thread_floats_ * static_cast<size_t>(index));
    }
  });
}

void PatchProduct::RunChunk(const float* x, const float* panels, float* y,
                            const TileEpilogue& epilogue, int64_t chunk, float* scratch) const {
  const int64_t depth = patches_.depth(), width = simd_.tile_columns;
  const int64_t p0 = chunk * kChunk, p1 = std::min(p0 + kChunk, pixels_);
  const bool dense = grid_.dense();
  float* c = dense ? y + p0 * y_stride_ : scratch + block_floats_;
  const int64_t c_stride = dense ? y_stride_ : columns_;
  for (int64_t k0 = 0; k0 < depth; k0 += k_block_) {
    Tile tile;
    tile.k = std::min(k_block_, depth - k0);
    tile.a_k = 1;
    const float* a = x + p0 * depth + k0;
    tile.a_row = depth;
    if (!patches_.is_image()) {
      patches_.Fill(x, p0, p1, k0, k0 + tile.k, scratch, k_block_);
      a = scratch;
      tile.a_row = k_block_;
    }
    tile.b_stride = width;
    tile.c_stride = c_stride;
    tile.accumulate = k0 > 0;
    tile.last = k0 + k_block_ >= depth;
    for (int64_t j = 0; j < columns_; j += width) {
      tile.columns = std::min(width, columns_ - j);
      tile.b = panels + j * depth + k0 * width;
      tile.epilogue = epilogue;
      if (epilogue.bias != nullptr) tile.epilogue.bias = epilogue.bias + j;
      if (!dense) tile.epilogue.mask = nullptr;  // Scatter applies it
      for (int64_t i = 0; i < p1 - p0; i += simd_.tile_rows) {
        tile.a = a + i * tile.a_row;
        tile.c = c + i * c_stride + j;
        if (tile.epilogue.mask != nullptr) {
          tile.epilogue.mask = epilogue.mask + (p0 + i) * epilogue.mask_stride + j;
        }
        simd_.tile[std::min<int64_t>(simd_.tile_rows, p1 - p0 - i)](tile);
      }
    }
  }
  if (!dense || depth == 0) Scatter(depth > 0 ? c : nullptr, y, epilogue.mask, p0, p1);
}

// `from` is null for zeros: no tap reaches these pixels.
void PatchProduct::Scatter(const float* from, float* y, const float* mask, int64_t p0,
                           int64_t p1) const {
  for (int64_t p = p0; p < p1; ++p) {
    const int64_t at = grid_.PixelOf(p) * y_stride_;
    if (from == nullptr) {
      std::fill_n(y + at, columns_, 0.0f);
    } else if (mask != nullptr) {
      simd_.relu_backward(from + (p - p0) * columns_, mask + at, columns_, y + at);
    } else {
      std::copy_n(from + (p - p0) * columns_, columns_, y + at);
    }
  }
}

PatchOuterProduct::PatchOuterProduct(const PatchShape& patches, int64_t images, int64_t rows,
                                     int64_t dy_stride, Isa isa, int threads)
    : simd_(SimdFor(isa)),
      threads_(static_cast<size_t>(threads)),
      patches_(patches),
      pixels_(images * patches_.pixels()),
      rows_(rows),
      dy_stride_(dy_stride) {
  sum_stride_ = DivideUp(patches_.depth(), simd_.tile_columns) * simd_.tile_columns;
  sum_floats_ = Aligned(rows * sum_stride_);
  panel_floats_ = Aligned(kOuterChunk * simd_.tile_columns);
  thread_floats_ =
      panel_floats_ + Aligned(kOuterChunk * DivideUp(rows, simd_.tile_rows) * simd_.tile_rows);
}

// To [group of tile_rows][pixel][tile_rows].
void PatchOuterProduct::PackRows(const float* dy, int64_t p0, int64_t p1, float* packed) const {
  const int64_t height = simd_.tile_rows;
  for (int64_t i = 0; i < rows_; i += height) {
    const int64_t valid = std::min(height, rows_ - i);
    const float* from = dy + p0 * dy_stride_ + i;
    for (int64_t p = p0; p < p1; ++p, packed += height, from += dy_stride_) {
      for (int64_t r = 0; r < valid; ++r) packed[r] = from[r];
    }
  }
}

const float* PatchOuterProduct::Run(const float* dy, const float* x, float* scratch,
                                    ThreadPool* pool) const {
  const int64_t width = simd_.tile_columns, height = simd_.tile_rows;
  float* const sum = scratch;
  pool->Run([&](int index) {
    float* const panel = scratch + sum_floats_ + thread_floats_ * static_cast<size_t>(index);
    float* const packed = panel + panel_floats_;
    const auto [begin, end] = PartOf(sum_stride_ / width, index, static_cast<int>(threads_));
    if (begin == end) return;
    for (int64_t p0 = 0; p0 < pixels_; p0 += kOuterChunk) {
      const int64_t p1 = std::min(p0 + kOuterChunk, pixels_);
      PackRows(dy, p0, p1, packed);
      Tile tile;
      tile.k = p1 - p0;
      tile.a_row = 1;
      tile.a_k = height;
      tile.b = panel;
      tile.b_stride = width;
      tile.c_stride = sum_stride_;
      tile.columns = width;
      tile.accumulate = p0 > 0;
      for (int64_t j = begin * width; j < end * width; j += width) {
        const int64_t valid = std::min(width, patches_.depth() - j);
        if (valid < width) std::fill_n(panel, tile.k * width, 0.0f);
        patches_.Fill(x, p0, p1, j, j + valid, panel, width);
        for (int64_t i = 0; i < rows_; i += height) {
          tile.a = packed + i * tile.k;
          tile.c = sum + i * sum_stride_ + j;
          simd_.tile[std::min(height, rows_ - i)](tile);
        }
      }
    }
  });
  return sum;
}

}  // namespace lockstep::engine
