// SPDX-License-Identifier: Apache-2.0
// The engine as the worker sees it: a training job is compiled once into a Plan (plan.h), and an
// Executor (executor.h) runs it. The engine knows no rank, no peer, no RPC and no file.
// Thread-safety: these functions may be called by any thread, PinNumerics as it says.
#ifndef LOCKSTEP_ENGINE_ENGINE_H_
#define LOCKSTEP_ENGINE_ENGINE_H_

#include <string>

#include "absl/status/statusor.h"
#include "engine/executor.h"
#include "engine/plan.h"

namespace lockstep::engine {

// The same of GPU `index`: "NVIDIA H200 (sm_90, ...), CUDA 13.0, cuBLASLt 130100".
// Errors: FailedPrecondition when it cannot be used, with what is missing.
absl::StatusOr<std::string> DescribeGpu(int index);

// Returns what this CPU is and what it computes by, `kernels` being the instruction sets
// (Plan::kernels): "AMD EPYC (family 25 ...), avx2, 1 thread, gcc 12.2.0".
std::string DescribeDevice(const std::string& kernels, int threads);

// Clears the environment variables that would change kernels (DNNL_*, ONEDNN_*, OMP_*, MKL_*,
// CUBLASLT_*, CUDNN_*, NVIDIA_TF32_OVERRIDE) and sets flush-to-zero for the calling thread.
//
// First thing in a worker's main, before any thread starts.
void PinNumerics(int threads);

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_ENGINE_H_
