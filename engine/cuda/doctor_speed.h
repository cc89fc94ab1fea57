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

// The same square product of fp32 on one CPU thread and on GPU `index`, which also makes it in tf32
// and bf16: "2048 x 2048: CPU 41.2 ms, GPU fp32 0.35 ms (118x), tf32 ..., bf16 ...". The size grows
// until the CPU takes 20 ms, so it ends soon on any machine. Blocks for a second or so. Errors: as
// Device::Open.
absl::StatusOr<std::string> CompareProducts(int index);

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_CUDA_DOCTOR_SPEED_H_
