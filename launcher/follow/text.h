// SPDX-License-Identifier: Apache-2.0
// Numbers, durations and texts as people read them.
// Thread-safety: pure functions.
#ifndef LOCKSTEP_LAUNCHER_FOLLOW_TEXT_H_
#define LOCKSTEP_LAUNCHER_FOLLOW_TEXT_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/time/time.h"

namespace lockstep::launcher {

// 1234567 -> "1,234,567".
std::string WithCommas(int64_t value);
// "0.42 s", "12.3 s", "2:05", "1:02:05"; "?" when it is negative or no number.
std::string ShortDuration(double seconds);
// "118 MiB".
std::string ShortBytes(int64_t bytes);
// "45s", "12m", "3h10m", "2d4h": how long ago something was; "0s" for what lies ahead.
std::string ShortAge(absl::Duration age);
// ", perplexity 12.3", to follow a loss; empty when it is 0.
std::string PerplexityText(double perplexity);

}  // namespace lockstep::launcher

#endif  // LOCKSTEP_LAUNCHER_FOLLOW_TEXT_H_
