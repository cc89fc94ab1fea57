// SPDX-License-Identifier: Apache-2.0
// Convolutions on tensor cores without patches in memory, in 16 bits with fp32 sums: a tile of the
// patch matrix is gathered into shared memory while the tile before it is multiplied. The gradient
// of the images is the same product with the window turned round; that of the filters sums over
// places, in parts that are then added in order.
#include "engine/cuda/kernels/all.h"
#include "engine/cuda/kernels/matrix_tile.h"

namespace lockstep::engine::cuda {
namespace {

constexpr int kSide = 128;  // places of a tile; filters, in the gradient of these
constexpr int kDeep = 32;   // channels (places) of a step
constexpr int kStages = 3;  // steps in shared memory
constexpr int kBands = 4;   // a warp has 64 rows of the tile
constexpr int kOutside = -(1 << 28);

// Where a row of the tile reads: the window's corner in its image.
struct Corner {
  int64_t image;  // the image's first element
  int row;
  int column;
};

__device__ __forceinline__ Corner CornerOf(const WindowArgs& w, int64_t place, bool turned) {
  const int64_t each = w.rows * w.columns;
  const int64_t image = place / each;
  const int rest = static_cast<int>(place - image * each);
  const int row = rest / static_cast<int>(w.columns);
  const int column = rest - row * static_cast<int>(w.columns);
  Corner corner;
  corner.image = image * w.height * w.width * w.channels;
  const int up = static_cast<int>(w.padding[0]), left = static_cast<int>(w.padding[1]);
  corner.row = turned ? row + up : row * static_cast<int>(w.stride[0]) - up;
  corner.column = turned ? column + left : column * static_cast<int>(w.stride[1]) - left;
  return corner;
}

// One axis of the pixel that tap `tap` of a corner reads; negative: none.
__device__ __forceinline__ int Pixel(int corner, int tap, int64_t stride, int64_t dilation,
                                     int64_t extent, bool turned) {
  const int step = tap * static_cast<int>(dilation);
  int at = turned ? corner - step : corner + step;
  if (turned && stride > 1) {
    const int s = static_cast<int>(stride);
    if (at < 0 || at % s != 0) return -1;
    at /= s;
  }
  return at < extent ? at : -1;
}

// Steps through the taps and blocks of channels of a product's depth.
struct Depth {
  __device__ __forceinline__ void Next(const WindowArgs& w) {
    channel += kDeep;
    if (channel < w.channels) return;
    channel = 0;
    ++tap;
    if (++tap_column < w.kernel[1]) return;
    tap_column = 0;
    ++tap_row;
  }
  int channel = 0;
  int tap = 0;
  int tap_row = 0;
  int tap_column = 0;
};

// Numbers of a stage.
template <int kColumns>
inline constexpr int kStageElements = (kSide + kColumns) * kDeep;

// A thread's share of loading: chunk threadIdx % 4 of rows threadIdx / 4, + 32, ...
template <int kColumns>
struct Loader {
  static constexpr int kRows = kSide * kDeep / kChunk / kMatrixThreads;
  static constexpr int kFilterRows = kColumns * kDeep / kChunk / kMatrixThreads;

  __device__ __forceinline__ explicit Loader(const ImplicitArgs& args)
      : row(static_cast<int>(threadIdx.x) / 4), chunk(static_cast<int>(threadIdx.x) % 4) {
    const int64_t places = args.window.images * args.window.rows * args.window.columns;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int64_t place = int64_t{blockIdx.x} * kSide + row + 32 * i;
      corners[i] = {0, kOutside, kOutside};
      if (place < places) corners[i] = CornerOf(args.window, place, args.turned);
    }
  }
  // Begins to load step `depth` into a stage.
  __device__ __forceinline__ void Load(const ImplicitArgs& args, const Depth& depth,
                                       uint16_t* stage) const {
    const WindowArgs& w = args.window;
    const MatrixTile<kDeep> patches{stage}, filters{stage + kSide * kDeep};
    const int channel = depth.channel + chunk * kChunk;
    const auto* x = static_cast<const uint16_t*>(args.x.data);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int h =
          Pixel(corners[i].row, depth.tap_row, w.stride[0], w.dilation[0], w.height, args.turned);
      const int v = Pixel(corners[i].column, depth.tap_column, w.stride[1], w.dilation[1], w.width,
                          args.turned);
      const bool inside = h >= 0 && v >= 0 && channel < w.channels;
      const int64_t at = corners[i].image + (int64_t{h} * w.width + v) * w.channels + channel;
      CopyAsync(patches.At(row + 32 * i, chunk), x + (inside ? at : 0), inside);
    }
    const auto* f = static_cast<const uint16_t*>(args.filters.data);
    const int64_t patch = w.kernel[0] * w.kernel[1] * w.channels;
#pragma unroll
    for (int i = 0; i < kFilterRows; ++i) {
      const int64_t filter = int64_t{blockIdx.y} * kColumns + row + 32 * i;
      const bool inside = filter < args.outputs && channel < w.channels;
      const int64_t at = filter * patch + depth.tap * w.channels + channel;
      CopyAsync(filters.At(row + 32 * i, chunk), f + (inside ? at : 0), inside);
    }
  }

