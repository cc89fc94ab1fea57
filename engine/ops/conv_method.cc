// SPDX-License-Identifier: Apache-2.0
#include "engine/ops/conv_method.h"

#include <algorithm>

namespace lockstep::engine {
namespace {

// Channels below which Winograd's transforms cost more than they save.
constexpr int64_t kMinWinogradChannels = 16;
// So many tiles of 2 x 2 pay for the transformation of the filters.
constexpr int64_t kMinWinogradTiles = 48;

constexpr int64_t kMaxDirectDepth = 32;
constexpr int64_t kMinDirectFilters = 8;
// The image with its border and the pooled rows beside it stay in L2.
constexpr int64_t kMaxDirectFloats = 48 * 1024;

// What widened images may take: they stay in L2.
constexpr int64_t kSummedBytes = 512 * 1024;
// A product reads and writes its whole result for each sum: that has at least so many counts of k.
constexpr int64_t kSummedPixels = 256;

int64_t Tiles(const ConvGeometry& g) {
  return g.whole_images * ((g.out_height + 1) / 2) * ((g.out_width + 1) / 2);
}

int64_t PaddedFloats(const ConvGeometry& g) {
  return (g.height + 2 * g.window.padding[0]) * (g.width + 2 * g.window.padding[1]) * g.channels;
}

}  // namespace

bool IsForWinograd(const ConvGeometry& g) {
  for (int axis = 0; axis < 2; ++axis) {
    if (g.window.kernel[axis] != 3 || g.window.stride[axis] != 1 || g.window.dilation[axis] != 1 ||
        g.window.padding[axis] > 2) {
      return false;
    }
  }
  return g.groups == 1 && g.channels >= kMinWinogradChannels && g.filters >= kMinWinogradChannels &&
         Tiles(g) >= kMinWinogradTiles;
}

bool IsForDirect(const ConvGeometry& g) {
  for (int axis = 0; axis < 2; ++axis) {
    if (g.window.stride[axis] != 1 || g.window.dilation[axis] != 1) return false;
  }
  return g.groups == 1 && g.taps() * g.channels <= kMaxDirectDepth &&
         g.filters >= kMinDirectFilters && g.out_height >= 2 && g.out_width >= 2 &&
         PaddedFloats(g) <= kMaxDirectFloats;
}

int64_t SummedImages(int64_t images, int64_t values, int64_t pixels) {
  const int64_t fit = kSummedBytes / (4 * values + 1);
  const int64_t least = (kSummedPixels + pixels - 1) / pixels;
  return std::clamp(fit, std::min(least, images), images);
}

}  // namespace lockstep::engine
