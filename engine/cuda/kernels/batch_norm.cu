// SPDX-License-Identifier: Apache-2.0
// Batch normalisation. Sums over rows are fp64, in parts of rows that are added in order.
#include "engine/cuda/kernels/all.h"
#include "engine/cuda/kernels/channels.h"
#include "engine/cuda/kernels/device_code.h"

namespace lockstep::engine::cuda {
namespace {

constexpr int kThreads = 256;
// A thread has eight channels, which move 16 bytes of 16-bit values at once, and reads several rows
// before it adds them. A block has 64 channels and 32 rows at a time.
constexpr int kLanes = 8;
constexpr int kRows = 32;
constexpr int kBlockColumns = kLanes * 8;
constexpr int kAhead = 4;
// The kernels that make factors have 32 channels, whose parts are added by eight threads.
constexpr int kColumns = 32;
constexpr int kAdders = 8;

// The thread's channels of an array of floats.
template <int kType>
__device__ __forceinline__ Eight LoadFactors(const View& factors, int64_t c, int64_t channels) {
  constexpr int kFloats = kType == kAnyTypes ? kAnyTypes : static_cast<int>(Type::kF32);
  return LoadChannels<kFloats>(factors, c, channels);
}
// Row `number` of the factors that a launch before has made.
template <typename Args>
__device__ __forceinline__ View FactorsAt(const Args& args, int number) {
  return {args.factors + number * args.channels, Type::kF32};
}

struct Part {
  int64_t begin;
  int64_t end;
};
// What a sum over rows is cut into, which the rows alone decide.
__device__ __host__ __forceinline__ int64_t PartsOf(int64_t rows) {
  const int64_t parts = (rows + kRows * kAhead - 1) / (kRows * kAhead);
  return parts < kNormParts ? parts : kNormParts;
}
__device__ __forceinline__ Part PartOf(int64_t rows, int64_t part) {
  const int64_t parts = PartsOf(rows), each = (rows + parts - 1) / parts;
  const int64_t begin = part * each, end = begin + each;
  return {begin < rows ? begin : rows, end < rows ? end : rows};
}

// Adds the two sums of the block's rows of threads and puts them to `partial`.
__device__ __forceinline__ void PutPart(const double (&a)[8], const double (&b)[8],
                                        int64_t channels, double* partial) {
  __shared__ double shared[kRows][kBlockColumns];
  const int64_t first = int64_t{blockIdx.y} * kBlockColumns;
  const int thread = static_cast<int>(threadIdx.y * kLanes + threadIdx.x);
  for (int which = 0; which < 2; ++which) {
    if (which > 0) __syncthreads();  // the sums of the first are read
#pragma unroll
    for (int e = 0; e < 8; ++e) shared[threadIdx.y][threadIdx.x * 8 + e] = which == 0 ? a[e] : b[e];
    __syncthreads();
    if (thread >= kBlockColumns || first + thread >= channels) continue;
    double sum = 0;
    for (int r = 0; r < kRows; ++r) sum += shared[r][thread];
    partial[(which * kNormParts + blockIdx.x) * channels + first + thread] = sum;
  }
}

// The sums of all parts of a channel, of both kinds: threads of a column share the parts and give
// what they have in their order. All threads of the block must come.
struct Sums {
  double x[2];
};
__device__ __forceinline__ Sums SumParts(const double* partial, int64_t parts, int64_t channel,
                                         int64_t channels) {
  __shared__ double shared[2][kAdders][kColumns];
  for (int which = 0; which < 2; ++which) {
    double sum = 0;
    if (channel < channels) {
#pragma unroll 4
      for (int64_t part = threadIdx.y; part < parts; part += kAdders) {
        sum += partial[(which * kNormParts + part) * channels + channel];
      }
    }
    shared[which][threadIdx.y][threadIdx.x] = sum;
  }
  __syncthreads();
  Sums sums = {};
#pragma unroll
  for (int t = 0; t < kAdders; ++t) {
    sums.x[0] += shared[0][t][threadIdx.x];
    sums.x[1] += shared[1][t][threadIdx.x];
  }
  return sums;
}

// Around the first row: the square of a large mean would swallow the variance.
template <int kType>
__global__ void __launch_bounds__(kThreads) MomentsKernel(BatchNormArgs args) {
  const int64_t c = int64_t{blockIdx.y} * kBlockColumns + threadIdx.x * 8;
  const int64_t left = args.channels - c;
  const Part part = PartOf(args.rows, blockIdx.x);
  double sum[8] = {}, square[8] = {};
  if (left > 0) {
    const Eight first = LoadChannels<kType>(args.x, c, left);
    for (int64_t row = part.begin + threadIdx.y; row < part.end; row += kRows * kAhead) {
      Eight x[kAhead];
#pragma unroll
      for (int k = 0; k < kAhead; ++k) {  // a row is read again rather than left out
        const int64_t r = row + k * kRows < part.end ? row + k * kRows : row;
        x[k] = LoadChannels<kType>(args.x, r * args.channels + c, left);
      }
#pragma unroll
      for (int k = 0; k < kAhead; ++k) {
        const bool inside = row + k * kRows < part.end;
#pragma unroll
        for (int e = 0; e < 8; ++e) {
          const double d = inside ? static_cast<double>(x[k].x[e] - first.x[e]) : 0;
          sum[e] += d;
          square[e] += d * d;
        }
      }
    }
  }
  PutPart(sum, square, args.channels, args.partial);
}

__global__ void __launch_bounds__(kThreads) FactorsKernel(BatchNormArgs args) {
  const int64_t c = int64_t{blockIdx.x} * kColumns + threadIdx.x;
  const bool evaluates = args.running_mean.data != nullptr;
  const int64_t parts = evaluates ? 0 : PartsOf(args.rows);
  const Sums sums = SumParts(args.partial, parts, c, args.channels);
  if (threadIdx.y > 0 || c >= args.channels) return;
  double mean, variance;
  if (evaluates) {
    mean = static_cast<double>(Load(args.running_mean, c));
    variance = static_cast<double>(Load(args.running_variance, c));
  } else {
    const double n = static_cast<double>(args.rows);
    const double offset = sums.x[0] / n;
    mean = static_cast<double>(Load(args.x, c)) + offset;
    variance = sums.x[1] / n - offset * offset;
    if (variance < 0) variance = 0;
    args.mean[c] = static_cast<float>(mean);
    args.inverse[c] = static_cast<float>(1 / sqrt(variance + args.eps));
    args.variance[c] = static_cast<float>(variance * n / (n - 1));
  }
  const double scale = static_cast<double>(Load(args.weight, c)) / sqrt(variance + args.eps);
  args.factors[c] = static_cast<float>(scale);
  args.factors[args.channels + c] =
      static_cast<float>(static_cast<double>(Load(args.bias, c)) - mean * scale);
}

template <int kType>
__global__ void __launch_bounds__(kThreads) NormaliseKernel(BatchNormArgs args) {
  const int64_t c = int64_t{blockIdx.y} * kBlockColumns + threadIdx.x * 8;
  const int64_t left = args.channels - c;
  const int64_t row = int64_t{blockIdx.x} * kRows * kAhead + threadIdx.y;
  if (left <= 0 || row >= args.rows) return;
  const Eight scale = LoadFactors<kType>(FactorsAt(args, 0), c, left);
  const Eight shift = LoadFactors<kType>(FactorsAt(args, 1), c, left);
  const bool adds = args.residual.data != nullptr;
  Eight x[kAhead], residual[kAhead] = {};
#pragma unroll
  for (int k = 0; k < kAhead; ++k) {
    const int64_t r = row + k * kRows < args.rows ? row + k * kRows : row;
    x[k] = LoadChannels<kType>(args.x, r * args.channels + c, left);
  }
  if (adds) {
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      const int64_t r = row + k * kRows < args.rows ? row + k * kRows : row;
      residual[k] = LoadChannels<kType>(args.residual, r * args.channels + c, left);
    }
  }
#pragma unroll
  for (int k = 0; k < kAhead; ++k) {
    if (row + k * kRows >= args.rows) break;
    Eight made;
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      float y = x[k].x[e] * scale.x[e] + shift.x[e];
      if (adds) y += residual[k].x[e];
      if (args.relu && y < 0) y = 0;
      made.x[e] = y;
    }
    StoreChannels<kType>(args.y, (row + k * kRows) * args.channels + c, made, left);
  }
}

