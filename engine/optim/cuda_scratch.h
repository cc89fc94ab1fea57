// SPDX-License-Identifier: Apache-2.0
// The scratch of one parameter's update on a GPU: Muon's iteration. Thread-safety: pure functions.
#ifndef LOCKSTEP_ENGINE_OPTIM_CUDA_SCRATCH_H_
#define LOCKSTEP_ENGINE_OPTIM_CUDA_SCRATCH_H_

#include <algorithm>
#include <cstddef>

#include "engine/optim/optimizer.h"

namespace lockstep::engine {

// Offsets in bytes of the arrays of a matrix [rows, columns] and its square side.
struct CudaUpdateScratch {
  CudaUpdateScratch(const Optimizer& optimizer, const ParameterSpec& parameter) {
    if (optimizer.method(parameter) != Optimizer::Method::kMatrix) return;
    rows = parameter.shape[0];
    columns = parameter.shape[1];
    side = std::min(rows, columns);
    const auto align = [](int64_t floats) {
      return (static_cast<size_t>(floats) * sizeof(float) + 255) / 256 * 256;
    };
    next = align(rows * columns);  // x lies at 0
    gram = 2 * next;
    square = gram + align(side * side);
    bytes = square + align(side * side);
  }

  int64_t rows = 0;
  int64_t columns = 0;
  int64_t side = 0;
  size_t next = 0;
  size_t gram = 0;
  size_t square = 0;
  size_t bytes = 0;
};

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_OPTIM_CUDA_SCRATCH_H_
