// SPDX-License-Identifier: Apache-2.0
// Jobs on the emulated GPU, or on a real one where there is one and LOCKSTEP_TEST_GPU=1 asks for
// it. Thread-safety: confined to one thread.
#ifndef LOCKSTEP_TESTS_UNIT_ENGINE_ON_GPU_H_
#define LOCKSTEP_TESTS_UNIT_ENGINE_ON_GPU_H_

#include <cstdlib>

#include "engine/cuda/module.h"
#include "engine/exec/plan.h"
#include "tests/emulation/emulation.h"

namespace lockstep::engine {

inline bool TakesRealGpu() { return std::getenv("LOCKSTEP_TEST_GPU") != nullptr; }

inline TrainSpec OnGpu(TrainSpec spec) {
  if (!TakesRealGpu()) cuda::UseTables(cuda::EmulatedTables());
  spec.device = DeviceKind::kCuda;
  return spec;
}

}  // namespace lockstep::engine

#endif  // LOCKSTEP_TESTS_UNIT_ENGINE_ON_GPU_H_
