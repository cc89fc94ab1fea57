// SPDX-License-Identifier: Apache-2.0
#include "common/chaos.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/philox.h"
#include "common/status.h"

namespace lockstep::chaos {
namespace {

constexpr const char* kActions[] = {"kill", "exit", "segv",  "stop", "hang",
                                    "flip", "slow", "abort", "grow", "scale"};
constexpr int64_t kMostMebibytes = 1 << 20;
constexpr const char* kPlaces[] = {"start", "reduce", "reduced",    "committed", "eval",
                                   "save",  "join",   "checkpoint", "begun",     "best"};

absl::Status Wrong(const std::string& action, const std::string& text) {
  const std::string example = action == "slow"    ? "slow rank:1:3x"
                              : action == "exit"  ? "exit rank:1@step:5=3"
                              : action == "grow"  ? "grow rank:1@step:5=512"
                              : action == "scale" ? "scale 2@step:50"
                              : action == "kill"
                                  ? "kill rank:2@step:50' or 'kill coordinator@step:50"
                                  : absl::StrCat(action, " rank:2@step:50");
  const std::string more = action == "slow"
                               ? ", more than 1x"
                               : absl::StrCat(", with one of /", absl::StrJoin(kPlaces, ", /"),
                                              " after the step if need be");
  return absl::InvalidArgumentError(
      absl::StrCat("'", action, " ", text, "' is no fault; write it as '", example, "'", more));
}

bool TakeNumber(absl::string_view text, int64_t least, int64_t* number) {
  return absl::SimpleAtoi(text, number) && *number >= least && *number < int64_t{1} << 31;
}

// "3x" or "2.5x".
bool TakeFactor(absl::string_view text, double* factor) {
  return absl::ConsumeSuffix(&text, "x") && absl::SimpleAtod(text, factor) && *factor > 1 &&
         *factor <= 1000;
}

// "50", "50/reduced", "5=3" (an exit code, or MiB).
bool TakeWhen(absl::string_view text, Injection* injection) {
  if (const size_t equals = text.find('='); equals != absl::string_view::npos) {
    int64_t value = 0;
    if (!TakeNumber(text.substr(equals + 1), 0, &value)) return false;
    if (injection->action == Action::kExit && value <= 255) {
      injection->exit_code = static_cast<int>(value);
    } else if (injection->action == Action::kGrow && value >= 1 && value <= kMostMebibytes) {
      injection->mebibytes = value;
    } else {
      return false;
    }
    text = text.substr(0, equals);
  }
  if (const size_t slash = text.find('/'); slash != absl::string_view::npos) {
    const auto place = std::find(std::begin(kPlaces), std::end(kPlaces), text.substr(slash + 1));
    if (place == std::end(kPlaces)) return false;
    injection->place = static_cast<Place>(place - std::begin(kPlaces));
    text = text.substr(0, slash);
  }
  return TakeNumber(text, 1, &injection->step);
}

}  // namespace

absl::StatusOr<Injection> Parse(const std::string& action, const std::string& text) {
  const auto known = std::find(std::begin(kActions), std::end(kActions), action);
  if (known == std::end(kActions)) return Wrong("kill", text);
  Injection injection;
  injection.action = static_cast<Action>(known - std::begin(kActions));
  absl::string_view rest = text;
  if (injection.action == Action::kScale) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(rest, absl::MaxSplits('@', 1));
    int64_t workers = 0;
    rest = parts.second;
    const bool can = TakeNumber(parts.first, 1, &workers) && absl::ConsumePrefix(&rest, "step:") &&
                     TakeWhen(rest, &injection);
    injection.workers = static_cast<int>(workers);
    if (can) return injection;
    return Wrong(action, text);
  }
  int64_t rank = 0;
  if (absl::ConsumePrefix(&rest, "coordinator@step:")) {
    injection.coordinator = true;
    const bool can = injection.action == Action::kKill && TakeWhen(rest, &injection);
    if (can) return injection;
    return Wrong(action, text);
  }
  if (!absl::ConsumePrefix(&rest, "rank:")) return Wrong(action, text);
  const bool slow = injection.action == Action::kSlow;
  const size_t end = rest.find(slow ? ':' : '@');
  if (end == absl::string_view::npos || !TakeNumber(rest.substr(0, end), 0, &rank)) {
    return Wrong(action, text);
  }
  injection.rank = static_cast<int>(rank);
  rest = rest.substr(end + 1);
  const bool good = slow ? TakeFactor(rest, &injection.factor)
                         : absl::ConsumePrefix(&rest, "step:") && TakeWhen(rest, &injection);
  if (!good) return Wrong(action, text);
  return injection;
}

