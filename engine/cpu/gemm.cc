// SPDX-License-Identifier: Apache-2.0
#include "engine/cpu/gemm.h"

#include <algorithm>

#include "common/check.h"

namespace lockstep::engine {
namespace {

constexpr int64_t kKBlock = 400;    // a panel of 16 columns is then 25 KiB: it stays in L1
constexpr int64_t kRowBlock = 288;  // rows that share a packed panel; their block of A stays in L2
// From this many rows on, copying a panel costs less than the strided reads.
constexpr int64_t kPackRows = 128;
// A block of B up to this size is packed as a whole and stays in L2 (its half), while each strip of
// rows of A passes over it once.
constexpr int64_t kWholeFloats = 64 * 1024;

int64_t DivideUp(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

Gemm::Gemm(const GemmShape& shape, Isa isa, int threads)
    : simd_(SimdFor(isa)), threads_(threads), shape_(shape) {
  LS_CHECK(shape.m > 0 && shape.n > 0 && shape.k > 0);
  LS_CHECK(!(shape.a_transposed && shape.b_transposed)) << "no op needs it";
  // A B^T has both operands along k. The one that becomes B is transposed while packing: the
  // smaller.
  swapped_ = shape.b_transposed && shape.m < shape.n;
  m_ = swapped_ ? shape.n : shape.m;
  n_ = swapped_ ? shape.m : shape.n;
  a_row_ = shape.a_transposed ? 1 : shape.k;
  a_k_ = shape.a_transposed ? shape.m : 1;
  b_columns_ = shape.b_transposed;
  b_stride_ = b_columns_ ? shape.k : shape.n;
  // A row stride of many pages maps a panel's rows to the same few cache sets.
  pack_ = b_columns_ || m_ >= kPackRows || (b_stride_ % 256 == 0 && m_ >= 48 && shape.k > 8);
  k_block_ = DivideUp(shape.k, DivideUp(shape.k, kKBlock));
  k_block_ = std::min(DivideUp(k_block_, 8) * 8, shape.k);
  const int64_t packed_columns = DivideUp(n_, simd_.tile_columns) * simd_.tile_columns;
  whole_ = pack_ && k_block_ * packed_columns <= kWholeFloats;
  // One panel for each thread, or all; also used for the right edge when nothing else is packed.
  panel_floats_ = static_cast<size_t>(
      DivideUp(k_block_ * (whole_ ? packed_columns : simd_.tile_columns), 16) * 16);
  if (shape.a_transposed) {
    const int64_t block = whole_ ? simd_.tile_rows : std::min(kRowBlock, m_);
    const int64_t rows = DivideUp(block, simd_.tile_rows) * simd_.tile_rows;
    a_pack_offset_ = panel_floats_;
    panel_floats_ += static_cast<size_t>(DivideUp(rows * k_block_, 16) * 16);
  }
  scratch_floats_ = panel_floats_ * static_cast<size_t>(threads);
  if (swapped_) scratch_floats_ += static_cast<size_t>(shape.m * shape.n);
}

// Columns of a stored A lie a row's length apart, often a multiple of the cache's period: they are
// copied to [group of tile_rows][k][tile_rows].
void Gemm::PackA(const float* a, int64_t rows, int64_t k, float* packed) const {
  const int64_t height = simd_.tile_rows;
  for (int64_t i = 0; i < rows; i += height) {
    const int64_t valid = std::min(height, rows - i);
    for (int64_t p = 0; p < k; ++p, packed += height) {
      for (int64_t r = 0; r < valid; ++r) packed[r] = a[i + r + p * a_k_];
    }
  }
}

void Gemm::PackB(const float* b, int64_t p, int64_t k, int64_t column, float* panel) const {
  const int64_t columns = std::min<int64_t>(simd_.tile_columns, n_ - column);
  if (b_columns_) {
    simd_.pack_transposed(b + column * b_stride_ + p, b_stride_, k, columns, panel);
  } else {
    simd_.pack(b + p * b_stride_ + column, b_stride_, k, columns, panel);
  }
}

void Gemm::RunTile(const Operands& operands, int64_t row, int64_t rows, int64_t column,
                   Tile* tile) const {
  tile->columns = std::min<int64_t>(simd_.tile_columns, n_ - column);
  tile->c = operands.c + row * operands.c_stride + column;
  const TileEpilogue& epilogue = operands.epilogue;
  if (epilogue.bias != nullptr) tile->epilogue.bias = epilogue.bias + column;
  if (epilogue.mask != nullptr) {
    tile->epilogue.mask = epilogue.mask + row * epilogue.mask_stride + column;
  }
  simd_.tile[rows](*tile);
}

Tile Gemm::TileAt(const Operands& operands, int64_t p) const {
  Tile tile;
  tile.k = std::min(k_block_, shape_.k - p);
  tile.a_row = shape_.a_transposed ? 1 : a_row_;
  tile.a_k = shape_.a_transposed ? simd_.tile_rows : a_k_;
  tile.b_stride = pack_ ? simd_.tile_columns : b_stride_;
  tile.c_stride = operands.c_stride;
  tile.accumulate = operands.accumulate || p > 0;
  tile.last = p + k_block_ >= shape_.k;
  tile.epilogue = operands.epilogue;
  return tile;
}

void Gemm::RunWhole(const Operands& operands, int64_t row_begin, int64_t row_end,
                    int64_t panel_begin, int64_t panel_end, float* scratch) const {
  const int64_t width = simd_.tile_columns;
  for (int64_t p = 0; p < shape_.k; p += k_block_) {
    Tile tile = TileAt(operands, p);
    for (int64_t j = panel_begin; j < panel_end; ++j) {
      PackB(operands.b, p, tile.k, j * width, scratch + (j - panel_begin) * width * tile.k);
    }
    for (int64_t i = row_begin; i < row_end; i += simd_.tile_rows) {
      const int64_t rows = std::min<int64_t>(simd_.tile_rows, row_end - i);
      tile.a = operands.a + i * a_row_ + p * a_k_;
      if (shape_.a_transposed) {
        PackA(tile.a, rows, tile.k, scratch + a_pack_offset_);
        tile.a = scratch + a_pack_offset_;
      }
      for (int64_t j = panel_begin; j < panel_end; ++j) {
        tile.b = scratch + (j - panel_begin) * width * tile.k;
        RunTile(operands, i, rows, j * width, &tile);
      }
    }
  }
}

void Gemm::RunPanels(const Operands& operands, int64_t row_begin, int64_t row_end,
                     int64_t panel_begin, int64_t panel_end, float* panel) const {
  const int64_t width = simd_.tile_columns;
  for (int64_t block = row_begin; block < row_end; block += kRowBlock) {
    const int64_t block_end = std::min(block + kRowBlock, row_end);
    for (int64_t p = 0; p < shape_.k; p += k_block_) {
      Tile tile = TileAt(operands, p);
      const float* a = operands.a + block * a_row_ + p * a_k_;
      if (shape_.a_transposed) PackA(a, block_end - block, tile.k, panel + a_pack_offset_);
      for (int64_t j = panel_begin * width; j < std::min(panel_end * width, n_); j += width) {
        const bool packed = pack_ || n_ - j < width;
        if (packed) PackB(operands.b, p, tile.k, j, panel);
        tile.b = packed ? panel : operands.b + p * b_stride_ + j;
        tile.b_stride = packed ? width : b_stride_;
        for (int64_t i = block; i < block_end; i += simd_.tile_rows) {
          tile.a = shape_.a_transposed ? panel + a_pack_offset_ + (i - block) * tile.k
                                       : a + (i - block) * a_row_;
          RunTile(operands, i, std::min<int64_t>(simd_.tile_rows, block_end - i), j, &tile);
        }
      }
    }
  }
}

void Gemm::RunTiles(const Operands& operands, int64_t row_begin, int64_t row_end,
                    int64_t panel_begin, int64_t panel_end, float* panel) const {
  if (whole_) {
    RunWhole(operands, row_begin, row_end, panel_begin, panel_end, panel);
  } else {
    RunPanels(operands, row_begin, row_end, panel_begin, panel_end, panel);
  }
}

void Gemm::Run(const float* a, const float* b, float* c, bool accumulate,
               const TileEpilogue& epilogue, float* scratch, ThreadPool* pool) const {
  Operands operands{a, b, c, shape_.n, accumulate, epilogue};
  operands.epilogue.mask_stride = shape_.n;
  if (swapped_) {
    LS_CHECK(!accumulate && epilogue.mask == nullptr) << "forward products only";
    operands = {b, a, scratch + panel_floats_ * static_cast<size_t>(threads_), shape_.m, false, {}};
  }
  const int64_t tile_rows = DivideUp(m_, simd_.tile_rows);
  const int64_t panels = DivideUp(n_, simd_.tile_columns);
  // The longer side is cut, at tile borders.
  const bool by_rows = tile_rows >= panels;
  const auto part = [&](int index) {
    float* panel = scratch + panel_floats_ * static_cast<size_t>(index);
    const auto [begin, end] = PartOf(by_rows ? tile_rows : panels, index, threads_);
    if (by_rows) {
      RunTiles(operands, begin * simd_.tile_rows, std::min(end * simd_.tile_rows, m_), 0, panels,
               panel);
    } else {
      RunTiles(operands, 0, m_, begin, end, panel);
    }
  };
  pool->Run(part);
  if (!swapped_) return;
  const auto transpose = [&](int index) {
    const auto [begin, end] = PartOf(DivideUp(m_, 16), index, threads_);
    const int64_t first = begin * 16;
    const int64_t rows = std::min(end * 16, m_) - first;
    if (rows <= 0) return;
    simd_.transpose(operands.c + first * operands.c_stride, operands.c_stride, rows, n_,
                    epilogue.bias == nullptr ? nullptr : epilogue.bias + first, epilogue.relu,
                    c + first, shape_.n);
  };
  pool->Run(transpose);
}

}  // namespace lockstep::engine
