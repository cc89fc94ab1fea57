// SPDX-License-Identifier: Apache-2.0
#include "job/reporter.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/utf8.h"
#include "job/nearest_name.h"
#include "proto/job.pb.h"

namespace lockstep::job {
namespace {

constexpr absl::string_view kFlag = "--set ";
// A longer line is not shown: it would fill the screen and underline nothing.
constexpr size_t kLongestShownLine = 400;

// Returns whether the line says anything of secrets, as in a path.
bool SpeaksOfSecrets(absl::string_view line) {
  return absl::StrContains(absl::AsciiStrToLower(line), "secret");
}

// Returns whether a key, behind an anchor or tag, is that of secrets, as it should be or not.
// `surely`: it has its ':', and so is a key.
bool IsKeyOfSecrets(absl::string_view key, bool surely) {
  key = absl::StripAsciiWhitespace(key.substr(0, key.find(" #")));
  if ((surely && SpeaksOfSecrets(key)) || NearestName(key, {"secrets"}) == "secrets") return true;
  key = key.substr(key.find_last_of(" \t\"'", key.size() < 2 ? 0 : key.size() - 2) + 1);
  return NearestName(absl::StripSuffix(absl::StripSuffix(key, "\""), "'"), {"secrets"}) ==
         "secrets";
}

// Returns whether a key on the line, also within brackets, with its ':' on the next line or without
// one, is that of secrets.
bool BeginsSecrets(absl::string_view line) {
  line = absl::StripLeadingAsciiWhitespace(line);
  while (absl::StartsWith(line, "!") || absl::StartsWith(line, "&")) {  // a tag may have a ':'
    line.remove_prefix(std::min(line.find_first_of(" \t"), line.size()));
    line = absl::StripLeadingAsciiWhitespace(line);
  }
  for (size_t begin = 0; begin <= line.size();) {
    const size_t end = std::min(line.find_first_of("{}[],:", begin), line.size());
    const char after = end < line.size() ? line[end] : '\n';
    if (absl::StrContains("\n:{[", absl::string_view(&after, 1)) &&
        IsKeyOfSecrets(line.substr(begin, end - begin), after == ':')) {
      return true;
    }
    begin = end + 1;
    // A value goes to the next separator of the brackets around it.
    if (after == ':') {
      begin = line.find_first_of("{}[],", begin);
      if (begin == absl::string_view::npos) return false;
      ++begin;
    }
  }
  return false;
}

// Where lines leave their reader: within how many brackets, and within which quotes (0: none).
struct Nesting {
  int brackets = 0;
  char quote = 0;

