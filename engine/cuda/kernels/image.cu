// SPDX-License-Identifier: Apache-2.0
// Kernels on images: pooling, and what makes a convolution a matrix product. A gradient that
// several windows reach is gathered by its pixel in the order of the windows.
#include "engine/cuda/kernels/all.h"
#include "engine/cuda/kernels/channels.h"
#include "engine/cuda/kernels/device_code.h"

namespace lockstep::engine::cuda {
namespace {

constexpr int kThreads = 256;

// One value of [images, height, width, channels], or of the places' grid.
struct Place {
  int64_t image;
  int64_t row;
  int64_t column;
  int64_t channel;
};
__device__ __forceinline__ Place PlaceOf(int64_t i, int64_t rows, int64_t columns,
                                         int64_t channels) {
  Place place;
  place.channel = i % channels;
  i /= channels;
  place.column = i % columns;
  i /= columns;
  place.row = i % rows;
  place.image = i / rows;
  return place;
}

// ---- pooling: a thread has eight channels of a place, or of a pixel, in some of the images ----

// The pixels [begin, end) of one axis below place `at` of a window.
struct Range {
  int begin;
  int end;
};
__device__ __forceinline__ Range PixelsOf(const WindowArgs& window, int axis, int at,
                                          int64_t extent) {
  const int first =
      at * static_cast<int>(window.stride[axis]) - static_cast<int>(window.padding[axis]);
  const int last = first + static_cast<int>(window.kernel[axis]), most = static_cast<int>(extent);
  return {first < 0 ? 0 : first, last < most ? last : most};
}
// The places [begin, end) of one axis whose window holds pixel `at`.
__device__ __forceinline__ Range PlacesOf(const WindowArgs& window, int axis, int at,
                                          int64_t places) {
  const int stride = static_cast<int>(window.stride[axis]);
  const int padded = at + static_cast<int>(window.padding[axis]);
  const int low = padded - static_cast<int>(window.kernel[axis]) + 1;
  const int high = padded / stride + 1, most = static_cast<int>(places);
  return {low <= 0 ? 0 : (low + stride - 1) / stride, high < most ? high : most};
}

// Where a thread is in the grid: x is column and channels in whole blocks, then the row, which may
// be more than a grid's second extent has; z is the image.
struct Spot {
  int row;
  int column;
  int64_t channel;
  int64_t left;  // channels from that one on
};
__device__ __forceinline__ Spot SpotOf(int64_t columns, int64_t channels) {
  const unsigned eights = static_cast<unsigned>((channels + 7) / 8);
  const unsigned across = static_cast<unsigned>(columns) * eights;
  const unsigned blocks = (across + blockDim.x - 1) / blockDim.x, row = blockIdx.x / blocks;
  const unsigned x = (blockIdx.x - row * blocks) * blockDim.x + threadIdx.x;
  const int64_t channel = int64_t{x % eights} * 8;
  return {static_cast<int>(row), static_cast<int>(x / eights), channel, channels - channel};
}

__device__ __forceinline__ float FactorOf(const PoolArgs& args, Range rows, Range columns) {
  const int64_t count = args.count_padding
                            ? args.window.kernel[0] * args.window.kernel[1]
                            : (rows.end - rows.begin) * (columns.end - columns.begin);
  return 1.0f / static_cast<float>(count);
}

template <int kType>
__global__ void __launch_bounds__(kThreads) PoolKernel(PoolArgs args) {
  const WindowArgs& window = args.window;
  const Spot spot = SpotOf(window.columns, window.channels);
  if (spot.column >= window.columns) return;
  const Range rows = PixelsOf(window, 0, spot.row, window.height);
  const Range columns = PixelsOf(window, 1, spot.column, window.width);
  const bool largest = args.pool == Pool::kMax;
  const float factor = FactorOf(args, rows, columns);
  for (int64_t image = blockIdx.z; image < window.images; image += gridDim.z) {
    Eight result;
#pragma unroll
    for (int e = 0; e < 8; ++e) result.x[e] = largest ? -INFINITY : 0;
    for (int h = rows.begin; h < rows.end; ++h) {
      const int64_t line = (image * window.height + h) * window.width;
      for (int w = columns.begin; w < columns.end; ++w) {
        const int64_t at = (line + w) * window.channels + spot.channel;
        const Eight x = LoadChannels<kType>(args.x, at, spot.left);
#pragma unroll
        for (int e = 0; e < 8; ++e) {
          if (!largest) {
            result.x[e] += x.x[e];
          } else if (x.x[e] > result.x[e] || x.x[e] != x.x[e]) {  // NaN is the largest
            result.x[e] = x.x[e];
          }
        }
      }
    }
#pragma unroll
    for (int e = 0; e < 8; ++e) result.x[e] = largest ? result.x[e] : result.x[e] * factor;
    const int64_t place = (image * window.rows + spot.row) * window.columns + spot.column;
    StoreChannels<kType>(args.out, place * window.channels + spot.channel, result, spot.left);
  }
}

// Returns of which channels (a bit each) the spot's pixel is the first largest one of a window, NaN
// being larger than every number.
template <int kType>
__device__ __forceinline__ unsigned FirstLargest(const PoolArgs& args, const Spot& spot,
                                                 int64_t image, const Eight& own, Range rows,
                                                 Range columns) {
  const WindowArgs& window = args.window;
  unsigned first = 0xff;
  for (int h = rows.begin; h < rows.end; ++h) {
    for (int w = columns.begin; w < columns.end; ++w) {
      if (h == spot.row && w == spot.column) continue;
      const bool before = h < spot.row || (h == spot.row && w < spot.column);
      const int64_t at =
          ((image * window.height + h) * window.width + w) * window.channels + spot.channel;
      const Eight x = LoadChannels<kType>(args.x, at, spot.left);
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        const bool number = own.x[e] == own.x[e];
        const bool yields = before ? !(x.x[e] < own.x[e]) && (number || x.x[e] != x.x[e])
                                   : !(x.x[e] <= own.x[e]) && number;
        if (yields) first &= ~(1u << e);
      }
    }
  }
  return first;
}

// Four blocks: without a number the compiler spills to fit one more.
template <int kType>
__global__ void __launch_bounds__(kThreads, 4) PoolBackwardKernel(PoolArgs args) {
  const WindowArgs& window = args.window;
  const Spot spot = SpotOf(window.width, window.channels);
  if (spot.column >= window.width) return;
  const Range rows = PlacesOf(window, 0, spot.row, window.rows);
  const Range columns = PlacesOf(window, 1, spot.column, window.columns);
  const bool largest = args.pool == Pool::kMaxBackward;
  for (int64_t image = blockIdx.z; image < window.images; image += gridDim.z) {
    const int64_t pixel = (image * window.height + spot.row) * window.width + spot.column;
    const int64_t here = pixel * window.channels + spot.channel;
    Eight own = {}, sum = {};
    unsigned passes = 0xff;  // channels whose gradient relu lets through
    if (largest) {
      own = LoadChannels<kType>(args.x, here, spot.left);
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        if (args.relu && own.x[e] <= 0) passes &= ~(1u << e);
      }
    }
    for (int r = rows.begin; r < rows.end; ++r) {
      for (int c = columns.begin; c < columns.end; ++c) {
        const Range h = PixelsOf(window, 0, r, window.height);
        const Range w = PixelsOf(window, 1, c, window.width);
        unsigned takes = passes;
        if (largest) takes &= FirstLargest<kType>(args, spot, image, own, h, w);
        // After the window: before it, eight registers more would be held through it.
        const int64_t place = (image * window.rows + r) * window.columns + c;
        const Eight dy =
            LoadChannels<kType>(args.dy, place * window.channels + spot.channel, spot.left);
        const float factor = largest ? 1 : FactorOf(args, h, w);
#pragma unroll
        for (int e = 0; e < 8; ++e) {
          if ((takes >> e & 1) != 0) sum.x[e] += dy.x[e] * factor;
        }
      }
    }
    StoreChannels<kType>(args.out, here, sum, spot.left);
  }
}

