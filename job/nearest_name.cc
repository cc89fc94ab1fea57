// SPDX-License-Identifier: Apache-2.0
#include "job/nearest_name.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "job/names_elsewhere.h"

namespace lockstep::job {
namespace {

// Longer names are surely not mistyped ones; the limit bounds the work on hostile input.
constexpr size_t kLongestName = 80;

char Fold(char c) { return c == '-' ? '_' : absl::ascii_tolower(c); }

}  // namespace

int EditDistance(absl::string_view a, absl::string_view b) {
  std::vector<int> before(b.size() + 1), last(b.size() + 1), now(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) last[j] = static_cast<int>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    now[0] = static_cast<int>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const bool same = Fold(a[i - 1]) == Fold(b[j - 1]);
      now[j] = std::min({last[j] + 1, now[j - 1] + 1, last[j - 1] + (same ? 0 : 1)});
      if (i > 1 && j > 1 && Fold(a[i - 1]) == Fold(b[j - 2]) && Fold(a[i - 2]) == Fold(b[j - 1])) {
        now[j] = std::min(now[j], before[j - 2] + 1);
      }
    }
    std::swap(before, last);
    std::swap(last, now);
  }
  return last[b.size()];
}

std::string NearestName(absl::string_view name, const std::vector<std::string>& candidates) {
  if (name.empty() || name.size() > kLongestName) return "";
  for (const std::string& here : NamesHere(name)) {
    if (std::find(candidates.begin(), candidates.end(), here) != candidates.end()) return here;
  }
  std::string nearest;
  int best = 0;
  for (const std::string& candidate : candidates) {
    const int distance = EditDistance(name, candidate);
    const int allowed = std::max<int>(1, std::max(name.size(), candidate.size()) / 3);
    // One letter of two is another word, not a slip.
    if (distance > allowed || (distance > 0 && std::min(name.size(), candidate.size()) < 2))
      continue;
    if (nearest.empty() || distance < best) {
      nearest = candidate;
      best = distance;
    }
  }
  if (!nearest.empty()) return nearest;
  // 'lr_rate' for 'rate', 'batch' for 'global_batch': a whole word of the name.
  for (const std::string& candidate : candidates) {
    if (name.size() >= 4 &&
        absl::StrContains(absl::StrCat("_", candidate, "_"), absl::StrCat("_", name, "_"))) {
      return candidate;
    }
  }
  return "";
}

std::string Suggest(absl::string_view name, const std::vector<std::string>& candidates,
                    absl::string_view label) {
  const std::string nearest = NearestName(name, candidates);
  if (!nearest.empty()) return absl::StrCat("; did you mean '", nearest, "'?");
  return absl::StrCat("; ", label, ": ", absl::StrJoin(candidates, ", "));
}

}  // namespace lockstep::job
