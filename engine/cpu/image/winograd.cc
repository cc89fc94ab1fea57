// SPDX-License-Identifier: Apache-2.0
#include "engine/cpu/image/winograd.h"

#include <algorithm>

#include "common/round_up.h"

namespace lockstep::engine {
namespace {

constexpr int64_t kElements = 16;  // of a transformed tile
constexpr int64_t kMinChunk = 48;  // tiles
constexpr int64_t kMaxChunk = 192;
constexpr int64_t kTileRows = 12;  // whole tiles of every instruction set's products
constexpr int64_t kKBlock = 256;   // inputs that are summed in registers

size_t Aligned(int64_t floats) { return static_cast<size_t>(DivideUp(floats, 16) * 16); }

// The floats between two of the 16 elements: an odd number of cache lines, so that the elements of
// a channel, which are written together, lie in different sets of the first-level cache.
int64_t Apart(int64_t floats) { return (DivideUp(floats, 16) | 1) * 16; }

// The more channels, the more tiles it takes to make use of the transformed filters in the cache.
int64_t ChunkOf(int64_t channels) {
  return std::clamp(channels * 3 / 4 / kMinChunk * kMinChunk, kMinChunk, kMaxChunk);
}

// Tiles of a chunk of a product, in which nothing is summed over tiles: chunks of one size, an
// eighth more than ChunkOf at most, rather than a small one at the end.
int64_t EvenChunk(int64_t tiles, int64_t channels) {
  const int64_t most = ChunkOf(channels) * 9 / 8 / kTileRows * kTileRows;
  return DivideUp(DivideUp(tiles, DivideUp(tiles, most)), kTileRows) * kTileRows;
}

// Rows of so few floats are read where they lie: a panel of them stays in L1 without being copied.
constexpr int64_t kDirectFloats = 64;

// Where a tile of 2 x 2 output pixels lies.
struct Place {
  int64_t image, row, column;
};
Place PlaceOf(const WinogradShape& s, int64_t tile) {
  const int64_t each = s.tile_rows() * s.tile_columns();
  return {tile / each, tile % each / s.tile_columns() * 2, tile % s.tile_columns() * 2};
}

// The 4 x 4 pixels of x that tile `tile` reads; `zeros` outside of the image.
void InputPixels(const WinogradShape& s, const float* x, int64_t tile, const float* zeros,
                 const float** pixels) {
  const Place at = PlaceOf(s, tile);
  for (int64_t i = 0; i < 4; ++i) {
    const int64_t row = at.row + i - s.padding[0];
    for (int64_t j = 0; j < 4; ++j) {
      const int64_t column = at.column + j - s.padding[1];
      const bool inside = row >= 0 && row < s.height && column >= 0 && column < s.width;
      pixels[4 * i + j] =
          inside ? x + ((at.image * s.height + row) * s.width + column) * s.inputs : zeros;
    }
  }
}

// The 2 x 2 pixels of y that tile `tile` is; `otherwise` outside of the image.
template <typename T>
void OutputPixels(const WinogradShape& s, T* y, int64_t tile, T* otherwise, T** pixels) {
  const Place at = PlaceOf(s, tile);
  for (int64_t i = 0; i < 2; ++i) {
    for (int64_t j = 0; j < 2; ++j) {
      const int64_t row = at.row + i, column = at.column + j;
      const bool inside = row < s.out_height && column < s.out_width;
      pixels[2 * i + j] =
          inside ? y + ((at.image * s.out_height + row) * s.out_width + column) * s.outputs
                 : otherwise;
    }
  }
}

}  // namespace

WinogradShape WinogradForward(const ConvGeometry& g) {
  return {g.images,     g.height,    g.width,   g.channels,
          g.out_height, g.out_width, g.filters, {g.window.padding[0], g.window.padding[1]}};
}

WinogradShape WinogradBackward(const ConvGeometry& g) {
  return {g.images, g.out_height, g.out_width, g.filters,
          g.height, g.width,      g.channels,  {2 - g.window.padding[0], 2 - g.window.padding[1]}};
}

WinogradProduct::WinogradProduct(const WinogradShape& shape, Isa isa, int threads)
    : s_(shape), simd_(SimdFor(isa)), image_(ImageSimdFor(isa)), threads_(threads) {
  chunk_ = EvenChunk(s_.tiles(), std::max(s_.inputs, s_.outputs));
  filter_floats_ = Apart(DivideUp(s_.outputs, simd_.tile_columns) * simd_.tile_columns * s_.inputs);
  v_floats_ = Apart(chunk_ * s_.inputs);
  m_floats_ = Apart(chunk_ * s_.outputs);
  zero_floats_ = Aligned(s_.inputs);
  thread_floats_ = static_cast<size_t>(kElements * (v_floats_ + m_floats_));
}

size_t WinogradProduct::filter_bytes() const {
  return Aligned(kElements * filter_floats_) * sizeof(float);
}

size_t WinogradProduct::scratch_bytes() const {
  return (zero_floats_ + thread_floats_ * static_cast<size_t>(threads_)) * sizeof(float);
}

void WinogradProduct::TransformFilters(const float* filters, const WinogradFilterOrder& order,
                                       float* u, ThreadPool* pool) const {
  const int64_t width = simd_.tile_columns;
  pool->Run([&](int index) {
    const auto [begin, end] = PartOf(DivideUp(s_.outputs, width), index, threads_);
    for (int64_t panel = begin; panel < end; ++panel) {
      const int64_t first = panel * width, valid = std::min(width, s_.outputs - first);
      for (int64_t input = 0; input < s_.inputs; ++input) {
        float* to = u + (panel * s_.inputs + input) * width;
        for (int64_t e = 0; valid < width && e < kElements; ++e) {
          std::fill_n(to + e * filter_floats_ + valid, width - valid, 0.0f);
        }
        image_.winograd_filters(filters + first * order.out + input * order.in, order.out, valid,
                                order.rotate, filter_floats_, to);
      }
    }
  });
}

void WinogradProduct::Multiply(const float* v, const float* u, int64_t tiles, int64_t begin,
                               int64_t end, float* m) const {
  const int64_t width = simd_.tile_columns, height = simd_.tile_rows;
  Tile tile;
  tile.a_row = s_.inputs;
  tile.a_k = 1;
  tile.b_stride = width;
  tile.c_stride = s_.outputs;
  for (int64_t e = begin; e < end; ++e) {
    for (int64_t k = 0; k < s_.inputs; k += kKBlock) {
      tile.k = std::min(kKBlock, s_.inputs - k);
      tile.accumulate = k > 0;
      for (int64_t j = 0; j < s_.outputs; j += width) {
        tile.columns = std::min(width, s_.outputs - j);
        tile.b = u + e * filter_floats_ + j * s_.inputs + k * width;
        for (int64_t i = 0; i < tiles; i += height) {
          tile.a = v + e * v_floats_ + i * s_.inputs + k;
          tile.c = m + e * m_floats_ + i * s_.outputs + j;
          simd_.tile[std::min(height, tiles - i)](tile);
        }
      }
    }
  }
}

void WinogradProduct::PutTile(const float* m, int64_t tile, const TileEpilogue& epilogue,
                              float* y) const {
  float* pixels[4];
  const float *mask[4], *residual[4];
  OutputPixels<float>(s_, y, tile, nullptr, pixels);
  if (epilogue.mask != nullptr) OutputPixels<const float>(s_, epilogue.mask, tile, nullptr, mask);
  if (epilogue.residual != nullptr) {
    OutputPixels<const float>(s_, epilogue.residual, tile, nullptr, residual);
  }
  image_.winograd_output(m, m_floats_, s_.outputs, epilogue.bias,
                         epilogue.residual != nullptr ? residual : nullptr, epilogue.relu,
                         epilogue.mask != nullptr ? mask : nullptr, pixels);
}

void WinogradProduct::TransformInput(const float* x, const Chunk& chunk, const float* zeros,
                                     float* v) const {
  for (int64_t i = chunk.begin; i < chunk.end; ++i) {
    const float* pixels[kElements];
    InputPixels(s_, x, chunk.first + i, zeros, pixels);
    image_.winograd_input(pixels, s_.inputs, v_floats_, v + i * s_.inputs);
  }
}

// A tile at an odd border has no 2 x 2 pixels.
void WinogradProduct::PutPooledTile(const float* m, int64_t tile, const TileEpilogue& epilogue,
                                    const Result& result) const {
  const Place at = PlaceOf(s_, tile);
  const int64_t rows = s_.out_height / 2, columns = s_.out_width / 2;
  const int64_t row = at.row / 2, column = at.column / 2;
  if (row >= rows || column >= columns) return;
  const int64_t to = ((at.image * rows + row) * columns + column) * s_.outputs;
  image_.winograd_pooled(m, m_floats_, s_.outputs, epilogue.bias, epilogue.relu, result.y + to,
                         result.places + to);
}

void WinogradProduct::PutChunk(const float* m, const Chunk& chunk, const TileEpilogue& epilogue,
                               const Result& result) const {
  for (int64_t i = chunk.begin; i < chunk.end; ++i) {
    if (result.places != nullptr) {
      PutPooledTile(m + i * s_.outputs, chunk.first + i, epilogue, result);
    } else {
      PutTile(m + i * s_.outputs, chunk.first + i, epilogue, result.y);
    }
  }
}

void WinogradProduct::Run(const float* x, const float* u, const TileEpilogue& epilogue,
                          const Result& result, float* scratch, ThreadPool* pool) const {
  float* const zeros = scratch;
  std::fill_n(zeros, s_.inputs, 0.0f);
  const int64_t tiles = s_.tiles(), chunks = DivideUp(tiles, chunk_);
  if (chunks < threads_) return RunTogether(x, u, epilogue, result, scratch, pool);
  pool->Run([&](int index) {
    float* const v = zeros + zero_floats_ + thread_floats_ * static_cast<size_t>(index);
    float* const m = v + kElements * v_floats_;
    const auto [begin, end] = PartOf(chunks, index, threads_);
    for (int64_t first = begin * chunk_; first < std::min(end * chunk_, tiles); first += chunk_) {
      const Chunk chunk{first, 0, std::min(chunk_, tiles - first)};
      TransformInput(x, chunk, zeros, v);
      Multiply(v, u, chunk.end, 0, kElements, m);
      PutChunk(m, chunk, epilogue, result);
      pool->Moved();
    }
  });
}

void WinogradProduct::RunTogether(const float* x, const float* u, const TileEpilogue& epilogue,
                                  const Result& result, float* scratch, ThreadPool* pool) const {
  float* const v = scratch + zero_floats_;
  float* const m = v + kElements * v_floats_;
  for (int64_t first = 0; first < s_.tiles(); first += chunk_) {
    const int64_t tiles = std::min(chunk_, s_.tiles() - first);
    pool->Run([&](int index) {
      const auto [begin, end] = PartOf(tiles, index, threads_);
      TransformInput(x, {first, begin, end}, scratch, v);
    });
    pool->Run([&](int index) {
      const auto [begin, end] = PartOf(kElements, index, threads_);
      Multiply(v, u, tiles, begin, end, m);
    });
    pool->Run([&](int index) {
      const auto [begin, end] = PartOf(tiles, index, threads_);
      PutChunk(m, {first, begin, end}, epilogue, result);
    });
  }
}

WinogradWeightGradient::WinogradWeightGradient(const WinogradShape& shape, Isa isa, int threads)
    : s_(shape), simd_(SimdFor(isa)), image_(ImageSimdFor(isa)), threads_(threads) {
  chunk_ = std::max(2 * kMinChunk, ChunkOf(std::max(s_.inputs, s_.outputs)));
  v_floats_ = Apart(chunk_ * s_.inputs);
  w_floats_ = Apart(chunk_ * s_.outputs);
  sum_floats_ = Apart(s_.inputs * s_.outputs);
  zero_floats_ = Aligned(std::max(s_.inputs, s_.outputs));
  const int64_t strips = DivideUp(s_.outputs, simd_.tile_rows) * simd_.tile_rows;
  packed_floats_ = Aligned(chunk_ * simd_.tile_columns) + Aligned(chunk_ * strips + 16);
}

WinogradWeightGradient::Buffers WinogradWeightGradient::Cut(float* scratch) const {
  Buffers b;
  b.zeros = scratch;
  b.sum = b.zeros + zero_floats_;
  b.v = b.sum + kElements * sum_floats_;
  b.w = b.v + kElements * v_floats_;
  b.packed = b.w + kElements * w_floats_;
  return b;
}

size_t WinogradWeightGradient::scratch_bytes() const {
  return (zero_floats_ + static_cast<size_t>(kElements * (sum_floats_ + v_floats_ + w_floats_)) +
          packed_floats_ * static_cast<size_t>(threads_)) *
         sizeof(float);
}

void WinogradWeightGradient::Transform(const float* dy, const float* x, int64_t first,
                                       int64_t begin, int64_t end, const Buffers& b) const {
  for (int64_t i = begin; i < end; ++i) {
    const float* pixels[kElements];
    InputPixels(s_, x, first + i, b.zeros, pixels);
    image_.winograd_input(pixels, s_.inputs, v_floats_, b.v + i * s_.inputs);
    OutputPixels<const float>(s_, dy, first + i, b.zeros, pixels);
    image_.winograd_gradient(pixels, s_.outputs, w_floats_, b.w + i * s_.outputs);
  }
}

void WinogradWeightGradient::AddProduct(int64_t element, int64_t tiles, bool accumulate,
                                        const Buffers& b, float* packed) const {
  const int64_t width = simd_.tile_columns, height = simd_.tile_rows;
  float* const panel = packed;
  float* const strips = packed + Aligned(chunk_ * width);
  const float* v = b.v + element * v_floats_;
  const float* w = b.w + element * w_floats_;
  float* sum = b.sum + element * sum_floats_;
  const bool direct_v = s_.inputs <= kDirectFloats && s_.inputs % width == 0;
  const bool direct_w = s_.outputs <= kDirectFloats;
  if (!direct_w) simd_.pack_rows(w, 1, s_.outputs, s_.outputs, tiles, strips);
  Tile tile;
  tile.k = tiles;
  tile.a_row = 1;
  tile.a_k = direct_w ? s_.outputs : height;
  tile.b_stride = direct_v ? s_.inputs : width;
  tile.c_stride = s_.inputs;
  tile.adds = accumulate;
  for (int64_t j = 0; j < s_.inputs; j += width) {
    tile.columns = std::min(width, s_.inputs - j);
    tile.b = direct_v ? v + j : panel;
    if (!direct_v) simd_.pack(v + j, s_.inputs, tiles, tile.columns, panel);
    for (int64_t i = 0; i < s_.outputs; i += height) {
      tile.a = direct_w ? w + i : strips + i * tiles;
      tile.c = sum + i * s_.inputs + j;
      simd_.tile[std::min(height, s_.outputs - i)](tile);
    }
  }
}

void WinogradWeightGradient::Run(const float* dy, const float* x, bool add, float* dfilters,
                                 float* scratch, ThreadPool* pool) const {
  const Buffers b = Cut(scratch);
  std::fill_n(b.zeros, zero_floats_, 0.0f);
  for (int64_t first = 0; first < s_.tiles(); first += chunk_) {
    const int64_t tiles = std::min(chunk_, s_.tiles() - first);
    pool->Run([&](int index) {
      const auto [begin, end] = PartOf(tiles, index, threads_);
      Transform(dy, x, first, begin, end, b);
    });
    pool->Run([&](int index) {
      const auto [begin, end] = PartOf(kElements, index, threads_);
      float* packed = b.packed + packed_floats_ * static_cast<size_t>(index);
      for (int64_t e = begin; e < end; ++e) AddProduct(e, tiles, first > 0, b, packed);
    });
  }
  pool->Run([&](int index) {
    const auto [begin, end] = PartOf(s_.outputs, index, threads_);
    for (int64_t o = begin; o < end; ++o) {
      image_.winograd_filter_gradients(b.sum + o * s_.inputs, sum_floats_, s_.inputs, add,
                                       dfilters + o * s_.inputs * 9);
    }
  });
}

}  // namespace lockstep::engine
