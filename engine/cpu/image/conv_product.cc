// SPDX-License-Identifier: Apache-2.0
#include "engine/cpu/image/conv_product.h"

#include <algorithm>

#include "common/check.h"

namespace lockstep::engine {
namespace {

constexpr int64_t kKBlock = 384;      // a panel of 16 columns is then 24 KiB: it stays in L1
constexpr int64_t kChunk = 96;        // pixels whose patches stay in L2; whole tiles of every set
constexpr int64_t kFewChunks = 8;     // of a thread: fewer are not shared out evenly
constexpr int64_t kOuterChunk = 256;  // pixels that are summed in registers
// Gradients of so few channels are read where they lie: a chunk of them stays in L1 or near it.
constexpr int64_t kDirectFloats = 64;

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
  const int64_t chunks = std::max<int64_t>(DivideUp(pixels_, kChunk), 1);
  chunk_ =
      std::max<int64_t>(DivideUp(DivideUp(pixels_, chunks), simd_.tile_rows), 1) * simd_.tile_rows;
  block_floats_ = patches_.is_image() ? 0 : Aligned(chunk_ * k_block_);
  thread_floats_ = block_floats_ + (grid_.dense() ? 0 : Aligned(chunk_ * columns_));
}

int64_t PatchProduct::PanelFloats(int64_t depth, int64_t columns, Isa isa) {
  const int64_t width = SimdFor(isa).tile_columns;
  return DivideUp(columns, width) * width * depth;
}

// With few chunks the threads share the columns instead: their parts are as large as each other,
// and each reads its own part of B alone. Patches are then made by every thread, images are not.
PatchProduct::Part PatchProduct::PartFor(int index) const {
  const int threads = static_cast<int>(threads_);
  const int64_t chunks = DivideUp(pixels_, chunk_);
  const int64_t panels = DivideUp(columns_, simd_.tile_columns);
  const int64_t few = (patches_.is_image() ? kFewChunks : 2) * threads;
  if (grid_.dense() && chunks < few && panels >= threads) {
    const auto [begin, end] = PartOf(panels, index, threads);
    return {0, begin < end ? chunks : 0, begin, end};
  }
  const auto [begin, end] = PartOf(chunks, index, threads);
  return {begin, end, 0, panels};
}

void PatchProduct::Run(const float* x, const float* panels, float* y, const TileEpilogue& epilogue,
                       float* scratch, ThreadPool* pool) const {
  LS_CHECK(epilogue.residual == nullptr || grid_.dense());
  pool->Run([&](int index) {
    const Part part = PartFor(index);
    for (int64_t chunk = part.first_chunk; chunk < part.last_chunk; ++chunk) {
      RunChunk(x, panels, y, epilogue, chunk, part,
               scratch + thread_floats_ * static_cast<size_t>(index));
    }
  });
}

void PatchProduct::RunChunk(const float* x, const float* panels, float* y,
                            const TileEpilogue& epilogue, int64_t chunk, const Part& part,
                            float* scratch) const {
  const int64_t depth = patches_.depth(), width = simd_.tile_columns;
  const int64_t p0 = chunk * chunk_, p1 = std::min(p0 + chunk_, pixels_);
  const bool dense = grid_.dense();
  float* c = dense ? y + p0 * y_stride_ : scratch + block_floats_;
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
    tile.c_stride = dense ? y_stride_ : columns_;
    tile.accumulate = k0 > 0;
    tile.last = k0 + k_block_ >= depth;
    for (int64_t panel = part.first_panel; panel < part.last_panel; ++panel) {
      const int64_t j = panel * width;
      tile.columns = std::min(width, columns_ - j);
      tile.b = panels + j * depth + k0 * width;
      tile.c = c + j;
      tile.epilogue = epilogue;
      if (epilogue.bias != nullptr) tile.epilogue.bias = epilogue.bias + j;
      if (epilogue.residual != nullptr) {
        tile.epilogue.residual = epilogue.residual + p0 * epilogue.residual_stride + j;
      }
      tile.epilogue.mask = nullptr;  // Scatter applies it when the grid is not dense
      if (dense && epilogue.mask != nullptr) {
        tile.epilogue.mask = epilogue.mask + p0 * epilogue.mask_stride + j;
      }
      RunPanel(a, p1 - p0, &tile, panel + 1 < part.last_panel ? tile.b + width * depth : nullptr);
    }
  }
  if (!dense || depth == 0) Scatter(depth > 0 ? c : nullptr, y, epilogue.mask, p0, p1);
}

// The tiles of `rows` rows, as equal as can be. The lines of the `next` panel are on their way
// meanwhile; null: there is none.
void PatchProduct::RunPanel(const float* a, int64_t rows, Tile* tile, const float* next) const {
  constexpr int64_t kLine = 16;  // floats
  const int64_t tiles = DivideUp(rows, simd_.tile_rows);
  const int64_t fewest = rows / tiles, more = rows % tiles;  // rows of a tile; tiles of one more
  const int64_t ahead = DivideUp(DivideUp(tile->k * simd_.tile_columns, kLine), tiles);
  const TileEpilogue epilogue = tile->epilogue;
  float* const c = tile->c;
  for (int64_t t = 0, i = 0, end = 0; t < tiles; ++t, i = end) {
    end = i + fewest + (t < more ? 1 : 0);
    for (int64_t l = 0; next != nullptr && l < ahead; ++l) {
      __builtin_prefetch(next + (t * ahead + l) * kLine, 0, 2);
    }
    tile->a = a + i * tile->a_row;
    tile->c = c + i * tile->c_stride;
    if (epilogue.mask != nullptr) tile->epilogue.mask = epilogue.mask + i * epilogue.mask_stride;
    if (epilogue.residual != nullptr) {
      tile->epilogue.residual = epilogue.residual + i * epilogue.residual_stride;
    }
    simd_.tile[end - i](*tile);
  }
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
      panel_floats_ + Aligned(kOuterChunk * DivideUp(rows, simd_.tile_rows) * simd_.tile_rows + 16);
}

const float* PatchOuterProduct::Run(const float* dy, const float* x, float* scratch,
                                    ThreadPool* pool) const {
  const int64_t width = simd_.tile_columns, height = simd_.tile_rows;
  float* const sum = scratch;
  const bool direct = dy_stride_ <= kDirectFloats;
  pool->Run([&](int index) {
    float* const panel = scratch + sum_floats_ + thread_floats_ * static_cast<size_t>(index);
    float* const packed = panel + panel_floats_;
    const auto [begin, end] = PartOf(sum_stride_ / width, index, static_cast<int>(threads_));
    if (begin == end) return;
    for (int64_t p0 = 0; p0 < pixels_; p0 += kOuterChunk) {
      const int64_t p1 = std::min(p0 + kOuterChunk, pixels_);
      const float* a = dy + p0 * dy_stride_;
      if (!direct) simd_.pack_rows(a, 1, dy_stride_, rows_, p1 - p0, packed);
      Tile tile;
      tile.k = p1 - p0;
      tile.a_row = 1;
      tile.a_k = direct ? dy_stride_ : height;
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
          tile.a = direct ? a + i : packed + i * tile.k;
          tile.c = sum + i * sum_stride_ + j;
          simd_.tile[std::min(height, rows_ - i)](tile);
        }
      }
    }
  });
  return sum;
}

}  // namespace lockstep::engine
