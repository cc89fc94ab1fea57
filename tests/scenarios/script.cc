// SPDX-License-Identifier: Apache-2.0
#include "tests/scenarios/script.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/check.h"

namespace lockstep::coordinator {
namespace {

// Words between blanks; quotes keep blanks together.
std::vector<std::string> Words(const std::string& line) {
  std::vector<std::string> words;
  std::string word;
  bool quoted = false;
  for (const char c : absl::StrCat(line, " ")) {
    if (c == '"') {
      quoted = !quoted;
    } else if (c == ' ' && !quoted) {
      if (!word.empty()) words.push_back(word);
      word.clear();
    } else {
      word += c;
    }
  }
  return words;
}

}  // namespace

Command::Command(const std::string& line) {
  for (const std::string& word : Words(line)) {
    const size_t equals = word.find('=');
    if (equals != std::string::npos) {
      values_[word.substr(0, equals)] = word.substr(equals + 1);
    } else if (verb_.empty()) {
      verb_ = word;
    } else {
      words_.push_back(word);
    }
  }
}

std::string Command::word(size_t k) const {
  if (k >= words_.size()) return "";
  read_.insert(words_[k]);
  return words_[k];
}

bool Command::flag(const std::string& name) const {
  read_.insert(name);
  return std::find(words_.begin(), words_.end(), name) != words_.end();
}

bool Command::has(const std::string& name) const {
  read_.insert(name);
  return values_.count(name) != 0;
}

std::vector<std::string> Command::unread() const {
  std::vector<std::string> unread;
  for (const std::string& word : words_) {
    if (read_.count(word) == 0) unread.push_back(word);
  }
  for (const auto& [name, value] : values_) {
    if (read_.count(name) == 0) unread.push_back(name);
  }
  return unread;
}

std::string Command::text(const std::string& name, const std::string& otherwise) const {
  read_.insert(name);
  const auto found = values_.find(name);
  return found == values_.end() ? otherwise : found->second;
}

int64_t Command::number(const std::string& name, int64_t otherwise) const {
  if (!has(name)) return otherwise;
  int64_t number = 0;
  LS_CHECK(absl::SimpleAtoi(text(name), &number)) << verb_ << ": " << name << " is no number";
  return number;
}

absl::Duration Command::duration(const std::string& name, absl::Duration otherwise) const {
  if (!has(name)) return otherwise;
  absl::Duration duration;
  LS_CHECK(absl::ParseDuration(text(name), &duration)) << verb_ << ": " << name;
  return duration;
}

std::vector<std::string> Command::list(const std::string& name) const {
  return absl::StrSplit(text(name), ',', absl::SkipEmpty());
}

absl::Duration ParseTime(const std::string& text) {
  absl::Duration duration;
  LS_CHECK(absl::ParseDuration(text, &duration)) << "no duration: '" << text << "'";
  return duration;
}

absl::StatusOr<std::vector<Block>> ParseScript(const std::string& text) {
  std::vector<Block> blocks;
  Block block;
  bool in_output = false;
  int number = 0;
  for (const std::string& line : std::vector<std::string>(absl::StrSplit(text, '\n'))) {
    ++number;
    if (in_output && !line.empty()) {
      block.output.push_back(line);
    } else if (in_output) {
      blocks.push_back(block);
      block = {};
      in_output = false;
    } else if (line == "----") {
      if (block.command.empty()) {
        return absl::InvalidArgumentError(absl::StrCat("line ", number, ": no command before it"));
      }
      in_output = true;
    } else if (!block.command.empty()) {
      // A command that has no output yet.
      blocks.push_back(block);
      block = {};
      if (!line.empty()) block.command = line;
    } else if (line.empty() || line[0] == '#') {
      block.comments.push_back(line);
    } else {
      block.command = line;
    }
  }
  if (!block.command.empty()) blocks.push_back(block);
  return blocks;
}

std::string FormatScript(const std::vector<Block>& blocks) {
  std::string text;
  for (const Block& block : blocks) {
    for (const std::string& line : block.comments) absl::StrAppend(&text, line, "\n");
    absl::StrAppend(&text, block.command, "\n----\n");
    for (const std::string& line : block.output) absl::StrAppend(&text, line, "\n");
    absl::StrAppend(&text, "\n");
  }
  if (!text.empty()) text.pop_back();
  return text;
}

}  // namespace lockstep::coordinator
