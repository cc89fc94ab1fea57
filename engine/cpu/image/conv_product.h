// SPDX-License-Identifier: Apache-2.0
// The two matrix products that convolutions are made of, on patch matrices that are made block by
// block in the cache:
//   PatchProduct        y = patches * B    (forward; the input gradient, on dy's patches)
//   PatchOuterProduct   c = dy^T * patches (the weight gradient)
// In bf16 an element of a patch and of B is a pair of values of neighbouring channels, so that
// patches are copied as those of half the channels in fp32; dy^T * patches pairs neighbouring
// pixels; such pairs are multiplied as they are or widened on their way (Factors). An element of
// the result is one chain over the taps, row by row, and the channels of each, or one over each 256
// pixels (docs/same_bits.md). Thread-safety: immutable after construction.
#ifndef LOCKSTEP_ENGINE_CPU_IMAGE_CONV_PRODUCT_H_
#define LOCKSTEP_ENGINE_CPU_IMAGE_CONV_PRODUCT_H_

#include <cstddef>
#include <cstdint>
#include <optional>

#include "engine/cpu/image/patch_rows.h"
#include "engine/cpu/image/patches.h"
#include "engine/cpu/kernel.h"
#include "engine/cpu/simd/half_kernels.h"
#include "engine/cpu/simd/simd.h"
#include "engine/cpu/thread_pool.h"

namespace lockstep::engine {

// Where row p of a product is written: a grid of pixels inside larger images.
struct PixelGrid {
  int64_t rows = 0;  // of the grid, per image
  int64_t columns = 0;
  int64_t image_rows = 0;  // of the images written
  int64_t image_columns = 0;
  int64_t first_row = 0;
  int64_t first_column = 0;
  int64_t row_step = 1;
  int64_t column_step = 1;

  bool dense() const { return rows == image_rows && columns == image_columns; }
  // The pixel of the images, counted through, at which row `p` lies.
  int64_t PixelOf(int64_t p) const;
};

// Values of images, fp32 or bf16.
struct ImageValues {
  void* at = nullptr;
  bool bf16 = false;

  bool empty() const { return at == nullptr; }
  float* fp32() const { return static_cast<float*>(at); }
  uint16_t* halves() const { return static_cast<uint16_t*>(at); }
  // The same from a later value on.
  ImageValues From(int64_t value) const {
    return {static_cast<char*>(at) + value * (bf16 ? 2 : 4), bf16};
  }
};

// What follows a convolution: y = act(sum + bias + residual), and y = 0 where mask <= 0. Residual
// and mask lie as y does; what is empty is left out.
struct ImageEpilogue {
  const float* bias = nullptr;
  bool relu = false;
  ImageValues residual;
  ImageValues mask;
};

class PatchProduct {
 public:
  // `columns` of the product; y's pixels are `y_stride` values apart. With pairs, x and B are
  // pairs of bf16, and `patches` counts pairs of channels.
  PatchProduct(const PatchShape& patches, const PixelGrid& grid, int64_t images, int64_t columns,
               int64_t y_stride, Factors factors, Isa isa, int threads);

  int64_t depth() const { return patches_.depth(); }
  // B is [panel of tile_columns][depth][tile_columns], 0 beyond the last column. Widened pairs take
  // two places of depth.
  static int64_t PanelFloats(int64_t depth, int64_t columns, Isa isa);
  size_t scratch_bytes() const { return thread_floats_ * sizeof(float) * threads_; }
  // `y`, mask and residual point to the first column at pixel 0; without pairs they are fp32.
  // Blocks until the product is whole. REQUIRES: a residual only where the grid is dense.
  void Run(const float* x, const float* panels, const ImageValues& y, const ImageEpilogue& epilogue,
           float* scratch, ThreadPool* pool) const;

