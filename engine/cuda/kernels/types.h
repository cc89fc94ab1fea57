// SPDX-License-Identifier: Apache-2.0
// What the engine and the CUDA module say to each other in: plain values, compiled alike by nvcc
// and by the host's compiler. Lengths are in elements unless a name says bytes. All data lies in
// device memory; a null pointer stands for an operand that the node does not have. Thread-safety:
// values.
#ifndef LOCKSTEP_ENGINE_CUDA_KERNELS_TYPES_H_
#define LOCKSTEP_ENGINE_CUDA_KERNELS_TYPES_H_

#include <cstdint>

#include "common/float8.h"

namespace lockstep::engine::cuda {

// cudaStream_t, cudaEvent_t, cudaGraphExec_t, as the engine sees them.
using Stream = void*;
using Event = void*;
using Recording = void*;
// A cudaError_t; 0 is success. Runtime::error_text explains it.
using Code = int;

enum class Type : int32_t { kF32, kBF16, kF16 };

// An array whose element type is known at run time. Arithmetic is fp32 on every type.
struct View {
  void* data = nullptr;
  Type type = Type::kF32;
};

// What dropout drops: see ops/dropout.cc and RowKernels::random_halves.
struct Drop {
  uint64_t key = 0;
  uint32_t threshold = 0;
  float scale = 1;
  const int32_t* address = nullptr;  // null: nothing is dropped
};

// What is added to the two halves of a key after each round of Philox (common/philox.h).
inline constexpr uint32_t kPhiloxStep0 = 0x9E3779B9, kPhiloxStep1 = 0xBB67AE85;
// The key of each round, for dropout.
inline constexpr int kDropRounds = 7;
struct RoundKeys {
  constexpr RoundKeys() = default;
  constexpr explicit RoundKeys(uint64_t key) {
    for (uint32_t round = 0; round < kDropRounds; ++round) {
      low[round] = static_cast<uint32_t>(key) + round * kPhiloxStep0;
      high[round] = static_cast<uint32_t>(key >> 32) + round * kPhiloxStep1;
    }
  }
  uint32_t low[kDropRounds] = {};
  uint32_t high[kDropRounds] = {};
};

enum class Function : int32_t {
#define LOCKSTEP_FUNCTION(Name, key, value) k##Name,
#include "engine/cuda/kernels/functions.inc"
};

struct PointwiseArgs {
  Function function = Function::kCopy;
  View a;  // null: ones
  View b;
  View mask;  // out is 0 where it is <= 0
  View out;
  int64_t count = 0;
  float factor = 1;
  bool adds = false;  // out += instead of out =
};

// out = x as FP8 has it (common/float8.h), by one scale. `partial` has kQuantizeParts floats.
inline constexpr int kQuantizeParts = 256;
struct QuantizeArgs {
  View x;
  View out;  // may be x
  float* partial = nullptr;
  int64_t count = 0;
  Float8Format format;
};

// codes = the bytes of x [rows, columns], which quantize_fp8 has made; `turned`: of x^T. `unit` is
// what a code's number is to be multiplied with. `partial` as above.
struct PackFp8Args {
  View x;
  uint8_t* codes = nullptr;
  float* unit = nullptr;
  float* partial = nullptr;
  int64_t rows = 0;
  int64_t columns = 0;
  bool turned = false;
  Float8Format format;
};

struct DropoutArgs {
  View x;
  View residual;
  View out;
  int64_t count = 0;
  Drop drop;
};

// out = act(x + bias + residual), 0 where mask <= 0; bias [columns].
struct EpilogueArgs {
  View x;
  View bias;
  View residual;
  View mask;
  View out;
  int64_t rows = 0;
  int64_t columns = 0;
  bool relu = false;
};

// Rows 0, stride, ... of [rows * stride, columns]; or back, with zeros between.
struct TakeRowsArgs {
  View in;
  View out;
  int64_t rows = 0;  // that are taken
  int64_t columns = 0;
  int64_t stride = 1;
  bool backward = false;
};

// out[i, c, r] = in[i, r, c].
struct TransposeArgs {
  View in;
  View out;
  int64_t images = 0;
  int64_t rows = 0;
  int64_t columns = 0;
};

// See ops/softmax_cross_entropy.cc. `row_sums` has 4 doubles for each row: loss, correct, counted,
// correct among five; the last kernel adds them up in a fixed order.
struct CrossEntropyArgs {
  View logits;
  const int32_t* labels = nullptr;
  View seed;      // null without a gradient
  View gradient;  // null: none is asked for
  double* row_sums = nullptr;
  float* loss = nullptr;  // null: no loss is asked for
  float* count = nullptr;
  double* evaluation = nullptr;  // f64[4] of an evaluation; null: training
  const int64_t* valid_rows = nullptr;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t classes = 0;
  double smoothing = 0;
  bool adds = false;
};

struct EmbeddingArgs {
  const int32_t* tokens = nullptr;
  View table;
  View out;
  int64_t positions = 0;
  int64_t rows = 0;  // of the table
  int64_t columns = 0;
};
// A token with more positions has its gradient in pieces of so many (embedding.cu).
inline constexpr int kEmbeddingPiece = 256;
// So many of them hold the positions.
constexpr int64_t EmbeddingChunks(int64_t positions) {
  return (positions + kEmbeddingPiece - 1) / kEmbeddingPiece;
}
// Floats of `partial`.
constexpr int64_t EmbeddingPartialFloats(int64_t positions, int64_t columns) {
  return positions > kEmbeddingPiece ? 2 * EmbeddingChunks(positions) * columns : 0;
}
// `starts` has rows + 1, `cursors` rows, `found` and `order` positions integers; `partial`, 16-byte
// aligned, has EmbeddingPartialFloats.
struct EmbeddingBackwardArgs {
  const int32_t* tokens = nullptr;
  View dy;
  View base;
  float* out = nullptr;
  float* partial = nullptr;
  int32_t* starts = nullptr;
  int32_t* cursors = nullptr;
  int32_t* found = nullptr;
  int32_t* order = nullptr;
  int64_t positions = 0;
  int64_t rows = 0;
  int64_t columns = 0;
  bool adds = false;
};
// out = x + table by position; or, backward, out (+)= sums of x over sequences, [table_rows, c].
struct PositionsArgs {
  View x;
  View table;
  View out;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t length = 0;
  int64_t table_rows = 0;
  bool adds = false;
};

// See ops/attention.cc. q, k and v of a position lie `stride` elements behind those of the one
// before; y and dy are dense [batch * length, width].
struct AttentionArgs {
  View q;
  View k;
  View v;
  View y;
  View log_sums;
  const int32_t* by_key = nullptr;     // [batch, length]
  const int32_t* by_length = nullptr;  // [batch]
  Drop drop;
  RoundKeys round_keys;  // of drop.key
  // With dropout, where it is not null: a bit for each probability that stays, which the forward
  // pass leaves, whatever kernels do it, for the kernels of the backward pass that read them
  // [batch, heads, padded / 64, 4, padded], `padded` being the length up to a multiple of 64
  // (attention_warpgroup.h).
  uint16_t* kept = nullptr;
  int64_t stride = 0;
  int64_t batch = 0;
  int64_t heads = 0;
  int64_t length = 0;   // keys of a sequence
  int64_t queries = 0;  // its first rows that ask
  int64_t depth = 0;    // of a head, at most kMaxHeadDepth
  int64_t width = 0;    // of all heads
  float scale = 1;
  bool causal = false;
  bool warpgroups = false;  // the GPU has the instructions of sm_90a
};
inline constexpr int64_t kMaxHeadDepth = 256;
struct AttentionBackwardArgs {
  AttentionArgs forward;
  View dy;
  View dq;
  View dk;
  View dv;
  float* delta = nullptr;  // [batch, heads, queries]; warpgroups leave it in `rows`
  // With forward.warpgroups: what the kernel of queries leaves for that of keys. For each query the
  // logarithm of its sum in base 2, and delta [batch, heads, padded, 2]; with dropout, where the
  // forward pass left none, bits as forward.kept.
  float* rows = nullptr;
  uint16_t* kept = nullptr;
};
struct AttentionStepArgs {
  View qkv;
  View before;                        // what is kept so far [2, positions, width]
  float* kept = nullptr;              // with the new rows; may be `before`
  const int32_t* position = nullptr;  // [rows]
  View y;
  float* scores = nullptr;  // [heads, positions]
  int64_t rows = 0;
  int64_t heads = 0;
  int64_t positions = 0;
  int64_t width = 0;
  float scale = 1;
};

// `partial` has 2 * kNormParts * channels doubles, `factors` 3 * channels floats.
inline constexpr int64_t kNormParts = 256;
struct BatchNormArgs {
  View x;
  View weight;
  View bias;
  View residual;
  View y;
  float* mean = nullptr;
  float* inverse = nullptr;
  float* variance = nullptr;
  View running_mean;  // with these two: an evaluation
  View running_variance;
  double* partial = nullptr;
  float* factors = nullptr;
  int64_t rows = 0;
  int64_t channels = 0;
  double eps = 0;
  bool relu = false;
};
struct BatchNormBackwardArgs {
  View dy;
  View x;
  View weight;
  View mean;
  View inverse;
  View mask;
  View dx;
  float* dweight = nullptr;
  float* dbias = nullptr;
  double* partial = nullptr;
  float* factors = nullptr;
  int64_t rows = 0;
  int64_t channels = 0;
  bool adds_weight = false;
  bool adds_bias = false;
};
// Filters [filters, each] and bias that normalise too.
struct FoldArgs {
  View filters;
  View weight;
  View bias;
  View mean;
  View variance;
  View filter_bias;
  View out;
  float* out_bias = nullptr;
  int64_t count = 0;
  int64_t each = 0;
  double eps = 0;
};

// A window over images [images, height, width, channels], at rows x columns places.
struct WindowArgs {
  int64_t images = 0;
  int64_t height = 0;
  int64_t width = 0;
  int64_t channels = 0;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t kernel[2] = {1, 1};
  int64_t stride[2] = {1, 1};
  int64_t padding[2] = {0, 0};
  int64_t dilation[2] = {1, 1};
};
enum class Pool : int32_t { kMax, kMaxBackward, kAverage, kAverageBackward };
struct PoolArgs {
  Pool pool = Pool::kMax;
  WindowArgs window;
  View x;   // the images; of an average's gradient: null
  View dy;  // of the gradients
  View out;
  bool count_padding = true;
  bool relu = false;
};
// dx [images, height, width, channels]: dy where `places` says of its 2 x 2 pixels, else 0. A last
// odd row or column has no dy.
struct UnpoolArgs {
  View dy;
  const int32_t* places = nullptr;
  View dx;
  int64_t images = 0;
  int64_t height = 0;
  int64_t width = 0;
  int64_t channels = 0;
};
// y = act(the largest) of each 2 x 2 pixels of x, places = which: the first of equals, NaN being
// the largest.
struct PlacePoolArgs {
  UnpoolArgs images;  // the extents of x
  const float* x = nullptr;
  View y;
  int32_t* places = nullptr;
  bool relu = false;
};
// out[i, c] = mean over pixels; backward: spread.
struct GlobalPoolArgs {
  View in;
  View out;
  int64_t images = 0;
  int64_t pixels = 0;
  int64_t channels = 0;
  bool backward = false;
};

// Patches of images [first, first + images) of x: matrix [images * rows * columns, pitch], of which
// taps * channels of a group are the patch, the channels of a tap side by side, and zeros follow.
// Backward (gather): x = sum of the patches that
// hold each pixel, by ascending tap.
struct PatchArgs {
  WindowArgs window;  // its `images` are those of this part
  View x;
  View matrix;
  int64_t first_image = 0;
  int64_t first_channel = 0;
  int64_t group_channels = 0;
  int64_t pitch = 0;
  View mask;  // of gather: x is 0 where it is <= 0
  bool gather = false;
};
// A convolution without patches. y [places, outputs] = act(patches of x times filters [outputs,
// taps, channels] + bias + residual), 0 where mask <= 0; x and filters in one 16-bit type, channels
// and outputs multiples of 8. `turned`: the gradient of the images; x is then dy, `window` is the
// convolution's but that height, width and channels are those of dy, rows and columns those of
// the images, and the filters are [channels of the images, taps, filters].
struct ImplicitArgs {
  WindowArgs window;
  View x;
  View filters;
  View y;
  View bias;
  View residual;
  View mask;
  int64_t outputs = 0;
  bool relu = false;
  bool turned = false;
};
// The gradient of the filters, [filters, taps, channels] at `partial`, which has room for `parts`
// of it.
struct ImplicitWeightArgs {
  WindowArgs window;
  View x;
  View dy;
  float* partial = nullptr;
  int64_t filters = 0;
  int64_t parts = 1;
};
// [o, channels, taps] <-> [o, taps, channels]; turned: -> [channels, taps, o]. The second has rows
// of `pitch` elements (0: dense) for each o, with zeros at their end, if it is not turned.
struct FilterArgs {
  View from;
  View to;
  int64_t filters = 0;
  int64_t channels = 0;
  int64_t taps = 0;
  int64_t pitch = 0;
  bool back = false;  // to the ecosystem's order
  bool turned = false;
  bool adds = false;
};

// out = a + b with subnormals as 0, as the workers' CPUs add: gradients of shards. `out` may be `a`
// or `b`; nothing needs to be aligned.
struct AddVectorsArgs {
  const float* a = nullptr;
  const float* b = nullptr;
  float* out = nullptr;
  int64_t count = 0;
};

// Random numbers of one sign or the other, the same at each call, finite and of magnitudes up to 2
// in every type that memory may be read as.
struct FillArgs {
  void* data = nullptr;  // 16-byte aligned
  int64_t count = 0;     // of 16 bytes
};

}  // namespace lockstep::engine::cuda

#endif  // LOCKSTEP_ENGINE_CUDA_KERNELS_TYPES_H_