// dy, 0 where a mask says so.
template <int kType, int kCount>
__device__ __forceinline__ void LoadGradients(const BatchNormBackwardArgs& args,
                                              const int64_t (&at)[kCount], int64_t channels,
                                              Eight (&dy)[kCount]) {
#pragma unroll
  for (int k = 0; k < kCount; ++k) dy[k] = LoadChannels<kType>(args.dy, at[k], channels);
  if (args.mask.data == nullptr) return;
  Eight mask[kCount];
#pragma unroll
  for (int k = 0; k < kCount; ++k) mask[k] = LoadChannels<kType>(args.mask, at[k], channels);
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
#pragma unroll
    for (int e = 0; e < 8; ++e) dy[k].x[e] = mask[k].x[e] <= 0 ? 0 : dy[k].x[e];
  }
}

constexpr int kGradientAhead = 2;

template <int kType>
__global__ void __launch_bounds__(kThreads) GradientSumsKernel(BatchNormBackwardArgs args) {
  const int64_t c = int64_t{blockIdx.y} * kBlockColumns + threadIdx.x * 8;
  const int64_t left = args.channels - c;
  const Part part = PartOf(args.rows, blockIdx.x);
  double sum[8] = {}, product[8] = {};
  if (left > 0) {
    const Eight mean = LoadFactors<kType>(args.mean, c, left);
    for (int64_t row = part.begin + threadIdx.y; row < part.end; row += kRows * kGradientAhead) {
      int64_t at[kGradientAhead];
      Eight x[kGradientAhead], dy[kGradientAhead];
#pragma unroll
      for (int k = 0; k < kGradientAhead; ++k) {
        const int64_t r = row + k * kRows < part.end ? row + k * kRows : row;
        at[k] = r * args.channels + c;
        x[k] = LoadChannels<kType>(args.x, at[k], left);
      }
      LoadGradients<kType>(args, at, left, dy);
#pragma unroll
      for (int k = 0; k < kGradientAhead; ++k) {
        if (row + k * kRows >= part.end) break;
#pragma unroll
        for (int e = 0; e < 8; ++e) {
          const double g = static_cast<double>(dy[k].x[e]);
          sum[e] += g;
          product[e] += g * static_cast<double>(x[k].x[e] - mean.x[e]);
        }
      }
    }
  }
  PutPart(sum, product, args.channels, args.partial);
}

