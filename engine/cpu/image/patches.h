// SPDX-License-Identifier: Apache-2.0
// The patch matrix of a convolution: one row for each output pixel, which holds the input values
// that its window covers, tap after tap, the channels of a tap together; 0 beyond the image. Images
// are [n, height, width, channels], so a row is a few runs of consecutive floats. The matrix is
// never whole in memory: callers ask for blocks of it. Thread-safety: immutable.
#ifndef LOCKSTEP_ENGINE_CPU_IMAGE_PATCHES_H_
#define LOCKSTEP_ENGINE_CPU_IMAGE_PATCHES_H_

#include <cstdint>
#include <vector>

namespace lockstep::engine {

struct PatchShape {
  int64_t height = 0;  // of the images that are read
  int64_t width = 0;
  int64_t channels = 0;
  int64_t rows = 0;  // the grid of output pixels of one image
  int64_t columns = 0;
  int64_t row_step = 1;  // between the windows of neighbours
  int64_t column_step = 1;
  // Where each tap lies from the window's place, ascending.
  std::vector<int64_t> row_taps;
  std::vector<int64_t> column_taps;
  int64_t first_channel = 0;  // those of one group
  int64_t group_channels = 0;
};

class Patches {
 public:
  explicit Patches(const PatchShape& shape);

  // Columns of the matrix: taps x channels of the group.
  int64_t depth() const { return depth_; }
  // Output pixels of one image.
  int64_t pixels() const { return shape_.rows * shape_.columns; }
  // Returns whether the matrix is the image itself: one tap, no border, every channel.
  bool is_image() const;
  // Columns [k0, k1) of the rows [p0, p1) (pixels of all images, counted through) of `x` to `out`,
  // whose rows are `stride` floats apart.
  void Fill(const float* x, int64_t p0, int64_t p1, int64_t k0, int64_t k1, float* out,
            int64_t stride) const;

 private:
  // Consecutive floats of a row of the matrix that are consecutive in the image too.
  struct Run {
    int64_t row;     // from the window's row
    int64_t offset;  // floats, from the start of the window's column
    int64_t length;
    int64_t at;  // first column of the matrix
  };
  void FillRow(const float* row, int64_t first, int64_t last, int64_t offset, int64_t length,
               float* out, int64_t stride) const;

  const PatchShape shape_;
  std::vector<Run> runs_;
  int64_t depth_ = 0;
};

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_CPU_IMAGE_PATCHES_H_
