// SPDX-License-Identifier: Apache-2.0
// The CUDA module: a shared library that is loaded when somebody asks for a GPU, so that programs
// start without any of CUDA. Where it is missing, everything here says so.
// Thread-safety: thread-safe.
#ifndef LOCKSTEP_ENGINE_CUDA_MODULE_H_
#define LOCKSTEP_ENGINE_CUDA_MODULE_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/cuda/kernels/tables.h"

namespace lockstep::engine::cuda {

// The module's tables; loads it at the first call, from $LOCKSTEP_CUDA_MODULE or beside the
// program. Errors: FailedPrecondition with what is missing and what to do; the same at each call.
absl::StatusOr<const Tables*> LoadModule();

// Where that is looked for, in this order.
std::vector<std::string> ModulePaths();

// Loads the library of matrix products ($LOCKSTEP_CUBLASLT_LIBRARY, else where CUDA's libraries may
// lie) and starts it on the current device. Errors: FailedPrecondition with what is missing.
absl::Status LoadMatmul(const Tables& tables);

// From here on LoadModule gives `tables`; null: what it finds. For tests.
void UseTables(const Tables* tables);

// Returns whether `tables` are those of tests without a GPU: its memory is the host's, and the
// libraries of real GPUs do not work on it.
bool IsEmulated(const Tables& tables);

// What a function of cuDNN gives, as a Code: 0, or its status plus this.
inline constexpr Code kCudnnErrors = 200000;

// An error of `runtime`, of matrix products or of cuDNN, said with what was being done. OK for 0.
// Errors: ResourceExhausted when memory lacks, Internal for the rest.
absl::Status StatusOf(const Tables& tables, Code code, const std::string& what);

// The GPUs that this process may use, in the driver's order.
// Errors: FailedPrecondition without the module, a driver or a device.
absl::StatusOr<std::vector<DeviceProperties>> ListDevices();

// Returns whether a GPU has the instructions of sm_90a, by which attention is quickest there, the
// module has code for them, and $LOCKSTEP_WARPGROUPS is not 0.
bool HasWarpgroups(const Tables& tables, const DeviceProperties& properties);

// "NVIDIA H200 (sm_90, 132 multiprocessors, 139.8 GiB), CUDA 13.0, cuBLASLt 130100".
std::string DescribeProperties(const Tables& tables, const DeviceProperties& properties);

}  // namespace lockstep::engine::cuda

#endif  // LOCKSTEP_ENGINE_CUDA_MODULE_H_
