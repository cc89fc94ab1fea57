// SPDX-License-Identifier: Apache-2.0
// Numbers, durations and JSON as people and programs read them.
// Thread-safety: pure functions.
#ifndef LOCKSTEP_LAUNCHER_FOLLOW_TEXT_H_
#define LOCKSTEP_LAUNCHER_FOLLOW_TEXT_H_

#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep::launcher {

// 1234567 -> "1,234,567".
std::string WithCommas(int64_t value);
// "0.42 s", "12.3 s", "2:05", "1:02:05"; "?" when it is negative or no number.
std::string ShortDuration(double seconds);
// "118 MiB".
std::string ShortBytes(int64_t bytes);
// A JSON string with its quotes; bytes that are not UTF-8 must have been replaced before.
std::string JsonString(std::string_view text);
// The shortest text that reads back as `value`; null for infinities and NaN.
std::string JsonNumber(double value);
// ", perplexity 12.3", to follow a loss; empty when it is 0.
std::string PerplexityText(double perplexity);
// "SIGKILL"; "signal 77" for one without a name.
std::string SignalName(int signal);

}  // namespace lockstep::launcher

#endif  // LOCKSTEP_LAUNCHER_FOLLOW_TEXT_H_
