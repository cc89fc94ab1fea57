// SPDX-License-Identifier: Apache-2.0
#include "launcher/cli/arguments.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/printable.h"
#include "common/status.h"
#include "common/utf8.h"
#include "job/nearest_name.h"
#include "launcher/cli/flags.h"
#include "launcher/cli/parse.h"
#include "launcher/cli/torchrun.h"
#include "launcher/cli/verb_table.h"

namespace lockstep::launcher {
namespace {

bool LooksLikeFile(const std::string& word) {
  return absl::EndsWith(word, ".yaml") || absl::EndsWith(word, ".yml") ||
         absl::EndsWith(word, ".py") || absl::StrContains(word, '/') || word == "-";
}

absl::StatusOr<CommonArgs> ParseCommon(const Words& words) {
  CommonArgs common;
  common.quiet = words.Has("quiet");
  common.log_level = words.Last("log-level");
  const std::vector<std::string> levels = {"debug", "info", "warning", "error"};
  if (words.Has("log-level") && !IsIn(levels, common.log_level)) {
    return Usage(absl::StrCat("--log-level ", common.log_level,
                              job::Suggest(common.log_level, levels, "expected")));
  }
  const std::string output = words.Last("output");
  if (output == "json") common.output = Output::kJson;
  if (words.Has("output") && output != "json" && output != "table") {
    return Usage(absl::StrCat("--output ", output, ": expected table or json"));
  }
  return common;
}

CoordinatorArgs ParseCoordinator(const Words& words, const Environment& environment) {
  CoordinatorArgs coordinator;
  coordinator.address =
      words.Has("coordinator") ? words.Last("coordinator") : environment("LOCKSTEP_COORDINATOR");
  coordinator.token_file =
      words.Has("token-file") ? words.Last("token-file") : environment("LOCKSTEP_TOKEN_FILE");
  if (coordinator.token_file.empty()) coordinator.token = environment("LOCKSTEP_TOKEN");
  for (const char* flag : {"coordinator", "token-file"}) {
    if (!words.Has(flag)) continue;
    absl::StrAppend(&coordinator.flags, " --", flag, "=", words.Last(flag));
  }
  return coordinator;
}

// That each address of the list that `verb` is to look for a coordinator at can be one.
absl::Status CheckAddress(const std::string& verb, const CoordinatorArgs& coordinator) {
  const std::vector<Flag>& flags = AllFlags();
  const bool asks = std::any_of(flags.begin(), flags.end(), [&](const Flag& flag) {
    return flag.name == "coordinator" && TakesFlag(verb, flag);
  });
  if (!asks) return absl::OkStatus();
  const std::vector<std::string> addresses =
      absl::StrSplit(coordinator.address, ',', absl::SkipEmpty());
  for (const std::string& address : addresses) {
    absl::string_view socket = address;
    const bool is_socket =
        absl::ConsumePrefix(&socket, "unix:") || absl::ConsumePrefix(&socket, "unix-abstract:");
    if (is_socket ? !socket.empty() : IsHostAndPort(address)) continue;
    return Usage(absl::StrCat(
        "the coordinator's address '", address, "' (--coordinator or LOCKSTEP_COORDINATOR): ",
        WrongHostAndPort(address, "expected HOST:PORT, unix:/path or unix-abstract:name")));
  }
  return absl::OkStatus();
}

// Returns what follows is, or may be, a command's own.
bool BeginsCommand(const std::string& word) {
  return absl::EndsWith(word, ".py") ||
         IsIn({"-m", "--module", "--no-python", "--no_python", "--run-path", "--run_path"}, word);
}

// Takes the verb off `*arguments`; "run" when there is none.
absl::StatusOr<std::string> TakeVerb(std::vector<std::string>* arguments) {
  if (arguments->empty()) {
    return Usage(
        "nothing to do: name a job file, as in `launcher job.yaml`; `launcher --help` says more");
  }
  const std::string first = arguments->front();
  std::string verb = first;
  if (first == "--version") verb = "version";
  if (first == "--help" || first == "-h") verb = "help";
  if (FindVerb(verb) != nullptr) {
    arguments->erase(arguments->begin());
    return verb;
  }
  if (first[0] == '-' || LooksLikeFile(first)) return std::string("run");
  if (absl::StartsWith(first, "python") || first == "torchrun") {
    return Usage(
        absl::StrCat("'", first, "' is neither a verb nor a .yaml file; a command stands behind ",
                     "'--': launcher -- ", first == "torchrun" ? "train.py" : "python3 train.py"));
  }
  if (first == "train") {
    return Usage(
        "'train' is neither a verb nor a .yaml file; the job file alone trains: launcher JOB.yaml");
  }
  const std::string nearest = job::NearestName(first, Verbs());
  if (nearest.empty() && absl::StrContains(first, '.')) return std::string("run");
  return Usage(absl::StrCat("'", first, "' is neither a verb nor a .yaml file",
                            job::Suggest(first, Verbs(), "verbs are")));
}

}  // namespace

absl::StatusOr<ProcCount> ParseProcCount(const std::string& text) {
  if (text == "auto") return ProcCount{ProcCount::Kind::kAuto, 0};
  if (text == "cpu") return ProcCount{ProcCount::Kind::kCpu, 0};
  if (text == "gpu") return ProcCount{ProcCount::Kind::kGpu, 0};
  int count = 0;
  if (!absl::SimpleAtoi(text, &count)) {
    return Usage(absl::StrCat("--nproc-per-node ", text,
                              ": expected a number of workers, auto, cpu or gpu"));
  }
  if (count < 1) {
    return Usage(absl::StrCat("--nproc-per-node ", text, ": a job needs at least one worker"));
  }
  return ProcCount{ProcCount::Kind::kCount, count};
}

absl::StatusOr<Command> ParseCommandLine(const std::vector<std::string>& arguments,
                                         const Environment& environment,
                                         const std::string& program) {
  for (const std::string& word : arguments) {
    // What is sent to other programs is text; a byte that is none would become another one there.
    if (ToUtf8(word) != word) {
      return Usage(absl::StrCat("the word '", Printable(word), "' is not UTF-8"));
    }
  }
  std::vector<std::string> rest = arguments;
  const bool torchrun = IsTorchrun(program);
  std::string verb = "run";
  const bool asks =
      !rest.empty() && (rest[0] == "--help" || rest[0] == "-h" || rest[0] == "--version");
  if (!torchrun || rest.empty() || asks) {
    LS_ASSIGN_OR_RETURN(verb, TakeVerb(&rest));
  }
  // Help first: it answers even when the rest of the line is not yet right.
  for (const std::string& word : rest) {
    if (word == "--" || torchrun || BeginsCommand(word)) break;
    if (word == "--help" || word == "-h") {
      return Command(HelpArgs{verb == "run" && rest.size() == arguments.size() ? "" : verb});
    }
  }
  Line line;
  line.verb = verb;
  const bool script = torchrun || (verb == "run" && WantsScript(environment));
  LS_ASSIGN_OR_RETURN(line.words, SplitWords(verb, rest, script));
  if (line.words.Has("help")) return Command(HelpArgs{torchrun ? "run" : verb});
  line.environment = &environment;
  if (line.words.has_command && verb == "run") TakeVariables(environment, &line.words);
  LS_ASSIGN_OR_RETURN(line.common, ParseCommon(line.words));
  line.coordinator = ParseCoordinator(line.words, environment);
  LS_RETURN_IF_ERROR(CheckAddress(verb, line.coordinator));
  return FindVerb(verb)->parse(line);
}

}  // namespace lockstep::launcher
