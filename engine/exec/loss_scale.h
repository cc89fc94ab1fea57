// SPDX-License-Identifier: Apache-2.0
// The rule of dynamic loss scaling, torch.amp.GradScaler's. Thread-safety: pure functions.
#ifndef LOCKSTEP_ENGINE_EXEC_LOSS_SCALE_H_
#define LOCKSTEP_ENGINE_EXEC_LOSS_SCALE_H_

#include <cstdint>

#include "engine/engine.h"

namespace lockstep::engine {

// After a step: `overflow` when its reduced gradients were not all finite. `*growth_count` are the
// steps without one since the scale last changed. The scale stays a finite, normal fp32 number, and
// does not back off below 1, or below `spec.init` where that is less.
void UpdateLossScale(const LossScaleSpec& spec, bool overflow, double* scale,
                     int64_t* growth_count);

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_EXEC_LOSS_SCALE_H_
