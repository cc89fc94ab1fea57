// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/loss_scale.h"

namespace lockstep::engine {

void UpdateLossScale(const LossScaleSpec& spec, bool overflow, double* scale,
                     int64_t* growth_count) {
  double next = *scale;
  if (overflow) {
    next *= spec.backoff;
    *growth_count = 0;
  } else if (++*growth_count == spec.interval) {
    next *= spec.growth;
    *growth_count = 0;
  }
  if (next >= 0x1p-126 && next <= 0x1p127) *scale = next;
}

}  // namespace lockstep::engine
