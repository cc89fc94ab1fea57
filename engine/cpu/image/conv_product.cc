// SPDX-License-Identifier: Apache-2.0
#include "engine/cpu/image/conv_product.h"

#include <algorithm>

#include "common/check.h"
#include "common/round_up.h"

namespace lockstep::engine {
namespace {

constexpr int64_t kKBlock = 384;      // a panel of 16 columns is then 24 KiB: it stays in L1
constexpr int64_t kChunk = 96;        // pixels whose patches stay in L2; whole tiles of every set
constexpr int64_t kLeastColumns = 8;  // of an image whose rows tiles are cut from
constexpr int64_t kFewChunks = 8;     // of a thread: fewer are not shared out evenly
// Pixels of one chain of a weight gradient, in every precision; the chains' sums are added in
// order.
constexpr int64_t kOuterChunk = 256;
// Gradients of so few channels are read where they lie: a chunk of them stays in L1 or near it.
constexpr int64_t kDirectFloats = 64;

size_t Aligned(int64_t floats) { return static_cast<size_t>(DivideUp(floats, 16) * 16); }

}  // namespace

int64_t PixelGrid::PixelOf(int64_t p) const {
  const int64_t image = p / (rows * columns), i = p % (rows * columns) / columns, j = p % columns;
  return (image * image_rows + first_row + i * row_step) * image_columns + first_column +
         j * column_step;
}

PatchProduct::PatchProduct(const PatchShape& patches, const PixelGrid& grid, int64_t images,
                           int64_t columns, int64_t y_stride, Factors factors, Isa isa, int threads)
    : simd_(SimdFor(isa)),
      half_(HalfKernelsFor(isa)),
      bf16_(factors != Factors::kFloats),
      each_(factors == Factors::kWidenedPairs ? 2 : 1),
      threads_(static_cast<size_t>(threads)),
      patches_(patches),
      grid_(grid),
      pixels_(images * patches_.pixels()),
      columns_(columns),
      y_stride_(y_stride) {
  const int64_t k = std::max<int64_t>(patches_.depth(), 1);
  k_block_ = DivideUp(DivideUp(k, DivideUp(k, kKBlock / each_)), 8) * 8;
  if (bf16_ && !patches_.is_image() && PatchRows::Fits(patches) && grid_.columns >= kLeastColumns) {
    chunk_rows_ = std::clamp<int64_t>(kChunk / grid_.columns, 1, grid_.rows);
    chunk_ = chunk_rows_ * grid_.columns;
    chunks_ = images * DivideUp(grid_.rows, chunk_rows_);
    rows_.emplace(patches, chunk_rows_);
    block_floats_ = Aligned(rows_->floats() * each_);
  } else {
    const int64_t chunks = std::max<int64_t>(DivideUp(pixels_, kChunk), 1);
    chunk_ = std::max<int64_t>(DivideUp(DivideUp(pixels_, chunks), simd_.tile_rows), 1) *
             simd_.tile_rows;
    chunks_ = DivideUp(pixels_, chunk_);
    block_floats_ = patches_.is_image() && each_ == 1 ? 0 : Aligned(chunk_ * k_block_ * each_);
  }
  thread_floats_ = block_floats_;
  if (!direct()) thread_floats_ += Aligned(chunk_ * columns_) + Aligned(columns_);
}

int64_t PatchProduct::PanelFloats(int64_t depth, int64_t columns, Isa isa) {
  const int64_t width = SimdFor(isa).tile_columns;
  return DivideUp(columns, width) * width * depth;
}

// With few chunks the threads share the columns instead: their parts are as large as each other,
// and each reads its own part of B alone. Patches are then made by every thread, images are not.
PatchProduct::Part PatchProduct::PartFor(int index) const {
  const int threads = static_cast<int>(threads_);
  const int64_t chunks = chunks_;
  const int64_t panels = DivideUp(columns_, simd_.tile_columns);
  const int64_t few = (patches_.is_image() ? kFewChunks : 2) * threads;
  if (grid_.dense() && chunks < few && panels >= threads) {
    const auto [begin, end] = PartOf(panels, index, threads);
    return {0, begin < end ? chunks : 0, begin, end};
  }
  const auto [begin, end] = PartOf(chunks, index, threads);
  return {begin, end, 0, panels};
}

void PatchProduct::Run(const float* x, const float* panels, const ImageValues& y,
                       const ImageEpilogue& epilogue, float* scratch, ThreadPool* pool) const {
  LS_CHECK(epilogue.residual.empty() || grid_.dense());
  pool->Run([&](int index) {
    const Part part = PartFor(index);
    for (int64_t chunk = part.first_chunk; chunk < part.last_chunk; ++chunk) {
      RunChunk(x, panels, y, epilogue, chunk, part,
               scratch + thread_floats_ * static_cast<size_t>(index));
      pool->Moved();
    }
  });
}

PatchProduct::Chunk PatchProduct::ChunkAt(int64_t index) const {
  Chunk chunk{index * chunk_, std::min((index + 1) * chunk_, pixels_)};
  if (!rows_.has_value()) return chunk;
  const int64_t each = DivideUp(grid_.rows, chunk_rows_);
  chunk.image = index / each;
  chunk.row = index % each * chunk_rows_;
  chunk.rows = std::min(chunk_rows_, grid_.rows - chunk.row);
  chunk.p0 = (chunk.image * grid_.rows + chunk.row) * grid_.columns;
  chunk.p1 = chunk.p0 + chunk.rows * grid_.columns;
  return chunk;
}

void PatchProduct::RunChunk(const float* x, const float* panels, const ImageValues& y,
                            const ImageEpilogue& epilogue, int64_t index, const Part& part,
                            float* scratch) const {
  const Chunk chunk = ChunkAt(index);
  float* const c = direct() ? y.fp32() + chunk.p0 * y_stride_ : scratch + block_floats_;
  if (rows_.has_value()) {
    RunRows(x, panels, epilogue, chunk, part, scratch, c);
  } else if (patches_.depth() > 0) {
    RunPatches(x, panels, epilogue, chunk, part, scratch, c);
  } else {  // no tap reaches these pixels
    const int64_t stride = direct() ? y_stride_ : columns_;
    for (int64_t i = 0; i < chunk.p1 - chunk.p0; ++i) std::fill_n(c + i * stride, columns_, 0.0f);
  }
  if (!direct()) {
    PutChunk(c, y, epilogue, chunk.p0, chunk.p1, part, c + Aligned(chunk_ * columns_));
  }
}

void PatchProduct::SetEpilogue(const ImageEpilogue& epilogue, const Chunk& chunk, int64_t j,
                               Tile* tile) const {
  const int64_t at = chunk.p0 * y_stride_ + j;
  tile->epilogue = {};
  if (epilogue.bias != nullptr) tile->epilogue.bias = epilogue.bias + j;
  tile->epilogue.relu = epilogue.relu && (direct() || epilogue.residual.empty());
  if (direct() && !epilogue.residual.empty()) {
    tile->epilogue.residual = epilogue.residual.fp32() + at;
    tile->epilogue.residual_stride = y_stride_;
  }
  if (direct() && !epilogue.mask.empty()) {
    tile->epilogue.mask = epilogue.mask.fp32() + at;
    tile->epilogue.mask_stride = y_stride_;
  }
}

void PatchProduct::RunPatches(const float* x, const float* panels, const ImageEpilogue& epilogue,
                              const Chunk& chunk, const Part& part, float* scratch,
                              float* c) const {
  const int64_t depth = patches_.depth(), width = simd_.tile_columns;
  for (int64_t k0 = 0; k0 < depth; k0 += k_block_) {
    Tile tile;
    tile.k = std::min(k_block_, depth - k0);
    tile.a_k = 1;
    const float* a = x + chunk.p0 * depth + k0;
    tile.a_row = depth;
    if (!patches_.is_image()) {
      // What is widened comes from the second half of the block, as long as the first.
      float* const filled = each_ == 1 ? scratch : scratch + chunk_ * k_block_;
      patches_.Fill(x, chunk.p0, chunk.p1, k0, k0 + tile.k, filled, k_block_);
      a = filled;
      tile.a_row = k_block_;
    }
    if (each_ == 2) a = Widen(a, chunk.p1 - chunk.p0, scratch, &tile);
    tile.b_stride = width;
    tile.c_stride = direct() ? y_stride_ : columns_;
    tile.accumulate = k0 > 0;
    tile.last = k0 + k_block_ >= depth;
    for (int64_t panel = part.first_panel; panel < part.last_panel; ++panel) {
      const int64_t j = panel * width;
      tile.columns = std::min(width, columns_ - j);
      tile.b = panels + (j * depth + k0 * width) * each_;
      tile.c = c + j;
      SetEpilogue(epilogue, chunk, j, &tile);
      RunPanel(a, chunk.p1 - chunk.p0, &tile,
               panel + 1 < part.last_panel ? tile.b + width * depth * each_ : nullptr);
    }
  }
}

const float* PatchProduct::Widen(const float* a, int64_t rows, float* wide, Tile* tile) const {
  const int64_t row = k_block_ * each_;
  for (int64_t i = 0; i < rows; ++i) {
    simd_.widen_pairs(a + i * tile->a_row, tile->k, wide + i * row);
  }
  tile->a_row = row;
  tile->k *= each_;
  return wide;
}

// Blocks of k are parts of one row of the windows.
void PatchProduct::RunRows(const float* x, const float* panels, const ImageEpilogue& epilogue,
                           const Chunk& chunk, const Part& part, float* scratch, float* c) const {
  const int64_t depth = patches_.depth(), width = simd_.tile_columns, run = rows_->run();
  const int64_t block = DivideUp(run, DivideUp(run, kKBlock / each_));
  const int64_t tiles = DivideUp(grid_.columns, simd_.tile_rows);
  const int64_t floats = rows_->floats();
  rows_->Fill(x, chunk.image, chunk.row, chunk.rows, each_ == 1 ? scratch : scratch + floats);
  if (each_ == 2) simd_.widen_pairs(scratch + floats, floats, scratch);
  Tile tile;
  tile.a_k = 1;
  tile.a_row = rows_->pixel_stride() * each_;
  tile.b_stride = width;
  tile.c_stride = columns_;
  for (int64_t panel = part.first_panel; panel < part.last_panel; ++panel) {
    const int64_t j = panel * width;
    tile.columns = std::min(width, columns_ - j);
    SetEpilogue(epilogue, chunk, j, &tile);
    for (int64_t tap = 0; tap < rows_->taps(); ++tap) {
      for (int64_t k0 = 0; k0 < run; k0 += block) {
        const int64_t k = std::min(block, run - k0);
        tile.k = k * each_;
        tile.b = panels + (j * depth + (tap * run + k0) * width) * each_;
        tile.accumulate = tap + k0 > 0;
        tile.last = tap * run + k0 + k == depth;
        for (int64_t row = 0; row < chunk.rows; ++row) {
          for (int64_t t = 0; t < tiles; ++t) {
            const auto [first, last] =
                PartOf(grid_.columns, static_cast<int>(t), static_cast<int>(tiles));
            tile.a = scratch + (rows_->At(tap, row, first) + k0) * each_;
            tile.c = c + (row * grid_.columns + first) * columns_ + j;
            (pairs() ? simd_.pair_tile : simd_.tile)[last - first](tile);
          }
        }
      }
    }
  }
}

// The tiles of `rows` rows, as equal as can be. Meanwhile the `next` panel is asked for; null:
// there is none.
void PatchProduct::RunPanel(const float* a, int64_t rows, Tile* tile, const float* next) const {
  const int64_t tiles = DivideUp(rows, simd_.tile_rows);
  const int64_t fewest = rows / tiles, more = rows % tiles;  // rows of a tile; tiles of one more
  const int64_t ahead = tile->k * simd_.tile_columns / tiles;
  tile->ahead_step = 4 * simd_.tile_columns / tiles;
  const TileEpilogue epilogue = tile->epilogue;
  float* const c = tile->c;
  for (int64_t t = 0, i = 0, end = 0; t < tiles; ++t, i = end) {
    end = i + fewest + (t < more ? 1 : 0);
    tile->ahead = next != nullptr ? next + t * ahead : nullptr;
    tile->a = a + i * tile->a_row;
    tile->c = c + i * tile->c_stride;
    if (epilogue.mask != nullptr) tile->epilogue.mask = epilogue.mask + i * epilogue.mask_stride;
    if (epilogue.residual != nullptr) {
      tile->epilogue.residual = epilogue.residual + i * epilogue.residual_stride;
    }
    (pairs() ? simd_.pair_tile : simd_.tile)[end - i](*tile);
  }
}

const float* PatchProduct::Row(const ImageValues& values, int64_t at, int64_t count,
                               float* row) const {
  if (!values.bf16) return values.fp32() + at;
  half_.widen_bf16(values.halves() + at, count, row);
  return row;
}

void PatchProduct::PutChunk(float* from, const ImageValues& y, const ImageEpilogue& epilogue,
                            int64_t p0, int64_t p1, const Part& part, float* row) const {
  const int64_t first = part.first_panel * simd_.tile_columns;
  const int64_t count = std::min(part.last_panel * simd_.tile_columns, columns_) - first;
  for (int64_t p = p0; p < p1; ++p) {
    const int64_t at = (grid_.dense() ? p : grid_.PixelOf(p)) * y_stride_ + first;
    float* const sums = from + (p - p0) * columns_ + first;
    if (!epilogue.residual.empty()) {
      simd_.add(sums, Row(epilogue.residual, at, count, row), count, sums);
      if (epilogue.relu) simd_.relu(sums, count, sums);
    }
    if (!epilogue.mask.empty()) {
      simd_.relu_backward(sums, Row(epilogue.mask, at, count, row), count, sums);
    }
    if (y.bf16) {
      half_.narrow_bf16(sums, count, y.halves() + at);
    } else {
      std::copy_n(sums, count, y.fp32() + at);
    }
  }
}

PatchOuterProduct::PatchOuterProduct(const PatchShape& patches, int64_t images, int64_t rows,
                                     int64_t dy_stride, Factors factors, Isa isa, int threads)
    : simd_(SimdFor(isa)),
      bf16_(factors != Factors::kFloats),
      each_(factors == Factors::kWidenedPairs ? 2 : 1),
      threads_(static_cast<size_t>(threads)),
      patches_(patches),
      pixels_(images * patches_.pixels()),
      rows_(rows),
      dy_stride_(dy_stride) {
  LS_CHECK(!bf16_ || pixels_ % 2 == 0);
  chunk_ = kOuterChunk;
  const int64_t width = simd_.tile_columns, counts = bf16_ ? chunk_ / 2 * each_ : chunk_;
  sum_stride_ = DivideUp(columns(), width) * width;
  sum_floats_ = Aligned(rows * sum_stride_);
  panel_floats_ = Aligned(counts * width);
  strip_floats_ = Aligned(counts * DivideUp(rows, simd_.tile_rows) * simd_.tile_rows + 16);
  thread_floats_ = panel_floats_ + strip_floats_ + (bf16_ ? Aligned(chunk_ * width / 2) : 0);
}

void PatchOuterProduct::FillPanel(const void* x, int64_t p0, int64_t p1, int64_t j, float* panel,
                                  float* patches) const {
  const int64_t width = simd_.tile_columns, valid = std::min(width, columns() - j);
  const auto* values = static_cast<const float*>(x);
  if (!bf16_) {
    if (valid < width) std::fill_n(panel, (p1 - p0) * width, 0.0f);
    patches_.Fill(values, p0, p1, j, j + valid, panel, width);
    return;
  }
  const int64_t pairs = (p1 - p0) / 2;
  const auto* halves = static_cast<const uint16_t*>(x) + p0 * columns() + j;
  int64_t stride = columns();
  if (!patches_.is_image()) {
    patches_.Fill(values, p0, p1, j / 2, (j + valid) / 2, patches, width / 2);
    halves = reinterpret_cast<const uint16_t*>(patches);
    stride = width;
  }
  (each_ == 2 ? simd_.pack_split_pair_panels : simd_.pack_pair_panels)(halves, stride, pairs, valid,
                                                                       panel);
}

const float* PatchOuterProduct::Run(const void* dy, const void* x, float* scratch,
                                    ThreadPool* pool) const {
  const int64_t width = simd_.tile_columns, height = simd_.tile_rows;
  float* const sum = scratch;
  const bool direct = !bf16_ && dy_stride_ <= kDirectFloats;
  const auto& run_tile = pairs() ? simd_.pair_tile : simd_.tile;
  pool->Run([&](int index) {
    float* const panel = scratch + sum_floats_ + thread_floats_ * static_cast<size_t>(index);
    float* const packed = panel + panel_floats_;
    const auto [begin, end] = PartOf(sum_stride_ / width, index, static_cast<int>(threads_));
    if (begin == end) return;
    for (int64_t p0 = 0; p0 < pixels_; p0 += chunk_) {
      pool->Moved();
      const int64_t p1 = std::min(p0 + chunk_, pixels_);
      Tile tile;
      const int64_t pairs = (p1 - p0) / 2;
      tile.k = bf16_ ? pairs * each_ : p1 - p0;
      const float* a = static_cast<const float*>(dy) + p0 * dy_stride_;
      if (bf16_) {
        const auto* halves = static_cast<const uint16_t*>(dy) + p0 * dy_stride_;
        (each_ == 2 ? simd_.pack_split_pair_rows : simd_.pack_pair_rows)(halves, dy_stride_, rows_,
                                                                         pairs, packed);
      } else if (!direct) {
        simd_.pack_rows(a, 1, dy_stride_, rows_, tile.k, packed);
      }
      tile.a_row = 1;
      tile.a_k = direct ? dy_stride_ : height;
      tile.b = panel;
      tile.b_stride = width;
      tile.c_stride = sum_stride_;
      tile.columns = width;
      tile.adds = p0 > 0;
      for (int64_t j = begin * width; j < end * width; j += width) {
        FillPanel(x, p0, p1, j, panel, packed + strip_floats_);
        for (int64_t i = 0; i < rows_; i += height) {
          tile.a = direct ? a + i : packed + i * tile.k;
          tile.c = sum + i * sum_stride_ + j;
          run_tile[std::min(height, rows_ - i)](tile);
        }
      }
    }
  });
  return sum;
}

}  // namespace lockstep::engine
