// SPDX-License-Identifier: Apache-2.0
// A window over images as the kernels take it.
// Thread-safety: pure functions.
#ifndef LOCKSTEP_ENGINE_CUDA_WINDOW_H_
#define LOCKSTEP_ENGINE_CUDA_WINDOW_H_

#include "engine/cuda/kernels/types.h"
#include "engine/ops/conv_geometry.h"

namespace lockstep::engine::cuda {

// `window` over images [n, h, w, c] at places [n, rows, columns, *].
WindowArgs WindowArgsOf(const Window& window, const Shape& images, const Shape& places);

}  // namespace lockstep::engine::cuda

#endif  // LOCKSTEP_ENGINE_CUDA_WINDOW_H_