  int row;
  int chunk;
  Corner corners[kRows];
};

// A pair of the result with all that follows the product.
__device__ __forceinline__ void Finish(const ImplicitArgs& args, int64_t place, int64_t column,
                                       float low, float high) {
  const int64_t at = place * args.outputs + column;
  float values[2] = {low, high};
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    if (args.bias.data != nullptr) values[e] += Load(args.bias, column + e);
    if (args.residual.data != nullptr) values[e] += Load(args.residual, at + e);
    if (args.relu && values[e] < 0) values[e] = 0;
    if (args.mask.data != nullptr && Load(args.mask, at + e) <= 0) values[e] = 0;
  }
  StorePair(args.y, at, values[0], values[1]);
}

template <Type kType, int kColumns>
__global__ void __launch_bounds__(kMatrixThreads) ImplicitKernel(ImplicitArgs args) {
  constexpr int kTiles = kColumns / 2 / 8;  // a warp has half of the columns
  const WindowArgs& w = args.window;
  uint16_t* const memory = SharedMemory();
  const auto stage = [&](int64_t step) {
    return memory + static_cast<int>(step % kStages) * kStageElements<kColumns>;
  };
  const Loader<kColumns> loader(args);
  const int64_t blocks = (w.channels + kDeep - 1) / kDeep;
  const int64_t steps = w.kernel[0] * w.kernel[1] * blocks;
  Depth depth;
  for (int step = 0; step < kStages - 1; ++step) {
    if (step < steps) {
      loader.Load(args, depth, stage(step));
      depth.Next(w);
    }
    CommitCopies();
  }
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int first_row = warp / 2 * (kSide / 2), first_column = warp % 2 * (kColumns / 2);
  float sums[kBands][kTiles][4] = {};
  for (int64_t step = 0; step < steps; ++step) {
    WaitForCopies<kStages - 2>();
    __syncthreads();  // this step is there, and the one before it is no longer read
    if (step + kStages - 1 < steps) {
      loader.Load(args, depth, stage(step + kStages - 1));
      depth.Next(w);
    }
    CommitCopies();
    const MatrixTile<kDeep> patches{stage(step)}, filters{stage(step) + kSide * kDeep};
#pragma unroll
    for (int chunk = 0; chunk < kDeep / kChunk; chunk += 2) {
      uint32_t a[kBands][4];
#pragma unroll
      for (int band = 0; band < kBands; ++band) {
        patches.Left(first_row + 16 * band, chunk, a[band]);
      }
#pragma unroll
      for (int t = 0; t < kTiles; t += 2) {
        uint32_t b[4];
        filters.RightTransposed(first_column + 8 * t, chunk, b);
#pragma unroll
        for (int band = 0; band < kBands; ++band) {
          MultiplyAdd<kType>(sums[band][t], a[band], b[0], b[1]);
          MultiplyAdd<kType>(sums[band][t + 1], a[band], b[2], b[3]);
        }
      }
    }
  }
  WaitForCopies();
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t places = w.images * w.rows * w.columns;
#pragma unroll
  for (int band = 0; band < kBands; ++band) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t place =
          int64_t{blockIdx.x} * kSide + first_row + 16 * band + 8 * half + lane / 4;
      if (place >= places) continue;
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        const int64_t column = int64_t{blockIdx.y} * kColumns + first_column + 8 * t + lane % 4 * 2;
        if (column >= args.outputs) continue;
        Finish(args, place, column, sums[band][t][2 * half], sums[band][t][2 * half + 1]);
      }
    }
  }
}

// ---- the gradient of the filters ----

