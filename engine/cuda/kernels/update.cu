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
  if (shift > 54) return sign;
  const int bits_used = shift < 31 ? shift : 31;
  const uint64_t significand = ((magnitude & 0x7fffff) | 0x800000) >> (shift - bits_used);
  const uint64_t mask = (uint64_t{1} << bits_used) - 1;
  return (sign | static_cast<uint32_t>((significand + (word & mask)) >> bits_used)) & 0xffff;
}

// The weight in 16 bits after update number `index`.
__device__ __forceinline__ uint32_t Stochastic(const UpdateTensor& tensor, Type type, int64_t i,
                                               float w, int64_t index) {
  const uint32_t word =
      RandomWord(tensor.rounding_key, static_cast<uint32_t>(index),
                 static_cast<uint32_t>(index >> 32), static_cast<uint64_t>(tensor.first + i));
  return type == Type::kBF16 ? StochasticBF16(w, word) : StochasticF16(w, word);
}

// Writes a weight after update number `index`, its copy and its average.
__device__ __forceinline__ void PutWeight(const UpdateTensor& tensor, int64_t i, float w,
                                          int64_t index, float ema_rate) {
  const Type type = tensor.weights.type;
  if (type == Type::kF32) {
    static_cast<float*>(tensor.weights.data)[i] = w;
    if (tensor.copy.data != nullptr) Store(tensor.copy, i, w);
  } else {
    static_cast<uint16_t*>(tensor.weights.data)[i] =
        static_cast<uint16_t>(Stochastic(tensor, type, i, w, index));
  }
  if (tensor.average == nullptr) return;
  // The first update starts the average.
  float* average = tensor.average + i;
  *average = index == 0 ? w : *average + (w - *average) * ema_rate;
}

// ---- four elements at once ----

// Elements i to i + 3 of each array, of which the first `count` are there: in one access each where
// `whole` says that there are four and that all arrays are aligned. What is computed of them is the
// same code in both cases, so that bits do not depend on where arrays begin and end.
struct Span {
  int64_t i;
  int count;
  bool whole;
};
__device__ __forceinline__ View Floats(const float* data) {
  return {const_cast<float*>(data), Type::kF32};
}
__device__ __forceinline__ Four LoadSome(const View& view, const Span& span) {
  Four four = {};
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    if (e < span.count) four.x[e] = Load(view, span.i + e);
  }
  return four;
}
__device__ __forceinline__ void Put(const View& to, const Span& span, const Four& four) {
  if (span.whole) {
    StoreFour(to, span.i, four);
    return;
  }
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    if (e < span.count) Store(to, span.i + e, four.x[e]);
  }
}
__device__ __forceinline__ void Put(float* to, const Span& span, const Four& four) {
  Put(Floats(to), span, four);
}

// What an update reads of four elements. Where there is no such array, numbers of no meaning.
struct Elements {
  Four g, w, m, v, average;
};
// Where these lie. An array that there is not is that of the gradients: what is read of it comes
// from the cache, and no condition stands between the loads.
struct Sources {
  View g, w, m, v, average;
};
__device__ __forceinline__ Elements Take(const Sources& from, const Span& span) {
  Elements four;
  if (span.whole) {
    four.g = LoadFour(from.g, span.i);
    four.w = LoadFour(from.w, span.i);
    four.m = LoadFour(from.m, span.i);
    four.v = LoadFour(from.v, span.i);
    four.average = LoadFour(from.average, span.i);
  } else {
    four.g = LoadSome(from.g, span);
    four.w = LoadSome(from.w, span);
    four.m = LoadSome(from.m, span);
    four.v = LoadSome(from.v, span);
    four.average = LoadSome(from.average, span);
  }
  return four;
}

// As PutWeight, on weights whose type is known.
template <Type kType>
__device__ __forceinline__ void PutWeights(const UpdateTensor& tensor, const Span& span,
                                           const Four& w, Four average, int64_t index,
                                           float ema_rate) {
  if (kType == Type::kF32) {
    Put(static_cast<float*>(tensor.weights.data), span, w);
    if (tensor.copy.data != nullptr) Put(tensor.copy, span, w);
  } else {
    auto* const to = static_cast<uint16_t*>(tensor.weights.data) + span.i;
    uint32_t bits[4] = {};
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      if (e < span.count) bits[e] = Stochastic(tensor, kType, span.i + e, w.x[e], index);
    }
    if (span.whole) {
      StoreTwoWords(to, bits[0] | bits[1] << 16, bits[2] | bits[3] << 16);
    } else {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if (e < span.count) to[e] = static_cast<uint16_t>(bits[e]);
      }
    }
  }
  if (tensor.average == nullptr) return;
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    const float before = average.x[e];
    average.x[e] = index == 0 ? w.x[e] : before + (w.x[e] - before) * ema_rate;
  }
  Put(tensor.average, span, average);
}

// ---- rules ----

