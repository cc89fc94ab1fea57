// SPDX-License-Identifier: Apache-2.0
// The verbs that take a job.
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "common/json.h"
#include "common/status.h"
#include "launcher/cli/parse.h"
#include "launcher/cli/torchrun.h"

namespace lockstep::launcher {
namespace {

// With a job file.
absl::Status NoTorchrunFlag(const Words& words) {
  for (const auto& [name, flag] : TorchrunFlags()) {
    if (!words.Has(name)) continue;
    return Usage(absl::StrCat("'--", name, "' is a flag of torchrun: ", flag.advice));
  }
  return absl::OkStatus();
}

// `here`: the job runs on this machine.
absl::StatusOr<JobArgs> ParseJobArgs(const Line& line, bool here) {
  const Words& words = line.words;
  JobArgs job;
  if (words.has_command) {
    if (!words.positional.empty()) {
      return Usage(absl::StrCat("a job file ('", words.positional[0],
                                "') or a command after '--', not both"));
    }
    if (words.command.empty()) return Usage("no command after '--'");
    LS_RETURN_IF_ERROR(ApplyTorchrun(words, *line.environment, &job));
  } else {
    LS_RETURN_IF_ERROR(NoTorchrunFlag(words));
    LS_ASSIGN_OR_RETURN(job.job_file, OnePositional(line, "job file"));
    if (absl::EndsWith(job.job_file, ".py")) {
      return Usage(
          absl::StrCat("'", job.job_file, "' is a script; run it with: launcher ", job.job_file));
    }
  }
  // Behind what torchrun's flags mean: of two words about one key the last counts.
  if (const auto sets = words.flags.find("set"); sets != words.flags.end()) {
    job.sets.insert(job.sets.end(), sets->second.begin(), sets->second.end());
  }
  if (words.Has("name")) job.sets.push_back("name=" + JsonString(words.Last("name")));
  LS_ASSIGN_OR_RETURN(const std::optional<int> restarts,
                      ParseOptionalCount(words, "max-restarts", 0));
  if (restarts) job.sets.push_back(absl::StrCat("restart.max_restarts=", *restarts));
  if (words.Has("nproc-per-node")) {
    LS_ASSIGN_OR_RETURN(job.nproc_per_node, ParseProcCount(words.Last("nproc-per-node")));
  }
  const std::string nodes = words.Last("nnodes");
  if (absl::StrContains(nodes, ':') && !words.has_command) {
    return Usage(absl::StrCat("--nnodes ", nodes,
                              ": a range of hosts is written in the job file, as "
                              "resources: {nodes: MAX} and elastic: {min_workers: LEAST}"));
  }
  if (!job.least_nodes.has_value()) {
    LS_ASSIGN_OR_RETURN(job.nodes, ParseOptionalCount(words, "nnodes", 1));
  }
  if (here && job.nodes.value_or(1) > 1) {
    return Usage(absl::StrCat(
        "--nnodes ", nodes,
        ": a run here has one host; for more, name them with --hosts=A,B; or give the same command "
        "on each of them with "
        "--rdzv-endpoint=HOST:PORT and --node-rank=K, or start a coordinator, 'launcher join' on "
        "each host, and 'launcher submit'"));
  }
  if (words.Has("profile")) job.sets.push_back("profile.steps=all");
  if (words.Has("profile-steps")) {
    job.sets.push_back("profile.steps=" + JsonString(words.Last("profile-steps")));
  }
  if (words.Has("profile-sort")) {
    job.sets.push_back("profile.sort=" + JsonString(words.Last("profile-sort")));
  }
  if (words.Has("interpret")) job.sets.push_back("debug.interpret=true");
  if (words.Has("dump-tensors")) {
    job.sets.push_back("debug.dump_tensors=" + JsonString(words.Last("dump-tensors")));
  }
  job.run_dir = words.Last("run-dir");
  job.runs_dir = words.Last("runs-dir");
  if (!job.run_dir.empty() && !job.runs_dir.empty()) {
    return Usage("--run-dir names this run's folder, --runs-dir the folder around it; give one");
  }
  return job;
}

absl::StatusOr<std::string> ParseEndpoint(const std::string& endpoint) {
  if (!IsHostAndPort(endpoint)) {
    return Usage(absl::StrCat(
        "--rdzv-endpoint ", endpoint, ": ",
        WrongHostAndPort(endpoint, "expected HOST:PORT, of the host with --node-rank=0")));
  }
  return endpoint;
}

// `launcher --hosts a,b job.yaml`: this launcher starts the others.
absl::StatusOr<RunArgs> ParseRunOnHosts(const Line& line) {
  const Words& words = line.words;
  RunArgs args{line.common, {}};
  LS_ASSIGN_OR_RETURN(args.job, ParseJobArgs(line, /*here=*/false));
  if (words.Has("hosts") && words.Has("hostfile")) {
    return Usage("--hosts names the hosts, --hostfile a file that does; give one");
  }
  if (words.Has("node-rank") || words.Has("token-file")) {
    return Usage(
        "--node-rank and --token-file are for the same command on each host; with --hosts this "
        "launcher starts the others, and the run makes its own token");
  }
  HostsArgs hosts;
  if (words.Has("hosts")) {
    LS_ASSIGN_OR_RETURN(hosts.hosts, ParseHostList(words.Last("hosts")));
    const int count = static_cast<int>(hosts.hosts.size());
    if (args.job.nodes.value_or(count) != count) {
      return Usage(absl::StrCat("--nnodes ", *args.job.nodes, ", and --hosts names ", count));
    }
  }
  const auto& count = args.job.nproc_per_node;
  if (count.has_value() && count->kind != ProcCount::Kind::kCount) {
    return Usage(
        "--nproc-per-node takes a number with --hosts; or give each host its own: a:4,b:2");
  }
  if (words.Has("rdzv-endpoint")) {
    LS_ASSIGN_OR_RETURN(hosts.endpoint, ParseEndpoint(words.Last("rdzv-endpoint")));
  }
  hosts.hostfile = words.Last("hostfile");
  hosts.ssh = words.Last("ssh");
  hosts.launcher = words.Last("launcher");
  hosts.plaintext = words.Has("plaintext");
  args.hosts = std::move(hosts);
  args.interfaces = words.Last("interfaces");
  return args;
}

// The largest of "4" and "1:4"; what is no number is complained of elsewhere.
int MostNodes(const std::string& text) {
  int most = 1;
  const bool number = absl::SimpleAtoi(text.substr(text.find(':') + 1), &most);
  return number ? most : 1;
}

// Returns whether the same command is given on several hosts. torchrun's users name an endpoint
// also where there is one host.
bool IsOverHosts(const Words& words) {
  if (!words.has_command) return words.Has("rdzv-endpoint");
  return !words.Has("standalone") && MostNodes(words.Last("nnodes")) > 1 &&
         !EndpointOf(words).empty();
}

absl::StatusOr<RendezvousArgs> ParseRendezvous(const Words& words, const JobArgs& job) {
  RendezvousArgs rendezvous;
  LS_ASSIGN_OR_RETURN(
      rendezvous.endpoint,
      ParseEndpoint(words.has_command ? EndpointOf(words) : words.Last("rdzv-endpoint")));
  rendezvous.plaintext = words.Has("plaintext");
  LS_ASSIGN_OR_RETURN(rendezvous.node_rank, ParseOptionalCount(words, "node-rank", 0));
  if (!rendezvous.node_rank.has_value()) {
    if (words.has_command) return rendezvous;
    return Usage(
        "--rdzv-endpoint needs --node-rank=K: 0 on the host that it names, other numbers "
        "on the others");
  }
  if (job.nodes.has_value() && *rendezvous.node_rank >= *job.nodes) {
    return Usage(absl::StrCat("--node-rank ", *rendezvous.node_rank, ": with --nnodes ", *job.nodes,
                              " it goes from 0 to ", *job.nodes - 1));
  }
  return rendezvous;
}

// The flags of a run. `here`: without a flag that names hosts it is on this machine.
absl::StatusOr<RunArgs> ParseRunArgs(const Line& line, bool here) {
  const Words& words = line.words;
  if (words.Has("hosts") || words.Has("hostfile")) return ParseRunOnHosts(line);
  const bool over_hosts = IsOverHosts(words);
  RunArgs args{line.common, {}};
  LS_ASSIGN_OR_RETURN(args.job, ParseJobArgs(line, here && !over_hosts));
  for (const char* flag : {"ssh", "launcher"}) {
    if (words.Has(flag)) return Usage(absl::StrCat("--", flag, " goes with --hosts=A,B"));
  }
  if (!over_hosts) {
    for (const char* flag : {"node-rank", "plaintext", "interfaces", "token-file"}) {
      if (!words.Has(flag) || (words.has_command && flag == std::string("node-rank"))) continue;
      return Usage(absl::StrCat("--", flag, " goes with --rdzv-endpoint=HOST:PORT"));
    }
    return args;
  }
  LS_ASSIGN_OR_RETURN(args.rendezvous, ParseRendezvous(words, args.job));
  args.coordinator = line.coordinator;
  args.interfaces = words.Last("interfaces");
  return args;
}

// "3" or "3-7"; the end of a range is part of it.
bool ParseRange(absl::string_view text, int* first, int* last) {
  const std::vector<absl::string_view> ends = absl::StrSplit(text, '-');
  if (ends.size() > 2 || !absl::SimpleAtoi(ends.front(), first) ||
      !absl::SimpleAtoi(ends.back(), last)) {
    return false;
  }
  return *first >= 0 && *first <= *last;
}

}  // namespace

absl::StatusOr<Command> ParseRun(const Line& line) {
  LS_ASSIGN_OR_RETURN(RunArgs args, ParseRunArgs(line, /*here=*/true));
  return Command(std::move(args));
}

absl::Status ParseArray(const std::string& text, std::vector<int>* numbers, int* at_once) {
  constexpr int kMost = 10000;
  absl::Status wrong =
      Usage(absl::StrCat("--array ", text, ": expected numbers such as 0-9 or 1,3,5-7, ", kMost,
                         " at most, each once, and with %N so many at once"));
  const std::vector<std::string> parts = absl::StrSplit(text, '%');
  if (parts.size() > 2) return wrong;
  *at_once = 0;
  if (parts.size() == 2 && (!absl::SimpleAtoi(parts[1], at_once) || *at_once < 1)) return wrong;
  std::set<int> all;
  for (const absl::string_view range : absl::StrSplit(parts[0], ',')) {
    int first = 0, last = 0;
    if (!ParseRange(range, &first, &last) || last - first >= kMost) return wrong;
    for (int i = first; i <= last; ++i) {
      if (!all.insert(i).second || all.size() > kMost) return wrong;
    }
  }
  numbers->assign(all.begin(), all.end());
  return absl::OkStatus();
}

absl::StatusOr<Command> ParseSubmit(const Line& line) {
  SubmitArgs args{line.common, line.coordinator, {}};
  LS_ASSIGN_OR_RETURN(args.job, ParseJobArgs(line, false));
  args.wait = line.words.Has("wait");
  args.hold = line.words.Has("hold");
  args.after = AllOf(line.words, "after");
  args.after_any = AllOf(line.words, "after-any");
  if (line.words.Has("array")) {
    LS_RETURN_IF_ERROR(ParseArray(line.words.Last("array"), &args.array, &args.array_at_once));
  }
  args.follow = !line.words.Has("no-follow") && !args.wait && args.array.empty();
  if (args.wait && line.words.Has("no-follow")) {
    return Usage("--wait waits for the job's end, --no-follow does not; give one");
  }
  if (line.words.Has("follow") && !args.follow) {
    return Usage("--follow shows one job until it ends: without --no-follow, --wait and --array");
  }
  return Command(std::move(args));
}

absl::StatusOr<Command> ParseValidate(const Line& line) {
  LS_RETURN_IF_ERROR(NoCommand(line));
  LS_ASSIGN_OR_RETURN(RunArgs run, ParseRunArgs(line, /*here=*/false));
  return Command(ValidateArgs{std::move(run)});
}

absl::StatusOr<Command> ParsePlan(const Line& line) {
  LS_RETURN_IF_ERROR(NoCommand(line));
  LS_ASSIGN_OR_RETURN(RunArgs run, ParseRunArgs(line, /*here=*/false));
  PlanArgs args{std::move(run), line.words.Last("dump")};
  if (line.words.Has("dump") && args.dump != "text" && args.dump != "dot") {
    return Usage(absl::StrCat("--dump ", args.dump, ": expected text or dot"));
  }
  if (line.words.Has("device")) {
    const std::string device = line.words.Last("device");
    if (!absl::StartsWith(device, "cuda:") || device.size() < 6 || absl::ascii_isdigit(device[5])) {
      return Usage(absl::StrCat("--device ", device,
                                ": expected a GPU's name or architecture, such as cuda:h200 or "
                                "cuda:sm_90"));
    }
    args.gpu = device.substr(5);
  }
  return Command(std::move(args));
}

absl::StatusOr<Command> ParseCompare(const Line& line) {
  LS_RETURN_IF_ERROR(NoCommand(line));
  const Words& words = line.words;
  CompareArgs args{line.common, {}, words.Last("a"), words.Last("b")};
  LS_ASSIGN_OR_RETURN(args.job, ParseJobArgs(line, false));
  if (args.a.empty() || args.b.empty()) {
    return Usage("'launcher compare' needs two variants, such as --a fused --b unfused");
  }
  if (words.Has("tolerance")) {
    double tolerance = 0;
    if (!absl::SimpleAtod(words.Last("tolerance"), &tolerance) || !(tolerance >= 0)) {
      return Usage(
          absl::StrCat("--tolerance ", words.Last("tolerance"), ": expected a number from 0 on"));
    }
    args.tolerance = tolerance;
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
absl::StatusOr<Command> ParseChaos(const Line& line) {
  const Words& words = line.words;
  RunArgs args{line.common, {}};
  LS_ASSIGN_OR_RETURN(args.job, ParseJobArgs(line, true));
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
  if (within.has_value() && args.job.random_faults > chaos::MostDrawn(*within)) {
    return Usage(absl::StrCat("--random ", args.job.random_faults, ": ", *within,
                              " steps have room for at most ", chaos::MostDrawn(*within),
                              " faults, which are two steps apart; draw fewer, or give it more "
                              "steps with --within"));
  }
  if (args.job.faults.empty() && args.job.random_faults == 0) {
    return Usage("'launcher chaos' needs a fault, such as --kill rank:2@step:50 or --random 3");
  }
  return Command(std::move(args));
}

}  // namespace lockstep::launcher
