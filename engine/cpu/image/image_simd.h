// SPDX-License-Identifier: Apache-2.0
// The innermost loops of normalisation and pooling over rows of channels, compiled once for each
// instruction set from image_kernels.inc. Addition orders inside them are fixed by the shape.
// Thread-safety: pure functions on disjoint memory.
#ifndef LOCKSTEP_ENGINE_CPU_IMAGE_IMAGE_SIMD_H_
#define LOCKSTEP_ENGINE_CPU_IMAGE_IMAGE_SIMD_H_

#include <cstdint>

#include "engine/cpu/isa.h"

namespace lockstep::engine {

// Rows of `channels` values, `stride` floats apart.
struct RowBlock {
  int64_t rows = 0;
  int64_t channels = 0;
  int64_t stride = 0;
};

// One row of pooled pixels of a convolution of stride 1, on an image with its border
// (direct_conv.h).
struct DirectRow {
  const float* x = nullptr;  // the first window
  int64_t next_row = 0;      // floats from a pixel to the one below, and to the next one
  int64_t next_column = 0;
  const int64_t* taps = nullptr;  // where the `depth` values of a window lie from its first
  int64_t depth = 0;
  const float* weights = nullptr;  // [depth][filters]
  const float* bias = nullptr;     // [filters], may be null
  bool relu = false;
  int64_t columns = 0;  // pooled pixels
  int64_t filters = 0;
  float* y = nullptr;  // [columns][filters]
  int32_t* places = nullptr;
};

// The weight gradient of one image likewise, of filters [begin, end).
struct DirectGradient {
  const float* dy = nullptr;  // [rows][columns][filters]
  const int32_t* places = nullptr;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t filters = 0;
  int64_t begin = 0;
  int64_t end = 0;
  const float* x = nullptr;
  int64_t next_row = 0;
  int64_t next_column = 0;
  int64_t kernel_rows = 0;
  int64_t run = 0;       // values of one row of a window, which are consecutive
  float* sum = nullptr;  // [kernel_rows * run][filters]
};

struct ImageSimd {
  // sum[j] = sum over rows of x - shift[j]; square[j] the same of its square.
  void (*moments)(const RowBlock& block, const float* x, const float* shift, float* sum,
                  float* square);
  // y = act(x * scale[j] + shift[j] + residual); residual may be null.
  void (*normalise)(const RowBlock& block, const float* x, const float* scale, const float* shift,
                    const float* residual, bool relu, float* y);
  // sum[j] = sum of dy; product[j] = sum of dy * (x - mean[j]). dy counts as 0 where mask <= 0;
  // mask may be null.
  void (*gradient_sums)(const RowBlock& block, const float* dy, const float* mask, const float* x,
                        const float* mean, float* sum, float* product);
  // dx = a[j] * dy + b[j] * (x - mean[j]) + c[j], dy masked as above.
  void (*gradient)(const RowBlock& block, const float* dy, const float* mask, const float* x,
                   const float* mean, const float* a, const float* b, const float* c, float* dx);
  // y[j] = the largest of x[0][j], ... of `count` windows; NaN passes.
  void (*largest)(const float* const* x, int64_t count, int64_t channels, float* y);
  // dx[i][j] += dy[j] for the first i whose x[i][j] is the largest; with `relu` only where that is
  // above 0. `store`: = instead of +=, and 0 for the others.
  void (*largest_gradient)(const float* const* x, float* const* dx, int64_t count, const float* dy,
                           int64_t channels, bool relu, bool store);
  // Winograd's F(2 x 2, 3 x 3) of one tile, channel by channel; element e of the 4 x 4 transform
  // lies at v + e * stride. See winograd.h for the matrices.
  // v = B' d B of the pixels d[4 * row + column].
  void (*winograd_input)(const float* const* d, int64_t channels, int64_t stride, float* v);
  // v = A d A' of the pixels d[2 * row + column].
  void (*winograd_gradient)(const float* const* d, int64_t channels, int64_t stride, float* v);
  // y = A' m A for the pixels y[2 * row + column] that are not null; + bias + residual, rectified
  // with `relu`, 0 where mask <= 0. bias, residual and mask may be null.
  void (*winograd_output)(const float* m, int64_t stride, int64_t channels, const float* bias,
                          const float* const* residual, bool relu, const float* const* mask,
                          float* const* y);
  // u = G g G' for `count` <= 32 filters: tap t of filter j is g[j * step + t], with `rotate`
  // g[j * step + 8 - t].
  void (*winograd_filters)(const float* g, int64_t step, int64_t count, bool rotate, int64_t stride,
                           float* u);
  // Taps of `count` filters, 9 each: dg (+)= G' u G.
  void (*winograd_filter_gradients)(const float* u, int64_t stride, int64_t count, bool add,
                                    float* dg);
  // y[j] = factor * sum over i of x[i][j].
  void (*average)(const float* const* x, int64_t count, float factor, int64_t channels, float* y);
  // The largest of the pixels x[0..3]: y[j] = act(it), places[j] = which; the first of equals, NaN
  // being the largest.
  void (*largest_place)(const float* const* x, int64_t channels, bool relu, float* y,
                        int32_t* places);
  // dx[p][j] = dy[j] where places[j] is p, else 0.
  void (*unpool)(const float* dy, const int32_t* places, int64_t channels, float* const* dx);
  // winograd_output with a bias, then largest_place of its four pixels.
  void (*winograd_pooled)(const float* m, int64_t stride, int64_t channels, const float* bias,
                          bool relu, float* y, int32_t* places);
  // largest_place of sum over taps of x * weight, + bias. Taps are added in their order.
  void (*direct_pooled)(const DirectRow& row);
  // sum += sum over pixels of dy at its place * x below it: one sum for the image, in the order of
  // pooled pixels and places.
  void (*direct_gradient)(const DirectGradient& gradient);
};

// The loops for `isa`. REQUIRES: this CPU has it.
const ImageSimd& ImageSimdFor(Isa isa);

namespace simd {
extern const ImageSimd kPortableImage;
extern const ImageSimd kAvx2Image;
extern const ImageSimd kAvx512Image;
}  // namespace simd

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_CPU_IMAGE_IMAGE_SIMD_H_
