// SPDX-License-Identifier: Apache-2.0
#include "launcher/package/ignore.h"

#include <fnmatch.h>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace lockstep::launcher {
namespace {

using Parts = std::vector<std::string>;

// Returns whether the parts of a path from `at` on are those of a pattern from `from` on. "**" is
// any number of parts; at the end of a pattern it is one at least: what is in a folder, not the
// folder.
bool Fits(const Parts& pattern, size_t from, const Parts& path, size_t at) {
  if (from == pattern.size()) return at == path.size();
  if (pattern[from] == "**") {
    const bool last = from + 1 == pattern.size();
    if (last) return at < path.size();
    for (size_t next = at; next <= path.size(); ++next) {
      if (Fits(pattern, from + 1, path, next)) return true;
    }
    return false;
  }
  return at < path.size() && ::fnmatch(pattern[from].c_str(), path[at].c_str(), 0) == 0 &&
         Fits(pattern, from + 1, path, at + 1);
}

}  // namespace

IgnoreRules::IgnoreRules(std::string_view text) {
  for (const char* by_itself : {".git", "/runs/"}) Add(by_itself);
  for (absl::string_view line : absl::StrSplit(absl::string_view(text.data(), text.size()), '\n')) {
    line = absl::StripTrailingAsciiWhitespace(line);
    if (!line.empty() && line[0] != '#') Add(std::string_view(line.data(), line.size()));
  }
}

void IgnoreRules::Add(std::string_view line) {
  absl::string_view text(line.data(), line.size());
  Rule rule;
  rule.negated = absl::ConsumePrefix(&text, "!");
  rule.folders_only = absl::ConsumeSuffix(&text, "/");
  rule.from_top = text.find('/') != text.npos;
  absl::ConsumePrefix(&text, "/");
  if (text.empty()) return;
  for (absl::string_view part : absl::StrSplit(text, '/')) {
    // Of "**" in a row one is enough, and the more there are the longer it takes.
    if (part == "**" && !rule.pattern.empty() && rule.pattern.back() == "**") continue;
    rule.pattern.emplace_back(part);
  }
  rules_.push_back(std::move(rule));
}

bool IgnoreRules::Ignores(const std::string& path, bool is_folder) const {
  const Parts parts = absl::StrSplit(path, '/');
  bool ignored = false;
  for (const Rule& rule : rules_) {
    if (rule.folders_only && !is_folder) continue;
    if (Fits(rule.pattern, 0, parts, rule.from_top ? 0 : parts.size() - 1)) ignored = !rule.negated;
  }
  return ignored;
}

}  // namespace lockstep::launcher
