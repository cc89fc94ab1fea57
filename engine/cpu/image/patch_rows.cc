// SPDX-License-Identifier: Apache-2.0
#include "engine/cpu/image/patch_rows.h"

#include <algorithm>

namespace lockstep::engine {

bool PatchRows::Fits(const PatchShape& shape) {
  if (shape.group_channels != shape.channels || shape.row_taps.empty()) return false;
  for (size_t i = 1; i < shape.column_taps.size(); ++i) {
    if (shape.column_taps[i] != shape.column_taps[i - 1] + 1) return false;
  }
  return !shape.column_taps.empty();
}

PatchRows::PatchRows(const PatchShape& shape, int64_t rows) : shape_(shape), rows_(rows) {}

int64_t PatchRows::floats() const { return LinesOf(rows_) * line_floats(); }

void PatchRows::Fill(const float* x, int64_t image, int64_t row, int64_t rows, float* out) const {
  const int64_t width = shape_.width * shape_.channels, line = line_floats();
  // Floats of a line before the image's row, and up to its end.
  const int64_t before = -shape_.column_taps[0] * shape_.channels;
  const int64_t begin = std::clamp<int64_t>(before, 0, line);
  const int64_t end = std::clamp<int64_t>(before + width, begin, line);
  const int64_t first = row * shape_.row_step + shape_.row_taps[0];
  for (int64_t i = 0; i < LinesOf(rows); ++i, out += line) {
    const int64_t h = first + i;
    if (h < 0 || h >= shape_.height) {
      std::fill_n(out, line, 0.0f);
      continue;
    }
    const float* from = x + (image * shape_.height + h) * width;
    std::fill(out, out + begin, 0.0f);
    std::copy(from + begin - before, from + end - before, out + begin);
    std::fill(out + end, out + line, 0.0f);
  }
}

}  // namespace lockstep::engine
