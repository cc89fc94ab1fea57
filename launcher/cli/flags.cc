// SPDX-License-Identifier: Apache-2.0
#include "launcher/cli/flags.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "job/nearest_name.h"
#include "launcher/cli/parse.h"
#include "launcher/cli/torchrun.h"

namespace lockstep::launcher {
namespace {

// Those that take a job with all that flags can change of it.
const std::vector<std::string> kJobVerbs = {"run", "submit", "chaos", "validate", "plan"};
// Those that take what says where and how a job is run here.
const std::vector<std::string> kRunVerbs = {"run", "validate", "plan"};
constexpr char kFault[] = "rank:R@step:S";

// As the table writes it: dashes, no leading ones.
std::string Canonical(const std::string& name) { return absl::StrReplaceAll(name, {{"_", "-"}}); }

// The flag of this name that the verb takes, else any of this name.
const Flag* FindFlag(const std::string& verb, const std::string& name) {
  const Flag* found = nullptr;
  for (const Flag& flag : AllFlags()) {
    const bool alias =
        std::find(flag.aliases.begin(), flag.aliases.end(), name) != flag.aliases.end();
    if (flag.name != name && !alias) continue;
    if (TakesFlag(verb, flag)) return &flag;
    if (found == nullptr) found = &flag;
  }
  return found;
}

const Flag* FindLetter(char letter) {
  for (const Flag& flag : AllFlags()) {
    if (flag.letter == letter) return &flag;
  }
  return nullptr;
}

// Torchrun's flag of this name or letter, as a flag of its verbs; null: it has none.
const Flag* FindTorchrunFlag(const std::string& verb, const std::string& name, bool is_long) {
  static const auto* const flags = [] {
    auto* all = new std::vector<Flag>;
    for (const auto& [flag_name, flag] : TorchrunFlags()) {
      all->push_back({.name = flag_name,
                      .letter = flag.letter,
                      .value = flag.takes_value ? "VALUE" : "",
                      .verbs = {"run", "submit"}});
    }
    return all;
  }();
  for (const Flag& flag : *flags) {
    const bool same = is_long ? flag.name == name : flag.letter != 0 && flag.letter == name[0];
    if (same && TakesFlag(verb, flag)) return &flag;
  }
  return nullptr;
}

bool IsJobFile(const std::string& word) {
  return absl::EndsWith(word, ".yaml") || absl::EndsWith(word, ".yml") || word == "-";
}

// Returns whether the word begins a command, all that follows being its arguments.
bool BeginsScript(const std::string& verb, const std::string& word, const Words& words,
                  bool script) {
  if (verb != "run" && verb != "submit") return false;
  if (!words.positional.empty()) return false;
  if (WantsScript(words)) return true;
  return !IsJobFile(word) && (script || absl::EndsWith(word, ".py"));
}

// Returns whether the flag's value is a file or folder of this machine.
bool IsPathHere(const Flag& flag) {
  return flag.value == "DIR" || flag.value == "FILE" || flag.value == "FOLDER" ||
         flag.value == "JOB.yaml";
}

absl::Status UnknownFlag(const std::string& verb, const std::string& written,
                         const std::string& name) {
  if (const auto torchrun = TorchrunFlags().find(name); torchrun != TorchrunFlags().end()) {
    return Usage(absl::StrCat("'", written, "' is a flag of torchrun: ", torchrun->second.advice));
  }
  std::vector<std::string> names;
  for (const Flag& flag : AllFlags()) {
    if (TakesFlag(verb, flag)) names.push_back("--" + flag.name);
  }
  const std::string nearest = job::NearestName("--" + name, names);
  return Usage(absl::StrCat("unknown flag '", written, "'",
                            nearest.empty()
                                ? absl::StrCat("; 'launcher ", verb, " --help' lists the flags")
                                : absl::StrCat("; did you mean '", nearest, "'?")));
}

}  // namespace

const std::vector<Flag>& AllFlags() {
  static const auto* const flags = new std::vector<Flag>{
      {.name = "nproc-per-node",
       .value = "N",
       .verbs = {"run", "submit", "chaos", "validate", "plan", "bench"},
       .help = "workers on each host: a number, auto, cpu (one a core) or gpu (one a GPU)"},
      {.name = "nnodes", .value = "N", .verbs = kJobVerbs, .help = "hosts", .aliases = {"nodes"}},
      {.name = "set",
       .value = "PATH=VALUE",
       .verbs = {"run", "submit", "chaos", "validate", "plan", "compare", "eval", "predict"},
       .help = "override a field of the job file, such as train.epochs=10; may be repeated"},
      {.name = "max-restarts",
       .value = "N",
       .verbs = kJobVerbs,
       .help = "the same as --set restart.max_restarts=N"},
      {.name = "name", .value = "NAME", .verbs = kJobVerbs, .help = "the same as --set name=NAME"},
      {.name = "profile", .verbs = kJobVerbs, .help = "measure every step: phases, nodes, a trace"},
      {.name = "profile-steps",
       .value = "A:B",
       .verbs = kJobVerbs,
       .help = "measure steps A to B (the same as --set profile.steps=A:B; A: as --set "
               "'profile.steps=\"A:\"')"},
      {.name = "profile-sort",
       .value = "KEY",
       .verbs = kJobVerbs,
       .help = "order of the table: total, self, average, calls, flops or bytes"},
      {.name = "interpret",
       .verbs = kJobVerbs,
       .help = "check every value for NaN and infinity as it is made"},
      {.name = "dump-tensors",
       .value = "DIR",
       .verbs = kJobVerbs,
       .help = "write every node's output of step 1 (or debug.steps) as .npy; implies --interpret"},
      {.name = "dump", .value = "text|dot", .verbs = {"plan"}, .help = "the graph instead"},
      {.name = "a",
       .value = "VARIANT",
       .verbs = {"compare"},
       .help = "fused, unfused, planned, ..."},
      {.name = "b",
       .value = "VARIANT",
       .verbs = {"compare"},
       .help = "unplanned, portable, avx2, avx512, avx512_bf16, pairs, cpu, cuda; join with '+'"},
      {.name = "tolerance",
       .value = "SHARE",
       .verbs = {"compare"},
       .help = "of a tensor's largest value (1e-4); 0: no value differs, as fp32"},
      {.name = "step", .value = "N", .verbs = {"compare"}, .help = "of the micro-batch (1)"},
      {.name = "shard", .value = "N", .verbs = {"compare"}, .help = "of the micro-batch (0)"},
      {.name = "data",
       .value = "JOB.yaml",
       .verbs = {"eval", "predict"},
       .help = "take the data of this job, not that of the model's config"},
      {.name = "inputs",
       .value = "FILE",
       .verbs = {"predict"},
       .help = "a .npy or IDX file with inputs, instead of the test split"},
      {.name = "out",
       .value = "FILE",
       .verbs = {"predict"},
       .help = "answers.jsonl, or probabilities.npy; else JSON lines on stdout"},
      {.name = "probabilities", .verbs = {"predict"}, .help = "of every class, in the JSON lines"},
      {.name = "prompt",
       .value = "TEXT",
       .verbs = {"generate"},
       .help = "what the text begins with; for a model of tokens their numbers",
       .may_be_empty = true},
      {.name = "tokens", .value = "N", .verbs = {"generate"}, .help = "how many to make (200)"},
      {.name = "temperature",
       .value = "T",
       .verbs = {"generate"},
       .help = "above 1: more daring, below: more cautious, 0: always the likeliest (1)"},
      {.name = "top-k",
       .value = "K",
       .verbs = {"generate"},
       .help = "draw from the K likeliest tokens alone (0: from all)"},
      {.name = "threads",
       .value = "N",
       .verbs = {"eval", "predict", "generate"},
       .help = "of the engine (1)"},
      {.name = "device",
       .value = "DEVICE",
       .verbs = {"eval", "predict", "generate"},
       .help = "cpu, cuda or cuda:N (cpu)"},
      {.name = "device",
       .value = "cuda:GPU",
       .verbs = {"plan"},
       .help = "for a GPU that need not be here, such as cuda:h200 or cuda:sm_90"},
      {.name = "run-dir",
       .value = "DIR",
       .verbs = {"run", "validate", "plan", "chaos"},
       .help = "the folder of this run"},
      {.name = "runs-dir",
       .value = "DIR",
       .verbs = {"run", "validate", "plan", "join", "chaos"},
       .help = "where the folders of runs are made (runs)",
       .aliases = {"log-dir"}},
      {.name = "coordinator",
       .value = "ADDRESS",
       .verbs = {"submit", "list", "nodes", "describe", "logs", "cancel", "fetch", "scale", "join",
                 "top", "drain", "undrain", "hold", "release", "usage", "token"},
       .help = "host:port or unix:/path (the variable LOCKSTEP_COORDINATOR)"},
      {.name = "rdzv-endpoint",
       .value = "HOST:PORT",
       .verbs = kRunVerbs,
       .help = "a run over several hosts, the same command on each: where the host with "
               "--node-rank=0 serves the others"},
      {.name = "hosts",
       .value = "A,B:N,...",
       .verbs = kRunVerbs,
       .help = "run on these hosts, entered by ssh, with N workers there (or as the job says)"},
      {.name = "hostfile",
       .value = "FILE",
       .verbs = kRunVerbs,
       .help = "the same from a file: on each line a host, and slots=N"},
      {.name = "ssh",
       .value = "COMMAND",
       .verbs = kRunVerbs,
       .help = "with --hosts: what enters a host (ssh, or the variable LOCKSTEP_SSH)"},
      {.name = "launcher",
       .value = "PATH",
       .verbs = kRunVerbs,
       .help = "with --hosts: the launcher there (where this one is)"},
      {.name = "node-rank", .value = "K", .verbs = kRunVerbs, .help = "of this host, from 0 on"},
      {.name = "plaintext",
       .verbs = kRunVerbs,
       .help = "with --hosts, or with --rdzv-endpoint on all hosts: without encryption (whoever "
               "sees the packets "
               "can read "
               "them)"},
      {.name = "token-file",
       .value = "FILE",
       .verbs = {"run", "validate", "plan", "submit", "list", "nodes", "describe", "logs", "cancel",
                 "fetch", "scale", "join", "top", "drain", "undrain", "hold", "release", "usage",
                 "token"},
       .help = "holds the coordinator's token (LOCKSTEP_TOKEN_FILE; or LOCKSTEP_TOKEN, the token)"},
      {.name = "no-follow", .verbs = {"submit"}, .help = "submit, print the job's id and leave"},
      {.name = "wait",
       .verbs = {"submit"},
       .help = "show nothing of the job, but leave when it has ended, with its exit code"},
      {.name = "hold", .verbs = {"submit"}, .help = "let it wait until 'launcher release'"},
      {.name = "after",
       .value = "JOB,...",
       .verbs = {"submit"},
       .help = "start when these have succeeded; the first of an array stands for all of it"},
      {.name = "after-any",
       .value = "JOB,...",
       .verbs = {"submit"},
       .help = "start when these have ended, however"},
      {.name = "array",
       .value = "0-9%3",
       .verbs = {"submit"},
       .help = "a job for each number, 3 at once; it replaces ${LOCKSTEP_ARRAY_INDEX} in the file "
               "and in --set"},
      {.name = "state",
       .value = "STATE,...",
       .verbs = {"list"},
       .help = "jobs in these states alone, such as pending,running"},
      {.name = "user",
       .value = "NAME",
       .verbs = {"list", "usage", "token"},
       .help = "what is this user's alone; whose token is made"},
      {.name = "role",
       .value = "ROLE",
       .verbs = {"token"},
       .help =
           "submit (jobs of one's own), operate (everybody's jobs, and drain nodes), admin (and "
           "make tokens) or join (be a node, and nothing else)"},
      {.name = "valid-for",
       .value = "DURATION",
       .verbs = {"token"},
       .help = "how long the token is taken, such as 12h or 90d; without it until it is revoked"},
      {.name = "note", .value = "TEXT", .verbs = {"token"}, .help = "what the token is for"},
      {.name = "save-as",
       .value = "FILE",
       .verbs = {"token"},
       .help = "write the token to a new file that you alone can read (default: stdout)"},
      {.name = "since",
       .value = "DAY",
       .verbs = {"usage"},
       .help = "what was used from this day (UTC) on, such as 2026-05-01"},
      {.name = "follow",
       .letter = 'f',
       .verbs = {"logs", "submit"},
       .help = "go on until the job ends (submit does, but for an array)"},
      {.name = "rank", .value = "N", .verbs = {"logs"}, .help = "the lines of one rank"},
      {.name = "to",
       .value = "FOLDER",
       .verbs = {"fetch"},
       .help = "where the files go (the run's folder, below this one)"},
      {.name = "logs", .verbs = {"fetch"}, .help = "the logs alone"},
      {.name = "model", .verbs = {"fetch"}, .help = "the model alone"},
      {.name = "all", .verbs = {"fetch"}, .help = "everything that the run left"},
      {.name = "kill", .verbs = {"cancel"}, .help = "at once, without draining it first"},
      {.name = "kill",
       .value = kFault,
       .verbs = {"chaos"},
       .help = "kill the rank, or the coordinator, there; /start, /reduce, /reduced, /committed, "
               "/eval, /save, /join, /checkpoint, /begun, /best: the place"},
      {.name = "exit", .value = "rank:R@step:S=CODE", .verbs = {"chaos"}, .help = "let it exit"},
      {.name = "segv", .value = kFault, .verbs = {"chaos"}, .help = "a segmentation fault"},
      {.name = "abort",
       .value = kFault,
       .verbs = {"chaos"},
       .help = "a failed assertion (SIGABRT)"},
      {.name = "stop", .value = kFault, .verbs = {"chaos"}, .help = "stop it (SIGSTOP)"},
      {.name = "hang", .value = kFault, .verbs = {"chaos"}, .help = "its step stands still"},
      {.name = "flip",
       .value = kFault,
       .verbs = {"chaos"},
       .help = "flip a bit of its training state (see verify_replicas)"},
      {.name = "grow",
       .value = "rank:R@step:S=MIB",
       .verbs = {"chaos"},
       .help = "let it take so much more memory"},
      {.name = "slow", .value = "rank:R:3x", .verbs = {"chaos"}, .help = "its steps take longer"},
      {.name = "scale",
       .value = "N@step:S",
       .verbs = {"chaos"},
       .help = "give the job N workers there, as 'launcher scale' does"},
      {.name = "random", .value = "N", .verbs = {"chaos"}, .help = "N faults drawn from --seed"},
      {.name = "seed",
       .value = "N",
       .verbs = {"chaos", "generate"},
       .help = "of what is drawn (chaos 1, generate 0)"},
      {.name = "within",
       .value = "STEPS",
       .verbs = {"chaos"},
       .help = "--random draws steps up to this one (train.steps, else 100)"},
      {.name = "operations",
       .value = "A,B",
       .verbs = {"bench"},
       .help = "tree_reduce, all_reduce, reduce_scatter, all_gather, broadcast, sendrecv, barrier, "
               "local_sum, memcpy (all)"},
      {.name = "min-bytes",
       .letter = 'b',
       .value = "SIZE",
       .verbs = {"bench"},
       .help = "smallest (4B)"},
      {.name = "max-bytes",
       .letter = 'e',
       .value = "SIZE",
       .verbs = {"bench"},
       .help = "largest (64MiB)"},
      {.name = "factor", .value = "N", .verbs = {"bench"}, .help = "from one size to the next (8)"},
      {.name = "shards", .value = "N", .verbs = {"bench"}, .help = "of tree_reduce (one a rank)"},
      {.name = "seconds",
       .value = "T",
       .verbs = {"bench"},
       .help = "how long each size is measured (0.25)"},
      {.name = "slots",
       .value = "N",
       .verbs = {"join"},
       .help = "worker slots that this host offers (one for each processor that it may use, or for "
               "each GPU where these are more)"},
      {.name = "label",
       .value = "KEY=VALUE",
       .verbs = {"join"},
       .help = "what jobs may ask for (resources.labels); 'rack' says which nodes are near each "
               "other; may be repeated"},
      {.name = "state-dir",
       .value = "DIR",
       .verbs = {"join"},
       .help =
           "keeps this node's id, for one agent at a time (~/.local/state/lockstep/agent-HOST)"},
      {.name = "interfaces",
       .value = "LIST",
       .verbs = {"run", "validate", "plan", "join"},
       .help = "where other hosts reach its workers: eth0,10.0.0.0/8,^docker0 (the way to the "
               "coordinator first)"},
      {.name = "orphan-grace",
       .value = "T",
       .verbs = {"join"},
       .help = "how long workers go on that a new coordinator does not know, or whose agent is "
               "gone (5m)"},
      {.name = "leave-grace",
       .value = "T",
       .verbs = {"join"},
       .help = "how long workers may take to hand over to other nodes, or to save, when the agent "
               "leaves (20s)"},
      {.name = "leave-on-sigterm",
       .verbs = {"join"},
       .help = "SIGTERM ends the workers, too, as Ctrl-C does; without it they wait for the next "
               "agent"},
      {.name = "as-users",
       .verbs = {"join"},
       .help =
           "run each job as the user who submitted it (needs root; the host must know the user)"},
      {.name = "allow-root",
       .verbs = {"join"},
       .help = "with --as-users: root's jobs may run, too, as root"},
      {.name = "reason", .value = "TEXT", .verbs = {"drain"}, .help = "why, for those who look"},
      {.name = "output",
       .letter = 'o',
       .value = "table|json",
       .verbs = {},
       .help = "form of stdout"},
      {.name = "quiet", .letter = 'q', .verbs = {}, .help = "no progress on stderr"},
      {.name = "log-level", .value = "LEVEL", .verbs = {}, .help = "debug, info, warning or error"},
      {.name = "help", .letter = 'h', .verbs = {}, .help = "this text"},
  };
  return *flags;
}

bool TakesFlag(const std::string& verb, const Flag& flag) {
  return flag.verbs.empty() ||
         std::find(flag.verbs.begin(), flag.verbs.end(), verb) != flag.verbs.end();
}

std::string Words::Last(const std::string& flag) const {
  const auto found = flags.find(flag);
  return found == flags.end() ? "" : found->second.back();
}

absl::StatusOr<Words> SplitWords(const std::string& verb, const std::vector<std::string>& arguments,
                                 bool script) {
  Words words;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& word = arguments[i];
    if (word == "--") {
      words.has_command = true;
      words.command.assign(arguments.begin() + i + 1, arguments.end());
      break;
    }
    if (word.size() < 2 || word[0] != '-') {
      if (BeginsScript(verb, word, words, script)) {
        words.has_command = words.script = true;
        words.command.assign(arguments.begin() + i, arguments.end());
        break;
      }
      words.positional.push_back(word);
      continue;
    }
    const bool is_long = word[1] == '-';
    const size_t equals = is_long ? word.find('=') : std::string::npos;
    const std::string written = word.substr(0, equals);
    const std::string name = is_long ? Canonical(written.substr(2)) : word.substr(1, 1);
    const Flag* flag = is_long ? FindFlag(verb, name) : FindLetter(word[1]);
    if (flag == nullptr || !TakesFlag(verb, *flag)) {
      if (const Flag* peer = FindTorchrunFlag(verb, name, is_long)) flag = peer;
    }
    if (flag == nullptr) return UnknownFlag(verb, written, name);
    if (!TakesFlag(verb, *flag)) {
      return Usage(absl::StrCat("'launcher ", verb, "' takes no '", written, "'; '--", flag->name,
                                "' goes with ", flag->verbs.front()));
    }
    std::string value;
    const bool attached = is_long ? equals != std::string::npos : word.size() > 2;
    if (attached) value = is_long ? word.substr(equals + 1) : word.substr(2);
    if (flag->value.empty() && attached) {
      return Usage(absl::StrCat("'", written, "' takes no value"));
    }
    if (!flag->value.empty() && !attached) {
      if (i + 1 == arguments.size() || arguments[i + 1] == "--") {
        return Usage(absl::StrCat("'", written, "' needs a value: ", flag->value));
      }
      value = arguments[++i];
    }
    if (!flag->value.empty() && value.empty() && !flag->may_be_empty) {
      return Usage(absl::StrCat("'", written, "' needs a value: ", flag->value));
    }
    if (IsPathHere(*flag) && absl::StartsWith(value, "~")) {
      return Usage(absl::StrCat("'", written, "' has '", value, "': ",
                                attached ? "the shell expands '~' behind a space, not behind '='"
                                         : "'~' in quotes is not expanded",
                                "; './", value, "' is a folder of that name"));
    }
    words.flags[flag->name].push_back(value);
  }
  return words;
}

}  // namespace lockstep::launcher
