// SPDX-License-Identifier: Apache-2.0
// Kernels that write one row of a batch. Each element is one multiplication and one addition,
// rounded separately, or two additions in a stated order, so every variant (portable, AVX2) gives
// the same bits on every machine. Thread-safety: pure functions.
#ifndef LOCKSTEP_DATA_ROWS_H_
#define LOCKSTEP_DATA_ROWS_H_

#include <cstdint>

namespace lockstep::data {

struct RowKernels {
  // out[i] = float(in[i]) * scale + shift
  void (*scale_bytes)(const uint8_t* in, int64_t count, float scale, float shift, float* out);
  // out[i] = (a[i] + b[i]) + c[i]
  void (*add_three)(const float* a, const float* b, const float* c, int64_t count, float* out);
};

// The variant of any machine of this architecture.
const RowKernels& PortableRowKernels();
// The fastest variant that this processor runs.
const RowKernels& BestRowKernels();

}  // namespace lockstep::data

#endif  // LOCKSTEP_DATA_ROWS_H_
