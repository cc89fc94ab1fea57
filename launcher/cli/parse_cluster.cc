// SPDX-License-Identifier: Apache-2.0
// The verbs that speak to a coordinator about its jobs and nodes.
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "job/meaning/units.h"
#include "launcher/cli/parse.h"

namespace lockstep::launcher {

absl::StatusOr<Command> ParseList(const Line& line) {
  LS_RETURN_IF_ERROR(NoArgument(line));
  return Command(ListArgs{line.common, line.coordinator});
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
  LS_ASSIGN_OR_RETURN(std::string job, OnePositional(line, "job"));
  return Command(CancelArgs{line.common, line.coordinator, std::move(job), line.words.Has("kill")});
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
  if (line.words.Has("orphan-grace")) {
    const auto grace = job::ParseDuration(line.words.Last("orphan-grace"));
    if (!grace.ok()) return Usage(absl::StrCat("--orphan-grace: ", grace.status().message()));
    args.orphan_grace = absl::Nanoseconds(*grace);
  }
  LS_ASSIGN_OR_RETURN(args.slots, ParseOptionalCount(line.words, "slots", 1));
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
