// SPDX-License-Identifier: Apache-2.0
// The CUDA that the module is built with, for those who ask before it is loaded.
// Thread-safety: constants.
#ifndef LOCKSTEP_COMMON_CUDA_VERSION_H_
#define LOCKSTEP_COMMON_CUDA_VERSION_H_

namespace lockstep {

// engine/cuda/kernels/module.cu, which knows, does not compile where it is another.
inline constexpr int kCudaMajor = 13;
// The first of NVIDIA's drivers that runs it.
inline constexpr int kLeastCudaDriver = 580;

}  // namespace lockstep

#endif  // LOCKSTEP_COMMON_CUDA_VERSION_H_