// Places [begin, end) of part `part`.
struct Places {
  int64_t begin;
  int64_t end;
};
__device__ __forceinline__ Places PlacesOf(const ImplicitWeightArgs& args, int64_t part) {
  const WindowArgs& w = args.window;
  const int64_t all = w.images * w.rows * w.columns;
  const int64_t each = ((all + args.parts - 1) / args.parts + kDeep - 1) / kDeep * kDeep;
  const int64_t begin = part * each, end = begin + each;
  return {begin < all ? begin : all, end < all ? end : all};
}

// partial[part, filter, tap, channel] = sum over the part's places of dy x.
template <Type kType, int kColumns>
__global__ void __launch_bounds__(kMatrixThreads) ImplicitWeightKernel(ImplicitWeightArgs args) {
  constexpr int kTiles = kColumns / 2 / 8;
  constexpr int kGradientRows = kDeep * kSide / kChunk / kMatrixThreads;
  constexpr int kImageRows = kDeep * kColumns / kChunk / kMatrixThreads;
  const WindowArgs& w = args.window;
  uint16_t* const memory = SharedMemory();
  const auto stage = [&](int64_t step) {
    return memory + static_cast<int>(step % kStages) * kStageElements<kColumns>;
  };
  const int64_t blocks = (w.channels + kColumns - 1) / kColumns;
  const int64_t first_filter = int64_t{blockIdx.x} * kSide;
  const int tap = static_cast<int>(blockIdx.y / blocks);
  const int64_t first_channel = blockIdx.y % blocks * kColumns;
  const int tap_row = tap / static_cast<int>(w.kernel[1]);
  const int tap_column = tap % static_cast<int>(w.kernel[1]);
  const Places places = PlacesOf(args, blockIdx.z);
  const auto* dy = static_cast<const uint16_t*>(args.dy.data);
  const auto* x = static_cast<const uint16_t*>(args.x.data);
  const auto load = [&](int64_t first, uint16_t* to) {
    const MatrixTile<kSide> gradients{to};
    const MatrixTile<kColumns> images{to + kSide * kDeep};
#pragma unroll
    for (int i = 0; i < kGradientRows; ++i) {
      const int number = static_cast<int>(threadIdx.x) + kMatrixThreads * i;
      const int row = number / (kSide / kChunk), chunk = number % (kSide / kChunk);
      const int64_t filter = first_filter + chunk * kChunk;
      const bool inside = first + row < places.end && filter < args.filters;
      CopyAsync(gradients.At(row, chunk), dy + (inside ? (first + row) * args.filters + filter : 0),
                inside);
    }
#pragma unroll
    for (int i = 0; i < kImageRows; ++i) {
      const int number = static_cast<int>(threadIdx.x) + kMatrixThreads * i;
      const int row = number / (kColumns / kChunk), chunk = number % (kColumns / kChunk);
      const int64_t channel = first_channel + chunk * kChunk;
      int64_t at = 0;
      bool inside = first + row < places.end && channel < w.channels;
      if (inside) {
        const Corner corner = CornerOf(w, first + row, false);
        const int h = Pixel(corner.row, tap_row, w.stride[0], w.dilation[0], w.height, false);
        const int v = Pixel(corner.column, tap_column, w.stride[1], w.dilation[1], w.width, false);
        inside = h >= 0 && v >= 0;
        if (inside) at = corner.image + (int64_t{h} * w.width + v) * w.channels + channel;
      }
      CopyAsync(images.At(row, chunk), x + at, inside);
    }
  };
  const int64_t steps = (places.end - places.begin + kDeep - 1) / kDeep;
  for (int step = 0; step < kStages - 1; ++step) {
    if (step < steps) load(places.begin + step * kDeep, stage(step));
    CommitCopies();
  }
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int first_row = warp / 2 * (kSide / 2), first_column = warp % 2 * (kColumns / 2);
  float sums[kBands][kTiles][4] = {};
  for (int64_t step = 0; step < steps; ++step) {
    WaitForCopies<kStages - 2>();
    __syncthreads();
    if (step + kStages - 1 < steps) {
      load(places.begin + (step + kStages - 1) * kDeep, stage(step + kStages - 1));
    }
    CommitCopies();
    const MatrixTile<kSide> gradients{stage(step)};
    const MatrixTile<kColumns> images{stage(step) + kSide * kDeep};
#pragma unroll
    for (int row = 0; row < kDeep; row += 16) {
      uint32_t a[kBands][4];
#pragma unroll
      for (int band = 0; band < kBands; ++band) {
        gradients.LeftTransposed(row, first_row / kChunk + 2 * band, a[band]);
      }
#pragma unroll
      for (int t = 0; t < kTiles; t += 2) {
        uint32_t b[4];
        images.Right(row, first_column / kChunk + t, b);
#pragma unroll
        for (int band = 0; band < kBands; ++band) {
          MultiplyAdd<kType>(sums[band][t], a[band], b[0], b[1]);
          MultiplyAdd<kType>(sums[band][t + 1], a[band], b[2], b[3]);
        }
      }
    }
  }
  WaitForCopies();
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t patch = w.kernel[0] * w.kernel[1] * w.channels;
  float* partial = args.partial + int64_t{blockIdx.z} * args.filters * patch + tap * w.channels;
#pragma unroll
  for (int band = 0; band < kBands; ++band) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t filter = first_filter + first_row + 16 * band + 8 * half + lane / 4;
      if (filter >= args.filters) continue;
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        const int64_t channel = first_channel + first_column + 8 * t + lane % 4 * 2;
        if (channel >= w.channels) continue;
        partial[filter * patch + channel] = sums[band][t][2 * half];
        partial[filter * patch + channel + 1] = sums[band][t][2 * half + 1];
      }
    }
  }
}

