// SPDX-License-Identifier: Apache-2.0
// Random crops and flips of training images. What happens to a picture is a function of (seed,
// step, shard, place in the shard), so a step that is done again sees the same pictures.
// Thread-safety: pure functions; the data sets are immutable.
#ifndef LOCKSTEP_DATA_AUGMENT_H_
#define LOCKSTEP_DATA_AUGMENT_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "data/dataset.h"

namespace lockstep::data {

// What happens to one image: pixel (y, x) becomes that of (y + down, x + right) of the padded
// image, then the rows are mirrored.
struct ImageChange {
  int down = 0;   // -padding to padding
  int right = 0;  // -padding to padding
  bool mirror = false;
};

// The change of the image at `place` of the shard.
ImageChange ChangeOf(const Augment& augment, int64_t step, int shard, int64_t place);

// Changes `image` [channels, height, width] in place. What comes from outside is padding[channel],
// or padding[0] when it has one entry.
void ApplyChange(const ImageChange& change, int64_t channels, int64_t height, int64_t width,
                 const std::vector<float>& padding, float* image);

// `base` with changed images; `padding` is what a black pixel became. Errors: InvalidArgument when
// the samples are no images (one fp32 field "inputs" of three extents) or the padding is too large.
absl::StatusOr<std::unique_ptr<Dataset>> AugmentImages(std::unique_ptr<Dataset> base,
                                                       const Augment& augment,
                                                       std::vector<float> padding);

}  // namespace lockstep::data

#endif  // LOCKSTEP_DATA_AUGMENT_H_
