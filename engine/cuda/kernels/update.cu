// SPDX-License-Identifier: Apache-2.0
// The update: optimizers over all parameters in one launch, norms, moving averages, running
// statistics. Formulas are those of optim/; elementwise steps do not depend on how they are cut,
// and norms are fp64 sums over fixed blocks in a fixed order.
#include "engine/cuda/kernels/all.h"
#include "engine/cuda/kernels/device_code.h"

namespace lockstep::engine::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
// Blocks of threads for each UpdateBlock where nothing is summed.
constexpr int kPieces = 16;

// ---- weights in 16 bits (exec/weight_storage.h) ----

// Adding a random number below a step and cutting off picks one of the neighbours.
__device__ __forceinline__ uint32_t CutStochastically(uint32_t magnitude, int bits, uint32_t word) {
  return (magnitude + (word & ((1u << bits) - 1))) >> bits;
}
__device__ __forceinline__ uint32_t StochasticBF16(float x, uint32_t word) {
  const uint32_t bits = __float_as_uint(x);
  if ((bits & 0x7fffffff) >= 0x7f7f0000) return NarrowBF16(x);
  return CutStochastically(bits, 16, word) & 0xffff;
}
__device__ __forceinline__ uint32_t StochasticF16(float x, uint32_t word) {
  const uint32_t bits = __float_as_uint(x);
  const uint32_t sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
  if (magnitude >= 0x477fe000) return NarrowF16(x);
  if (magnitude >= 0x38800000) return sign | CutStochastically(magnitude - 0x38000000, 13, word);
  const int shift = 126 - static_cast<int>(magnitude >> 23);
  if (shift > 31) return sign;
  const uint64_t significand = (magnitude & 0x7fffff) | 0x800000;
  const uint64_t mask = (uint64_t{1} << shift) - 1;
  return (sign | static_cast<uint32_t>((significand + (word & mask)) >> shift)) & 0xffff;
}

// Writes a weight after update number `index`, and its average.
__device__ __forceinline__ void PutWeight(const UpdateTensor& tensor, int64_t i, float w,
                                          int64_t index, float ema_rate) {
  if (tensor.weights.type == Type::kF32) {
    static_cast<float*>(tensor.weights.data)[i] = w;
  } else {
    const uint32_t word =
        RandomWord(tensor.rounding_key, static_cast<uint32_t>(index),
                   static_cast<uint32_t>(index >> 32), static_cast<uint64_t>(tensor.first + i));
    static_cast<uint16_t*>(tensor.weights.data)[i] = static_cast<uint16_t>(
        tensor.weights.type == Type::kBF16 ? StochasticBF16(w, word) : StochasticF16(w, word));
  }
  if (tensor.average == nullptr) return;
  // The first update starts the average.
  float* average = tensor.average + i;
  *average = index == 0 ? w : *average + (w - *average) * ema_rate;
}

// ---- rules ----

// What holds for a whole tensor in one update.
struct Step {
  float scale;
  float lr;
  float decay;
  float keep;  // decoupled decay
};
__device__ __forceinline__ Step StepOf(const UpdateArgs& args, const UpdateTensor& tensor) {
  const double lr = tensor.learning_rate * args.now->schedule;
  return {static_cast<float>(args.now->scale), static_cast<float>(lr),
          static_cast<float>(tensor.weight_decay),
          args.decoupled ? static_cast<float>(1 - lr * tensor.weight_decay) : 1.0f};
}

__device__ __forceinline__ float SgdStep(const UpdateArgs& args, const UpdateTensor& tensor,
                                         const Step& step, int64_t i, float g, float w) {
  float d = g * step.scale + w * step.decay;
  if (tensor.moments[0] != nullptr) {
    float* velocity = tensor.moments[0] + i;
    const float v = args.now->index == 0 ? d : *velocity * args.momentum + d * args.keep;
    *velocity = v;
    d = args.nesterov ? d + v * args.momentum : v;
  }
  return w - d * step.lr;
}

__device__ __forceinline__ void NextMoments(const UpdateArgs& args, const UpdateTensor& tensor,
                                            int64_t i, float g, float* m, float* v) {
  const float first = tensor.moments[0][i], second = tensor.moments[1][i];
  *m = first + (g - first) * args.rate1;
  *v = second * args.beta2 + g * g * args.rate2;
  tensor.moments[0][i] = *m;
  tensor.moments[1][i] = *v;
}
// The bias-corrected m / (sqrt(v) + eps).
__device__ __forceinline__ float Direction(const UpdateArgs& args, float m, float v) {
  return m * args.now->correction1 / (sqrtf(v) * args.now->correction2 + args.eps);
}

