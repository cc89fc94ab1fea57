// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "engine/optim/optimizer.h"

namespace lockstep::engine {

absl::Status CheckSchedule(const ScheduleSpec& schedule) {
  if (schedule.warmup_updates < 0) {
    return absl::InvalidArgumentError("schedule.warmup_updates is below 0");
  }
  if (!(schedule.min_factor >= 0 && schedule.min_factor <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("schedule.min_factor is ", schedule.min_factor, ": it must be in [0, 1]"));
  }
  if (schedule.kind == ScheduleSpec::Kind::kCosine &&
      schedule.total_updates <= schedule.warmup_updates) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the cosine schedule has ", schedule.total_updates,
        " updates, which must be more than its ", schedule.warmup_updates, " of warm-up"));
  }
  return absl::OkStatus();
}

// Linear warm-up reaches 1 with its last update. Cosine: I. Loshchilov and F. Hutter, "SGDR"
// (2017), without restarts; after total_updates the factor stays at min_factor.
double ScheduleFactor(const ScheduleSpec& schedule, int64_t update) {
  if (update < schedule.warmup_updates) {
    return static_cast<double>(update + 1) / static_cast<double>(schedule.warmup_updates);
  }
  if (schedule.kind == ScheduleSpec::Kind::kConstant) return 1;
  const double progress = static_cast<double>(update - schedule.warmup_updates) /
                          static_cast<double>(schedule.total_updates - schedule.warmup_updates);
  constexpr double kPi = 3.14159265358979323846;
  const double cosine = 0.5 * (1 + std::cos(kPi * std::min(progress, 1.0)));
  return schedule.min_factor + (1 - schedule.min_factor) * cosine;
}

}  // namespace lockstep::engine
