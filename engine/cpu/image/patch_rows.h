// SPDX-License-Identifier: Apache-2.0
// The part of an image that the windows of some rows of output pixels look at, with zeros around
// the image. In it the values of one row of a window lie side by side, and the windows of
// neighbours lie `pixel_stride` apart: products read patches there instead of copies of every value
// for each of the taps that it meets (patches.h). Thread-safety: immutable.
#ifndef LOCKSTEP_ENGINE_CPU_IMAGE_PATCH_ROWS_H_
#define LOCKSTEP_ENGINE_CPU_IMAGE_PATCH_ROWS_H_

#include <cstddef>
#include <cstdint>

#include "engine/cpu/image/patches.h"

namespace lockstep::engine {

class PatchRows {
 public:
  // Returns whether the windows' rows are side by side: all channels, no dilation of columns.
  static bool Fits(const PatchShape& shape);
  // REQUIRES: Fits(shape). `rows` of output pixels at most.
  PatchRows(const PatchShape& shape, int64_t rows);

  int64_t floats() const;
  // Copies what the output pixels of rows [row, row + rows) of one image look at.
  void Fill(const float* x, int64_t image, int64_t row, int64_t rows, float* out) const;

  // Rows of a window; floats of one.
  int64_t taps() const { return static_cast<int64_t>(shape_.row_taps.size()); }
  int64_t run() const { return static_cast<int64_t>(shape_.column_taps.size()) * shape_.channels; }
  // Floats from the start to row `tap` of the window of pixel (row, column), row counted from the
  // first that was filled.
  int64_t At(int64_t tap, int64_t row, int64_t column) const {
    const int64_t line =
        row * shape_.row_step + shape_.row_taps[static_cast<size_t>(tap)] - shape_.row_taps[0];
    return line * line_floats() + column * pixel_stride();
  }
  int64_t pixel_stride() const { return shape_.column_step * shape_.channels; }

 private:
  int64_t line_floats() const { return (shape_.columns - 1) * pixel_stride() + run(); }
  int64_t LinesOf(int64_t rows) const {
    return (rows - 1) * shape_.row_step + shape_.row_taps.back() - shape_.row_taps[0] + 1;
  }

  const PatchShape shape_;
  const int64_t rows_;
};

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_CPU_IMAGE_PATCH_ROWS_H_
