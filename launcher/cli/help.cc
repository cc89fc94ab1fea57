// SPDX-License-Identifier: Apache-2.0

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "launcher/cli/arguments.h"
#include "launcher/cli/exit_codes.h"
#include "launcher/cli/flags.h"
#include "launcher/cli/verb_table.h"

namespace lockstep::launcher {
namespace {

std::string FlagLines(const std::string& verb) {
  std::string out = "Flags:\n";
  for (const Flag& flag : AllFlags()) {
    if (!TakesFlag(verb, flag)) continue;
    const std::string letter = flag.letter == 0 ? "    " : absl::StrFormat("-%c, ", flag.letter);
    const std::string name =
        absl::StrCat("--", flag.name, flag.value.empty() ? "" : " ", flag.value);
    absl::StrAppendFormat(&out, "  %s%-24s %s\n", letter, name, flag.help);
  }
  return out;
}

std::string ExitCodeLines() {
  std::string out = "Exit codes:\n";
  for (const ExitCodeEntry& entry : ExitCodeTable()) {
    absl::StrAppendFormat(&out, "  %-6s %s\n", entry.code, entry.meaning);
  }
  return out;
}

}  // namespace

std::string HelpText(const std::string& verb) {
  const auto page = [](const Verb& about, const std::string& middle) {
    return absl::StrCat("\nExample:\n  ", about.example, "\n\n", middle, "\n", ExitCodeLines());
  };
  const Verb& run = *FindVerb("run");
  if (!verb.empty()) {
    const Verb& asked = *FindVerb(verb);
    const std::string more =
        verb == "run" ? "\nWith a command also torchrun's flags: docs/commands.md\n" : "";
    return absl::StrCat("Usage: ", asked.usage, "\n\n", asked.about, "\n",
                        page(asked, FlagLines(verb) + more));
  }
  std::string out =
      absl::StrCat("Usage: ", run.usage, "\n       launcher VERB [flags] ...\n\nVerbs:\n");
  for (const Verb& each : VerbTable()) {
    absl::StrAppendFormat(&out, "  %-10s %s\n", each.name, each.about);
  }
  return out + page(run, "'launcher VERB --help' lists the flags of a verb.\n");
}

}  // namespace lockstep::launcher
