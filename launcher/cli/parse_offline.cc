// SPDX-License-Identifier: Apache-2.0
// The verbs that need no coordinator and no job: saved models, and this machine.
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/status.h"
#include "job/meaning/units.h"
#include "job/nearest_name.h"
#include "launcher/cli/parse.h"
#include "launcher/cli/verb_table.h"

namespace lockstep::launcher {
namespace {

// The device and the other data of eval and predict.
absl::Status ParseInference(const Words& words, JobArgs* data, int* threads, std::string* device) {
  data->job_file = words.Last("data");
  if (words.Has("set")) data->sets = words.flags.at("set");
  if (data->job_file.empty() && !data->sets.empty()) {
    return Usage("--set changes the job file of --data, which is not given");
  }
  return ParseDevice(words, threads, device);
}

// Reads the flag's value with parse(text, number), if it is given.
template <typename Number, typename Parse>
absl::Status ParseNumber(const Words& words, const std::string& flag, const std::string& expected,
                         const Parse& parse, Number* number) {
  if (!words.Has(flag) || parse(words.Last(flag), number)) return absl::OkStatus();
  return Usage(absl::StrCat("--", flag, " ", words.Last(flag), ": expected ", expected));
}

}  // namespace

absl::StatusOr<Command> ParseEval(const Line& line) {
  EvalArgs args{line.common, "", {}};
  LS_ASSIGN_OR_RETURN(args.model, OnePositional(line, "model"));
  LS_RETURN_IF_ERROR(ParseInference(line.words, &args.data, &args.threads, &args.device));
  return Command(std::move(args));
}

absl::StatusOr<Command> ParsePredict(const Line& line) {
  const Words& words = line.words;
  PredictArgs args{
      line.common, "", {}, words.Last("inputs"), words.Last("out"), words.Has("probabilities")};
  LS_ASSIGN_OR_RETURN(args.model, OnePositional(line, "model"));
  if (words.Has("out") && !absl::EndsWith(args.out, ".npy") &&
      !absl::EndsWith(args.out, ".jsonl")) {
    return Usage(absl::StrCat("--out ", args.out, ": the name must end in .npy or .jsonl"));
  }
  LS_RETURN_IF_ERROR(ParseInference(line.words, &args.data, &args.threads, &args.device));
  return Command(std::move(args));
}

absl::StatusOr<Command> ParseGenerate(const Line& line) {
  const Words& words = line.words;
  GenerateArgs args{line.common, "", words.Last("prompt")};
  LS_ASSIGN_OR_RETURN(args.model, OnePositional(line, "model"));
  const auto whole = [](const std::string& text, int64_t* number) {
    return absl::SimpleAtoi(text, number) && *number >= 0;
  };
  const auto heat = [](const std::string& text, double* number) {
    return absl::SimpleAtod(text, number) && *number >= 0 && *number <= 1e6;
  };
  const auto seed = [](const std::string& text, uint64_t* number) {
    return absl::SimpleAtoi(text, number);
  };
  LS_RETURN_IF_ERROR(ParseNumber(words, "tokens", "a whole number", whole, &args.tokens));
  LS_RETURN_IF_ERROR(
      ParseNumber(words, "temperature", "a number from 0 to 1e6", heat, &args.temperature));
  LS_RETURN_IF_ERROR(ParseNumber(words, "top-k", "a whole number", whole, &args.top_k));
  LS_RETURN_IF_ERROR(ParseNumber(words, "seed", "a whole number", seed, &args.seed));
  LS_RETURN_IF_ERROR(ParseDevice(words, &args.threads, &args.device));
  return Command(std::move(args));
}

// `launcher bench collectives`, with nccl-tests' flags for sizes.
absl::StatusOr<Command> ParseBench(const Line& line) {
  const Words& words = line.words;
  constexpr int kMostRanks = 4096;  // as resources.nproc_per_node
  static const auto* const kOperations = new std::vector<std::string>{
      "tree_reduce", "all_reduce", "reduce_scatter", "all_gather", "broadcast",
      "sendrecv",    "barrier",    "local_sum",      "memcpy"};
  LS_ASSIGN_OR_RETURN(const std::string what, OnePositional(line, "subject"));
  if (what != "collectives") {
    return Usage(absl::StrCat("'launcher bench ", what, "': it measures: collectives"));
  }
  BenchArgs args;
  args.common = line.common;
  if (words.Has("nproc-per-node")) {
    LS_ASSIGN_OR_RETURN(args.ranks, ParseCount("nproc-per-node", words.Last("nproc-per-node"), 1));
    if (args.ranks > kMostRanks) {
      return Usage(absl::StrCat("--nproc-per-node ", args.ranks, ": at most ", kMostRanks));
    }
  }
  args.shards = args.ranks;
  if (words.Has("shards")) {
    LS_ASSIGN_OR_RETURN(args.shards, ParseCount("shards", words.Last("shards"), args.ranks));
  }
  const auto size = [](const std::string& text, int64_t* bytes) {
    const absl::StatusOr<int64_t> parsed = job::ParseSize(text);
    if (parsed.ok()) *bytes = *parsed;
    return (parsed.ok() || absl::SimpleAtoi(text, bytes)) && *bytes > 0;
  };
  const auto seconds = [](const std::string& text, double* number) {
    return absl::SimpleAtod(text, number) && *number > 0 && *number <= 600;
  };
  const std::string sizes = "a size such as 4B, 64KiB or 256MiB (1024-based), or 2MB (1000-based)";
  LS_RETURN_IF_ERROR(ParseNumber(words, "min-bytes", sizes, size, &args.min_bytes));
  LS_RETURN_IF_ERROR(ParseNumber(words, "max-bytes", sizes, size, &args.max_bytes));
  LS_RETURN_IF_ERROR(ParseNumber(words, "seconds", "a number above 0", seconds, &args.seconds));
  if (args.max_bytes < args.min_bytes) return Usage("--max-bytes is less than --min-bytes");
  if (words.Has("factor")) {
    LS_ASSIGN_OR_RETURN(args.factor, ParseCount("factor", words.Last("factor"), 2));
  }
  args.operations = *kOperations;
  if (words.Has("operations")) {
    args.operations = absl::StrSplit(words.Last("operations"), ',');
    for (const std::string& each : args.operations) {
      if (IsIn(*kOperations, each)) continue;
      return Usage(
          absl::StrCat("--operations ", each, job::Suggest(each, *kOperations, "there are")));
    }
  }
  return Command(std::move(args));
}

absl::StatusOr<Command> ParseDoctor(const Line& line) {
  LS_RETURN_IF_ERROR(NoArgument(line));
  return Command(DoctorArgs{line.common});
}

absl::StatusOr<Command> ParseGuest(const Line& line) {
  LS_RETURN_IF_ERROR(NoArgument(line));
  return Command(GuestArgs{line.common});
}

absl::StatusOr<Command> ParseVersion(const Line& line) {
  LS_RETURN_IF_ERROR(NoArgument(line));
  return Command(VersionArgs{line.common});
}

absl::StatusOr<Command> ParseHelp(const Line& line) {
  const std::string about = line.words.positional.empty() ? "" : line.words.positional[0];
  if (!about.empty() && FindVerb(about) == nullptr) {
    return Usage(absl::StrCat("no verb '", about, "'", job::Suggest(about, Verbs(), "verbs are")));
  }
  return Command(HelpArgs{about});
}

}  // namespace lockstep::launcher