// With d = x - mean, r = 1 / deviation and sums over the n rows:
//   dweight = r sum(dy d), dbias = sum(dy),
//   dx = w r (dy - sum(dy) / n - d r^2 sum(dy d) / n) = a dy + b d + c.
__global__ void __launch_bounds__(kThreads) GradientFactorsKernel(BatchNormBackwardArgs args) {
  const int64_t c = int64_t{blockIdx.x} * kColumns + threadIdx.x;
  const Sums sums = SumParts(args.partial, PartsOf(args.rows), c, args.channels);
  if (threadIdx.y > 0 || c >= args.channels) return;
  const double n = static_cast<double>(args.rows);
  const double sum = sums.x[0], product = sums.x[1];
  const double r = static_cast<double>(Load(args.inverse, c));
  const double w = static_cast<double>(Load(args.weight, c)) * r;
  const float dweight = static_cast<float>(r * product), dbias = static_cast<float>(sum);
  args.dweight[c] = args.adds_weight ? args.dweight[c] + dweight : dweight;
  args.dbias[c] = args.adds_bias ? args.dbias[c] + dbias : dbias;
  args.factors[c] = static_cast<float>(w);
  args.factors[args.channels + c] = static_cast<float>(-w * r * r * product / n);
  args.factors[2 * args.channels + c] = static_cast<float>(-w * sum / n);
}

