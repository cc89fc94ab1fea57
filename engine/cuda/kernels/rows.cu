// SPDX-License-Identifier: Apache-2.0
// Kernels on rows: layer normalisation, softmax, sums of columns. A row belongs to one block;
// columns are summed in parts of rows, which are then added in order.
#include "engine/cuda/kernels/all.h"
#include "engine/cuda/kernels/device_code.h"

namespace lockstep::engine::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarp;

__global__ void __launch_bounds__(kThreads) LayerNormKernel(LayerNormArgs args) {
  __shared__ float shared[kWarps];
  const int64_t base = int64_t{blockIdx.x} * args.columns;
  const float n = static_cast<float>(args.columns);
  float sum = 0;
  for (int64_t j = threadIdx.x; j < args.columns; j += kThreads) sum += Load(args.x, base + j);
  const float mean = BlockSum<kThreads>(sum, shared) / n;
  float squares = 0;
  for (int64_t j = threadIdx.x; j < args.columns; j += kThreads) {
    const float d = Load(args.x, base + j) - mean;
    squares += d * d;
  }
  const float rstd = 1.0f / sqrtf(BlockSum<kThreads>(squares, shared) / n + args.eps);
  for (int64_t j = threadIdx.x; j < args.columns; j += kThreads) {
    const float h = (Load(args.x, base + j) - mean) * rstd;
    Store(args.y, base + j, h * Load(args.gamma, j) + Load(args.beta, j));
  }
  if (threadIdx.x == 0) {
    args.mean[blockIdx.x] = mean;
    args.rstd[blockIdx.x] = rstd;
  }
}

// With g = dy gamma and h = (x - mean) rstd: dx = rstd (g - mean(g) - h mean(g h)).
__global__ void __launch_bounds__(kThreads)
    LayerNormBackwardInputKernel(LayerNormBackwardInputArgs args) {
  __shared__ float shared[kWarps];
  const int64_t base = int64_t{blockIdx.x} * args.columns;
  const float n = static_cast<float>(args.columns);
  const float mean = Load(args.mean, blockIdx.x), rstd = Load(args.rstd, blockIdx.x);
  float sum = 0, product = 0;
  for (int64_t j = threadIdx.x; j < args.columns; j += kThreads) {
    const float g = Load(args.dy, base + j) * Load(args.gamma, j);
    sum += g;
    product += g * ((Load(args.x, base + j) - mean) * rstd);
  }
  const float a = BlockSum<kThreads>(sum, shared) / n;
  const float b = BlockSum<kThreads>(product, shared) / n;
  for (int64_t j = threadIdx.x; j < args.columns; j += kThreads) {
    const float g = Load(args.dy, base + j) * Load(args.gamma, j);
    const float h = (Load(args.x, base + j) - mean) * rstd;
    float out = rstd * (g - a - h * b);
    if (args.residual.data != nullptr) out += Load(args.residual, base + j);
    Store(args.dx, base + j, out);
  }
}

// ---- sums of columns ----

constexpr int kColumns = 32;
constexpr int kRows = 8;

// Rows [begin, end) of part `part`.
struct Part {
  int64_t begin;
  int64_t end;
};
__device__ __forceinline__ Part PartOf(int64_t rows, int64_t part) {
  const int64_t each = (rows + kColumnSumParts - 1) / kColumnSumParts;
  const int64_t begin = part * each, end = begin + each;
  return {begin < rows ? begin : rows, end < rows ? end : rows};
}

// Adds up the partial sums of the block's rows of threads; row 0 gets the sum.
__device__ __forceinline__ float SumRows(float x, float (&shared)[kRows][kColumns]) {
  __syncthreads();
  shared[threadIdx.y][threadIdx.x] = x;
  __syncthreads();
  float sum = shared[0][threadIdx.x];
#pragma unroll
  for (int r = 1; r < kRows; ++r) sum += shared[r][threadIdx.x];
  return sum;
}

// `partial[part, columns]`.
__global__ void __launch_bounds__(kColumns* kRows) ColumnPartsKernel(ColumnSumArgs args) {
  __shared__ float shared[kRows][kColumns];
  const int64_t column = int64_t{blockIdx.x} * kColumns + threadIdx.x;
  const Part part = PartOf(args.rows, blockIdx.y);
  float sum = 0;
  if (column < args.columns) {
    for (int64_t row = part.begin + threadIdx.y; row < part.end; row += kRows) {
      sum += Load(args.x, row * args.columns + column);
    }
  }
  sum = SumRows(sum, shared);
  if (threadIdx.y == 0 && column < args.columns) {
    args.partial[int64_t{blockIdx.y} * args.columns + column] = sum;
  }
}