// What holds for a whole tensor in one update.
struct Step {
  float scale;
  float lr;
  float decay;
  float keep;  // decoupled decay
  float correction1;
  float correction2;
};
__device__ __forceinline__ Step StepOf(const UpdateArgs& args, const UpdateTensor& tensor) {
  const double lr = tensor.learning_rate * args.now->schedule;
  return {static_cast<float>(args.now->scale),
          static_cast<float>(lr),
          static_cast<float>(tensor.weight_decay),
          args.decoupled ? static_cast<float>(1 - lr * tensor.weight_decay) : 1.0f,
          args.now->correction1,
          args.now->correction2};
}

__device__ __forceinline__ float SgdStep(const UpdateArgs& args, const Step& step, bool moves,
                                         bool first, float g, float w, float* velocity) {
  float d = g * step.scale + w * step.decay;
  if (moves) {
    const float v = first ? d : *velocity * args.momentum + d * args.keep;
    *velocity = v;
    d = args.nesterov ? d + v * args.momentum : v;
  }
  return w - d * step.lr;
}

__device__ __forceinline__ void NextMoments(const UpdateArgs& args, float g, float* m, float* v) {
  *m = *m + (g - *m) * args.rate1;
  *v = *v * args.beta2 + g * g * args.rate2;
}
// The bias-corrected m / (sqrt(v) + eps).
__device__ __forceinline__ float Direction(const UpdateArgs& args, const Step& step, float m,
                                           float v) {
  return m * step.correction1 / (sqrtf(v) * step.correction2 + args.eps);
}

__device__ __forceinline__ float AdamStep(const UpdateArgs& args, const Step& step, float g,
                                          float w, float* m, float* v) {
  const float l2 = args.decoupled ? 0 : step.decay;
  NextMoments(args, g * step.scale + w * l2, m, v);
  return w * step.keep - Direction(args, step, *m, *v) * step.lr;
}

// The direction of Muon, in place of the gradient; *m is the momentum.
__device__ __forceinline__ float MuonStep(const UpdateArgs& args, const Step& step, float g,
                                          float* m) {
  const float scaled = g * step.scale;
  const float b = *m + (scaled - *m) * args.rate1;
  *m = b;
  return args.nesterov ? b + (scaled - b) * args.rate1 : b;
}

// Returns whether four elements of all arrays of a block can be moved at once.
__device__ __forceinline__ bool MovesFours(const UpdateArgs& args, const UpdateTensor& tensor,
                                           int64_t begin) {
  const float* beside = args.beside == nullptr ? nullptr : args.beside + tensor.gradient;
  uintptr_t all = 0;
  for (const float* array :
       {args.gradients + tensor.gradient, beside, static_cast<const float*>(tensor.moments[0]),
        static_cast<const float*>(tensor.moments[1]), static_cast<const float*>(tensor.average),
        static_cast<const float*>(tensor.direction)}) {
    all |= reinterpret_cast<uintptr_t>(array);
  }
  const uintptr_t weights = reinterpret_cast<uintptr_t>(tensor.weights.data);
  const uintptr_t size = tensor.weights.type == Type::kF32 ? 16 : 8;
  const uintptr_t copy = reinterpret_cast<uintptr_t>(tensor.copy.data);
  return all % 16 == 0 && weights % size == 0 && copy % 8 == 0 && begin % 4 == 0;
}

// One block of a tensor, four elements a thread: all that an element needs is asked for before any
// of it is used.
template <Rule kRule, Type kType>
__device__ __forceinline__ void StepBlock(const UpdateArgs& args, const UpdateTensor& tensor,
                                          const UpdateBlock& block) {
  constexpr bool kReadsWeights = kRule == Rule::kSgd || kRule == Rule::kAdam;
  const Step step = StepOf(args, tensor);
  const bool fours = MovesFours(args, tensor, block.begin);
  const int64_t index = args.now->index;
  const float ema_rate = static_cast<float>(args.ema_rate);
  const bool moves = kRule != Rule::kTake && tensor.moments[0] != nullptr;
  const bool beside = kRule != Rule::kTake && args.beside != nullptr;
  Sources from;
  from.g = Floats(args.gradients + tensor.gradient);
  from.w = kReadsWeights ? View{tensor.weights.data, kType} : from.g;
  from.m = moves ? Floats(tensor.moments[0]) : from.g;
  from.v = kRule == Rule::kAdam ? Floats(tensor.moments[1]) : from.g;
  from.average = tensor.average != nullptr && !beside ? Floats(tensor.average) : from.g;
  for (int64_t i = block.begin + 4 * (blockIdx.y * kThreads + threadIdx.x); i < block.end;
       i += int64_t{4} * kPieces * kThreads) {
    const int count = block.end - i < 4 ? static_cast<int>(block.end - i) : 4;
    const Span span{i, count, fours && count == 4};
    Elements four = Take(from, span);
    Four next = four.g;
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const float g = four.g.x[e], w = four.w.x[e];
      if (kRule == Rule::kSgd) {
        next.x[e] = SgdStep(args, step, moves, index == 0, g, w, &four.m.x[e]);
      } else if (kRule == Rule::kAdam) {
        next.x[e] = AdamStep(args, step, g, w, &four.m.x[e], &four.v.x[e]);
      } else if (kRule == Rule::kMuonDirection) {
        next.x[e] = MuonStep(args, step, g, &four.m.x[e]);
      }
    }
    if (moves) Put(tensor.moments[0], span, four.m);
    if (kRule == Rule::kAdam) Put(tensor.moments[1], span, four.v);
    if (kRule == Rule::kMuonDirection) {
      Put(tensor.direction, span, next);
    } else if (beside) {
      Put(args.beside + tensor.gradient, span, next);
    } else {
      PutWeights<kType>(tensor, span, next, four.average, index, ema_rate);
    }
  }
}

