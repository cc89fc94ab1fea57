// SPDX-License-Identifier: Apache-2.0
// The softmax of attention's forward pass on fragments of scores: masks, running maxima and sums,
// dropout, and what is stored at the end (T. Dao et al., "FlashAttention", 2022). Included by .cu
// files only. Thread-safety: device code.
#ifndef LOCKSTEP_ENGINE_CUDA_KERNELS_ATTENTION_SOFTMAX_H_
#define LOCKSTEP_ENGINE_CUDA_KERNELS_ATTENTION_SOFTMAX_H_

#include "engine/cuda/kernels/attention_matrix.h"

namespace lockstep::engine::cuda {

// The running softmax of a thread's rows: of each band of 16, row lane / 4 and the one 8 below.
template <int kBands>
struct RunningSums {
  float most[kBands][2];
  float sum[kBands][2];  // of the thread's own columns
};

// A warp's rows of one tile of keys.
struct Place {
  int first_row;  // of the warp's queries
  int first_key;
};

// Puts -infinity where a query does not see a key.
template <int kBands, int kTiles>
__device__ __forceinline__ void MaskScores(const AttentionArgs& args, const Head& h,
                                           const Place& place, float (&scores)[kBands][kTiles][4]) {
  if (SeesAll(args, h, place.first_row, place.first_key, kTiles * 8)) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int first_key = place.first_key, keys = static_cast<int>(h.keys);
  const int first_query = place.first_row + lane / 4;
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int key = first_key + t * 8 + lane % 4 * 2 + e;
      const bool counts = key < keys && (h.by_key == nullptr || h.by_key[key] != 0);
#pragma unroll
      for (int band = 0; band < kBands; ++band) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int query = first_query + 16 * band + 8 * half;
          if (!counts || (args.causal && key > query)) scores[band][t][2 * half + e] = -INFINITY;
        }
      }
    }
  }
}

// Scores to probabilities relative to the rows' maxima so far; `out` fades with the old maxima.
// `drops` says whether there is dropout. With kKeeps, which wants dropout, `kept` gets the bits of
// each band's two rows: those of tile t are 2 t and 2 t + 1, and there are others from 16 on.
template <Type kType, bool kKeeps = false, int kBands, int kTiles, int kOut>
__device__ __forceinline__ void Soften(const AttentionArgs& args, bool drops, const HeadDrop& drop,
                                       const Place& place, float (&scores)[kBands][kTiles][4],
                                       RunningSums<kBands>& running, float (&out)[kBands][kOut][4],
                                       uint32_t (&weights)[kBands][kTiles][2],
                                       uint32_t (*kept)[2] = nullptr) {
  const float factor = args.scale * kLog2E;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int band = 0; band < kBands; ++band) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float next = running.most[band][half];
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        next = fmaxf(next, fmaxf(scores[band][t][2 * half], scores[band][t][2 * half + 1]));
      }
      next = fmaxf(next, __shfl_xor_sync(kAllLanes, next, 1));
      next = fmaxf(next, __shfl_xor_sync(kAllLanes, next, 2));
      // Before the first key that is seen there is nothing to scale.
      const float base = next == -INFINITY ? 0 : next * factor;
      const float fade =
          next == -INFINITY ? 1 : PowerOfTwo(running.most[band][half] * factor - base);
      float part = 0;
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
#pragma unroll
        for (int e = 2 * half; e < 2 * half + 2; ++e) {
          scores[band][t][e] = PowerOfTwo(scores[band][t][e] * factor - base);
          part += scores[band][t][e];
        }
      }
      running.sum[band][half] = running.sum[band][half] * fade + part;
      running.most[band][half] = next;
      if (__any_sync(kAllLanes, fade != 1)) {  // seldom after a row's first tiles
#pragma unroll
        for (int c = 0; c < kOut; ++c) {
          out[band][c][2 * half] *= fade;
          out[band][c][2 * half + 1] *= fade;
        }
      }
      uint32_t stay[kTiles] = {};  // of the packed weights
      if (drops) {
        const int query = place.first_row + 16 * band + 8 * half + lane / 4;
        DropFactors<kTiles> numbers;
        numbers.Draw(args, drop, query, place.first_key);
        if (kKeeps) kept[band][half] = 0;
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
          if (kKeeps) {
            static_assert(!kKeeps || 2 * kTiles <= 16);
            stay[t] = numbers.Kept(args, t);
            kept[band][half] |= stay[t] & 0x20001u << (2 * t);
          } else {
            bool keeps[2];
            numbers.Keep(args, t, keeps);
            scores[band][t][2 * half] = keeps[0] ? scores[band][t][2 * half] : 0;
            scores[band][t][2 * half + 1] = keeps[1] ? scores[band][t][2 * half + 1] : 0;
          }
        }
        // The first of each pair are in the lower half, the second in the upper one.
        if (kKeeps) kept[band][half] |= kept[band][half] >> 16;
      }
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        const uint32_t pair = Pack<kType>(scores[band][t][2 * half], scores[band][t][2 * half + 1]);
        weights[band][t][half] = kKeeps ? pair & stay[t] : pair;
      }
    }
  }
}

// The warp's rows of y, with dropout's factor, and of the sums' logarithms.
template <int kBands, int kOut>
__device__ __forceinline__ void StoreRows(const AttentionArgs& args, const Head& h,
                                          int64_t first_row, const RunningSums<kBands>& running,
                                          const float (&out)[kBands][kOut][4]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int band = 0; band < kBands; ++band) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = running.sum[band][half];
      sum += __shfl_xor_sync(kAllLanes, sum, 1);
      sum += __shfl_xor_sync(kAllLanes, sum, 2);
      const int64_t query = first_row + 16 * band + 8 * half + lane / 4;
      if (query >= args.length) continue;
      const float factor = sum > 0 ? args.drop.scale / sum : 0;
      const int64_t row = (h.sample * args.length + query) * args.width + h.head * args.depth;
#pragma unroll
      for (int c = 0; c < kOut; ++c) {
        const int column = 8 * c + lane % 4 * 2;
        if (column >= args.depth) continue;
        StorePair(args.y, row + column, out[band][c][2 * half] * factor,
                  out[band][c][2 * half + 1] * factor);
      }
      if (lane % 4 == 0) {
        const float log_sum = sum > 0 ? running.most[band][half] * args.scale + logf(sum) : 0;
        Store(args.log_sums, h.unit * args.length + query, log_sum);
      }
    }
  }
}

// Before the first key.
template <int kBands, int kOut>
__device__ __forceinline__ void BeginRows(RunningSums<kBands>& running,
                                          float (&out)[kBands][kOut][4]) {
#pragma unroll
  for (int band = 0; band < kBands; ++band) {
    running.most[band][0] = running.most[band][1] = -INFINITY;
    running.sum[band][0] = running.sum[band][1] = 0;
  }
  Clear(out);
}

}  // namespace lockstep::engine::cuda

#endif  // LOCKSTEP_ENGINE_CUDA_KERNELS_ATTENTION_SOFTMAX_H_
