// SPDX-License-Identifier: Apache-2.0
// From the words of a command line to the arguments of each verb; the table of verbs
// (verb_table.h) names these functions. Thread-safety: pure functions.
#ifndef LOCKSTEP_LAUNCHER_CLI_PARSE_H_
#define LOCKSTEP_LAUNCHER_CLI_PARSE_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "launcher/cli/arguments.h"
#include "launcher/cli/flags.h"

namespace lockstep::launcher {

// A command line after its verb, with what all verbs have in common read.
struct Line {
  std::string verb;
  Words words;
  CommonArgs common;
  CoordinatorArgs coordinator;
  const Environment* environment = nullptr;  // while it is parsed
};

// All errors of this header are InvalidArgument, with what would be right.
absl::Status Usage(const std::string& message);
bool IsIn(const std::vector<std::string>& names, const std::string& name);

// A whole number of at least `least`.
absl::StatusOr<int> ParseCount(const std::string& flag, const std::string& text, int least);
absl::StatusOr<std::optional<int>> ParseOptionalCount(const Words& words, const std::string& flag,
                                                      int least);
// Returns whether `text` is a host and a port of it.
bool IsHostAndPort(const std::string& text);
// Returns whether `text` has an IPv6 address without brackets: where its port begins nobody knows.
bool IsBareIpv6(absl::string_view text);
// `expected`, and what to write where an IPv6 address is the reason why `text` is not that.
std::string WrongHostAndPort(absl::string_view text, absl::string_view expected);
// That the line has no command after "--", and no other argument either.
absl::Status NoCommand(const Line& line);
absl::Status NoArgument(const Line& line);
// The one positional argument, called `what` in the message.
absl::StatusOr<std::string> OnePositional(const Line& line, const std::string& what);
// "0-9", "1,3,5-7", each with "%2" (so many at once, 0 without it): whole numbers, each once.
absl::Status ParseArray(const std::string& text, std::vector<int>* numbers, int* at_once);
// All values of a flag that may be repeated, each a list with commas.
std::vector<std::string> AllOf(const Words& words, const std::string& flag);
// "--device" and "--threads" of what runs a saved model.
absl::Status ParseDevice(const Words& words, int* threads, std::string* device);

// Of a job (parse_job.cc).
absl::StatusOr<Command> ParseRun(const Line& line);
absl::StatusOr<Command> ParseSubmit(const Line& line);
absl::StatusOr<Command> ParseValidate(const Line& line);
absl::StatusOr<Command> ParsePlan(const Line& line);
absl::StatusOr<Command> ParseCompare(const Line& line);
absl::StatusOr<Command> ParseChaos(const Line& line);
// Of a coordinator (parse_cluster.cc).
absl::StatusOr<Command> ParseList(const Line& line);
absl::StatusOr<Command> ParseNodes(const Line& line);
absl::StatusOr<Command> ParseDescribe(const Line& line);
absl::StatusOr<Command> ParseLogs(const Line& line);
absl::StatusOr<Command> ParseCancel(const Line& line);
absl::StatusOr<Command> ParseFetch(const Line& line);
absl::StatusOr<Command> ParseScale(const Line& line);
absl::StatusOr<Command> ParseJoin(const Line& line);
absl::StatusOr<Command> ParseTop(const Line& line);
absl::StatusOr<Command> ParseDrain(const Line& line);
absl::StatusOr<Command> ParseUndrain(const Line& line);
absl::StatusOr<Command> ParseHold(const Line& line);
absl::StatusOr<Command> ParseRelease(const Line& line);
absl::StatusOr<Command> ParseUsage(const Line& line);
absl::StatusOr<Command> ParseToken(const Line& line);
// Of a saved model, and of this machine (parse_offline.cc).
absl::StatusOr<Command> ParseEval(const Line& line);
absl::StatusOr<Command> ParsePredict(const Line& line);
absl::StatusOr<Command> ParseGenerate(const Line& line);
absl::StatusOr<Command> ParseBench(const Line& line);
absl::StatusOr<Command> ParseDoctor(const Line& line);
absl::StatusOr<Command> ParseVersion(const Line& line);
absl::StatusOr<Command> ParseGuest(const Line& line);
absl::StatusOr<Command> ParseHelp(const Line& line);

}  // namespace lockstep::launcher

#endif  // LOCKSTEP_LAUNCHER_CLI_PARSE_H_