__device__ __forceinline__ float AdamStep(const UpdateArgs& args, const UpdateTensor& tensor,
                                          const Step& step, int64_t i, float g, float w) {
  const float l2 = args.decoupled ? 0 : step.decay;
  float m, v;
  NextMoments(args, tensor, i, g * step.scale + w * l2, &m, &v);
  return w * step.keep - Direction(args, m, v) * step.lr;
}

__global__ void __launch_bounds__(kThreads) StepKernel(UpdateArgs args) {
  const UpdateBlock block = args.blocks[blockIdx.x];
  if (block.tensor < 0 || args.now->skips != 0) return;
  const UpdateTensor& tensor = args.tensors[block.tensor];
  const Step step = StepOf(args, tensor);
  const float* gradient = args.gradients + tensor.gradient;
  for (int64_t i = block.begin + blockIdx.y * kThreads + threadIdx.x; i < block.end;
       i += kPieces * kThreads) {
    const float g = gradient[i];
    if (args.rule == Rule::kTake) {
      PutWeight(tensor, i, g, args.now->index, static_cast<float>(args.ema_rate));
      continue;
    }
    if (args.rule == Rule::kMuonDirection) {
      const float scaled = g * step.scale;
      float* buffer = tensor.moments[0] + i;
      const float b = *buffer + (scaled - *buffer) * args.rate1;
      *buffer = b;
      tensor.direction[i] = args.nesterov ? b + (scaled - b) * args.rate1 : b;
      continue;
    }
    const float w = Load(tensor.weights, i);
    const float next = args.rule == Rule::kSgd ? SgdStep(args, tensor, step, i, g, w)
                                               : AdamStep(args, tensor, step, i, g, w);
    if (args.beside != nullptr) {
      args.beside[tensor.gradient + i] = next;
    } else {
      PutWeight(tensor, i, next, args.now->index, static_cast<float>(args.ema_rate));
    }
  }
}

// LAMB's moments, and the squares of w and of its direction for each block.
__global__ void __launch_bounds__(kThreads) LambMeasureKernel(UpdateArgs args) {
  __shared__ double shared[kWarps];
  if (args.now->skips != 0) return;
  const UpdateBlock block = args.blocks[blockIdx.x];
  const UpdateTensor& tensor = args.tensors[block.tensor];
  const Step step = StepOf(args, tensor);
  double parameter = 0, direction = 0;
  for (int64_t i = block.begin + threadIdx.x; i < block.end; i += kThreads) {
    float m, v;
    NextMoments(args, tensor, i, args.gradients[tensor.gradient + i] * step.scale, &m, &v);
    const float w = Load(tensor.weights, i);
    const float d = Direction(args, m, v) + w * step.decay;
    parameter += static_cast<double>(w) * static_cast<double>(w);
    direction += static_cast<double>(d) * static_cast<double>(d);
  }
  parameter = BlockSum<kThreads>(parameter, shared);
  direction = BlockSum<kThreads>(direction, shared);
  if (threadIdx.x != 0) return;
  args.parameter_sums[args.first_block + blockIdx.x] = parameter;
  args.direction_sums[args.first_block + blockIdx.x] = direction;
}

__global__ void __launch_bounds__(kThreads) LambMoveKernel(UpdateArgs args) {
  if (args.now->skips != 0) return;
  const UpdateBlock block = args.blocks[blockIdx.x];
  const UpdateTensor& tensor = args.tensors[block.tensor];
  const Step step = StepOf(args, tensor);
  double parameter = 0, direction = 0;
  for (int64_t b = tensor.first_block; b < tensor.first_block + tensor.blocks; ++b) {
    parameter += args.parameter_sums[b];
    direction += args.direction_sums[b];
  }
  parameter = sqrt(parameter);
  direction = sqrt(direction);
  const double ratio = parameter > 0 && direction > 0 ? parameter / direction : 1;
  const float move = static_cast<float>(tensor.learning_rate * args.now->schedule * ratio);
  for (int64_t i = block.begin + blockIdx.y * kThreads + threadIdx.x; i < block.end;
       i += kPieces * kThreads) {
    const float w = Load(tensor.weights, i);
    const float d = Direction(args, tensor.moments[0][i], tensor.moments[1][i]) + w * step.decay;
    PutWeight(tensor, i, w - d * move, args.now->index, static_cast<float>(args.ema_rate));
  }
}

__global__ void __launch_bounds__(kThreads) SquaresKernel(SquaresArgs args) {
  __shared__ double shared[kWarps];
  const UpdateBlock block = args.blocks[blockIdx.x];
  const float* values = args.gradients;
  if (block.tensor >= 0) values += args.tensors[block.tensor].gradient;
  double sum = 0;
  for (int64_t i = block.begin + threadIdx.x; i < block.end; i += kThreads) {
    const double x = static_cast<double>(values[i]);
    sum += x * x;
  }
  sum = BlockSum<kThreads>(sum, shared);
  if (threadIdx.x == 0) args.sums[blockIdx.x] = sum;
}

