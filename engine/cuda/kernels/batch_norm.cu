// SPDX-License-Identifier: Apache-2.0
// Batch normalisation. Sums over rows are fp64, in parts of rows that are added in order.
#include "engine/cuda/kernels/all.h"
#include "engine/cuda/kernels/device_code.h"

namespace lockstep::engine::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kColumns = 32;
constexpr int kRows = 8;

struct Part {
  int64_t begin;
  int64_t end;
};
__device__ __forceinline__ Part PartOf(int64_t rows, int64_t part) {
  const int64_t each = (rows + kNormParts - 1) / kNormParts;
  const int64_t begin = part * each, end = begin + each;
  return {begin < rows ? begin : rows, end < rows ? end : rows};
}

// Adds the two sums of the block's rows of threads and puts them to `partial`.
__device__ __forceinline__ void PutPart(double a, double b, int64_t channel, int64_t channels,
                                        double* partial) {
  __shared__ double shared[2][kRows][kColumns];
  shared[0][threadIdx.y][threadIdx.x] = a;
  shared[1][threadIdx.y][threadIdx.x] = b;
  __syncthreads();
  if (threadIdx.y >= 2 || channel >= channels) return;
  double sum = 0;
  for (int r = 0; r < kRows; ++r) sum += shared[threadIdx.y][r][threadIdx.x];
  partial[(threadIdx.y * kNormParts + blockIdx.y) * channels + channel] = sum;
}

// The sum of part sums `which` of a channel.
__device__ __forceinline__ double SumParts(const double* partial, int which, int64_t channel,
                                           int64_t channels) {
  double sum = 0;
  for (int64_t part = 0; part < kNormParts; ++part) {
    sum += partial[(which * kNormParts + part) * channels + channel];
  }
  return sum;
}

// Around the first row: the square of a large mean would swallow the variance.
__global__ void __launch_bounds__(kColumns* kRows) MomentsKernel(BatchNormArgs args) {
  const int64_t channel = int64_t{blockIdx.x} * kColumns + threadIdx.x;
  const Part part = PartOf(args.rows, blockIdx.y);
  double sum = 0, square = 0;
  if (channel < args.channels) {
    const float first = Load(args.x, channel);
    for (int64_t row = part.begin + threadIdx.y; row < part.end; row += kRows) {
      const double d = static_cast<double>(Load(args.x, row * args.channels + channel) - first);
      sum += d;
      square += d * d;
    }
  }
  PutPart(sum, square, channel, args.channels, args.partial);
}

__global__ void __launch_bounds__(kThreads) FactorsKernel(BatchNormArgs args) {
  const int64_t c = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (c >= args.channels) return;
  double mean, variance;
  if (args.running_mean.data != nullptr) {
    mean = static_cast<double>(Load(args.running_mean, c));
    variance = static_cast<double>(Load(args.running_variance, c));
  } else {
    const double n = static_cast<double>(args.rows);
    const double offset = SumParts(args.partial, 0, c, args.channels) / n;
    mean = static_cast<double>(Load(args.x, c)) + offset;
    variance = SumParts(args.partial, 1, c, args.channels) / n - offset * offset;
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

__global__ void __launch_bounds__(kThreads) NormaliseKernel(BatchNormArgs args) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= args.rows * args.channels) return;
  const int64_t c = i % args.channels;
  float y = Load(args.x, i) * args.factors[c] + args.factors[args.channels + c];
  if (args.residual.data != nullptr) y += Load(args.residual, i);
  if (args.relu && !(y > 0)) y = 0;
  Store(args.y, i, y);
}

__device__ __forceinline__ float GradientAt(const BatchNormBackwardArgs& args, int64_t i) {
  if (args.mask.data != nullptr && !(Load(args.mask, i) > 0)) return 0;
  return Load(args.dy, i);
}

__global__ void __launch_bounds__(kColumns* kRows) GradientSumsKernel(BatchNormBackwardArgs args) {
  const int64_t channel = int64_t{blockIdx.x} * kColumns + threadIdx.x;
  const Part part = PartOf(args.rows, blockIdx.y);
  double sum = 0, product = 0;
  if (channel < args.channels) {
    const float mean = Load(args.mean, channel);
    for (int64_t row = part.begin + threadIdx.y; row < part.end; row += kRows) {
      const int64_t i = row * args.channels + channel;
      const float g = GradientAt(args, i);
      sum += static_cast<double>(g);
      product += static_cast<double>(g) * static_cast<double>(Load(args.x, i) - mean);
    }
  }
  PutPart(sum, product, channel, args.channels, args.partial);
}

// With d = x - mean, r = 1 / deviation and sums over the n rows:
//   dweight = r sum(dy d), dbias = sum(dy),
//   dx = w r (dy - sum(dy) / n - d r^2 sum(dy d) / n) = a dy + b d + c.
__global__ void __launch_bounds__(kThreads) GradientFactorsKernel(BatchNormBackwardArgs args) {
  const int64_t c = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (c >= args.channels) return;
  const double n = static_cast<double>(args.rows);
  const double sum = SumParts(args.partial, 0, c, args.channels);
  const double product = SumParts(args.partial, 1, c, args.channels);
  const double r = static_cast<double>(Load(args.inverse, c));
  const double w = static_cast<double>(Load(args.weight, c)) * r;
  const float dweight = static_cast<float>(r * product), dbias = static_cast<float>(sum);
  args.dweight[c] = args.adds_weight ? args.dweight[c] + dweight : dweight;
  args.dbias[c] = args.adds_bias ? args.dbias[c] + dbias : dbias;
  args.factors[c] = static_cast<float>(w);
  args.factors[args.channels + c] = static_cast<float>(-w * r * r * product / n);
  args.factors[2 * args.channels + c] = static_cast<float>(-w * sum / n);
}

__global__ void __launch_bounds__(kThreads) GradientKernel(BatchNormBackwardArgs args) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= args.rows * args.channels) return;
  const int64_t c = i % args.channels;
  const float d = Load(args.x, i) - Load(args.mean, c);
  Store(args.dx, i,
        args.factors[c] * GradientAt(args, i) + args.factors[args.channels + c] * d +
            args.factors[2 * args.channels + c]);
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
  Code code = 0;
  if (args.running_mean.data == nullptr) {
    code = Launch(MomentsKernel, Grid(DivideUp(args.channels, kColumns), kNormParts),
                  dim3(kColumns, kRows), stream, args);
  }
  if (code == 0) {
    code = Launch(FactorsKernel, Grid(DivideUp(args.channels, kThreads)), kThreads, stream, args);
  }
  if (code != 0) return code;
  return Launch(NormaliseKernel, Grid(DivideUp(args.rows * args.channels, kThreads)), kThreads,
                stream, args);
}

Code LaunchBatchNormBackward(const BatchNormBackwardArgs& args, Stream stream) {
  Code code = Launch(GradientSumsKernel, Grid(DivideUp(args.channels, kColumns), kNormParts),
                     dim3(kColumns, kRows), stream, args);
  if (code == 0) {
    code = Launch(GradientFactorsKernel, Grid(DivideUp(args.channels, kThreads)), kThreads, stream,
                  args);
  }
  if (code != 0) return code;
  return Launch(GradientKernel, Grid(DivideUp(args.rows * args.channels, kThreads)), kThreads,
                stream, args);
}

Code LaunchFold(const FoldArgs& args, Stream stream) {
  return Launch(FoldKernel, Grid(DivideUp(args.count * args.each, kThreads)), kThreads, stream,
                args);
}

}  // namespace lockstep::engine::cuda
