// SPDX-License-Identifier: Apache-2.0
// How fast a GPU is at the two things that training asks of it, beside this host's CPU.
// Thread-safety: pure but for the GPU.
#ifndef LOCKSTEP_ENGINE_CUDA_DOCTOR_SPEED_H_
#define LOCKSTEP_ENGINE_CUDA_DOCTOR_SPEED_H_

#include <string>

#include "absl/status/statusor.h"

namespace lockstep::engine {

// Bytes a second between page-locked memory and GPU `index`, as "to the GPU 53.1 GB/s, back 52.8
// GB/s". Blocks for less than a second. Errors: as Device::Open; ResourceExhausted.
absl::StatusOr<std::string> MeasureCopies(int index);

// Square products of fp32 on one CPU thread, and on GPU `index`, which also makes them in tf32 and
// bf16: "1024 x 1024 by one CPU thread 0.11 TFLOP/s; 8192 x 8192 by the GPU fp32 47.12 TFLOP/s
// (428x), tf32 ..., bf16 ...". The CPU's size grows until it takes 20 ms, the GPU's is what fills
// one, or what its memory has room for. Blocks for a second or so. Errors: as Device::Open;
// ResourceExhausted.
absl::StatusOr<std::string> CompareProducts(int index);

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_CUDA_DOCTOR_SPEED_H_
