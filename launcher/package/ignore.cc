// SPDX-License-Identifier: Apache-2.0
#include "launcher/package/ignore.h"

#include <fnmatch.h>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace lockstep::launcher {
namespace {

// "**/" stands for no folder, too.
bool Fits(const std::string& pattern, const std::string& path) {
  if (::fnmatch(pattern.c_str(), path.c_str(), FNM_PATHNAME) == 0) return true;
  absl::string_view rest = pattern;
  if (!absl::ConsumePrefix(&rest, "**/")) return false;
  const std::string tail(rest);
  if (Fits(tail, path)) return true;
  for (size_t slash = path.find('/'); slash != path.npos; slash = path.find('/', slash + 1)) {
    if (Fits(tail, path.substr(slash + 1))) return true;
  }
  return false;
}

}  // namespace

IgnoreRules::IgnoreRules(std::string_view text) {
  Add(".git");
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
  rule.pattern = std::string(text);
  if (!rule.pattern.empty()) rules_.push_back(std::move(rule));
}

bool IgnoreRules::Ignores(const std::string& path, bool is_folder) const {
  const std::string name = path.substr(path.rfind('/') + 1);
  bool ignored = false;
  for (const Rule& rule : rules_) {
    if (rule.folders_only && !is_folder) continue;
    if (Fits(rule.pattern, rule.from_top ? path : name)) ignored = !rule.negated;
  }
  return ignored;
}

}  // namespace lockstep::launcher
