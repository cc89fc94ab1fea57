// SPDX-License-Identifier: Apache-2.0
// The verbs that speak to a coordinator about its jobs and nodes.
#include <algorithm>
#include <iterator>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "common/status.h"
#include "job/meaning/units.h"
#include "launcher/cli/parse.h"

namespace lockstep::launcher {

namespace {

// "key=value", with a key such as a variable may have.
absl::Status ParseLabel(const std::string& text, std::map<std::string, std::string>* labels) {
  const size_t equals = text.find('=');
  const std::string key = text.substr(0, equals);
  const bool is_name = !key.empty() && !absl::ascii_isdigit(static_cast<unsigned char>(key[0])) &&
                       std::all_of(key.begin(), key.end(), [](char c) {
                         return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_';
                       });
  if (equals == std::string::npos || !is_name || equals + 1 == text.size()) {
    return Usage(
        absl::StrCat("--label ", text, ": expected KEY=VALUE; a key has letters, digits and '_'"));
  }
  (*labels)[key] = text.substr(equals + 1);
  return absl::OkStatus();
}

absl::StatusOr<Command> ParseHoldOrRelease(const Line& line, bool release) {
  LS_ASSIGN_OR_RETURN(std::string job, OnePositional(line, "job"));
  return Command(HoldArgs{line.common, line.coordinator, std::move(job), release});
}

}  // namespace

std::vector<std::string> AllOf(const Words& words, const std::string& flag) {
  std::vector<std::string> all;
  const auto found = words.flags.find(flag);
  if (found == words.flags.end()) return all;
  for (const std::string& value : found->second) {
    for (const absl::string_view part : absl::StrSplit(value, ',', absl::SkipEmpty())) {
      all.emplace_back(part);
    }
  }
  return all;
}

absl::StatusOr<Command> ParseList(const Line& line) {
  LS_RETURN_IF_ERROR(NoArgument(line));
  static constexpr absl::string_view kStates[] = {"PENDING",  "STARTING",  "RUNNING", "RECOVERING",
                                                  "DRAINING", "SUCCEEDED", "FAILED",  "CANCELLED"};
  ListArgs args{line.common, line.coordinator, {}, line.words.Last("user")};
  for (const std::string& given : AllOf(line.words, "state")) {
    const std::string state = absl::AsciiStrToUpper(given);
    if (std::find(std::begin(kStates), std::end(kStates), state) == std::end(kStates)) {
      return Usage(absl::StrCat("--state ", given, ": expected ",
                                absl::AsciiStrToLower(absl::StrJoin(kStates, ", "))));
    }
    args.states.push_back(state);
  }
  return Command(std::move(args));
}

absl::StatusOr<Command> ParseHold(const Line& line) { return ParseHoldOrRelease(line, false); }
absl::StatusOr<Command> ParseRelease(const Line& line) { return ParseHoldOrRelease(line, true); }

absl::StatusOr<Command> ParseUsage(const Line& line) {
  LS_RETURN_IF_ERROR(NoArgument(line));
  UsageArgs args{line.common, line.coordinator, line.words.Last("user"), {}};
  if (!line.words.Has("since")) return Command(std::move(args));
  const std::string since = line.words.Last("since");
  absl::Time time;
  std::string error;
  if (!absl::ParseTime("%Y-%m-%d", since, absl::UTCTimeZone(), &time, &error)) {
    return Usage(absl::StrCat("--since ", since, ": expected a day (UTC) such as 2026-05-01"));
  }
  args.since = time;
  return Command(std::move(args));
}

absl::StatusOr<Command> ParseToken(const Line& line) {
  LS_RETURN_IF_ERROR(NoCommand(line));
  const std::vector<std::string>& given = line.words.positional;
  const std::string action = given.empty() ? "" : given[0];
  const bool create = action == "create", revoke = action == "revoke", renew = action == "renew";
  if (!create && !revoke && !renew && action != "list" && action != "whoami") {
    return Usage("'launcher token' takes one of create, list, renew, revoke ID and whoami");
  }
  if (given.size() != (revoke ? 2 : 1)) {
    return Usage(revoke ? "'launcher token revoke' takes the token's id, as 'launcher token list' "
                          "shows it"
                        : absl::StrCat("'launcher token ", action, "' takes no further argument"));
  }
  TokenArgs args;
  args.common = line.common;
  args.coordinator = line.coordinator;
  args.action = action;
  if (revoke) args.id = given[1];
  for (const char* flag : {"user", "role", "valid-for", "note", "save-as"}) {
    const bool of_renew = renew && absl::string_view(flag) == "save-as";
    if (line.words.Has(flag) && !create && !of_renew) {
      return Usage(absl::StrCat("--", flag, " is for 'launcher token create'"));
    }
  }
  args.save_as = line.words.Last("save-as");
  if (!create) return Command(std::move(args));
  args.user = line.words.Last("user");
  args.role = line.words.Last("role");
  args.note = line.words.Last("note");
  static constexpr absl::string_view kRoles[] = {"submit", "operate", "admin", "join"};
  if (!line.words.Has("role")) {
    return Usage(absl::StrCat("--role is needed: ", absl::StrJoin(kRoles, ", ")));
  }
  if (std::find(std::begin(kRoles), std::end(kRoles), args.role) == std::end(kRoles)) {
    return Usage(absl::StrCat("--role ", args.role, ": expected ", absl::StrJoin(kRoles, ", ")));
  }
  if (args.user.empty()) return Usage("--user says whose token it is, or of a node its name");
  if (line.words.Has("valid-for")) {
    const auto valid_for = job::ParseDuration(line.words.Last("valid-for"));
    if (!valid_for.ok()) {
      return Usage(absl::StrCat("--valid-for: ", valid_for.status().message()));
    }
    args.valid_for = absl::Nanoseconds(*valid_for);
  }
  return Command(std::move(args));
}

absl::StatusOr<Command> ParseNodes(const Line& line) {
  LS_RETURN_IF_ERROR(NoArgument(line));
  return Command(NodesArgs{line.common, line.coordinator});
}

absl::StatusOr<Command> ParseDescribe(const Line& line) {
  LS_ASSIGN_OR_RETURN(std::string job, OnePositional(line, "job"));
  return Command(DescribeArgs{line.common, line.coordinator, std::move(job)});
}

absl::StatusOr<Command> ParseLogs(const Line& line) {
  LS_ASSIGN_OR_RETURN(std::string job, OnePositional(line, "job"));
  LogsArgs args{line.common, line.coordinator, std::move(job), line.words.Has("follow"), {}};
  LS_ASSIGN_OR_RETURN(args.rank, ParseOptionalCount(line.words, "rank", 0));
  return Command(std::move(args));
}

absl::StatusOr<Command> ParseCancel(const Line& line) {
  LS_RETURN_IF_ERROR(NoCommand(line));
  if (line.words.positional.empty()) {
    return Usage("'launcher cancel' takes one job or several, none is given");
  }
  return Command(
      CancelArgs{line.common, line.coordinator, line.words.positional, line.words.Has("kill")});
}

absl::StatusOr<Command> ParseFetch(const Line& line) {
  LS_ASSIGN_OR_RETURN(std::string job, OnePositional(line, "job"));
  FetchArgs args{line.common,           line.coordinator,       std::move(job),
                 line.words.Last("to"), line.words.Has("logs"), line.words.Has("model"),
                 line.words.Has("all")};
  if (!args.logs && !args.model && !args.all) args.logs = args.model = true;
  return Command(std::move(args));
}

absl::StatusOr<Command> ParseScale(const Line& line) {
  LS_RETURN_IF_ERROR(NoCommand(line));
  const std::vector<std::string>& given = line.words.positional;
  if (given.size() != 2) return Usage("'launcher scale' takes a job and a number of workers");
  ScaleArgs args{line.common, line.coordinator, given[0], 0};
  if (!absl::SimpleAtoi(given[1], &args.workers) || args.workers < 1) {
    return Usage(absl::StrCat("'", given[1], "' is no number of workers"));
  }
  return Command(std::move(args));
}

absl::StatusOr<Command> ParseJoin(const Line& line) {
  LS_RETURN_IF_ERROR(NoArgument(line));
  JoinArgs args{line.common,
                line.coordinator,
                {},
                line.words.Last("runs-dir"),
                line.words.Last("state-dir"),
                line.words.Last("interfaces")};
  for (const auto& [flag, grace] : {std::pair("orphan-grace", &args.orphan_grace),
                                    std::pair("leave-grace", &args.leave_grace)}) {
    if (!line.words.Has(flag)) continue;
    const auto parsed = job::ParseDuration(line.words.Last(flag));
    if (!parsed.ok()) return Usage(absl::StrCat("--", flag, ": ", parsed.status().message()));
    *grace = absl::Nanoseconds(*parsed);
  }
  LS_ASSIGN_OR_RETURN(args.slots, ParseOptionalCount(line.words, "slots", 1));
  args.leave_on_sigterm = line.words.Has("leave-on-sigterm");
  args.as_users = line.words.Has("as-users");
  args.allow_root = line.words.Has("allow-root");
  if (args.allow_root && !args.as_users) return Usage("--allow-root goes with --as-users");
  for (const std::string& label : AllOf(line.words, "label")) {
    LS_RETURN_IF_ERROR(ParseLabel(label, &args.labels));
  }
  return Command(std::move(args));
}

absl::StatusOr<Command> ParseDrain(const Line& line) {
  LS_ASSIGN_OR_RETURN(std::string node, OnePositional(line, "node"));
  return Command(
      DrainArgs{line.common, line.coordinator, std::move(node), line.words.Last("reason")});
}

absl::StatusOr<Command> ParseUndrain(const Line& line) {
  LS_ASSIGN_OR_RETURN(std::string node, OnePositional(line, "node"));
  return Command(UndrainArgs{line.common, line.coordinator, std::move(node)});
}

absl::StatusOr<Command> ParseTop(const Line& line) {
  LS_RETURN_IF_ERROR(NoCommand(line));
  const std::vector<std::string>& given = line.words.positional;
  if (given.size() > 1) return Usage("'launcher top' takes one job, or none");
  return Command(TopArgs{line.common, line.coordinator, given.empty() ? "" : given[0],
                         line.words.Has("output")});
}

}  // namespace lockstep::launcher