__global__ void __launch_bounds__(kThreads) PlacePoolKernel(PlacePoolArgs args) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const UnpoolArgs& images = args.images;
  const int64_t rows = images.height / 2, columns = images.width / 2;
  if (i >= images.images * rows * columns * images.channels) return;
  const Place place = PlaceOf(i, rows, columns, images.channels);
  float best = 0;
  int32_t at = 0;
  for (int32_t p = 0; p < 4; ++p) {
    const int64_t row = place.image * images.height + 2 * place.row + p / 2;
    const int64_t pixel = row * images.width + 2 * place.column + p % 2;
    const float x = args.x[pixel * images.channels + place.channel];
    if (p > 0 && !(x > best) && (x == x || best != best)) continue;
    best = x;
    at = p;
  }
  Store(args.y, i, args.relu && best < 0 ? 0 : best);
  args.places[i] = at;
}

__global__ void __launch_bounds__(kThreads) UnpoolKernel(UnpoolArgs args) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= args.images * args.height * args.width * args.channels) return;
  const Place pixel = PlaceOf(i, args.height, args.width, args.channels);
  const int64_t rows = args.height / 2, columns = args.width / 2;
  const int64_t row = pixel.row / 2, column = pixel.column / 2;
  float value = 0;
  if (row < rows && column < columns) {
    const int64_t at =
        ((pixel.image * rows + row) * columns + column) * args.channels + pixel.channel;
    if (args.places[at] == pixel.row % 2 * 2 + pixel.column % 2) value = Load(args.dy, at);
  }
  Store(args.dx, i, value);
}

