// SPDX-License-Identifier: Apache-2.0
// How the factors of a product (gemm.h) come into the order of its tiles.
#include <algorithm>

#include "common/check.h"
#include "common/round_up.h"
#include "engine/cpu/gemm.h"

namespace lockstep::engine {

void Gemm::PackB(const float* b, int64_t p, int64_t k, int64_t column, float* panel) const {
  const int64_t width = simd_.tile_columns, columns = std::min(width, n_ - column);
  if (wide_) {
    simd_.pack_split_transposed(b + column * b_stride_ + p / 2, b_stride_, k / 2, columns, panel);
  } else if (b_columns_) {
    simd_.pack_transposed(b + column * b_stride_ + p, b_stride_, k, columns, panel);
  } else {
    simd_.pack(b + p * b_stride_ + column, b_stride_, k, columns, panel);
  }
}

// Of B stored [n, k] columns become rows of halves with all of k, else rows keep their columns.
void Gemm::RoundPanels(const float* b, int64_t p, int64_t k, int64_t begin, int64_t end,
                       float* panels, uint16_t* rounded) const {
  const int64_t width = simd_.tile_columns, group = kRoundedPanels * width;
  const int64_t halves = 2 * k / each_, first = 2 * p / each_;  // counts of B's own k
  for (int64_t j = begin; j < end; j += group) {
    const int64_t last = std::min(j + group, end), valid = std::min(last, n_) - j;
    float* const to = panels + (j - begin) * k;
    if (b_columns_) {
      for (int64_t i = 0; i < valid; ++i) {
        half_.narrow_bf16(b + (j + i) * b_stride_ + first, halves, rounded + i * halves);
      }
      for (int64_t i = 0; i < last - j; i += width) {
        const auto* const pairs = reinterpret_cast<const float*>(rounded + i * halves);
        (wide_ ? simd_.pack_split_transposed : simd_.pack_transposed)(
            pairs, halves / 2, halves / 2, std::min(width, valid - i), to + i * k);
      }
      continue;
    }
    for (int64_t i = 0; i < halves; ++i) {
      half_.narrow_bf16(b + (first + i) * b_stride_ + j, valid, rounded + i * (last - j));
    }
    (wide_ ? simd_.pack_split_pair_panels : simd_.pack_pair_panels)(rounded, last - j, halves / 2,
                                                                    valid, to);
  }
}

void Gemm::PackPanels(const float* b, int64_t p, int64_t k, int64_t begin, int64_t end,
                      float* panels, float* scratch) const {
  if (shape_.rounds_b && !rounds_a_) {
    RoundPanels(b, p, k, begin, end, panels,
                reinterpret_cast<uint16_t*>(scratch + rounded_offset_));
    return;
  }
  const int64_t valid = std::min(end, n_) - begin;
  const auto* halves = reinterpret_cast<const uint16_t*>(b);
  if (!b_columns_ && shape_.bf16) {
    (wide_ ? simd_.pack_split_pair_panels : simd_.pack_pair_panels)(
        halves + 2 * (p / each_) * b_stride_ + begin, b_stride_, k / each_, valid, panels);
    return;
  }
  if (!b_columns_) {
    simd_.pack_panels(b + p * b_stride_ + begin, b_stride_, k, valid, panels);
    return;
  }
  for (int64_t column = begin; column < end; column += simd_.tile_columns) {
    PackB(b, p, k, column, panels + (column - begin) * k);
  }
}

void Gemm::PackA(const float* a, int64_t p, int64_t k, int64_t begin, int64_t end,
                 float* packed) const {
  const int64_t stored = k / each_;
  if (copies_rows_) {
    for (int64_t i = begin; i < end; ++i, packed += k) {
      const float* const row = a + i * a_row_;
      if (!rounds_a_) {
        simd_.widen_pairs(row + p / each_, stored, packed);
      } else if (wide_) {
        simd_.round_pairs(row + p, stored, packed);
      } else {
        half_.narrow_bf16(row + 2 * p, 2 * k, reinterpret_cast<uint16_t*>(packed));
      }
    }
    return;
  }
  if (wide_ && !shape_.a_transposed) {
    simd_.pack_split_rows(a + begin * a_row_ + p / each_, a_row_, end - begin, stored, packed);
    return;
  }
  if (shape_.bf16 && shape_.a_transposed) {
    const auto* halves = reinterpret_cast<const uint16_t*>(a);
    (wide_ ? simd_.pack_split_pair_rows : simd_.pack_pair_rows)(
        halves + 2 * (p / each_) * a_k_ + begin, a_k_, end - begin, stored, packed);
    return;
  }
  simd_.pack_rows(a + begin * a_row_ + p * a_k_, a_row_, a_k_, end - begin, stored, packed);
}

int64_t Gemm::PackedAt(int64_t p, int64_t panel) const {
  const int64_t width = simd_.tile_columns;
  const int64_t k = std::min(k_block_, k_ - p);
  return p * DivideUp(n_, width) * width + panel * width * k;
}

void Gemm::PackAll(const void* b, float* packed, float* scratch, ThreadPool* pool) const {
  LS_CHECK(packed_bytes() > 0);
  const int64_t width = simd_.tile_columns;
  pool->Run([&](int index) {
    const auto [begin, end] = PartOf(DivideUp(n_, width), index, threads_);
    if (few_) {
      PackFew(b, begin * width, std::min(end * width, n_), packed + begin * width * StoredK());
      return;
    }
    float* const own =
        scratch == nullptr ? nullptr : scratch + panel_floats_ * static_cast<size_t>(index);
    for (int64_t p = 0; begin < end && p < k_; p += k_block_) {
      PackPanels(static_cast<const float*>(b), p, std::min(k_block_, k_ - p), begin * width,
                 end * width, packed + PackedAt(p, begin), own);
    }
  });
}

void Gemm::PackFew(const void* b, int64_t begin, int64_t end, float* panels) const {
  const int64_t width = simd_.tile_columns, k = StoredK();
  const auto* const floats = static_cast<const float*>(b);
  if (begin >= end) return;
  if (b_columns_) {
    for (int64_t j = begin; j < end; j += width) {
      simd_.pack_transposed(floats + j * k, k, k, std::min(width, end - j),
                            panels + (j - begin) * k);
    }
  } else if (shape_.bf16) {
    simd_.pack_pair_panels(static_cast<const uint16_t*>(b) + begin, b_stride_, k, end - begin,
                           panels);
  } else {
    simd_.pack_panels(floats + begin, b_stride_, k, end - begin, panels);
  }
}

}  // namespace lockstep::engine