 private:
  // One thread's part: chunks of pixels and panels of columns.
  struct Part {
    int64_t first_chunk, last_chunk;
    int64_t first_panel, last_panel;
  };
  Part PartFor(int index) const;
  // The pixels of a chunk; with rows_, where they lie.
  struct Chunk {
    int64_t p0, p1;
    int64_t image = 0, row = 0, rows = 0;
  };
  Chunk ChunkAt(int64_t index) const;
  // Sets what the tiles of a panel, from column j on, have in common.
  void SetEpilogue(const ImageEpilogue& epilogue, const Chunk& chunk, int64_t j, Tile* tile) const;
  // All products of a chunk to c, by patches or by rows.
  void RunPatches(const float* x, const float* panels, const ImageEpilogue& epilogue,
                  const Chunk& chunk, const Part& part, float* scratch, float* c) const;
  void RunRows(const float* x, const float* panels, const ImageEpilogue& epilogue,
               const Chunk& chunk, const Part& part, float* scratch, float* c) const;
  void RunChunk(const float* x, const float* panels, const ImageValues& y,
                const ImageEpilogue& epilogue, int64_t chunk, const Part& part,
                float* scratch) const;
  void RunPanel(const float* a, int64_t rows, Tile* tile, const float* next) const;
  // Pixels [p0, p1) of the part's columns from `from`, whose rows are columns_ apart, to y, with
  // what the tiles have left of the epilogue. `row` has room for a row.
  void PutChunk(float* from, const ImageValues& y, const ImageEpilogue& epilogue, int64_t p0,
                int64_t p1, const Part& part, float* row) const;
  const float* Row(const ImageValues& values, int64_t at, int64_t count, float* row) const;
  // Returns whether the tiles write to y itself.
  bool direct() const { return grid_.dense() && !bf16_; }
  bool pairs() const { return bf16_ && each_ == 1; }
  // `rows` rows of tile->k pairs, tile->a_row apart, at `wide`: what the tile then takes.
  const float* Widen(const float* a, int64_t rows, float* wide, Tile* tile) const;

  const SimdKernels& simd_;
  const HalfKernels& half_;
  const bool bf16_;
  const int64_t each_;  // floats of an element on its way to the tiles, 2 of widened pairs
  const size_t threads_;
  const Patches patches_;
  const PixelGrid grid_;
  const int64_t pixels_;  // of all images
  const int64_t columns_;
  const int64_t y_stride_;
  std::optional<PatchRows> rows_;  // instead of patches
  int64_t chunk_rows_ = 0;         // of output pixels, with rows_
  int64_t chunks_ = 0;
  int64_t k_block_ = 0;
  int64_t chunk_ = 0;         // pixels
  size_t block_floats_ = 0;   // of patches
  size_t thread_floats_ = 0;  // patches, then a chunk of y and a row of it if not direct()
};

class PatchOuterProduct {
 public:
  // dy's pixels are `dy_stride` values apart, of which `rows` are used. With pairs, x and dy are
  // bf16, and `patches` counts pairs of channels. REQUIRES with pairs: an even number of pixels.
  PatchOuterProduct(const PatchShape& patches, int64_t images, int64_t rows, int64_t dy_stride,
                    Factors factors, Isa isa, int threads);

  size_t scratch_bytes() const { return (thread_floats_ * threads_ + sum_floats_) * sizeof(float); }
  // Row stride of the result.
  int64_t sum_stride() const { return sum_stride_; }
  // The result [rows][sum_stride], of which as many columns as a patch has values are valid, lies
  // at the start of `scratch` until it is used again. dy and x are float or, with pairs, uint16_t.
  const float* Run(const void* dy, const void* x, float* scratch, ThreadPool* pool) const;

 private:
  // Pixels [p0, p1) of the columns from j on as a panel.
  void FillPanel(const void* x, int64_t p0, int64_t p1, int64_t j, float* panel,
                 float* patches) const;
  int64_t columns() const { return patches_.depth() * (bf16_ ? 2 : 1); }
  bool pairs() const { return bf16_ && each_ == 1; }

  const SimdKernels& simd_;
  const bool bf16_;
  const int64_t each_;  // floats of an element on its way to the tiles, 2 of widened pairs
  const size_t threads_;
  const Patches patches_;
  const int64_t pixels_;
  const int64_t rows_;
  const int64_t dy_stride_;
  int64_t chunk_ = 0;  // pixels that are summed in registers
  int64_t sum_stride_ = 0;
  size_t sum_floats_ = 0;
  size_t panel_floats_ = 0;
  size_t strip_floats_ = 0;
  size_t thread_floats_ =
      0;  // a panel of patches, a chunk of dy, with pairs patches before pairing
};

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_CPU_IMAGE_CONV_PRODUCT_H_
