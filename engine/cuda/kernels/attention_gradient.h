// SPDX-License-Identifier: Apache-2.0
// What the kernels of attention's gradient on tensor cores share: one head's operands, and storing
// fragments of a gradient. Included by .cu files only. Thread-safety: device code.
#ifndef LOCKSTEP_ENGINE_CUDA_KERNELS_ATTENTION_GRADIENT_H_
#define LOCKSTEP_ENGINE_CUDA_KERNELS_ATTENTION_GRADIENT_H_

#include "engine/cuda/kernels/attention_matrix.h"

namespace lockstep::engine::cuda {

// Rows from first_row on and columns from first_column on of a gradient, times `factor`.
template <int kBands, int kOut>
__device__ __forceinline__ void StoreGradient(const AttentionArgs& f, const View& view,
                                              int64_t offset, int64_t first_row, int first_column,
                                              float factor, const float (&out)[kBands][kOut][4]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int band = 0; band < kBands; ++band) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t row = first_row + 16 * band + 8 * half + lane / 4;
      if (row >= f.length) continue;
#pragma unroll
      for (int c = 0; c < kOut; ++c) {
        const int column = first_column + 8 * c + lane % 4 * 2;
        if (column >= f.depth) continue;
        StorePair(view, offset + row * f.stride + column, out[band][c][2 * half] * factor,
                  out[band][c][2 * half + 1] * factor);
      }
    }
  }
}

// One head's data.
struct HeadViews {
  __device__ __forceinline__ HeadViews(const AttentionBackwardArgs& args, const Head& h)
      : offset(h.sample * args.forward.length * args.forward.stride + h.head * args.forward.depth),
        q(HeadData(args.forward.q, offset)),
        k(HeadData(args.forward.k, offset)),
        v(HeadData(args.forward.v, offset)),
        dy(HeadData(args.dy, h.sample * args.forward.length * args.forward.width +
                                 h.head * args.forward.depth)) {}
  int64_t offset;
  const uint16_t* q;
  const uint16_t* k;
  const uint16_t* v;
  const uint16_t* dy;
};

}  // namespace lockstep::engine::cuda

#endif  // LOCKSTEP_ENGINE_CUDA_KERNELS_ATTENTION_GRADIENT_H_
