// SPDX-License-Identifier: Apache-2.0
// The symbol that engine/cuda/module.cc looks for, and the door to the streams for other libraries.
#include <functional>

#include "tests/emulation/emulation.h"
#include "tests/emulation/include/cuda_runtime.h"

extern "C" const lockstep::engine::cuda::Tables* lockstep_cuda_tables() {
  return lockstep::engine::cuda::EmulatedTables();
}

// Gives `work` to a stream of this module. For the fake cuDNN.
extern "C" int lockstep_emulated_do(void* stream, const std::function<void()>& work) {
  return static_cast<int>(emulation::Do(static_cast<cudaStream_t>(stream), work));
}
