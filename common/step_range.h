// SPDX-License-Identifier: Apache-2.0
// A stretch of optimizer steps as users write it: "10:20" (both included), "10:" or "all".
// Thread-safety: a value.
#ifndef LOCKSTEP_COMMON_STEP_RANGE_H_
#define LOCKSTEP_COMMON_STEP_RANGE_H_

#include <cstdint>
#include <limits>
#include <string_view>

#include "absl/status/statusor.h"

namespace lockstep {

struct StepRange {
  int64_t first = 1;
  int64_t last = 0;  // below first: no step at all

  // Returns whether `step` (1-based) is one of them.
  bool Contains(int64_t step) const { return step >= first && step <= last; }
  bool operator==(const StepRange&) const = default;

  // "" is no step. Errors: InvalidArgument with what is expected.
  static absl::StatusOr<StepRange> Parse(std::string_view text);
};

}  // namespace lockstep

#endif  // LOCKSTEP_COMMON_STEP_RANGE_H_
