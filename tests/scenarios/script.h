// SPDX-License-Identifier: Apache-2.0
// The text of a scenario: blocks of one command and what it made the coordinator do, which are
// written back in the same form. A block is a line with the command, "----", the output, and an
// empty line; lines that begin with '#' before a command belong to it.
// Thread-safety: pure functions on values.
#ifndef LOCKSTEP_TESTS_SCENARIOS_SCRIPT_H_
#define LOCKSTEP_TESTS_SCENARIOS_SCRIPT_H_

#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace lockstep::coordinator {

// "exit j.2 signal=9 wanted": a verb, words, and values by name ("" for a word that is none). It
// notes what was asked for, so that what nobody looks at can be refused.
class Command {
 public:
  explicit Command(const std::string& line);

  const std::string& verb() const { return verb_; }
  // The k-th word without '='; empty: there are fewer.
  std::string word(size_t k) const;
  bool flag(const std::string& name) const;
  bool has(const std::string& name) const;
  std::string text(const std::string& name, const std::string& otherwise = "") const;
  int64_t number(const std::string& name, int64_t otherwise = 0) const;
  absl::Duration duration(const std::string& name, absl::Duration otherwise) const;
  // The values "a,b,c" of a name.
  std::vector<std::string> list(const std::string& name) const;

  // The words, and the names of values, that nobody has asked for.
  std::vector<std::string> unread() const;

 private:
  std::string verb_;
  std::vector<std::string> words_;
  std::map<std::string, std::string> values_;
  mutable std::set<std::string> read_;
};

// "5s", which is a program error otherwise.
absl::Duration ParseTime(const std::string& text);

struct Block {
  std::vector<std::string> comments;  // and empty lines, before the command
  std::string command;
  std::vector<std::string> output;
};

// Errors: InvalidArgument with the line.
absl::StatusOr<std::vector<Block>> ParseScript(const std::string& text);
std::string FormatScript(const std::vector<Block>& blocks);

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_TESTS_SCENARIOS_SCRIPT_H_