// ---- convolutions ----

// A thread has eight elements of a row, which lie below neighbouring taps: nobody divides for each
// of them. kType is that of x.
template <int kType>
__global__ void __launch_bounds__(kThreads) PatchKernel(PatchArgs args) {
  const WindowArgs& w = args.window;
  const int64_t place = OwnRow(), column = OwnColumn();
  const auto across = static_cast<uint32_t>(w.columns), down = static_cast<uint32_t>(w.rows);
  if (place >= w.images * w.rows * w.columns || column >= args.pitch) return;
  // A block of images has less than 2^32 places.
  const uint32_t line = static_cast<uint32_t>(place) / across, image = line / down;
  const int row = static_cast<int>(line - image * down);
  const int top = row * static_cast<int>(w.stride[0]) - static_cast<int>(w.padding[0]);
  const int left = static_cast<int>(static_cast<uint32_t>(place) - line * across) *
                       static_cast<int>(w.stride[1]) -
                   static_cast<int>(w.padding[1]);
  const int channels = static_cast<int>(args.group_channels);
  const int kernel = static_cast<int>(w.kernel[1]);
  const int tap = static_cast<int>(column) / channels;
  int channel = static_cast<int>(column) - tap * channels;
  int tap_row = tap / kernel, tap_column = tap - tap / kernel * kernel;
  const int64_t base =
      (args.first_image + image) * w.height * w.width * w.channels + args.first_channel;
  const View x = {args.x.data, static_cast<Type>(kType)};
  Eight values = {};
#pragma unroll
  for (int e = 0; e < 8; ++e) {
    const int h = top + tap_row * static_cast<int>(w.dilation[0]);
    const int v = left + tap_column * static_cast<int>(w.dilation[1]);
    const bool inside = tap_row < w.kernel[0] && h >= 0 && h < w.height && v >= 0 && v < w.width;
    if (inside) values.x[e] = Load(x, base + (h * w.width + v) * w.channels + channel);
    if (++channel < channels) continue;
    channel = 0;
    if (++tap_column < kernel) continue;
    tap_column = 0;
    ++tap_row;
  }
  const int64_t at = place * args.pitch + column;
  if (args.pitch % 8 == 0) {
    StoreEight(args.matrix, at, values);
    return;
  }
#pragma unroll
  for (int e = 0; e < 8; ++e) {
    if (column + e < args.pitch) Store(args.matrix, at + e, values.x[e]);
  }
}

// The place of one axis at which tap `tap` stands on pixel `at`, or -1.
__device__ __forceinline__ int64_t PlaceOfTap(const WindowArgs& window, int axis, int64_t at,
                                              int64_t tap, int64_t places) {
  const int64_t first = at + window.padding[axis] - tap * window.dilation[axis];
  if (first < 0 || first % window.stride[axis] != 0) return -1;
  const int64_t place = first / window.stride[axis];
  return place < places ? place : -1;
}

