// SPDX-License-Identifier: Apache-2.0
// What a GPU's libraries answer, in seconds: for each kind of product of the large models, with
// each bias and epilogue, how many algorithms the library of matrix products has with and without
// what follows. Thread-safety: none.
#ifndef LOCKSTEP_BENCH_PRODUCT_PROBE_H_
#define LOCKSTEP_BENCH_PRODUCT_PROBE_H_

#include "absl/status/status.h"

namespace lockstep::bench {

// Prints a line of JSON for each product. Errors: as cuda::Device::Open.
absl::Status ProbeProducts(int gpu);

}  // namespace lockstep::bench

#endif  // LOCKSTEP_BENCH_PRODUCT_PROBE_H_