__global__ void __launch_bounds__(kColumns* kRows)
    LayerNormPartsKernel(LayerNormBackwardWeightArgs args) {
  __shared__ float shared[kRows][kColumns];
  const int64_t column = int64_t{blockIdx.x} * kColumns + threadIdx.x;
  const Part part = PartOf(args.rows, blockIdx.y);
  float gamma = 0, beta = 0;
  if (column < args.columns) {
    for (int64_t row = part.begin + threadIdx.y; row < part.end; row += kRows) {
      const float d = Load(args.dy, row * args.columns + column);
      const float h =
          (Load(args.x, row * args.columns + column) - Load(args.mean, row)) * Load(args.rstd, row);
      gamma += d * h;
      beta += d;
    }
  }
  gamma = SumRows(gamma, shared);
  beta = SumRows(beta, shared);
  if (threadIdx.y == 0 && column < args.columns) {
    float* partial = args.partial + int64_t{blockIdx.y} * args.columns + column;
    partial[0] = gamma;
    partial[kColumnSumParts * args.columns] = beta;
  }
}

// out[j] (+)= sum of the parts, in order.
__global__ void __launch_bounds__(kThreads)
    AddPartsKernel(const float* partial, float* out, int64_t columns, bool adds) {
  const int64_t column = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (column >= columns) return;
  float sum = 0;
  for (int64_t part = 0; part < kColumnSumParts; ++part) sum += partial[part * columns + column];
  out[column] = adds ? out[column] + sum : sum;
}

Code AddParts(const float* partial, float* out, int64_t columns, bool adds, Stream stream) {
  return Launch(AddPartsKernel, Grid(DivideUp(columns, kThreads)), kThreads, stream, partial, out,
                columns, adds);
}

// ---- softmax ----

__global__ void __launch_bounds__(kThreads) SoftmaxKernel(SoftmaxArgs args) {
  __shared__ float shared[kWarps];
  const int64_t base = int64_t{blockIdx.x} * args.columns;
  float most = -INFINITY;
  for (int64_t j = threadIdx.x; j < args.columns; j += kThreads) {
    most = fmaxf(most, Load(args.x, base + j));
  }
  most = BlockMax<kThreads>(most, shared);
  float sum = 0;
  for (int64_t j = threadIdx.x; j < args.columns; j += kThreads) {
    sum += expf(Load(args.x, base + j) - most);
  }
  const float factor = 1.0f / BlockSum<kThreads>(sum, shared);
  for (int64_t j = threadIdx.x; j < args.columns; j += kThreads) {
    Store(args.y, base + j, expf(Load(args.x, base + j) - most) * factor);
  }
}

__global__ void __launch_bounds__(kThreads) SoftmaxBackwardKernel(SoftmaxArgs args) {
  __shared__ float shared[kWarps];
  const int64_t base = int64_t{blockIdx.x} * args.columns;
  float sum = 0;
  for (int64_t j = threadIdx.x; j < args.columns; j += kThreads) {
    sum += Load(args.dy, base + j) * Load(args.x, base + j);
  }
  sum = BlockSum<kThreads>(sum, shared);
  for (int64_t j = threadIdx.x; j < args.columns; j += kThreads) {
    Store(args.y, base + j, Load(args.x, base + j) * (Load(args.dy, base + j) - sum));
  }
}

}  // namespace

Code LaunchLayerNorm(const LayerNormArgs& args, Stream stream) {
  return Launch(LayerNormKernel, Grid(args.rows), kThreads, stream, args);
}

Code LaunchLayerNormBackwardInput(const LayerNormBackwardInputArgs& args, Stream stream) {
  return Launch(LayerNormBackwardInputKernel, Grid(args.rows), kThreads, stream, args);
}

Code LaunchLayerNormBackwardWeight(const LayerNormBackwardWeightArgs& args, Stream stream) {
  const dim3 grid = Grid(DivideUp(args.columns, kColumns), kColumnSumParts);
  Code code = Launch(LayerNormPartsKernel, grid, dim3(kColumns, kRows), stream, args);
  if (code == 0) code = AddParts(args.partial, args.dgamma, args.columns, args.adds, stream);
  if (code != 0) return code;
  return AddParts(args.partial + kColumnSumParts * args.columns, args.dbeta, args.columns,
                  args.adds, stream);
}

Code LaunchColumnSum(const ColumnSumArgs& args, Stream stream) {
  const dim3 grid = Grid(DivideUp(args.columns, kColumns), kColumnSumParts);
  const Code code = Launch(ColumnPartsKernel, grid, dim3(kColumns, kRows), stream, args);
  return code != 0 ? code : AddParts(args.partial, args.out, args.columns, args.adds, stream);
}

Code LaunchSoftmax(const SoftmaxArgs& args, Stream stream) {
  if (args.dy.data != nullptr) {
    return Launch(SoftmaxBackwardKernel, Grid(args.rows), kThreads, stream, args);
  }
  return Launch(SoftmaxKernel, Grid(args.rows), kThreads, stream, args);
}

}  // namespace lockstep::engine::cuda