__global__ void __launch_bounds__(kThreads) GatherKernel(PatchArgs args) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const WindowArgs& w = args.window;
  if (i >= w.images * w.height * w.width * args.group_channels) return;
  const Place pixel = PlaceOf(i, w.height, w.width, args.group_channels);
  const int64_t taps = w.kernel[0] * w.kernel[1];
  float sum = 0;
  for (int64_t tap = 0; tap < taps; ++tap) {
    const int64_t r = PlaceOfTap(w, 0, pixel.row, tap / w.kernel[1], w.rows);
    const int64_t c = PlaceOfTap(w, 1, pixel.column, tap % w.kernel[1], w.columns);
    if (r < 0 || c < 0) continue;
    const int64_t place = (pixel.image * w.rows + r) * w.columns + c;
    sum += Load(args.matrix, place * args.pitch + tap * args.group_channels + pixel.channel);
  }
  const int64_t image = args.first_image + pixel.image;
  const int64_t at = ((image * w.height + pixel.row) * w.width + pixel.column) * w.channels +
                     args.first_channel + pixel.channel;
  if (args.mask.data != nullptr && Load(args.mask, at) <= 0) sum = 0;
  Store(args.x, at, sum);
}

__global__ void __launch_bounds__(kThreads) FilterKernel(FilterArgs args) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t each = args.channels * args.taps, all = args.filters * each;
  const int64_t pitch = args.pitch > 0 ? args.pitch : each, rest = pitch - each;
  if (i >= all) {
    const int64_t zero = i - all;
    if (zero < args.filters * rest && !args.back) {
      Store(args.to, zero / rest * pitch + each + zero % rest, 0);
    }
    return;
  }
  const int64_t filter = i / each, channel = i % each / args.taps, tap = i % args.taps;
  const int64_t other = args.turned ? (channel * args.taps + tap) * args.filters + filter
                                    : filter * pitch + tap * args.channels + channel;
  const int64_t from = args.back ? other : i, to = args.back ? i : other;
  const float value = Load(args.from, from);
  Store(args.to, to, args.adds ? Load(args.to, to) + value : value);
}

}  // namespace

Code LaunchPool(const PoolArgs& args, Stream stream) {
  constexpr int64_t kMost = 32768;  // of a grid's third extent
  const WindowArgs& w = args.window;
  const bool forward = args.pool == Pool::kMax || args.pool == Pool::kAverage;
  const int64_t across = (forward ? w.columns : w.width) * DivideUp(w.channels, 8);
  const int64_t threads = across < kThreads ? DivideUp(across, kWarp) * kWarp : kThreads;
  const int64_t rows = forward ? w.rows : w.height;
  const dim3 grid = Grid(DivideUp(across, threads) * rows, 1, w.images < kMost ? w.images : kMost);
  const View used[] = {args.out, args.x, args.dy}, floats[] = {View{}};
  return WithType(TypeOfAll(used, floats, w.channels), [&](auto type) {
    return Launch(forward ? PoolKernel<type()> : PoolBackwardKernel<type()>, grid,
                  dim3(static_cast<unsigned>(threads)), stream, args);
  });
}

Code LaunchPlacePool(const PlacePoolArgs& args, Stream stream) {
  const UnpoolArgs& images = args.images;
  const int64_t count = images.images * (images.height / 2) * (images.width / 2) * images.channels;
  return Launch(PlacePoolKernel, Grid(DivideUp(count, kThreads)), kThreads, stream, args);
}

Code LaunchUnpool(const UnpoolArgs& args, Stream stream) {
  const int64_t count = args.images * args.height * args.width * args.channels;
  return Launch(UnpoolKernel, Grid(DivideUp(count, kThreads)), kThreads, stream, args);
}

Code LaunchPatches(const PatchArgs& args, Stream stream) {
  const WindowArgs& w = args.window;
  if (args.gather) {
    const int64_t count = w.images * w.height * w.width * args.group_channels;
    return Launch(GatherKernel, Grid(DivideUp(count, kThreads)), kThreads, stream, args);
  }
  const Eights eights = EightsOf(w.images * w.rows * w.columns, args.pitch);
  return WithType(static_cast<int>(args.x.type), [&](auto type) {
    return Launch(PatchKernel<type()>, eights.grid, eights.block, stream, args);
  });
}

Code LaunchFilters(const FilterArgs& args, Stream stream) {
  const int64_t each = args.channels * args.taps;
  const int64_t row = args.pitch > each ? args.pitch : each;
  return Launch(FilterKernel, Grid(DivideUp(args.filters * row, kThreads)), kThreads, stream, args);
}

}  // namespace lockstep::engine::cuda
