// SPDX-License-Identifier: Apache-2.0
// Convolutions whose windows hold few values (the first layer on grey or colour images), with the
// 2 x 2 pooling that follows them. A patch matrix would be hardly smaller than the work on it, so
// windows are read where they lie, in a copy of one image with its border. The result before
// pooling is never in memory, nor is its gradient: the weight gradient takes the pooled one and its
// places.
// The order of additions follows from the shape alone, whatever the instruction set and the number
// of threads (docs/same_bits.md).
// Thread-safety: immutable after construction.
#ifndef LOCKSTEP_ENGINE_CPU_IMAGE_DIRECT_CONV_H_
#define LOCKSTEP_ENGINE_CPU_IMAGE_DIRECT_CONV_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/cpu/image/image_simd.h"
#include "engine/cpu/thread_pool.h"
#include "engine/ops/conv_geometry.h"

namespace lockstep::engine {

class DirectConv {
 public:
  // REQUIRES: IsForDirect(g) (ops/conv_method.h).
  DirectConv(const ConvGeometry& g, Isa isa, int threads);

  size_t scratch_bytes() const;
  // y and places [images, out_height / 2, out_width / 2, filters] of x and the filters as the
  // ecosystem orders them; `bias` may be null. Blocks until they are whole.
  void RunPooled(const float* x, const float* filters, const float* bias, bool relu, float* y,
                 int32_t* places, float* scratch, ThreadPool* pool) const;
  // dfilters of dy, which lies as y does; `add`: it is added to what is there. Sums of one image
  // are added in the order of the images. Blocks until it is whole.
  void RunWeightGradient(const float* dy, const int32_t* places, const float* x, bool add,
                         float* dfilters, float* scratch, ThreadPool* pool) const;

 private:
  int64_t rows() const { return g_.out_height / 2; }
  int64_t columns() const { return g_.out_width / 2; }
  int64_t depth() const { return g_.taps() * g_.channels; }
  // Values of one row of a window.
  int64_t run() const { return g_.window.kernel[1] * g_.channels; }
  float* PaddedOf(float* scratch, int thread) const {
    return scratch + weight_floats_ + image_floats_ * static_cast<size_t>(thread);
  }
  // The image into its place within the border, which is there already.
  void CopyImage(const float* image, float* padded) const;

  const ConvGeometry g_;
  const ImageSimd& simd_;
  const int threads_;
  std::vector<int64_t> taps_;  // from a window's first value
  int64_t row_floats_ = 0;     // of the image with its border
  size_t weight_floats_ = 0;   // filters or their gradient, [depth][filters]
  size_t image_floats_ = 0;
};

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_CPU_IMAGE_DIRECT_CONV_H_
