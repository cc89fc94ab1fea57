// SPDX-License-Identifier: Apache-2.0
#include "launcher/follow/text.h"

#include <string.h>

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace lockstep::launcher {

std::string WithCommas(int64_t value) {
  const std::string digits = std::to_string(value);
  const size_t first = value < 0 ? 1 : 0;
  std::string out;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > first && (digits.size() - i) % 3 == 0) out.push_back(',');
    out.push_back(digits[i]);
  }
  return out;
}

std::string ShortDuration(double seconds) {
  if (!(seconds >= 0) || seconds > 1e9) return "?";
  if (seconds < 9.995) return absl::StrFormat("%.2f s", seconds);
  if (seconds < 59.95) return absl::StrFormat("%.1f s", seconds);
  const int64_t whole = std::llround(seconds);
  if (whole < 3600) return absl::StrFormat("%d:%02d", whole / 60, whole % 60);
  return absl::StrFormat("%d:%02d:%02d", whole / 3600, whole / 60 % 60, whole % 60);
}

std::string ShortBytes(int64_t bytes) {
  const double mib = static_cast<double>(bytes) / (1 << 20);
  if (mib < 9.95) return absl::StrFormat("%.1f MiB", mib);
  if (mib < 10000) return absl::StrFormat("%.0f MiB", mib);
  return absl::StrFormat("%.1f GiB", mib / 1024);
}

std::string ShortAge(absl::Duration age) {
  const int64_t seconds = std::max<int64_t>(0, absl::ToInt64Seconds(age));
  const int64_t minutes = seconds / 60, hours = minutes / 60;
  if (seconds < 60) return absl::StrCat(seconds, "s");
  if (minutes < 60) return absl::StrCat(minutes, "m");
  if (hours < 24) return absl::StrCat(hours, "h", minutes % 60, "m");
  return absl::StrCat(hours / 24, "d", hours % 24, "h");
}

std::string PerplexityText(double perplexity) {
  return perplexity > 0 ? absl::StrFormat(", perplexity %.4g", perplexity) : "";
}

}  // namespace lockstep::launcher
