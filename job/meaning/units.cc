// SPDX-License-Identifier: Apache-2.0
#include "job/meaning/units.h"

#include <limits>
#include <optional>
#include <vector>

#include "absl/numeric/int128.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace lockstep::job {
namespace {

struct Unit {
  absl::string_view name;
  int64_t scale;
};

constexpr int64_t kSecond = 1'000'000'000;
// Largest first.
constexpr Unit kTimeUnits[] = {{"d", 86400 * kSecond},
                               {"h", 3600 * kSecond},
                               {"m", 60 * kSecond},
                               {"s", kSecond},
                               {"ms", 1'000'000},
                               {"us", 1'000},
                               {"ns", 1}};
constexpr int64_t kLongest = int64_t{100} * 365 * 86400 * kSecond;

constexpr Unit kSizeUnits[] = {{"TiB", int64_t{1} << 40},
                               {"GiB", int64_t{1} << 30},
                               {"MiB", int64_t{1} << 20},
                               {"KiB", int64_t{1} << 10},
                               {"TB", 1'000'000'000'000},
                               {"GB", 1'000'000'000},
                               {"MB", 1'000'000},
                               {"kB", 1'000},
                               {"KB", 1'000},
                               {"B", 1}};

// A decimal number at the start of `*text`, times 10^fraction digits, exactly.
struct Decimal {
  int64_t digits = 0;
  int64_t divisor = 1;
};

std::optional<Decimal> TakeDecimal(absl::string_view* text) {
  Decimal number;
  bool any = false, point = false;
  size_t i = 0;
  for (; i < text->size(); ++i) {
    const char c = (*text)[i];
    if (c == '.' && !point) {
      point = true;
      continue;
    }
    if (!absl::ascii_isdigit(c)) break;
    if (number.digits > 100'000'000'000'000'000 || number.divisor >= kSecond) return std::nullopt;
    number.digits = number.digits * 10 + (c - '0');
    if (point) number.divisor *= 10;
    any = true;
  }
  if (!any) return std::nullopt;
  text->remove_prefix(i);
  return number;
}

absl::string_view TakeWord(absl::string_view* text) {
  size_t i = 0;
  while (i < text->size() && absl::ascii_isalpha((*text)[i])) ++i;
  const absl::string_view word = text->substr(0, i);
  text->remove_prefix(i);
  return word;
}

// digits / divisor x scale when that is whole and at most `limit`.
std::optional<int64_t> Scale(const Decimal& number, int64_t scale, int64_t limit) {
  const absl::int128 product = absl::int128(number.digits) * scale;
  if (product % number.divisor != 0 || product / number.divisor > limit) return std::nullopt;
  return static_cast<int64_t>(product / number.divisor);
}

absl::Status BadDuration(absl::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrCat(why, "expected a duration such as 30s, 500ms, 1h30m"));
}

absl::Status BadSize(absl::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrCat(why, "expected a size such as 64MiB (1024-based) or 2GB (1000-based)"));
}

}  // namespace

absl::StatusOr<int64_t> ParseDuration(absl::string_view text) {
  text = absl::StripAsciiWhitespace(text);
  if (text == "0") return 0;
  if (text.empty()) return BadDuration("");
  absl::int128 total = 0;
  while (!text.empty()) {
    const absl::string_view whole = text;
    const std::optional<Decimal> number = TakeDecimal(&text);
    if (!number) return BadDuration("");
    const absl::string_view word = TakeWord(&text);
    if (word.empty()) {
      const absl::string_view digits = whole.substr(0, whole.size() - text.size());
      return BadDuration(text.empty() ? absl::StrCat(digits, " has no unit (", digits, "s?); ")
                                      : "");
    }
    const Unit* unit = nullptr;
    for (const Unit& candidate : kTimeUnits) {
      if (candidate.name == word) unit = &candidate;
    }
    if (unit == nullptr) {
      return BadDuration(
          absl::StrCat("'", word, "' is no unit of time (ns, us, ms, s, m, h, d); "));
    }
    const std::optional<int64_t> part = Scale(*number, unit->scale, kLongest);
    if (!part) return BadDuration("more than 100 years or finer than a nanosecond; ");
    total += *part;
    if (total > kLongest) return BadDuration("more than 100 years; ");
  }
  return static_cast<int64_t>(total);
}

std::string FormatDuration(int64_t nanoseconds) {
  if (nanoseconds == 0) return "0s";
  for (const Unit& unit : kTimeUnits) {
    if (nanoseconds % unit.scale == 0) return absl::StrCat(nanoseconds / unit.scale, unit.name);
  }
  return absl::StrCat(nanoseconds, "ns");
}

absl::StatusOr<int64_t> ParseSize(absl::string_view text) {
  text = absl::StripAsciiWhitespace(text);
  if (text == "0") return 0;
  const absl::string_view whole = text;
  const std::optional<Decimal> number = TakeDecimal(&text);
  if (!number) return BadSize("");
  const absl::string_view digits = whole.substr(0, whole.size() - text.size());
  text = absl::StripLeadingAsciiWhitespace(text);
  const absl::string_view word = TakeWord(&text);
  if (!text.empty()) return BadSize("");
  if (word.empty()) return BadSize(absl::StrCat(digits, " has no unit (", digits, "MiB?); "));
  for (const Unit& unit : kSizeUnits) {
    if (unit.name != word) continue;
    const std::optional<int64_t> bytes =
        Scale(*number, unit.scale, std::numeric_limits<int64_t>::max());
    if (!bytes) return BadSize("not a whole number of bytes, or too many; ");
    return *bytes;
  }
  return BadSize(absl::StrCat("'", word, "' is no unit of size; "));
}

std::string FormatSize(int64_t bytes) {
  const Unit* best = nullptr;
  for (const Unit& unit : kSizeUnits) {
    if (bytes % unit.scale == 0 && (best == nullptr || unit.scale > best->scale)) best = &unit;
  }
  if (bytes == 0) best = nullptr;
  return best == nullptr ? "0" : absl::StrCat(bytes / best->scale, best->name);
}

std::string Every::ToString() const {
  if (steps > 0) return absl::StrCat(steps, steps == 1 ? " step" : " steps");
  if (epochs > 0) return absl::StrCat(epochs, epochs == 1 ? " epoch" : " epochs");
  return timed() ? FormatDuration(absl::ToInt64Nanoseconds(time)) : "never";
}

absl::StatusOr<Every> ParseEvery(absl::string_view text) {
  const std::vector<absl::string_view> words = absl::StrSplit(text, ' ', absl::SkipWhitespace());
  if (words.size() == 1 && words[0] == "never") return Every{};
  int64_t count = 0;
  if (words.size() == 2 && absl::SimpleAtoi(words[0], &count) && count >= 1) {
    if (words[1] == "step" || words[1] == "steps") return Every{.steps = count};
    if (words[1] == "epoch" || words[1] == "epochs") return Every{.epochs = count};
  }
  if (words.size() == 1) {
    const absl::StatusOr<int64_t> duration = ParseDuration(words[0]);
    if (duration.ok() && *duration > 0) return Every{.time = absl::Nanoseconds(*duration)};
  }
  return absl::InvalidArgumentError("expected such as '500 steps', '1 epoch' or '30s'");
}

}  // namespace lockstep::job