__device__ __forceinline__ bool Finite(double x) { return x - x == 0; }

// One block: all read, its first thread adds in the order of the blocks.
__global__ void __launch_bounds__(kThreads) DecideKernel(DecideArgs args) {
  __shared__ double sums[kThreads];
  double squares = 0;
  bool finite = true;
  for (int64_t begin = 0; begin < args.block_count; begin += kThreads) {
    const int64_t mine = begin + threadIdx.x;
    if (mine < args.block_count) sums[threadIdx.x] = args.sums[mine];
    __syncthreads();
    if (threadIdx.x == 0) {
      const int64_t count = args.block_count - begin;
      for (int64_t i = 0; i < kThreads && i < count; ++i) {
        finite = finite && Finite(sums[i]);
        if (begin + i < args.parameter_blocks) squares += sums[i];
      }
    }
    __syncthreads();
  }
  if (threadIdx.x != 0) return;
  const float high = args.targets[0], low = args.targets[1];
  finite = finite && Finite(squares) && Finite(*args.loss) && Finite(high) && Finite(low);
  const int64_t targets =
      finite ? static_cast<int64_t>(high) * args.radix + static_cast<int64_t>(low) : 0;
  args.now->skips = targets == 0 ? 1 : 0;
  if (targets == 0) return;
  const double counted = static_cast<double>(targets) * args.now->loss_scale;
  double scale = args.nominal_targets / counted;
  // As torch.nn.utils.clip_grad_norm_.
  if (args.clip_norm > 0) {
    const double norm = sqrt(squares) * args.nominal_targets / counted;
    const double factor = args.clip_norm / (norm + 1e-6);
    if (factor < 1) scale *= factor;
  }
  args.now->scale = scale;
}

__global__ void __launch_bounds__(kThreads) NormaliseKernel(NormaliseArgs args) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= args.count) return;
  double sum = 0;
  for (int64_t b = 0; b < args.sum_count; ++b) sum += args.sums[b];
  const double norm = sqrt(sum);
  args.x[i] *= static_cast<float>(1 / (norm > args.eps ? norm : args.eps));
}

__global__ void __launch_bounds__(kThreads) MoveKernel(MoveArgs args) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= args.tensor.count || args.now->skips != 0) return;
  const double lr = args.tensor.learning_rate * args.now->schedule;
  const float keep = static_cast<float>(1 - lr * args.tensor.weight_decay);
  const float step = static_cast<float>(lr * args.factor);
  const float w = Load(args.tensor.weights, i) * keep - args.x[i] * step;
  PutWeight(args.tensor, i, w, args.now->index, static_cast<float>(args.ema_rate));
}

__global__ void __launch_bounds__(kThreads) StatisticKernel(StatisticArgs args) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= args.count || args.now->skips != 0) return;
  const double mean = static_cast<double>(args.sums[i]) / args.batches;
  args.running[i] = static_cast<float>((1 - args.momentum) * static_cast<double>(args.running[i]) +
                                       args.momentum * mean);
}

}  // namespace

Code LaunchUpdate(const UpdateArgs& args, Stream stream) {
  const dim3 pieces = Grid(args.block_count, kPieces);
  if (args.rule == Rule::kLambMeasure) {
    return Launch(LambMeasureKernel, Grid(args.block_count), kThreads, stream, args);
  }
  if (args.rule == Rule::kLambMove) return Launch(LambMoveKernel, pieces, kThreads, stream, args);
  return Launch(StepKernel, pieces, kThreads, stream, args);
}

Code LaunchSquares(const SquaresArgs& args, Stream stream) {
  return Launch(SquaresKernel, Grid(args.block_count), kThreads, stream, args);
}

Code LaunchDecide(const DecideArgs& args, Stream stream) {
  return Launch(DecideKernel, Grid(1), kThreads, stream, args);
}

Code LaunchNormalise(const NormaliseArgs& args, Stream stream) {
  return Launch(NormaliseKernel, Grid(DivideUp(args.count, kThreads)), kThreads, stream, args);
}

Code LaunchMove(const MoveArgs& args, Stream stream) {
  return Launch(MoveKernel, Grid(DivideUp(args.tensor.count, kThreads)), kThreads, stream, args);
}

Code LaunchStatistic(const StatisticArgs& args, Stream stream) {
  return Launch(StatisticKernel, Grid(DivideUp(args.count, kThreads)), kThreads, stream, args);
}

}  // namespace lockstep::engine::cuda
