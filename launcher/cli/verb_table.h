// SPDX-License-Identifier: Apache-2.0
// The table of the launcher's verbs. A new one is a row here, its arguments (arguments.h), the
// function that reads them (parse.h) and an overload of RunVerb (launcher/verbs/run_verb.h).
// Thread-safety: constant.
#ifndef LOCKSTEP_LAUNCHER_CLI_VERB_TABLE_H_
#define LOCKSTEP_LAUNCHER_CLI_VERB_TABLE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "launcher/cli/arguments.h"
#include "launcher/cli/parse.h"

namespace lockstep::launcher {

struct Verb {
  std::string name;
  // For --help.
  std::string usage;
  std::string about;
  std::string example;
  absl::StatusOr<Command> (*parse)(const Line& line);
};

// Every verb, in the order of --help. Lives for ever.
const std::vector<Verb>& VerbTable();
// Null when there is none of this name.
const Verb* FindVerb(const std::string& name);

}  // namespace lockstep::launcher

#endif  // LOCKSTEP_LAUNCHER_CLI_VERB_TABLE_H_