std::string ToString(const Injection& injection) {
  std::string text = absl::StrCat(kActions[static_cast<int>(injection.action)], " ");
  absl::StrAppend(&text, injection.coordinator ? "coordinator"
                         : injection.action == Action::kScale
                             ? absl::StrCat(injection.workers)
                             : absl::StrCat("rank:", injection.rank));
  if (injection.action == Action::kSlow) return absl::StrCat(text, ":", injection.factor, "x");
  absl::StrAppend(&text, "@step:", injection.step);
  if (injection.place != Place::kStart) {
    absl::StrAppend(&text, "/", kPlaces[static_cast<int>(injection.place)]);
  }
  if (injection.action == Action::kExit) absl::StrAppend(&text, "=", injection.exit_code);
  if (injection.action == Action::kGrow) absl::StrAppend(&text, "=", injection.mebibytes);
  return text;
}

absl::StatusOr<std::vector<Injection>> ParseAll(const std::string& text) {
  std::vector<Injection> injections;
  for (const absl::string_view part : absl::StrSplit(text, ';', absl::SkipEmpty())) {
    const std::pair<std::string, std::string> words = absl::StrSplit(part, absl::MaxSplits(' ', 1));
    LS_ASSIGN_OR_RETURN(const Injection injection, Parse(words.first, words.second));
    injections.push_back(injection);
  }
  return injections;
}

std::string ToString(const std::vector<Injection>& injections) {
  return absl::StrJoin(injections, ";", [](std::string* out, const Injection& injection) {
    absl::StrAppend(out, ToString(injection));
  });
}

std::vector<Injection> Draw(uint64_t seed, int count, const Drawing& drawing) {
  const uint64_t key = SiteKey(seed, "chaos");
  std::vector<Injection> injections;
  const int64_t span = std::max<int64_t>(2, (drawing.steps - 1) / std::max(1, count));
  for (int i = 0; i < count; ++i) {
    const auto words = Philox4x32({static_cast<uint32_t>(i), 0, 0, 0}, key);
    Injection injection;
    const uint32_t dice = words[0] % 10, others = words[0] / 10;
    injection.action = dice < 6                      ? Action::kKill
                       : dice < 8                    ? Action::kSegv
                       : dice == 8 || !drawing.stops ? Action::kExit
                                                     : Action::kStop;
    injection.rank = static_cast<int>(words[1] % static_cast<uint32_t>(drawing.ranks));
    injection.step = 2 + i * span + words[2] % (span - 1);
    const uint32_t place = words[3] % (drawing.halves ? 5 : 4);  // that every step has
    injection.place = place < 4 ? static_cast<Place>(place) : Place::kBegun;
    injection.exit_code = 3;
    if (drawing.most_workers > drawing.least_workers && others / 4 % 3 == 0) {
      const auto choices = static_cast<uint32_t>(drawing.most_workers - drawing.least_workers + 1);
      injection.action = Action::kScale;
      injection.workers = drawing.least_workers + static_cast<int>(words[1] % choices);
      injection.rank = 0;
      if (i > 0 && words[3] / 20 % 2 == 0) injection.step = injections.back().step;
    } else if (injection.action == Action::kKill && others % 4 == 0) {
      injection.coordinator = true;
      injection.rank = 0;
    }
    injections.push_back(injection);
  }
  return injections;
}

int64_t MostDrawn(int64_t steps) { return steps / 2; }

std::string MarkFile(const std::string& run_dir, const std::string& job_id, int number) {
  return absl::StrCat(run_dir, "/", kFolder, "/", job_id, ".", number);
}

}  // namespace lockstep::chaos
