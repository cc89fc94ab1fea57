// SPDX-License-Identifier: Apache-2.0
// Matrices of which a kernel takes some rows at a time in fp32: where they lie if they are fp32,
// through a buffer that stays in the cache if they are bf16. Thread-safety: immutable; a buffer is
// the caller's.
#ifndef LOCKSTEP_ENGINE_CPU_ROW_BLOCKS_H_
#define LOCKSTEP_ENGINE_CPU_ROW_BLOCKS_H_

#include <algorithm>
#include <cstdint>

#include "engine/cpu/kernel.h"
#include "engine/cpu/simd/half_kernels.h"

namespace lockstep::engine {

class RowBlocks {
 public:
  RowBlocks() = default;
  // `columns` of the matrix of `type`, fp32 or bf16, at `storage`.
  RowBlocks(const TensorType& type, int64_t columns, const Storage& storage, Isa isa)
      : storage_(storage),
        columns_(columns),
        bf16_(type.dtype == DType::kBF16),
        half_(&HalfKernelsFor(isa)) {}

  bool bf16() const { return bf16_; }
  // Floats that the buffer of blocks of `rows` takes.
  int64_t BufferFloats(int64_t rows) const { return bf16_ ? (rows * columns_ + 15) / 16 * 16 : 0; }

  // Rows [row, row + rows), which may be in `buffer`.
  const float* Read(const RunContext& context, int64_t row, int64_t rows, float* buffer) const {
    if (!bf16_) return context.At<float>(storage_) + row * columns_;
    const uint16_t* from = context.At<uint16_t>(storage_) + row * columns_;
    ForParts(rows * columns_, context.pool,
             [&](int64_t at, int64_t count) { half_->widen_bf16(from + at, count, buffer + at); });
    return buffer;
  }
  // Where rows from `row` on are made: themselves or `buffer`.
  float* Place(const RunContext& context, int64_t row, float* buffer) const {
    return bf16_ ? buffer : context.At<float>(storage_) + row * columns_;
  }
  // Rounds what was made in `place` to rows [row, row + rows).
  void Put(const RunContext& context, int64_t row, int64_t rows, const float* place) const {
    if (!bf16_) return;
    uint16_t* to = context.At<uint16_t>(storage_) + row * columns_;
    ForParts(rows * columns_, context.pool,
             [&](int64_t at, int64_t count) { half_->narrow_bf16(place + at, count, to + at); });
  }

 private:
  Storage storage_;
  int64_t columns_ = 0;
  bool bf16_ = false;
  const HalfKernels* half_ = nullptr;
};

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_CPU_ROW_BLOCKS_H_
