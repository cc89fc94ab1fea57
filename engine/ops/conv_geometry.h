// SPDX-License-Identifier: Apache-2.0
// The extents of a convolution or pooling over images [n, height, width, channels].
// Thread-safety: pure functions.
#ifndef LOCKSTEP_ENGINE_OPS_CONV_GEOMETRY_H_
#define LOCKSTEP_ENGINE_OPS_CONV_GEOMETRY_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/graph/graph.h"

namespace lockstep::engine {

// A window that moves over an image. Index 0 is along the height, 1 along the width.
struct Window {
  int64_t kernel[2] = {1, 1};
  int64_t stride[2] = {1, 1};
  int64_t padding[2] = {0, 0};  // zeros (for a maximum: nothing) on both sides
  int64_t dilation[2] = {1, 1};

  // Places of the window along `extent` values; below 1 when it does not fit.
  int64_t Places(int axis, int64_t extent) const {
    const int64_t room = extent + 2 * padding[axis] - dilation[axis] * (kernel[axis] - 1) - 1;
    return room < 0 ? 0 : room / stride[axis] + 1;
  }
};

// From the attributes kernel, stride, padding, dilation: each two extents, with their defaults when
// they are not there. Errors: InvalidArgument for extents out of range.
absl::StatusOr<Window> WindowOf(const Attrs& attrs);

struct ConvGeometry {
  int64_t images = 0;
  int64_t whole_images = 0;  // of the node that this is cut from (kWholeRowsAttr); else `images`
  int64_t height = 0;        // of x
  int64_t width = 0;
  int64_t channels = 0;
  int64_t filters = 0;  // channels of y
  int64_t out_height = 0;
  int64_t out_width = 0;
  int64_t groups = 1;
  Window window;

  int64_t group_channels() const { return channels / groups; }
  int64_t group_filters() const { return filters / groups; }
  int64_t taps() const { return window.kernel[0] * window.kernel[1]; }
  // Multiply and add count as two; zeros of the padding count too.
  double flops() const {
    return 2.0 * static_cast<double>(images * out_height * out_width * filters) *
           static_cast<double>(group_channels() * taps());
  }
};

// Of x [n, h, w, c] and weight [o, c / groups, kh, kw]. Errors: InvalidArgument that names the
// shapes.
absl::StatusOr<ConvGeometry> ConvOf(const TensorType& x, const TensorType& weight,
                                    const Attrs& attrs);

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_OPS_CONV_GEOMETRY_H_
