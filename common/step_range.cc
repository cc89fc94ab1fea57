// SPDX-License-Identifier: Apache-2.0
#include "common/step_range.h"

#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace lockstep {

absl::StatusOr<StepRange> StepRange::Parse(std::string_view text) {
  constexpr int64_t kEnd = std::numeric_limits<int64_t>::max();
  if (text.empty()) return StepRange{};
  if (text == "all") return StepRange{1, kEnd};
  const size_t colon = text.find(':');
  StepRange range;
  if (colon != std::string_view::npos &&
      absl::SimpleAtoi(std::string(text.substr(0, colon)), &range.first) && range.first >= 1) {
    const std::string last(text.substr(colon + 1));
    if (last.empty()) return StepRange{range.first, kEnd};
    if (absl::SimpleAtoi(last, &range.last) && range.last >= range.first) return range;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "'", std::string(text), "' is no stretch of steps: write '10:20', '10:' or 'all'"));
}

}  // namespace lockstep
