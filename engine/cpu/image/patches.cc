// SPDX-License-Identifier: Apache-2.0
#include "engine/cpu/image/patches.h"

#include <algorithm>
#include <cstring>

#include "common/round_up.h"

namespace lockstep::engine {
namespace {

int64_t DivideDown(int64_t a, int64_t b) { return -DivideUp(-a, b); }

// The part of [offset, offset + length) that lies in a row of `width` floats is copied, the rest 0.
void CopyClipped(const float* row, int64_t width, int64_t offset, int64_t length, float* out) {
  const int64_t begin = std::clamp<int64_t>(-offset, 0, length);
  const int64_t end = std::clamp<int64_t>(width - offset, begin, length);
  std::fill(out, out + begin, 0.0f);
  std::copy(row + offset + begin, row + offset + end, out + begin);
  std::fill(out + end, out + length, 0.0f);
}

// `count` runs of as many floats, `step` apart, to places that are `stride` apart.
template <size_t kLength>
void CopyRuns(const float* from, int64_t step, int64_t count, float* out, int64_t stride) {
  for (int64_t j = 0; j < count; ++j, from += step, out += stride) {
    std::memcpy(out, from, kLength * sizeof(float));
  }
}

// The same for any length. Those of the usual first layers (3 x 3 and 7 x 7 filters of 1 and 3
// channels) and of a tile are copied without a loop.
void CopyRuns(const float* from, int64_t step, int64_t length, int64_t count, float* out,
              int64_t stride) {
  switch (length) {
    case 1:
      return CopyRuns<1>(from, step, count, out, stride);
    case 3:
      return CopyRuns<3>(from, step, count, out, stride);
    case 5:
      return CopyRuns<5>(from, step, count, out, stride);
    case 9:
      return CopyRuns<9>(from, step, count, out, stride);
    case 16:
      return CopyRuns<16>(from, step, count, out, stride);
    case 21:
      return CopyRuns<21>(from, step, count, out, stride);
    default:
      break;
  }
  const size_t bytes = static_cast<size_t>(length) * sizeof(float);
  for (int64_t j = 0; j < count; ++j, from += step, out += stride) {
    if (length > 8) {
      std::memcpy(out, from, bytes);
    } else {
      for (int64_t l = 0; l < length; ++l) out[l] = from[l];
    }
  }
}

}  // namespace

Patches::Patches(const PatchShape& shape) : shape_(shape) {
  const bool whole = shape.group_channels == shape.channels;
  for (const int64_t row : shape.row_taps) {
    bool first = true;
    int64_t expected = 0;
    for (const int64_t column : shape.column_taps) {
      const int64_t offset = column * shape.channels + shape.first_channel;
      // Neighbouring taps of all channels are one run.
      if (whole && !first && expected == offset) {
        runs_.back().length += shape.group_channels;
      } else {
        runs_.push_back({row, offset, shape.group_channels, depth_});
      }
      depth_ += shape.group_channels;
      expected = offset + shape.channels;
      first = false;
    }
  }
}

bool Patches::is_image() const {
  return runs_.size() == 1 && runs_[0].length == shape_.channels && runs_[0].row == 0 &&
         runs_[0].offset == 0 && shape_.row_step == 1 && shape_.column_step == 1 &&
         shape_.rows == shape_.height && shape_.columns == shape_.width;
}

// Pixels [first, last) of one row of the grid; `offset` counts from the start of a window's column.
void Patches::FillRow(const float* row, int64_t first, int64_t last, int64_t offset, int64_t length,
                      float* out, int64_t stride) const {
  const int64_t width = shape_.width * shape_.channels;
  const int64_t step = shape_.column_step * shape_.channels;
  // Pixels [inner, outer) read inside the row alone.
  const int64_t inner = std::clamp(DivideUp(-offset, step), first, last);
  const int64_t outer = std::clamp(DivideDown(width - offset - length, step) + 1, inner, last);
  int64_t j = first;
  for (; j < inner; ++j, out += stride) CopyClipped(row, width, j * step + offset, length, out);
  CopyRuns(row + j * step + offset, step, length, outer - j, out, stride);
  out += (outer - j) * stride;
  j = outer;
  for (; j < last; ++j, out += stride) CopyClipped(row, width, j * step + offset, length, out);
}

void Patches::Fill(const float* x, int64_t p0, int64_t p1, int64_t k0, int64_t k1, float* out,
                   int64_t stride) const {
  const int64_t row_floats = shape_.width * shape_.channels;
  for (int64_t p = p0; p < p1;) {
    const int64_t image = p / pixels();
    const int64_t i = p % pixels() / shape_.columns;
    const int64_t first = p % shape_.columns;
    const int64_t last = std::min(shape_.columns, first + p1 - p);
    float* to = out + (p - p0) * stride;
    for (const Run& run : runs_) {
      const int64_t begin = std::max(run.at, k0), end = std::min(run.at + run.length, k1);
      if (begin >= end) continue;
      const int64_t h = i * shape_.row_step + run.row;
      if (h < 0 || h >= shape_.height) {
        for (int64_t j = 0; j < last - first; ++j) {
          std::fill_n(to + j * stride + begin - k0, end - begin, 0.0f);
        }
        continue;
      }
      FillRow(x + (image * shape_.height + h) * row_floats, first, last,
              run.offset + begin - run.at, end - begin, to + begin - k0, stride);
    }
    p += last - first;
  }
}

}  // namespace lockstep::engine
