// SPDX-License-Identifier: Apache-2.0
#include "worker/step/step_pace.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace lockstep::worker {

absl::StatusOr<StepPace> StepPace::FromEnvironment(Clock* clock) {
  const char* text = std::getenv(kVariable);
  absl::Duration least = absl::ZeroDuration();
  if (text != nullptr && (!absl::ParseDuration(text, &least) || least < absl::ZeroDuration())) {
    return absl::InvalidArgumentError(
        absl::StrCat(kVariable, " is '", text, "', which is no duration such as 2ms"));
  }
  const char* until = std::getenv(kUntil);
  return StepPace(clock, least, until == nullptr ? "" : until);
}

void StepPace::BeginStep() {
  if (least_ == absl::ZeroDuration()) return;
  const absl::Time now = clock_->Now();
  if (now < next_) {
    if (!until_.empty() && ::access(until_.c_str(), F_OK) == 0) {
      least_ = absl::ZeroDuration();
      return;
    }
    clock_->Sleep(next_ - now);
  }
  next_ = std::max(now, next_) + least_;
}

}  // namespace lockstep::worker
