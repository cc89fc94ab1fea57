// SPDX-License-Identifier: Apache-2.0
#include "launcher/cli/arguments.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/status.h"
#include "job/nearest_name.h"
#include "job/units.h"
#include "launcher/cli/flags.h"

namespace lockstep::launcher {
namespace {

absl::Status Usage(const std::string& message) { return absl::InvalidArgumentError(message); }

bool IsIn(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool LooksLikeFile(const std::string& word) {
  return absl::EndsWith(word, ".yaml") || absl::EndsWith(word, ".yml") ||
         absl::StrContains(word, '/') || word == "-";
}

// A whole number of at least `least`.
absl::StatusOr<int> ParseCount(const std::string& flag, const std::string& text, int least) {
  int count = 0;
  if (!absl::SimpleAtoi(text, &count) || count < least) {
    return Usage(
        absl::StrCat("--", flag, " ", text, ": expected a whole number of at least ", least));
  }
  return count;
}

absl::StatusOr<std::optional<int>> ParseOptionalCount(const Words& words, const std::string& flag,
                                                      int least) {
  if (!words.Has(flag)) return std::optional<int>();
  LS_ASSIGN_OR_RETURN(const int count, ParseCount(flag, words.Last(flag), least));
  return std::optional<int>(count);
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
  return coordinator;
}

absl::Status NeedAddress(const std::string& verb, const CoordinatorArgs& coordinator) {
  if (!coordinator.address.empty()) return absl::OkStatus();
  return Usage(absl::StrCat("'launcher ", verb,
                            "' needs to know the coordinator: --coordinator "
                            "host:port, or set LOCKSTEP_COORDINATOR"));
}

absl::Status NoCommand(const std::string& verb, const Words& words) {
  if (!words.has_command) return absl::OkStatus();
  return Usage(absl::StrCat("'launcher ", verb, "' takes no command after '--'"));
}

// The one positional argument of `verb`, called `what` in the message.
absl::StatusOr<std::string> OnePositional(const std::string& verb, const Words& words,
                                          const std::string& what) {
  LS_RETURN_IF_ERROR(NoCommand(verb, words));
  if (words.positional.size() == 1) return words.positional[0];
  return Usage(
      absl::StrCat("'launcher ", verb, "' takes one ", what, ", ",
                   words.positional.empty()
                       ? "none is given"
                       : absl::StrCat("given are: ", absl::StrJoin(words.positional, " "))));
}

absl::StatusOr<JobArgs> ParseJobArgs(const std::string& verb, const Words& words) {
  JobArgs job;
  if (words.has_command) {
    if (!words.positional.empty()) {
      return Usage(absl::StrCat("a job file ('", words.positional[0],
                                "') or a command after '--', not both"));
    }
    if (words.command.empty()) return Usage("no command after '--'");
    job.command = words.command;
  } else {
    LS_ASSIGN_OR_RETURN(job.job_file, OnePositional(verb, words, "job file"));
    if (absl::EndsWith(job.job_file, ".py")) {
      return Usage(absl::StrCat("'", job.job_file,
                                "' is a script; run it with: launcher -- python3 ", job.job_file));
    }
  }
  if (const auto sets = words.flags.find("set"); sets != words.flags.end()) job.sets = sets->second;
  if (words.Has("name")) job.sets.push_back("name=" + words.Last("name"));
  LS_ASSIGN_OR_RETURN(const std::optional<int> restarts,
                      ParseOptionalCount(words, "max-restarts", 0));
  if (restarts) job.sets.push_back(absl::StrCat("restart.max_restarts=", *restarts));
  if (words.Has("nproc-per-node")) {
    LS_ASSIGN_OR_RETURN(job.nproc_per_node, ParseProcCount(words.Last("nproc-per-node")));
  }
  const std::string nodes = words.Last("nnodes");
  if (absl::StrContains(nodes, ':')) {
    return Usage(absl::StrCat("--nnodes ", nodes,
                              ": a range of hosts is written in the job file, as "
                              "elastic: {min_workers: A, max_workers: B}"));
  }
  LS_ASSIGN_OR_RETURN(job.nodes, ParseOptionalCount(words, "nnodes", 1));
  if (verb == "run" && job.nodes.value_or(1) > 1) {
    return Usage(absl::StrCat("--nnodes ", nodes,
                              ": a run here has one host; for more start a "
                              "coordinator, 'launcher join' on each host, and 'launcher submit'"));
  }
  if (words.Has("profile")) job.sets.push_back("profile.steps=all");
  if (words.Has("profile-steps")) {
    job.sets.push_back(absl::StrCat("profile.steps=\"", words.Last("profile-steps"), "\""));
  }
  if (words.Has("profile-sort")) {
    job.sets.push_back("profile.sort=" + words.Last("profile-sort"));
  }
  if (words.Has("interpret")) job.sets.push_back("debug.interpret=true");
  if (words.Has("dump-tensors")) {
    job.sets.push_back(absl::StrCat("debug.dump_tensors=\"", words.Last("dump-tensors"), "\""));
  }
  job.run_dir = words.Last("run-dir");
  job.runs_dir = words.Last("runs-dir");
  if (!job.run_dir.empty() && !job.runs_dir.empty()) {
    return Usage("--run-dir names this run's folder, --runs-dir the folder around it; give one");
  }
  return job;
}

absl::StatusOr<Command> ParsePlan(const Words& words, const CommonArgs& common) {
  PlanArgs args{common, {}, words.Last("dump")};
  LS_ASSIGN_OR_RETURN(args.job, ParseJobArgs("plan", words));
  if (words.Has("dump") && args.dump != "text" && args.dump != "dot") {
    return Usage(absl::StrCat("--dump ", args.dump, ": expected text or dot"));
  }
  return Command(std::move(args));
}

// What a saved model runs on.
absl::Status ParseDevice(const Words& words, int* threads, std::string* device) {
  if (words.Has("threads")) {
    LS_ASSIGN_OR_RETURN(*threads, ParseCount("threads", words.Last("threads"), 1));
  }
  if (!words.Has("device")) return absl::OkStatus();
  *device = words.Last("device");
  int number = 0;
  const bool numbered = absl::StartsWith(*device, "cuda:") &&
                        absl::SimpleAtoi(device->substr(5), &number) && number >= 0;
  if (*device == "cpu" || *device == "cuda" || numbered) return absl::OkStatus();
  return Usage(absl::StrCat("--device ", *device, ": expected cpu, cuda or cuda:N"));
}

// The device and the other data of eval and predict.
absl::Status ParseInference(const Words& words, JobArgs* data, int* threads, std::string* device) {
  data->job_file = words.Last("data");
  if (words.Has("set")) data->sets = words.flags.at("set");
  if (data->job_file.empty() && !data->sets.empty()) {
    return Usage("--set changes the job file of --data, which is not given");
  }
  return ParseDevice(words, threads, device);
}

absl::StatusOr<Command> ParseEval(const Words& words, const CommonArgs& common) {
  EvalArgs args{common, "", {}};
  LS_ASSIGN_OR_RETURN(args.model, OnePositional("eval", words, "model"));
  LS_RETURN_IF_ERROR(ParseInference(words, &args.data, &args.threads, &args.device));
  return Command(std::move(args));
}

absl::StatusOr<Command> ParsePredict(const Words& words, const CommonArgs& common) {
  PredictArgs args{
      common, "", {}, words.Last("inputs"), words.Last("out"), words.Has("probabilities")};
  LS_ASSIGN_OR_RETURN(args.model, OnePositional("predict", words, "model"));
  LS_RETURN_IF_ERROR(ParseInference(words, &args.data, &args.threads, &args.device));
  return Command(std::move(args));
}

absl::StatusOr<Command> ParseCompare(const Words& words, const CommonArgs& common) {
  CompareArgs args{common, {}, words.Last("a"), words.Last("b")};
  LS_ASSIGN_OR_RETURN(args.job, ParseJobArgs("compare", words));
  if (args.a.empty() || args.b.empty()) {
    return Usage("'launcher compare' needs two variants, such as --a fused --b unfused");
  }
  if (words.Has("tolerance") &&
      (!absl::SimpleAtod(words.Last("tolerance"), &args.tolerance) || !(args.tolerance > 0))) {
    return Usage(
        absl::StrCat("--tolerance ", words.Last("tolerance"), ": expected a number above 0"));
  }
  if (words.Has("step")) {
    LS_ASSIGN_OR_RETURN(args.step, ParseCount("step", words.Last("step"), 1));
  }
  if (words.Has("shard")) {
    LS_ASSIGN_OR_RETURN(args.shard, ParseCount("shard", words.Last("shard"), 0));
  }
  return Command(std::move(args));
}

// `launcher chaos`: a run here with the faults that it is to suffer.
absl::StatusOr<Command> ParseChaos(const Words& words, const CommonArgs& common) {
  RunArgs args{common, {}};
  LS_ASSIGN_OR_RETURN(args.job, ParseJobArgs("run", words));
  for (const char* action :
       {"kill", "exit", "segv", "abort", "stop", "hang", "flip", "grow", "slow", "scale"}) {
    const auto given = words.flags.find(action);
    if (given == words.flags.end()) continue;
    for (const std::string& text : given->second) {
      LS_ASSIGN_OR_RETURN(const chaos::Injection injection, chaos::Parse(action, text));
      args.job.faults.push_back(injection);
    }
  }
  LS_ASSIGN_OR_RETURN(const auto random, ParseOptionalCount(words, "random", 1));
  LS_ASSIGN_OR_RETURN(const auto seed, ParseOptionalCount(words, "seed", 0));
  LS_ASSIGN_OR_RETURN(const auto within, ParseOptionalCount(words, "within", 2));
  args.job.random_faults = random.value_or(0);
  args.job.chaos_seed = static_cast<uint64_t>(seed.value_or(1));
  args.job.chaos_steps = within.value_or(0);
  if (args.job.faults.empty() && args.job.random_faults == 0) {
    return Usage("'launcher chaos' needs a fault, such as --kill rank:2@step:50 or --random 3");
  }
  return Command(std::move(args));
}

absl::StatusOr<Command> ParseScale(const Words& words, const CommonArgs& common,
                                   const CoordinatorArgs& coordinator) {
  LS_RETURN_IF_ERROR(NoCommand("scale", words));
  if (words.positional.size() != 2) {
    return Usage("'launcher scale' takes a job and a number of workers");
  }
  LS_RETURN_IF_ERROR(NeedAddress("scale", coordinator));
  ScaleArgs args{common, coordinator, words.positional[0], 0};
  if (!absl::SimpleAtoi(words.positional[1], &args.workers) || args.workers < 1) {
    return Usage(absl::StrCat("'", words.positional[1], "' is no number of workers"));
  }
  return Command(std::move(args));
}

// Reads the flag's value with parse(text, number), if it is given.
template <typename Number, typename Parse>
absl::Status ParseNumber(const Words& words, const std::string& flag, const std::string& expected,
                         const Parse& parse, Number* number) {
  if (!words.Has(flag) || parse(words.Last(flag), number)) return absl::OkStatus();
  return Usage(absl::StrCat("--", flag, " ", words.Last(flag), ": expected ", expected));
}

absl::StatusOr<Command> ParseGenerate(const Words& words, const CommonArgs& common) {
  GenerateArgs args{common, "", words.Last("prompt")};
  LS_ASSIGN_OR_RETURN(args.model, OnePositional("generate", words, "model"));
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
      ParseNumber(words, "temperature", "a number from 0 on", heat, &args.temperature));
  LS_RETURN_IF_ERROR(ParseNumber(words, "top-k", "a whole number", whole, &args.top_k));
  LS_RETURN_IF_ERROR(ParseNumber(words, "seed", "a whole number", seed, &args.seed));
  LS_RETURN_IF_ERROR(ParseDevice(words, &args.threads, &args.device));
  return Command(std::move(args));
}

// `launcher bench collectives`, with nccl-tests' flags for sizes.
absl::StatusOr<Command> ParseBench(const Words& words, const CommonArgs& common) {
  static const auto* const kOperations = new std::vector<std::string>{
      "tree_reduce", "all_reduce", "reduce_scatter", "all_gather", "broadcast",
      "sendrecv",    "barrier",    "local_sum",      "memcpy"};
  LS_ASSIGN_OR_RETURN(const std::string what, OnePositional("bench", words, "subject"));
  if (what != "collectives") {
    return Usage(absl::StrCat("'launcher bench ", what, "': it measures: collectives"));
  }
  BenchArgs args;
  args.common = common;
  if (words.Has("nproc-per-node")) {
    LS_ASSIGN_OR_RETURN(args.ranks, ParseCount("nproc-per-node", words.Last("nproc-per-node"), 1));
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

absl::StatusOr<Command> ParseVerb(const std::string& verb, const Words& words,
                                  const Environment& environment) {
  LS_ASSIGN_OR_RETURN(const CommonArgs common, ParseCommon(words));
  const CoordinatorArgs coordinator = ParseCoordinator(words, environment);
  if (verb == "run") {
    LS_ASSIGN_OR_RETURN(JobArgs job, ParseJobArgs(verb, words));
    return Command(RunArgs{common, std::move(job)});
  }
  if (verb == "validate") {
    ValidateArgs args{common, "", {}};
    LS_ASSIGN_OR_RETURN(args.job_file, OnePositional(verb, words, "job file"));
    if (words.Has("set")) args.sets = words.flags.at("set");
    return Command(std::move(args));
  }
  if (verb == "plan") return ParsePlan(words, common);
  if (verb == "eval") return ParseEval(words, common);
  if (verb == "predict") return ParsePredict(words, common);
  if (verb == "compare") return ParseCompare(words, common);
  if (verb == "chaos") return ParseChaos(words, common);
  if (verb == "scale") return ParseScale(words, common, coordinator);
  if (verb == "generate") return ParseGenerate(words, common);
  if (verb == "bench") return ParseBench(words, common);
  if (verb == "doctor") {
    LS_RETURN_IF_ERROR(NoCommand(verb, words));
    if (!words.positional.empty()) return Usage("'launcher doctor' takes no argument");
    return Command(DoctorArgs{common});
  }
  if (verb == "version") {
    LS_RETURN_IF_ERROR(NoCommand(verb, words));
    if (!words.positional.empty()) return Usage("'launcher version' takes no argument");
    return Command(VersionArgs{common});
  }
  if (verb == "submit") {
    LS_ASSIGN_OR_RETURN(JobArgs job, ParseJobArgs(verb, words));
    LS_RETURN_IF_ERROR(NeedAddress(verb, coordinator));
    return Command(SubmitArgs{common, coordinator, std::move(job), !words.Has("no-follow")});
  }
  if (verb == "list" || verb == "join") {
    LS_RETURN_IF_ERROR(NoCommand(verb, words));
    if (!words.positional.empty()) {
      return Usage(
          absl::StrCat("'launcher ", verb, "' takes no argument '", words.positional[0], "'"));
    }
    LS_RETURN_IF_ERROR(NeedAddress(verb, coordinator));
    if (verb == "list") return Command(ListArgs{common, coordinator});
    JoinArgs args{common, coordinator, {}, words.Last("runs-dir"), words.Last("state-dir")};
    if (words.Has("orphan-grace")) {
      const auto grace = job::ParseDuration(words.Last("orphan-grace"));
      if (!grace.ok()) return Usage(absl::StrCat("--orphan-grace: ", grace.status().message()));
      args.orphan_grace = absl::Nanoseconds(*grace);
    }
    LS_ASSIGN_OR_RETURN(args.slots, ParseOptionalCount(words, "slots", 1));
    return Command(std::move(args));
  }
  if (verb == "top") {
    LS_RETURN_IF_ERROR(NoCommand(verb, words));
    if (words.positional.size() > 1) return Usage("'launcher top' takes one job, or none");
    LS_RETURN_IF_ERROR(NeedAddress(verb, coordinator));
    return Command(TopArgs{common, coordinator, words.positional.empty() ? "" : words.positional[0],
                           words.Has("output")});
  }
  LS_ASSIGN_OR_RETURN(const std::string job, OnePositional(verb, words, "job"));
  LS_RETURN_IF_ERROR(NeedAddress(verb, coordinator));
  if (verb == "describe") return Command(DescribeArgs{common, coordinator, job});
  if (verb == "cancel") return Command(CancelArgs{common, coordinator, job, words.Has("kill")});
  LogsArgs args{common, coordinator, job, words.Has("follow"), {}};
  LS_ASSIGN_OR_RETURN(args.rank, ParseOptionalCount(words, "rank", 0));
  return Command(std::move(args));
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
  if (IsIn(Verbs(), verb)) {
    arguments->erase(arguments->begin());
    return verb;
  }
  if (IsIn(LaterVerbs(), first)) {
    return Usage(absl::StrCat("'launcher ", first,
                              "' is not in this version; it has: ", absl::StrJoin(Verbs(), ", ")));
  }
  if (first[0] == '-' || LooksLikeFile(first)) return std::string("run");
  const std::string nearest = job::NearestName(first, Verbs());
  if (nearest.empty() && absl::StrContains(first, '.')) return std::string("run");
  return Usage(absl::StrCat("'", first, "' is neither a verb nor a .yaml file",
                            job::Suggest(first, Verbs(), "verbs are")));
}

}  // namespace

const std::vector<std::string>& Verbs() {
  static const auto* const verbs = new std::vector<std::string>{
      "run",    "validate", "plan",     "eval", "predict", "compare", "generate",
      "submit", "list",     "describe", "logs", "cancel",  "scale",   "chaos",
      "join",   "bench",    "doctor",   "top",  "version", "help"};
  return *verbs;
}

const std::vector<std::string>& LaterVerbs() {
  static const auto* const verbs = new std::vector<std::string>{"drain"};
  return *verbs;
}

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
                                         const Environment& environment) {
  std::vector<std::string> rest = arguments;
  LS_ASSIGN_OR_RETURN(const std::string verb, TakeVerb(&rest));
  // Help first: it answers even when the rest of the line is not yet right.
  for (const std::string& word : rest) {
    if (word == "--") break;
    if (word == "--help" || word == "-h") {
      return Command(HelpArgs{verb == "run" && rest.size() == arguments.size() ? "" : verb});
    }
  }
  if (verb == "help") {
    const std::string about = rest.empty() ? "" : rest[0];
    if (!about.empty() && !IsIn(Verbs(), about)) {
      return Usage(
          absl::StrCat("no verb '", about, "'", job::Suggest(about, Verbs(), "verbs are")));
    }
    return Command(HelpArgs{about});
  }
  LS_ASSIGN_OR_RETURN(const Words words, SplitWords(verb, rest));
  return ParseVerb(verb, words, environment);
}

}  // namespace lockstep::launcher
