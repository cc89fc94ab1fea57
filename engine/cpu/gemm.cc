// SPDX-License-Identifier: Apache-2.0
#include "engine/cpu/gemm.h"

#include <algorithm>

#include "common/check.h"
#include "common/round_up.h"

namespace lockstep::engine {
namespace {

// From this many rows on, copying a panel costs less than the strided reads.
constexpr int64_t kPackRows = 128;
// From this many columns on, the same holds for the rows of A.
constexpr int64_t kPackColumns = 128;
// A packed block of A stays in L2 while the panels of B pass by it, one after the other in L1. A
// little more than 256 rows of the longest k blocks: a product of 256 rows has no second block of
// four.
constexpr int64_t kRowFloats = 66 * 1024;
// Where few panels pass by it, what packing writes is better read again at once.
constexpr int64_t kRowFloatsOfFew = 12 * 1024;
// A packed block of B, from which the panels come, stays in the last cache.
constexpr int64_t kBlockFloats = 512 * 1024;
// A panel that passes by more tiles of rows than these is asked for early enough by the first ones.
constexpr int64_t kAheadTiles = 32;
// So many floats of B stay in L2 beside what passes by them.
constexpr int64_t kResidentFloats = 150 * 1024;
// A product of so few counts of k is little more than writing C.
constexpr int64_t kShort = 128;
// Where few rows are more than one tile, counts of k of a panel that stay in L1 for the next tile,
// and how many such blocks before they are needed the tiles ask for them, each for its part: lines
// that the first tile alone asks for do not come while the others work.
constexpr int64_t kFewBlock = 128;
constexpr int64_t kFewBlocksAhead = 2;
// From this many of few rows on, bf16 of A is widened once instead of in each tile, and results are
// gathered before they are written, of so many panels at a time: rows of C lie a stride apart, and
// two lines of each after every panel hold up the stream of B.
constexpr int64_t kSeveralRows = 3;
constexpr int64_t kGatheredPanels = 8;
// Strips of rows between two counts of what is done, for which the threads share a line.
constexpr int64_t kStripsAMove = 16;
// With so few rows the result is transposed more quickly than the other operand.
constexpr int64_t kSwapRows = 128;

}  // namespace

bool MultipliesPairs(Isa isa) { return isa >= Isa::kAvx512Bf16; }

Gemm::Gemm(const GemmShape& shape, Isa isa, int threads)
    : simd_(SimdFor(isa)),
      row_simd_(RowKernelsFor(isa)),
      half_(HalfKernelsFor(isa)),
      threads_(threads),
      shape_(shape) {
  LS_CHECK(shape.m > 0 && shape.n > 0 && shape.k > 0);
  LS_CHECK(!(shape.a_transposed && shape.b_transposed)) << "no op needs it";
  LS_CHECK(!shape.bf16 || PairsBf16(shape.k));
  LS_CHECK(!shape.rounds_b || shape.bf16);
  LS_CHECK(shape.a_stride == 0 ||
           (!shape.b_transposed && (!shape.bf16 || shape.a_stride % 2 == 0)));
  few_ = shape.m <= kMostFewRows && !shape.a_transposed && !shape.rounds_b;
  wide_ = shape.bf16 && !shape.pairs && !few_;
  each_ = wide_ ? 2 : 1;
  widens_few_ = few_ && shape.bf16 && shape.m >= kSeveralRows && simd_.widened_tile[1] != nullptr;
  k_ = shape.bf16 && !wide_ && !few_ ? shape.k / 2 : shape.k;
  const int64_t stored = k_ / each_;
  // A B^T has both operands along k. The one that becomes B is transposed while packing.
  swapped_ = shape.b_transposed && shape.m < shape.n && shape.m <= kSwapRows && !few_;
  m_ = swapped_ ? shape.n : shape.m;
  n_ = swapped_ ? shape.m : shape.n;
  rounds_a_ = swapped_ && shape.rounds_b;
  const int64_t stored_b = shape.rounds_b ? shape.k : stored;
  a_stride_ = shape.a_stride > 0 ? shape.a_stride : shape.a_transposed ? shape.m : shape.k;
  if (shape.bf16 && !shape.a_transposed) a_stride_ /= 2;
  a_row_ = shape.a_transposed ? 1 : rounds_a_ ? stored_b : few_ && shape.bf16 ? k_ : a_stride_;
  a_k_ = shape.a_transposed ? a_stride_ : 1;
  b_columns_ = shape.b_transposed;
  b_stride_ = !b_columns_ ? shape.n : rounds_a_ ? stored : stored_b;
  // A row stride of many pages maps a panel's rows to the same few cache sets.
  pack_ =
      b_columns_ || shape.bf16 || m_ >= kPackRows || (b_stride_ % 256 == 0 && m_ >= 48 && k_ > 8);
  pack_a_ = shape.a_transposed || wide_ || rounds_a_ ||
            (simd_.packs_rows && n_ >= kPackColumns && m_ >= kPackRows && k_ > 8);
  copies_rows_ = rounds_a_ || (wide_ && !shape.a_transposed && !simd_.packs_rows);
  k_block_ = DivideUp(k_, DivideUp(k_, int64_t{simd_.k_block}));
  k_block_ = std::min(DivideUp(k_block_, 16) * 16, k_);  // whole lines
  const int64_t height = simd_.tile_rows, width = simd_.tile_columns;
  const int64_t panels = DivideUp(n_, width);
  // Without packing one panel is for the right edge.
  block_panels_ = std::clamp<int64_t>(kBlockFloats / (k_block_ * width), 1, panels);
  const bool own_rows = !pack_a_ || copies_rows_;  // a strip costs no more alone than among others
  rows_first_ = pack_ && k_ * panels * width <= kResidentFloats && (own_rows || k_ <= kShort);
  panel_floats_ = static_cast<size_t>(
      DivideUp((rows_first_ ? k_ : k_block_) * (pack_ ? block_panels_ : 1) * width, 16) * 16);
  const int64_t row_floats = n_ < kPackColumns ? kRowFloatsOfFew : kRowFloats;
  row_block_ =
      std::clamp(row_floats / (k_block_ * height), int64_t{1}, DivideUp(m_, height)) * height;
  if (rows_first_ && own_rows) row_block_ = height;
  if (pack_a_) {
    a_pack_offset_ = panel_floats_;
    // The last strip's stores are as wide as a vector.
    panel_floats_ += static_cast<size_t>(DivideUp(row_block_ * k_block_ + 16, 16) * 16);
  }
  if (shape.rounds_b && !rounds_a_) {
    rounded_offset_ = panel_floats_;
    panel_floats_ += static_cast<size_t>(
        DivideUp(std::min(kRoundedPanels, panels) * width * k_block_ * 2 / each_, 32) * 16);
  }
  scratch_floats_ = panel_floats_ * static_cast<size_t>(threads);
  if (swapped_) scratch_floats_ += static_cast<size_t>(shape.m * shape.n);
  // Of bf16, the rows of A widened, then what the threads gather.
  if (few_) {
    gathered_offset_ = shape.bf16 ? (shape.m * shape.k + 15) / 16 * 16 : 0;
    const int64_t gathered =
        shape.m < kSeveralRows ? 0 : threads * shape.m * kGatheredPanels * width;
    scratch_floats_ = static_cast<size_t>(gathered_offset_ + gathered);
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
  if (epilogue.residual != nullptr) {
    tile->epilogue.residual = epilogue.residual + row * epilogue.residual_stride + column;
  }
  (shape_.bf16 && !wide_ ? simd_.pair_tile : simd_.tile)[rows](*tile);
}

Tile Gemm::TileAt(const Operands& operands, int64_t p) const {
  Tile tile;
  tile.k = std::min(k_block_, k_ - p);
  tile.a_row = copies_rows_ ? tile.k : pack_a_ ? 1 : a_row_;
  tile.a_k = copies_rows_ ? 1 : pack_a_ ? simd_.tile_rows : a_k_;
  tile.b_stride = pack_ ? simd_.tile_columns : b_stride_;
  tile.c_stride = operands.c_stride;
  tile.accumulate = operands.accumulate || p > 0;
  tile.last = p + k_block_ >= k_;
  tile.epilogue = operands.epilogue;
  return tile;
}

void Gemm::RunTiles(const Operands& operands, int64_t row_begin, int64_t row_end,
                    int64_t panel_begin, int64_t panel_end, float* scratch) const {
  if (row_begin >= row_end || panel_begin >= panel_end) return;  // more threads than parts
  if (rows_first_) {
    RunRowsFirst(operands, row_begin, row_end, panel_begin, panel_end, scratch);
    return;
  }
  const int64_t width = simd_.tile_columns;
  for (int64_t first = panel_begin; first < panel_end; first += block_panels_) {
    const int64_t last = std::min(first + block_panels_, panel_end);
    for (int64_t p = 0; p < k_; p += k_block_) {
      Tile tile = TileAt(operands, p);
      const float* panels = scratch;
      if (operands.packed != nullptr) {
        panels = operands.packed + PackedAt(p, first);
      } else if (pack_) {
        PackPanels(operands.b, p, tile.k, first * width, last * width, scratch, scratch);
      }
      for (int64_t row = row_begin; row < row_end; row += row_block_) {
        const int64_t end = std::min(row + row_block_, row_end);
        // Whole rows of A that are read where they are, of the next block, if there is one.
        const bool asks = end < row_end && !pack_a_ && a_row_ == tile.k;
        RunBlock(operands, p, row, end, first, last, panels, scratch,
                 asks ? operands.a + end * a_row_ : nullptr, &tile);
      }
    }
  }
}

void Gemm::RunRowsFirst(const Operands& operands, int64_t row_begin, int64_t row_end,
                        int64_t panel_begin, int64_t panel_end, float* scratch) const {
  const int64_t height = simd_.tile_rows, width = simd_.tile_columns;
  const int64_t panels = panel_end - panel_begin, tiles = panels * DivideUp(k_, k_block_);
  const auto packed_at = [&](int64_t p) {
    return operands.packed != nullptr ? operands.packed + PackedAt(p, panel_begin)
                                      : scratch + p * panels * width;
  };
  for (int64_t p = 0; operands.packed == nullptr && p < k_; p += k_block_) {
    PackPanels(operands.b, p, std::min(k_block_, k_ - p), panel_begin * width, panel_end * width,
               scratch + p * panels * width, scratch);
  }
  float* const packed_a = scratch + a_pack_offset_;
  for (int64_t row = row_begin; row < row_end; row += row_block_) {
    if ((row - row_begin) / row_block_ % kStripsAMove == 0) operands.pool->Moved();
    const int64_t end = std::min(row + row_block_, row_end);
    // The tiles of a strip ask for the next one, each for its part, where its rows are whole.
    const bool asks = a_k_ == 1 && row_block_ == height && end < row_end;
    const int64_t part = asks ? height * a_row_ / tiles : 0;
    const float* ahead = operands.a + end * a_row_;
    for (int64_t p = 0; p < k_; p += k_block_) {
      Tile tile = TileAt(operands, p);
      const float* a = operands.a + row * a_row_ + p * a_k_;
      if (pack_a_) {
        PackA(operands.a, p, tile.k, row, end, packed_a);
        a = packed_a;
      }
      for (int64_t i = row; i < end; i += height) {
        tile.a = a + (i - row) * (pack_a_ ? tile.k : a_row_);
        for (int64_t j = panel_begin; j < panel_end; ++j) {
          tile.b = packed_at(p) + (j - panel_begin) * width * tile.k;
          if (part > 0) {
            tile.ahead = ahead;
            tile.ahead_step = part * 4 / tile.k;
            ahead += part;
          }
          RunTile(operands, i, std::min(height, end - i), j * width, &tile);
        }
      }
    }
  }
}

void Gemm::RunBlock(const Operands& operands, int64_t p, int64_t row_begin, int64_t row_end,
                    int64_t panel_begin, int64_t panel_end, const float* panels, float* scratch,
                    const float* next_a, Tile* tile) const {
  const int64_t width = simd_.tile_columns;
  const float* a = operands.a + row_begin * a_row_ + p * a_k_;
  if (pack_a_) {
    float* packed = scratch + a_pack_offset_;
    PackA(operands.a, p, tile->k, row_begin, row_end, packed);
    a = packed;
  }
  const int64_t next = pack_a_ ? tile->k : a_row_;  // between rows of a
  // The tiles of a panel ask for the next one, each for its part.
  const int64_t tiles = DivideUp(row_end - row_begin, simd_.tile_rows);
  const int64_t ahead = pack_ && tiles <= kAheadTiles ? width * tile->k / tiles : 0;
  tile->ahead_step = ahead > 0 ? 4 * width / tiles : 0;
  for (int64_t j = panel_begin; j < panel_end; ++j) {
    if (pack_) {
      tile->b = panels + (j - panel_begin) * width * tile->k;
    } else if (n_ - j * width < width) {
      PackB(operands.b, p, tile->k, j * width, scratch);
      tile->b = scratch;
      tile->b_stride = width;
    } else {
      tile->b = operands.b + p * b_stride_ + j * width;
    }
    const int64_t column = j * width, next_column = std::min(j + 1, panel_end - 1) * width;
    for (int64_t i = row_begin; i < row_end; i += simd_.tile_rows) {
      tile->a = a + (i - row_begin) * next;
      if (tile->accumulate) {
        const int64_t below = i + simd_.tile_rows;
        tile->ahead_c = below < row_end ? operands.c + below * operands.c_stride + column
                                        : operands.c + row_begin * operands.c_stride + next_column;
      }
      if (next_a != nullptr && j + 1 == panel_end) {
        tile->ahead = next_a + (i - row_begin) * tile->k;
        tile->ahead_step = 4 * simd_.tile_rows;
      } else if (ahead > 0) {
        tile->ahead = tile->b + width * tile->k + (i - row_begin) / simd_.tile_rows * ahead;
      }
      RunTile(operands, i, std::min<int64_t>(simd_.tile_rows, row_end - i), j * width, tile);
    }
  }
  tile->b_stride = pack_ ? width : b_stride_;
  operands.pool->Moved();
}

void Gemm::Run(const void* a, const void* b, float* c, bool accumulate,
               const GemmEpilogue& epilogue, float* scratch, ThreadPool* pool) const {
  RunOn({static_cast<const float*>(a),
         static_cast<const float*>(b),
         nullptr,
         c,
         shape_.n,
         accumulate,
         {}},
        epilogue, scratch, pool);
}

size_t Gemm::packed_bytes() const {
  if (few_) {
    const int64_t width = simd_.tile_columns;
    return static_cast<size_t>(DivideUp(n_, width) * width * StoredK()) * sizeof(float);
  }
  if (swapped_ || !pack_) return 0;
  return static_cast<size_t>(PackedAt(k_, 0)) * sizeof(float);
}

void Gemm::RunPacked(const void* a, const float* packed, float* c, bool accumulate,
                     const GemmEpilogue& epilogue, float* scratch, ThreadPool* pool) const {
  LS_CHECK(packed_bytes() > 0);
  RunOn({static_cast<const float*>(a), nullptr, packed, c, shape_.n, accumulate, {}}, epilogue,
        scratch, pool);
}

void Gemm::RunFewPacked(Operands operands, float* scratch, ThreadPool* pool) const {
  const int64_t width = simd_.tile_columns;
  if (widens_few_) {
    WidenFew(operands.a, scratch);
    operands.a = scratch;
  }
  pool->Run([&](int index) {
    const auto [begin, end] = PartOf(DivideUp(n_, width), index, threads_);
    if (m_ < kSeveralRows || operands.accumulate) {
      for (int64_t column = begin * width; column < end * width; column += width) {
        RunFewPanel(operands, column, operands.c + column, operands.c_stride);
      }
      return;
    }
    const int64_t group = kGatheredPanels * width;
    float* const results = scratch + gathered_offset_ + index * m_ * group;
    for (int64_t first = begin * width; first < end * width; first += group) {
      const int64_t last = std::min({first + group, end * width, n_});
      for (int64_t column = first; column < last; column += width) {
        RunFewPanel(operands, column, results + column - first, group);
      }
      for (int64_t row = 0; row < m_; ++row) {
        std::copy_n(results + row * group, last - first,
                    operands.c + row * operands.c_stride + first);
      }
    }
  });
}

void Gemm::RunFewPanel(const Operands& operands, int64_t column, float* c, int64_t c_stride) const {
  const int64_t width = simd_.tile_columns, k = StoredK();
  const int64_t each = widens_few_ ? 2 : 1;
  const auto at = [](const float* values, int64_t offset) {
    return values == nullptr ? nullptr : values + offset;
  };
  // A tile of tile_rows asks for nothing, so that there are more of fewer rows. One tile asks for
  // the stream of panels near and farther ahead, into L1 and, which waits for more lines at a time,
  // into L2: processors' own prefetching ends at each page. Of several the first one reads a block
  // of the panel from L2, the others from L1.
  const int64_t parts = DivideUp(m_, std::min<int64_t>(kMostFewRows, simd_.tile_rows - 1));
  const int64_t rows = DivideUp(m_, parts), block = parts == 1 ? k : kFewBlock;
  Tile tile;
  tile.a_row = widens_few_ ? each * k : a_stride_;
  tile.a_k = 1;
  tile.b_stride = width;
  tile.c_stride = c_stride;
  tile.epilogue = operands.epilogue;
  tile.columns = std::min(width, n_ - column);
  tile.epilogue.bias = at(operands.epilogue.bias, column);
  for (int64_t p = 0; p < k; p += block) {
    tile.k = std::min(block, k - p);
    tile.b = operands.packed + column * k + p * width;
    tile.accumulate = operands.accumulate || p > 0;
    tile.last = p + block >= k;
    for (int64_t row = 0; row < m_; row += rows) {
      const int64_t from = row * n_ + column;
      tile.a = operands.a + row * tile.a_row + each * p;
      tile.c = c + row * c_stride;
      tile.epilogue.residual = at(operands.epilogue.residual, from);
      tile.epilogue.mask = at(operands.epilogue.mask, from);
      if (parts == 1) {
        tile.ahead_rows = simd_.few_ahead / width;
      } else {
        tile.ahead_step = 4 * width / parts;
        tile.ahead = tile.b + (kFewBlocksAhead * tile.k + row / rows * (tile.k / parts)) * width;
      }
      const int64_t count = std::min(rows, m_ - row);
      (widens_few_ ? simd_.widened_tile : shape_.bf16 ? simd_.pair_tile : simd_.tile)[count](tile);
    }
  }
}

void Gemm::WidenFew(const float* a, float* to) const {
  for (int64_t row = 0; row < m_; ++row) {
    simd_.widen_pairs(a + row * a_stride_, StoredK(), to + row * shape_.k);
  }
}

void Gemm::RunFew(const Operands& operands, const GemmEpilogue& epilogue, float* scratch,
                  ThreadPool* pool) const {
  constexpr int64_t kUnit = 64;  // columns: whole cache lines
  const auto at = [](const float* values, int64_t column) {
    return values == nullptr ? nullptr : values + column;
  };
  const float* a = operands.a;
  if (shape_.bf16) {
    WidenFew(a, scratch);
    a = scratch;
  }
  const auto* const b = reinterpret_cast<const std::byte*>(operands.b);
  const int64_t each = shape_.bf16 ? 2 : 4;
  pool->Run([&](int index) {
    const auto [begin, end] = PartOf(DivideUp(n_, kUnit), index, threads_);
    const int64_t first = begin * kUnit;
    if (begin == end) return;
    simd_.few_rows[m_]({.k = k_,
                        .a = a,
                        .a_row = a_row_,
                        .b = b + first * each * (b_columns_ ? b_stride_ : 1),
                        .b_stride = b_stride_,
                        .b_columns = b_columns_,
                        .bf16 = shape_.bf16,
                        .c = operands.c + first,
                        .c_stride = operands.c_stride,
                        .columns = std::min(end * kUnit, n_) - first,
                        .accumulate = operands.accumulate,
                        .epilogue = {at(epilogue.bias, first), at(epilogue.residual, first), n_,
                                     epilogue.relu, at(epilogue.mask, first), n_}});
  });
}

void Gemm::RunOn(Operands operands, const GemmEpilogue& epilogue, float* scratch,
                 ThreadPool* pool) const {
  float* const c = operands.c;
  if (few_) {
    if (operands.packed != nullptr) {
      operands.epilogue = {epilogue.bias, epilogue.residual, n_, epilogue.relu, epilogue.mask, n_};
      RunFewPacked(operands, scratch, pool);
    } else {
      RunFew(operands, epilogue, scratch, pool);
    }
    if (epilogue.activation.has_value()) {
      pool->Run([&](int index) { Activate(epilogue, index, c); });
    }
    return;
  }
  if (swapped_) {
    LS_CHECK(!operands.accumulate) << "no op adds such a product";
    float* const product = scratch + panel_floats_ * static_cast<size_t>(threads_);
    operands = {operands.b, operands.a, nullptr, product, shape_.m, false, {}};
  } else {
    operands.epilogue = {epilogue.bias, epilogue.residual, shape_.n,
                         epilogue.relu, epilogue.mask,     shape_.n};
  }
  operands.pool = pool;
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
  if (!swapped_) {
    if (epilogue.activation.has_value())
      pool->Run([&](int index) { Activate(epilogue, index, c); });
    return;
  }
  const auto transpose = [&](int index) {
    const auto [begin, end] = PartOf(DivideUp(m_, 16), index, threads_);
    const int64_t last = std::min(end * 16, m_);
    if (begin * 16 < last) PutTransposed(operands.c, epilogue, begin * 16, last, c);
  };
  pool->Run(transpose);
}

void Gemm::PutTransposed(const float* from, const GemmEpilogue& epilogue, int64_t begin,
                         int64_t end, float* c) const {
  const int64_t count = end - begin;
  const bool sums_first = epilogue.residual == nullptr;
  simd_.transpose(from + begin * shape_.m, shape_.m, count, n_,
                  epilogue.bias == nullptr ? nullptr : epilogue.bias + begin,
                  epilogue.relu && sums_first, c + begin, shape_.n);
  for (int64_t row = 0; row < shape_.m; ++row) {
    const int64_t at = row * shape_.n + begin;
    float* const y = c + at;
    if (epilogue.residual != nullptr) simd_.add(y, epilogue.residual + at, count, y);
    if (epilogue.relu && !sums_first) simd_.relu(y, count, y);
    if (epilogue.mask != nullptr) simd_.relu_backward(y, epilogue.mask + at, count, y);
  }
  if (epilogue.activation.has_value()) {
    row_simd_.activate_rows[static_cast<size_t>(*epilogue.activation)](shape_.m, count, shape_.n,
                                                                       c + begin);
  }
}

// A pass of its own: tile by tile, behind the sums, the exponentials took longer than row by row.
void Gemm::Activate(const GemmEpilogue& epilogue, int index, float* c) const {
  const auto [begin, end] = PartOf(shape_.m, index, threads_);
  if (begin == end) return;
  row_simd_.activate_rows[static_cast<size_t>(*epilogue.activation)](
      end - begin, shape_.n, shape_.n, c + begin * shape_.n);
}

}  // namespace lockstep::engine
