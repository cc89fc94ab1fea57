// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/loss_scale.h"

#include <algorithm>

namespace lockstep::engine {

void UpdateLossScale(const LossScaleSpec& spec, bool overflow, double* scale,
                     int64_t* growth_count) {
  double next = *scale;
  if (overflow) {
    // Below 1 it is not to blame, and would take gradients out of fp16's range from below.
    const double least = std::min({1.0, spec.init, *scale});
    next = std::max(next * spec.backoff, least);
    *growth_count = 0;
  } else if (++*growth_count == spec.interval) {
    next *= spec.growth;
    *growth_count = 0;
  }
  if (next >= 0x1p-126 && next <= 0x1p127) *scale = next;
}

}  // namespace lockstep::engine
