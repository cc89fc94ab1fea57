// SPDX-License-Identifier: Apache-2.0
// The table of the launcher's flags, and the split of a command line along it.
// Thread-safety: pure functions on values.
#ifndef LOCKSTEP_LAUNCHER_CLI_FLAGS_H_
#define LOCKSTEP_LAUNCHER_CLI_FLAGS_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace lockstep::launcher {

struct Flag {
  std::string name;                // "nproc-per-node"
  char letter = 0;                 // 'o' for -o; 0: none
  std::string value = {};          // "N" in --help; empty: the flag takes none
  std::vector<std::string> verbs;  // that take it; empty: all
  std::string help = {};           // one line
  std::vector<std::string> aliases = {};
  bool may_be_empty = false;  // the value
};
// Every flag of the launcher, in the order of --help. Lives for ever.
const std::vector<Flag>& AllFlags();

// Returns whether `verb` ("run", "join", ...) takes `flag`.
bool TakesFlag(const std::string& verb, const Flag& flag);

// A command line taken apart.
struct Words {
  // By canonical name, in order of appearance; "" for flags without a value.
  std::map<std::string, std::vector<std::string>> flags;
  std::vector<std::string> positional;
  bool has_command = false;  // "--" was there, or a script
  bool script = false;       // the command begins with a script (or module, or program)
  std::vector<std::string> command;

  bool Has(const std::string& flag) const { return flags.count(flag) > 0; }
  // The last value; empty without the flag.
  std::string Last(const std::string& flag) const;
};

// Splits the arguments of `verb`. The command of `run` and `submit` follows "--", or begins with
// the first word that is neither a flag nor a job file (.yaml, .yml, -) if that ends in .py, if -m,
// --no-python or --run-path came before it, or with `script`. Errors: InvalidArgument for unknown
// flags (with the nearest name), missing and unwanted values.
absl::StatusOr<Words> SplitWords(const std::string& verb, const std::vector<std::string>& arguments,
                                 bool script = false);

}  // namespace lockstep::launcher

#endif  // LOCKSTEP_LAUNCHER_CLI_FLAGS_H_
