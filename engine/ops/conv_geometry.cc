// SPDX-License-Identifier: Apache-2.0
#include "engine/ops/conv_geometry.h"

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "engine/graph/op.h"

namespace lockstep::engine {
namespace {

absl::Status Read(const Attrs& attrs, const std::string& name, int64_t low, int64_t (&pair)[2]) {
  const Shape values = attrs.Extents(name);
  if (values.empty()) return absl::OkStatus();
  for (const int64_t value : values) {
    if (value < low || value > (1 << 16)) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, " is ", value, ": it must be from ", low, " to 65536"));
    }
  }
  if (values.size() != 2) {
    return absl::InvalidArgumentError(absl::StrCat(name, " has not two extents"));
  }
  pair[0] = values[0];
  pair[1] = values[1];
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Window> WindowOf(const Attrs& attrs) {
  Window window;
  LS_RETURN_IF_ERROR(Read(attrs, "kernel", 1, window.kernel));
  LS_RETURN_IF_ERROR(Read(attrs, "stride", 1, window.stride));
  LS_RETURN_IF_ERROR(Read(attrs, "padding", 0, window.padding));
  LS_RETURN_IF_ERROR(Read(attrs, "dilation", 1, window.dilation));
  return window;
}

absl::StatusOr<ConvGeometry> ConvOf(const TensorType& x, const TensorType& weight,
                                    const Attrs& attrs) {
  LS_RETURN_IF_ERROR(CheckMatrix("x", x, 4));
  LS_RETURN_IF_ERROR(CheckMatrix("weight", weight, 4));
  ConvGeometry g;
  g.images = x.shape[0];
  g.whole_images = attrs.Int(kWholeRowsAttr, g.images);
  g.height = x.shape[1];
  g.width = x.shape[2];
  g.channels = x.shape[3];
  g.filters = weight.shape[0];
  g.groups = attrs.Int("groups", 1);
  LS_ASSIGN_OR_RETURN(g.window, WindowOf(attrs));
  g.window.kernel[0] = weight.shape[2];
  g.window.kernel[1] = weight.shape[3];
  if (g.groups < 1 || g.channels % g.groups != 0 || g.filters % g.groups != 0) {
    return absl::InvalidArgumentError(absl::StrCat(g.groups, " groups do not divide ", g.channels,
                                                   " channels and ", g.filters, " filters"));
  }
  if (weight.shape[1] != g.group_channels()) {
    return ShapeError("weight", weight, absl::StrCat("f32[*,", g.group_channels(), ",*,*]"));
  }
  g.out_height = g.window.Places(0, g.height);
  g.out_width = g.window.Places(1, g.width);
  if (g.out_height < 1 || g.out_width < 1) {
    return absl::InvalidArgumentError(absl::StrCat("the window ", weight.shape[2], " x ",
                                                   weight.shape[3], " does not fit into images of ",
                                                   g.height, " x ", g.width));
  }
  return g;
}

}  // namespace lockstep::engine
