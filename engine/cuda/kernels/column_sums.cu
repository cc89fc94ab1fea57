// SPDX-License-Identifier: Apache-2.0
// Sums of columns: the gradients of biases, and of layer normalisation's parameters where rows do
// not fit into warps. Columns are summed in parts of rows, which are then added in order. A thread
// has one column or eight.
#include "engine/cuda/kernels/all.h"
#include "engine/cuda/kernels/device_code.h"

namespace lockstep::engine::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kRows = 8;  // threads that share columns
// Threads side by side, each with kWide columns.
template <int kWide>
constexpr int kAcross = kWide == 1 ? 32 : 16;

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

// kWide elements from `i` on: as they lie, and as numbers.
template <int kWide>
struct Columns {
  float x[kWide];
};
template <int kWide>
__device__ __forceinline__ auto LoadColumns(const View& view, int64_t i) {
  if constexpr (kWide == 1) {
    return Load(view, i);
  } else {
    return LoadRaw(view, i);
  }
}
// As above.
template <int kWide, typename Raw>
__device__ __forceinline__ Columns<kWide> Numbers(Type type, const Raw& raw) {
  if constexpr (kWide == 1) {
    return {{raw}};
  } else {
    const Eight eight = Widen(type, raw);
    Columns<kWide> columns;
#pragma unroll
    for (int e = 0; e < 8; ++e) columns.x[e] = eight.x[e];
    return columns;
  }
}

// Adds up the partial sums of the block's rows of threads into partial[0..kWide).
template <int kWide>
__device__ __forceinline__ void SumRows(const Columns<kWide>& own,
                                        float (&shared)[kRows][kAcross<kWide> * kWide], bool inside,
                                        float* partial) {
  __syncthreads();
#pragma unroll
  for (int e = 0; e < kWide; ++e) shared[threadIdx.y][e * kAcross<kWide> + threadIdx.x] = own.x[e];
  __syncthreads();
  if (threadIdx.y != 0 || !inside) return;
#pragma unroll
  for (int e = 0; e < kWide; ++e) {
    float sum = shared[0][e * kAcross<kWide> + threadIdx.x];
#pragma unroll
    for (int r = 1; r < kRows; ++r) sum += shared[r][e * kAcross<kWide> + threadIdx.x];
    partial[e] = sum;
  }
}

// `partial[part, columns]`.
template <int kWide>
__global__ void __launch_bounds__(kAcross<kWide>* kRows) ColumnPartsKernel(ColumnSumArgs args) {
  __shared__ float shared[kRows][kAcross<kWide> * kWide];
  const int64_t column = (int64_t{blockIdx.x} * kAcross<kWide> + threadIdx.x) * kWide;
  const Part part = PartOf(args.rows, blockIdx.y);
  const bool inside = column < args.columns;
  Columns<kWide> sums = {};
  if (inside) {
    constexpr int kAhead = 4;
    for (int64_t row = part.begin + threadIdx.y; row < part.end; row += kRows * kAhead) {
      decltype(LoadColumns<kWide>(args.x, 0)) raw[kAhead];
#pragma unroll
      for (int k = 0; k < kAhead; ++k) {  // a row is read again rather than left out
        const int64_t r = row + k * kRows < part.end ? row + k * kRows : row;
        raw[k] = LoadColumns<kWide>(args.x, r * args.columns + column);
      }
#pragma unroll
      for (int k = 0; k < kAhead; ++k) {
        if (row + k * kRows >= part.end) break;
        const Columns<kWide> x = Numbers<kWide>(args.x.type, raw[k]);
#pragma unroll
        for (int e = 0; e < kWide; ++e) sums.x[e] += x.x[e];
      }
    }
  }
  SumRows<kWide>(sums, shared, inside, args.partial + int64_t{blockIdx.y} * args.columns + column);
}

template <int kWide>
__global__ void __launch_bounds__(kAcross<kWide>* kRows)
    LayerNormPartsKernel(LayerNormBackwardWeightArgs args) {
  __shared__ float shared[kRows][kAcross<kWide> * kWide];
  const int64_t column = (int64_t{blockIdx.x} * kAcross<kWide> + threadIdx.x) * kWide;
  const Part part = PartOf(args.rows, blockIdx.y);
  const bool inside = column < args.columns;
  Columns<kWide> gamma = {}, beta = {};
  if (inside) {
#pragma unroll 2
    for (int64_t row = part.begin + threadIdx.y; row < part.end; row += kRows) {
      const auto raw_dy = LoadColumns<kWide>(args.dy, row * args.columns + column);
      const auto raw_x = LoadColumns<kWide>(args.x, row * args.columns + column);
      const float mean = Load(args.mean, row), rstd = Load(args.rstd, row);
      const Columns<kWide> dy = Numbers<kWide>(args.dy.type, raw_dy);
      const Columns<kWide> x = Numbers<kWide>(args.x.type, raw_x);
#pragma unroll
      for (int e = 0; e < kWide; ++e) {
        gamma.x[e] += dy.x[e] * ((x.x[e] - mean) * rstd);
        beta.x[e] += dy.x[e];
      }
    }
  }
  float* partial = args.partial + int64_t{blockIdx.y} * args.columns + column;
  SumRows<kWide>(gamma, shared, inside, partial);
  SumRows<kWide>(beta, shared, inside, partial + kColumnSumParts * args.columns);
}

// out[j] (+)= sum of the parts, in order.
__global__ void __launch_bounds__(kThreads)
    AddPartsKernel(const float* partial, float* out, int64_t columns, bool adds) {
  const int64_t column = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (column >= columns) return;
  float sum = 0;
#pragma unroll 16
  for (int64_t part = 0; part < kColumnSumParts; ++part) sum += partial[part * columns + column];
  out[column] = adds ? out[column] + sum : sum;
}

Code AddParts(const float* partial, float* out, int64_t columns, bool adds, Stream stream) {
  return Launch(AddPartsKernel, Grid(DivideUp(columns, kThreads)), kThreads, stream, partial, out,
                columns, adds);
}

// `kernel` with kWide columns for each thread.
template <int kWide, typename Args>
Code LaunchParts(void (*kernel)(Args), Stream stream, const Args& args) {
  return Launch(kernel, Grid(DivideUp(args.columns, kAcross<kWide> * kWide), kColumnSumParts),
                dim3(kAcross<kWide>, kRows), stream, args);
}

}  // namespace

Code LaunchLayerNormColumns(const LayerNormBackwardWeightArgs& args, Stream stream) {
  const bool wide = args.columns % 8 == 0 && AlignedEight(args.dy) && AlignedEight(args.x);
  Code code = wide ? LaunchParts<8>(LayerNormPartsKernel<8>, stream, args)
                   : LaunchParts<1>(LayerNormPartsKernel<1>, stream, args);
  if (code == 0) code = AddParts(args.partial, args.dgamma, args.columns, args.adds, stream);
  if (code != 0) return code;
  return AddParts(args.partial + kColumnSumParts * args.columns, args.dbeta, args.columns,
                  args.adds, stream);
}

Code LaunchColumnSum(const ColumnSumArgs& args, Stream stream) {
  const bool wide = args.columns % 8 == 0 && AlignedEight(args.x);
  const Code code = wide ? LaunchParts<8>(ColumnPartsKernel<8>, stream, args)
                         : LaunchParts<1>(ColumnPartsKernel<1>, stream, args);
  return code != 0 ? code : AddParts(args.partial, args.out, args.columns, args.adds, stream);
}

}  // namespace lockstep::engine::cuda
