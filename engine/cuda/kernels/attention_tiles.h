// SPDX-License-Identifier: Apache-2.0
// What the attention kernels share: which keys a query sees, dropout's numbers, loading a tile of
// rows into shared memory as fp32. Included by .cu files only.
// Thread-safety: device code.
#ifndef LOCKSTEP_ENGINE_CUDA_KERNELS_ATTENTION_TILES_H_
#define LOCKSTEP_ENGINE_CUDA_KERNELS_ATTENTION_TILES_H_

#include "engine/cuda/kernels/device_code.h"

namespace lockstep::engine::cuda {

// One head of one sample.
struct Head {
  int64_t sample;
  int64_t head;
  int64_t unit;  // of all heads of the batch
  int64_t keys;  // that count at most
  const int32_t* by_key;
  uint64_t random_row;  // of query 0, in rows of padded length
};

// Head `head` of sample `sample`, with its mask and its place in the random numbers.
__device__ __forceinline__ Head HeadOf(const AttentionArgs& args, int64_t sample, int64_t head) {
  Head h;
  h.sample = sample;
  h.head = head;
  h.unit = sample * args.heads + head;
  h.keys = args.length;
  if (args.by_length != nullptr) {
    const int64_t keys = args.by_length[sample];
    h.keys = keys < 0 ? 0 : keys < args.length ? keys : args.length;
  }
  h.by_key = args.by_key != nullptr ? args.by_key + sample * args.length : nullptr;
  h.random_row = 0;
  if (args.drop.address != nullptr) {
    const uint64_t units = static_cast<uint64_t>(args.drop.address[3]) *
                               static_cast<uint64_t>(args.batch * args.heads) +
                           static_cast<uint64_t>(h.unit);
    h.random_row = units * static_cast<uint64_t>(args.length);
  }
  return h;
}

// Returns whether `key` counts for `query`; false beyond the sequence.
__device__ __forceinline__ bool Sees(const AttentionArgs& args, const Head& h, int64_t query,
                                     int64_t key) {
  return query < args.queries && key < h.keys && (!args.causal || key <= query) &&
         (h.by_key == nullptr || h.by_key[key] != 0);
}

// Returns what dropout multiplies the probability of (query, key) by.
__device__ __forceinline__ float DropFactor(const AttentionArgs& args, const Head& h,
                                            const Site& site, int64_t query, int64_t key) {
  const uint64_t padded = static_cast<uint64_t>((args.length + 63) / 64 * 64);
  const uint64_t element =
      (h.random_row + static_cast<uint64_t>(query)) * padded + static_cast<uint64_t>(key);
  return RandomHalf(site, element) >= args.drop.threshold ? args.drop.scale : 0;
}

// tile[row][column] = factor * view at (first + row) for `kRowsOfTile` rows of a head's `depth`
// columns; zeros beyond the head and beyond the sequence. `offset` is that of position 0.
template <int kThreads, int kRowsOfTile, int kDepth, int kPitch>
__device__ __forceinline__ void LoadTile(const View& view, int64_t offset, int64_t stride,
                                         int64_t first, int64_t length, int64_t depth, float factor,
                                         float (&tile)[kRowsOfTile][kPitch]) {
#pragma unroll 2
  for (int i = static_cast<int>(threadIdx.x); i < kRowsOfTile * kDepth; i += kThreads) {
    const int row = i / kDepth, column = i % kDepth;
    float value = 0;
    if (first + row < length && column < depth) {
      value = Load(view, offset + (first + row) * stride + column) * factor;
    }
    tile[row][column] = value;
  }
}

}  // namespace lockstep::engine::cuda

#endif  // LOCKSTEP_ENGINE_CUDA_KERNELS_ATTENTION_TILES_H_