constexpr int kAddThreads = 256;

// partial[0, i] = sum over the parts, in order.
__global__ void __launch_bounds__(kAddThreads)
    AddPartsKernel(float* partial, int64_t count, int64_t parts) {
  const int64_t i = int64_t{blockIdx.x} * kAddThreads + threadIdx.x;
  if (i >= count) return;
  float sum = partial[i];
  for (int64_t part = 1; part < parts; ++part) sum += partial[part * count + i];
  partial[i] = sum;
}

template <Type kType, int kColumns>
Code LaunchProduct(const ImplicitArgs& args, Stream stream) {
  const WindowArgs& w = args.window;
  const int64_t places = w.images * w.rows * w.columns;
  const size_t bytes = kStages * kStageElements<kColumns> * sizeof(uint16_t);
  return LaunchShared(ImplicitKernel<kType, kColumns>,
                      Grid(DivideUp(places, kSide), DivideUp(args.outputs, kColumns)),
                      kMatrixThreads, bytes, stream, args);
}

template <Type kType, int kColumns>
Code LaunchWeight(const ImplicitWeightArgs& args, Stream stream) {
  const WindowArgs& w = args.window;
  const int64_t taps = w.kernel[0] * w.kernel[1];
  const size_t bytes = kStages * kStageElements<kColumns> * sizeof(uint16_t);
  const dim3 grid =
      Grid(DivideUp(args.filters, kSide), taps * DivideUp(w.channels, kColumns), args.parts);
  Code code = LaunchShared(ImplicitWeightKernel<kType, kColumns>, grid, kMatrixThreads, bytes,
                           stream, args);
  const int64_t count = args.filters * taps * w.channels;
  if (code == 0 && args.parts > 1) {
    code = Launch(AddPartsKernel, Grid(DivideUp(count, kAddThreads)), kAddThreads, stream,
                  args.partial, count, args.parts);
  }
  return code;
}

}  // namespace

Code LaunchImplicit(const ImplicitArgs& args, Stream stream) {
  const bool bfloat = args.x.type == Type::kBF16;
  if (args.outputs > 64) {
    return bfloat ? LaunchProduct<Type::kBF16, 128>(args, stream)
                  : LaunchProduct<Type::kF16, 128>(args, stream);
  }
  return bfloat ? LaunchProduct<Type::kBF16, 64>(args, stream)
                : LaunchProduct<Type::kF16, 64>(args, stream);
}

Code LaunchImplicitWeight(const ImplicitWeightArgs& args, Stream stream) {
  const bool bfloat = args.x.type == Type::kBF16;
  if (args.window.channels > 64) {
    return bfloat ? LaunchWeight<Type::kBF16, 128>(args, stream)
                  : LaunchWeight<Type::kF16, 128>(args, stream);
  }
  return bfloat ? LaunchWeight<Type::kBF16, 64>(args, stream)
                : LaunchWeight<Type::kF16, 64>(args, stream);
}

}  // namespace lockstep::engine::cuda