  void Read(absl::string_view line) {
    for (size_t i = 0; i < line.size(); ++i) {
      const char c = line[i];
      const bool begins = i == 0 || absl::StrContains(" \t[{,:", line.substr(i - 1, 1));
      if (quote != 0) {
        if (c == '\\' && quote == '"') {
          ++i;
        } else if (c == quote) {
          quote = 0;
        }
      } else if (begins && (c == '"' || c == '\'')) {
        quote = c;
      } else if (begins && c == '#') {
        return;
      } else if (c == '{' || c == '[') {
        ++brackets;
      } else if ((c == '}' || c == ']') && brackets > 0) {
        --brackets;  // else of what was opened before
      }
    }
  }
};

// Returns whether a key of the job file stands at the beginning of the line, behind spaces.
bool BeginsSection(absl::string_view line) {
  absl::string_view key = line.substr(0, line.find(':'));
  if (key.size() == line.size()) return false;
  key = absl::StripAsciiWhitespace(key);
  if (key.size() >= 2 && key.front() == key.back() && (key[0] == '"' || key[0] == '\'')) {
    key = key.substr(1, key.size() - 2);
  }
  return key == "setup" || JobSpec::descriptor()->FindFieldByName(std::string(key)) != nullptr;
}

// By line: whether it may show a secret. It speaks of them, or stands below a key `secrets`, as it
// should be or not, up to another section of the file, in doubt to its end.
std::vector<bool> LinesWithSecrets(const std::vector<std::string>& lines) {
  std::vector<bool> with(lines.size());
  bool inside = false;
  size_t indentation = 0;  // of what begins the secrets
  Nesting nesting;         // since then
  for (size_t i = 0; i < lines.size(); ++i) {
    const std::string& line = lines[i];
    const size_t own = Indentation(line);
    if (inside && nesting.brackets <= 0 && nesting.quote == 0 && own <= indentation &&
        BeginsSection(line)) {
      inside = false;
    }
    const bool comment = own < line.size() && line[own] == '#';
    if (!comment && BeginsSecrets(line)) {
      if (!inside) nesting = {};
      indentation = inside ? std::min(indentation, own) : own;
      inside = true;
    }
    with[i] = inside || SpeaksOfSecrets(line);
    if (inside) nesting.Read(line);
  }
  return with;
}

}  // namespace

Reporter::Reporter(std::string file, absl::string_view text, const std::vector<std::string>& sets)
    : file_(std::move(file)) {
  lines_.push_back(absl::StrSplit(text, '\n'));
  for (const std::string& set : sets) lines_.push_back(absl::StrSplit(set, '\n'));
  for (std::vector<std::string>& lines : lines_) {
    for (std::string& line : lines) {
      if (absl::EndsWith(line, "\r")) line.pop_back();
    }
  }
  with_secrets_.resize(lines_.size());
}

absl::string_view Reporter::LineOf(const Place& place) const {
  const std::vector<std::string>& lines = lines_[place.source];
  if (place.line < 0 || static_cast<size_t>(place.line) >= lines.size()) return "";
  return lines[place.line];
}

bool Reporter::MayShowSecret(const Place& place) {
  const std::vector<std::string>& lines = lines_[place.source];
  std::vector<bool>& with = with_secrets_[place.source];
  if (with.empty() && place.source > 0) {  // a --set
    const absl::string_view path = absl::string_view(lines[0]).substr(0, lines[0].find('='));
    const absl::string_view section = path.substr(0, path.find('.'));
    if (SpeaksOfSecrets(path) || NearestName(section, {"secrets"}) == "secrets") {
      with.assign(lines.size(), true);
    }
  }
  if (with.empty()) with = LinesWithSecrets(lines);
  return place.line >= 0 && static_cast<size_t>(place.line) < with.size() && with[place.line];
}

void Reporter::Error(const Place& place, std::string message) {
  const absl::string_view text = LineOf(place);
  const std::string_view line(text.data(), text.size());
  const size_t begin = std::min<size_t>(std::max(place.column, 0), line.size());
  Diagnostic d;
  d.message = std::move(message);
  d.column = CountCharacters(line.substr(0, begin)) + 1;
  d.width = std::max(1, CountCharacters(line.substr(begin, std::max(place.width, 1))));
  // Another misspelling is known by the name that the message proposes.
  const bool secret = MayShowSecret(place) || absl::StrContains(d.message, "'secrets'");
  if (line.size() <= kLongestShownLine && !secret) d.source_line = std::string(line);
  if (place.source == 0) {
    d.file = file_;
    d.line = place.line + 1;
  } else {
    d.file = "--set";
    if (!secret) d.source_line = absl::StrCat(place.line == 0 ? kFlag : "", d.source_line);
    if (place.line == 0) d.column += static_cast<int>(kFlag.size());
  }
  errors_.push_back({place, std::move(d)});
}

void Reporter::SetError(int set, size_t offset, size_t width, std::string message) {
  Place place;
  place.source = set + 1;
  place.column = static_cast<int>(offset);
  place.width = static_cast<int>(width);
  Error(place, std::move(message));
}

std::vector<Diagnostic> Reporter::Take() {
  std::stable_sort(errors_.begin(), errors_.end(), [](const Item& a, const Item& b) {
    return std::tie(a.place.source, a.place.line, a.place.column) <
           std::tie(b.place.source, b.place.line, b.place.column);
  });
  std::vector<Diagnostic> out;
  for (Item& item : errors_) {
    if (out.size() == kMaxErrors) {
      Diagnostic more;
      more.file = file_;
      more.message = absl::StrCat(errors_.size() - kMaxErrors, " more errors are not shown");
      out.push_back(std::move(more));
      break;
    }
    out.push_back(std::move(item.diagnostic));
  }
  errors_.clear();
  return out;
}

}  // namespace lockstep::job
