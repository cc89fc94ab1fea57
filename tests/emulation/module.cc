// SPDX-License-Identifier: Apache-2.0
// The symbol that engine/cuda/module.cc looks for.
#include "tests/emulation/emulation.h"

extern "C" const lockstep::engine::cuda::Tables* lockstep_cuda_tables() {
  return lockstep::engine::cuda::EmulatedTables();
}