template <Rule kRule>
__global__ void __launch_bounds__(kThreads) StepKernel(UpdateArgs args) {
  const UpdateBlock block = args.blocks[blockIdx.x];
  if (block.tensor < 0 || args.now->skips != 0) return;
  const UpdateTensor tensor = args.tensors[block.tensor];
  if (tensor.weights.type == Type::kF32) {
    StepBlock<kRule, Type::kF32>(args, tensor, block);
  } else if (tensor.weights.type == Type::kBF16) {
    StepBlock<kRule, Type::kBF16>(args, tensor, block);
  } else {
    StepBlock<kRule, Type::kF16>(args, tensor, block);
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
    float m = tensor.moments[0][i], v = tensor.moments[1][i];
    NextMoments(args, args.gradients[tensor.gradient + i] * step.scale, &m, &v);
    tensor.moments[0][i] = m;
    tensor.moments[1][i] = v;
    const float w = Load(tensor.weights, i);
    const float d = Direction(args, step, m, v) + w * step.decay;
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
    const float d =
        Direction(args, step, tensor.moments[0][i], tensor.moments[1][i]) + w * step.decay;
    PutWeight(tensor, i, w - d * move, args.now->index, static_cast<float>(args.ema_rate));
  }
}

__global__ void __launch_bounds__(kThreads) SquaresKernel(SquaresArgs args) {
  __shared__ double shared[kWarps];
  const UpdateBlock block = args.blocks[blockIdx.x];
  const float* values = args.gradients;
  if (block.tensor >= 0) values += args.tensors[block.tensor].gradient;
  double sum = 0;
  int64_t i = block.begin + threadIdx.x;
  // Added one by one, and asked for eight at a time.
  for (; i + 7 * kThreads < block.end; i += 8 * kThreads) {
    float x[8];
#pragma unroll
    for (int k = 0; k < 8; ++k) x[k] = values[i + k * kThreads];
#pragma unroll
    for (int k = 0; k < 8; ++k) sum += static_cast<double>(x[k]) * static_cast<double>(x[k]);
  }
  for (; i < block.end; i += kThreads) {
    const double x = static_cast<double>(values[i]);
    sum += x * x;
  }
  sum = BlockSum<kThreads>(sum, shared);
  if (threadIdx.x == 0) args.sums[blockIdx.x] = sum;
}

__device__ __forceinline__ bool Finite(double x) { return x - x == 0; }

// `sum` and, one after another, the first `count` of `terms`.
__device__ __forceinline__ double AddInOrder(double sum, const double* terms, int64_t count) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    double x[8];
#pragma unroll
    for (int k = 0; k < 8; ++k) x[k] = terms[i + k];
#pragma unroll
    for (int k = 0; k < 8; ++k) sum += x[k];
  }
  for (; i < count; ++i) sum += terms[i];
  return sum;
}

// One block: all read and look, its first thread adds in the order of the blocks while the others
// read on.
__global__ void __launch_bounds__(kThreads) DecideKernel(DecideArgs args) {
  __shared__ double sums[2][kThreads];
  __shared__ float shared[kWarps];
  double squares = 0;
  float wrong = 0;
  int turn = 0;
  for (int64_t begin = 0; begin < args.block_count; begin += kThreads, turn ^= 1) {
    const int64_t mine = begin + threadIdx.x;
    const double sum = mine < args.block_count ? args.sums[mine] : 0;
    if (!Finite(sum)) wrong = 1;
    sums[turn][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x != 0) continue;
    const int64_t left = args.parameter_blocks - begin;
    squares = AddInOrder(squares, sums[turn], left < kThreads ? left : kThreads);
  }
  bool finite = BlockMax<kThreads>(wrong, shared) == 0;
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
  if (args.rule == Rule::kSgd) {
    return Launch(StepKernel<Rule::kSgd>, pieces, kThreads, stream, args);
  }
  if (args.rule == Rule::kAdam) {
    return Launch(StepKernel<Rule::kAdam>, pieces, kThreads, stream, args);
  }
  if (args.rule == Rule::kMuonDirection) {
    return Launch(StepKernel<Rule::kMuonDirection>, pieces, kThreads, stream, args);
  }
  return Launch(StepKernel<Rule::kTake>, pieces, kThreads, stream, args);
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