// Two blocks on a multiprocessor: with three the loads of single elements would be spilled.
template <int kType>
__global__ void __launch_bounds__(kThreads, 2) GradientKernel(BatchNormBackwardArgs args) {
  const int64_t c = int64_t{blockIdx.y} * kBlockColumns + threadIdx.x * 8;
  const int64_t left = args.channels - c;
  const int64_t row = int64_t{blockIdx.x} * kRows * kGradientAhead + threadIdx.y;
  if (left <= 0 || row >= args.rows) return;
  int64_t at[kGradientAhead];
  Eight x[kGradientAhead], dy[kGradientAhead];
#pragma unroll
  for (int k = 0; k < kGradientAhead; ++k) {
    const int64_t r = row + k * kRows < args.rows ? row + k * kRows : row;
    at[k] = r * args.channels + c;
    x[k] = LoadChannels<kType>(args.x, at[k], left);
  }
  LoadGradients<kType>(args, at, left, dy);
  const Eight mean = LoadFactors<kType>(args.mean, c, left);
  const Eight of_dy = LoadFactors<kType>(FactorsAt(args, 0), c, left);
  const Eight of_d = LoadFactors<kType>(FactorsAt(args, 1), c, left);
  const Eight fixed = LoadFactors<kType>(FactorsAt(args, 2), c, left);
#pragma unroll
  for (int k = 0; k < kGradientAhead; ++k) {
    if (row + k * kRows >= args.rows) break;
    Eight dx;
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      const float d = x[k].x[e] - mean.x[e];
      dx.x[e] = of_dy.x[e] * dy[k].x[e] + of_d.x[e] * d + fixed.x[e];
    }
    StoreChannels<kType>(args.dx, at[k], dx, left);
  }
}

__global__ void __launch_bounds__(kThreads) FoldKernel(FoldArgs args) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= args.count * args.each) return;
  const int64_t o = i / args.each;
  const double scale = static_cast<double>(Load(args.weight, o)) /
                       sqrt(static_cast<double>(Load(args.variance, o)) + args.eps);
  Store(args.out, i, static_cast<float>(static_cast<double>(Load(args.filters, i)) * scale));
  if (i % args.each != 0) return;
  const double before =
      args.filter_bias.data == nullptr ? 0 : static_cast<double>(Load(args.filter_bias, o));
  args.out_bias[o] = static_cast<float>(static_cast<double>(Load(args.bias, o)) +
                                        (before - static_cast<double>(Load(args.mean, o))) * scale);
}

}  // namespace

Code LaunchBatchNorm(const BatchNormArgs& args, Stream stream) {
  const int64_t columns = DivideUp(args.channels, kBlockColumns);
  const dim3 threads(kLanes, kRows);
  Code code = 0;
  if (args.running_mean.data == nullptr) {
    const View read[] = {args.x}, read_floats[] = {View{}};
    code = WithType(TypeOfAll(read, read_floats, args.channels), [&](auto type) {
      return Launch(MomentsKernel<type()>, Grid(PartsOf(args.rows), columns), threads, stream,
                    args);
    });
  }
  if (code == 0) {
    code = Launch(FactorsKernel, Grid(DivideUp(args.channels, kColumns)), dim3(kColumns, kAdders),
                  stream, args);
  }
  if (code != 0) return code;
  const View floats[] = {{args.factors, Type::kF32}};
  const View used[] = {args.x, args.residual, args.y};
  return WithType(TypeOfAll(used, floats, args.channels), [&](auto type) {
    return Launch(NormaliseKernel<type()>, Grid(DivideUp(args.rows, kRows * kAhead), columns),
                  threads, stream, args);
  });
}

Code LaunchBatchNormBackward(const BatchNormBackwardArgs& args, Stream stream) {
  const int64_t columns = DivideUp(args.channels, kBlockColumns);
  const dim3 threads(kLanes, kRows);
  const View floats[] = {{args.factors, Type::kF32}, args.mean};
  const View read[] = {args.x, args.dy, args.mask};
  Code code = WithType(TypeOfAll(read, floats, args.channels), [&](auto type) {
    return Launch(GradientSumsKernel<type()>, Grid(PartsOf(args.rows), columns), threads, stream,
                  args);
  });
  if (code == 0) {
    code = Launch(GradientFactorsKernel, Grid(DivideUp(args.channels, kColumns)),
                  dim3(kColumns, kAdders), stream, args);
  }
  if (code != 0) return code;
  const View used[] = {args.x, args.dy, args.mask, args.dx};
  return WithType(TypeOfAll(used, floats, args.channels), [&](auto type) {
    return Launch(GradientKernel<type()>,
                  Grid(DivideUp(args.rows, kRows * kGradientAhead), columns), threads, stream,
                  args);
  });
}

Code LaunchFold(const FoldArgs& args, Stream stream) {
  return Launch(FoldKernel, Grid(DivideUp(args.count * args.each, kThreads)), kThreads, stream,
                args);
}

}  // namespace lockstep::engine::cuda
