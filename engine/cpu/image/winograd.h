// SPDX-License-Identifier: Apache-2.0
// Convolutions of 3 x 3 filters at stride 1 by Winograd's F(2 x 2, 3 x 3): tiles of 4 x 4 pixels d
// and filters g are transformed, multiplied element by element (16 matrix products over the
// channels) and transformed back to 2 x 2 pixels y, which takes 2.25 times fewer multiplications:
//
//   y = A' [(G g G') . (B' d B)] A
//   B' = [1 0 -1 0; 0 1 1 0; 0 -1 1 0; 0 1 0 -1]
//   G = [1 0 0; 1/2 1/2 1/2; 1/2 -1/2 1/2; 0 0 1],  A' = [1 1 1 0; 0 1 -1 -1]
//
// Its transposition is the weight gradient: dg = G' [sum over tiles of (A dy A') . (B' d B)] G.
// (Lavin and Gray, Fast Algorithms for Convolutional Neural Networks, 2015.) The order of additions
// depends on shapes alone (docs/same_bits.md).
// Thread-safety: immutable after construction.
#ifndef LOCKSTEP_ENGINE_CPU_IMAGE_WINOGRAD_H_
#define LOCKSTEP_ENGINE_CPU_IMAGE_WINOGRAD_H_

#include <cstddef>
#include <cstdint>

#include "engine/cpu/image/image_simd.h"
#include "engine/cpu/simd/simd.h"
#include "engine/cpu/thread_pool.h"
#include "engine/ops/conv_geometry.h"

namespace lockstep::engine {

// One convolution: y[n, out_height, out_width, outputs] of x[n, height, width, inputs].
struct WinogradShape {
  int64_t images = 0;
  int64_t height = 0;
  int64_t width = 0;
  int64_t inputs = 0;
  int64_t out_height = 0;
  int64_t out_width = 0;
  int64_t outputs = 0;
  int64_t padding[2] = {0, 0};

  int64_t tile_rows() const { return (out_height + 1) / 2; }
  int64_t tile_columns() const { return (out_width + 1) / 2; }
  int64_t tiles() const { return images * tile_rows() * tile_columns(); }
};

// The forward convolution, and the one of dy with rotated filters that is the input gradient.
WinogradShape WinogradForward(const ConvGeometry& g);
WinogradShape WinogradBackward(const ConvGeometry& g);

// Filter (input, output) lies at input * in + output * out: 9 taps, in reverse with `rotate`.
struct WinogradFilterOrder {
  int64_t in = 0;
  int64_t out = 0;
  bool rotate = false;
};

class WinogradProduct {
 public:
  WinogradProduct(const WinogradShape& shape, Isa isa, int threads);

  // Of the transformed filters.
  size_t filter_bytes() const;
  size_t scratch_bytes() const;
  // To u[element][panel][input][tile_columns], filter_bytes(). Blocks until u is whole.
  void TransformFilters(const float* filters, const WinogradFilterOrder& order, float* u,
                        ThreadPool* pool) const;
  // y = epilogue(x * filters) of the transformed filters; `epilogue.mask` and `epilogue.residual`
  // lie as y does. Blocks until y is whole.
  void Run(const float* x, const float* u, const TileEpilogue& epilogue, float* y, float* scratch,
           ThreadPool* pool) const {
    Run(x, u, epilogue, {y, nullptr}, scratch, pool);
  }
  // The same, with bias and relu alone, then the largest of each 2 x 2 pixels and its place
  // (ops/conv_pool.cc): tiles are such pixels.
  void RunPooled(const float* x, const float* u, const TileEpilogue& epilogue, float* y,
                 int32_t* places, float* scratch, ThreadPool* pool) const {
    Run(x, u, epilogue, {y, places}, scratch, pool);
  }

 private:
  // `places` is null where y is not pooled.
  struct Result {
    float* y;
    int32_t* places;
  };
  // Tiles [first + begin, first + end) of a chunk that begins with `first`.
  struct Chunk {
    int64_t first, begin, end;
  };
  void TransformInput(const float* x, const Chunk& chunk, const float* zeros, float* v) const;
  // The 16 products' elements [begin, end).
  void Multiply(const float* v, const float* u, int64_t tiles, int64_t begin, int64_t end,
                float* m) const;
  void Run(const float* x, const float* u, const TileEpilogue& epilogue, const Result& result,
           float* scratch, ThreadPool* pool) const;
  void PutChunk(const float* m, const Chunk& chunk, const TileEpilogue& epilogue,
                const Result& result) const;
  // All threads on one chunk after the other.
  void RunTogether(const float* x, const float* u, const TileEpilogue& epilogue,
                   const Result& result, float* scratch, ThreadPool* pool) const;
  void PutTile(const float* m, int64_t tile, const TileEpilogue& epilogue, float* y) const;
  void PutPooledTile(const float* m, int64_t tile, const TileEpilogue& epilogue,
                     const Result& result) const;

  const WinogradShape s_;
  const SimdKernels& simd_;
  const ImageSimd& image_;
  const int threads_;
  int64_t chunk_ = 0;          // tiles that are transformed together
  int64_t filter_floats_ = 0;  // from one of the 16 elements to the next: filters,
  int64_t v_floats_ = 0;       // transformed inputs,
  int64_t m_floats_ = 0;       // products
  size_t zero_floats_ = 0;     // a pixel outside of the image
  size_t thread_floats_ = 0;   // v, then m
};

// dfilters[outputs][inputs][9] of dy and x. `shape` is the forward convolution's.
class WinogradWeightGradient {
 public:
  WinogradWeightGradient(const WinogradShape& shape, Isa isa, int threads);

  size_t scratch_bytes() const;
  // Blocks until the gradient is whole; `add`: it is added to what is there.
  void Run(const float* dy, const float* x, bool add, float* dfilters, float* scratch,
           ThreadPool* pool) const;

 private:
  struct Buffers {
    float *zeros, *sum, *v, *w, *packed;
  };
  Buffers Cut(float* scratch) const;
  // Tiles [first + begin, first + end).
  void Transform(const float* dy, const float* x, int64_t first, int64_t begin, int64_t end,
                 const Buffers& b) const;
  // One of the 16 products of a chunk.
  void AddProduct(int64_t element, int64_t tiles, bool accumulate, const Buffers& b,
                  float* packed) const;

  const WinogradShape s_;
  const SimdKernels& simd_;
  const ImageSimd& image_;
  const int threads_;
  int64_t chunk_ = 0;
  int64_t v_floats_ = 0;    // from one of the 16 elements to the next: x,
  int64_t w_floats_ = 0;    // dy,
  int64_t sum_floats_ = 0;  // their products
  size_t zero_floats_ = 0;
  size_t packed_floats_ = 0;  // of one thread: a panel of v, then w in strips
};

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_CPU_IMAGE_WINOGRAD_H_
