// SPDX-License-Identifier: Apache-2.0
#include "launcher/cli/torchrun.h"

#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "common/json.h"
#include "common/status.h"
#include "launcher/cli/parse.h"

namespace lockstep::launcher {
namespace {

// torchrun's ports where none is given.
constexpr char kDefaultPort[] = "29400";

constexpr double kLongest = 100.0 * 365 * 86400;  // seconds, of every duration of a job file

// The launcher's own flags that torchrun has, too.
constexpr const char* kCommonFlags[] = {"nnodes",  "nproc-per-node", "max-restarts",
                                        "log-dir", "rdzv-endpoint",  "node-rank"};

bool IsTrue(const std::string& value) {
  return value == "1" || absl::EqualsIgnoreCase(value, "true");
}

std::string Variable(const std::string& flag) {
  return "PET_" + absl::AsciiStrToUpper(absl::StrReplaceAll(flag, {{"-", "_"}}));
}

// "join_timeout=60,last_call_timeout=5": what of it has a meaning here.
absl::Status ApplyRendezvousConf(const std::string& text, JobArgs* job) {
  const std::vector<std::string> parts = absl::StrSplit(text, ',', absl::SkipWhitespace());
  for (const std::string& part : parts) {
    const std::vector<std::string> pair = absl::StrSplit(part, absl::MaxSplits('=', 1));
    double seconds = 0;
    if (pair.size() != 2) {
      return Usage(absl::StrCat("--rdzv-conf ", text, ": expected key=value,key=value"));
    }
    if (absl::StripAsciiWhitespace(pair[0]) != "join_timeout") continue;
    if (!absl::SimpleAtod(pair[1], &seconds) || !(seconds >= 1 && seconds <= kLongest)) {
      return Usage(absl::StrCat("--rdzv-conf ", text,
                                ": join_timeout is a number of seconds, 1 to ",
                                static_cast<int64_t>(kLongest)));
    }
    const auto milliseconds = static_cast<int64_t>(std::llround(seconds * 1e3));
    job->sets.push_back(milliseconds % 1000 == 0
                            ? absl::StrCat("start_timeout=", milliseconds / 1000, "s")
                            : absl::StrCat("start_timeout=", milliseconds, "ms"));
  }
  return absl::OkStatus();
}

// "1:4": from the first number of hosts to the second.
absl::Status ApplyNodes(const std::string& text, JobArgs* job) {
  const size_t colon = text.find(':');
  if (colon == std::string::npos) return absl::OkStatus();
  LS_ASSIGN_OR_RETURN(const int least, ParseCount("nnodes", text.substr(0, colon), 1));
  LS_ASSIGN_OR_RETURN(const int most, ParseCount("nnodes", text.substr(colon + 1), 1));
  if (least > most) return Usage(absl::StrCat("--nnodes ", text, ": expected MIN:MAX"));
  job->nodes = most;
  job->least_nodes = least;
  return absl::OkStatus();
}

// Applies what of --tee, --redirects and --local-ranks-filter decides which ranks' lines are shown.
// Log files have all of them.
void ApplyLogs(const Words& words, JobArgs* job) {
  std::string shown;
  if (words.Last("redirects") == "3") shown = "none";
  if (words.Has("tee") && words.Last("tee") != "0") shown.clear();
  if (words.Last("local-ranks-filter") == "0" && shown.empty()) shown = "0";
  if (!shown.empty()) job->sets.push_back("logs.tee=" + shown);
}

// The words that run the script.
std::vector<std::string> Interpreted(const Words& words, const Environment& environment) {
  std::vector<std::string> command;
  if (!words.Has("no-python")) {
    const std::string python = environment("PYTHON_EXEC");
    command = {python.empty() ? "python3" : python, "-u"};
    if (words.Has("module")) command.push_back("-m");
  }
  command.insert(command.end(), words.command.begin(), words.command.end());
  return command;
}

}  // namespace

const std::map<std::string, TorchrunFlag>& TorchrunFlags() {
  static const auto* const flags = [] {
    const std::string rendezvous =
        "there is one kind of rendezvous, and a run has its id by itself; leave it out";
    const std::string master = "ports are chosen and published by themselves; leave it out";
    const std::string logs =
        "each rank's output is in the run's folder; 'logs: {tee: 0}' in the job "
        "file shows rank 0 alone";
    const std::string script = "it goes with a script, not with a job file; leave it out";
    const std::string none = "a job file has no use for it; leave it out";
    return new std::map<std::string, TorchrunFlag>{
        {"rdzv-backend", {.advice = rendezvous}},
        {"rdzv-id", {.advice = rendezvous}},
        {"rdzv-conf", {.advice = rendezvous}},
        {"master-addr", {.advice = master}},
        {"master-port", {.advice = master}},
        {"local-addr", {.advice = master}},
        {"standalone",
         {.takes_value = false, .advice = "a run on this machine is the default; leave it out"}},
        {"module", {.takes_value = false, .letter = 'm', .advice = script}},
        {"no-python", {.takes_value = false, .advice = script}},
        {"run-path", {.takes_value = false, .advice = script}},
        {"start-method", {.advice = "workers are programs of their own; leave it out"}},
        {"monitor-interval", {.advice = "the end of a worker is seen at once; leave it out"}},
        {"role", {.advice = "a job has one role; leave it out"}},
        {"redirects", {.letter = 'r', .advice = logs}},
        {"tee", {.letter = 't', .advice = logs}},
        {"local-ranks-filter", {.advice = logs}},
        {"log-line-prefix-template", {.advice = logs}},
        {"logs-specs", {.advice = logs}},
        {"duplicate-stdout-filters", {.advice = logs}},
        {"duplicate-stderr-filters", {.advice = logs}},
        {"signals-to-handle", {.advice = none}},
        {"shutdown-timeout", {.advice = "'preemption: {grace: 30s}' in the job file says it"}},
        {"event-log-handler", {.advice = none}},
        {"numa-binding", {.advice = "'resources.bind_cpus' in the job file says it"}},
    };
  }();
  return *flags;
}

bool IsTorchrun(const std::string& program) { return absl::EndsWith(program, "torchrun"); }

bool WantsScript(const Words& words) {
  return words.Has("module") || words.Has("no-python") || words.Has("run-path");
}

bool WantsScript(const Environment& environment) {
  return IsTrue(environment("PET_MODULE")) || IsTrue(environment("PET_NO_PYTHON")) ||
         IsTrue(environment("PET_RUN_PATH"));
}

void TakeVariables(const Environment& environment, Words* words) {
  const auto take = [&](const std::string& flag, const std::string& name, bool takes_value) {
    if (words->Has(name)) return;
    const std::string value = environment(Variable(flag));
    if (value.empty() || (!takes_value && !IsTrue(value))) return;
    words->flags[name].push_back(takes_value ? value : "");
  };
  for (const char* flag : kCommonFlags) {
    take(flag, std::string(flag) == "log-dir" ? "runs-dir" : flag, /*takes_value=*/true);
  }
  for (const auto& [name, flag] : TorchrunFlags()) take(name, name, flag.takes_value);
}

absl::Status ApplyTorchrun(const Words& words, const Environment& environment, JobArgs* job) {
  if (words.Has("module") && words.Has("no-python")) {
    return Usage("--module and --no-python do not go together: a module is Python's");
  }
  job->command = words.script ? Interpreted(words, environment) : words.command;
  if (words.script && !words.command.empty()) job->script = words.command.front();
  LS_RETURN_IF_ERROR(ApplyNodes(words.Last("nnodes"), job));
  LS_RETURN_IF_ERROR(ApplyRendezvousConf(words.Last("rdzv-conf"), job));
  const std::string backend = words.Last("rdzv-backend");
  if (!backend.empty() && backend != "c10d" && backend != "static") {
    return Usage(absl::StrCat("--rdzv-backend ", backend,
                              ": the host of --rdzv-endpoint is the rendezvous, no other service "
                              "is needed; leave it out, or write c10d or static"));
  }
  if (words.Has("role")) job->sets.push_back("env.ROLE_NAME=" + JsonString(words.Last("role")));
  if (words.Has("rdzv-id")) {
    job->sets.push_back("env.TORCHELASTIC_RUN_ID=" + JsonString(words.Last("rdzv-id")));
  }
  if (words.Has("shutdown-timeout")) {
    job->sets.push_back(absl::StrCat("preemption.grace=", words.Last("shutdown-timeout"), "s"));
  }
  ApplyLogs(words, job);
  return absl::OkStatus();
}

std::string EndpointOf(const Words& words) {
  std::string endpoint = words.Last("rdzv-endpoint");
  if (endpoint.empty() && words.Has("master-addr")) {
    endpoint = words.Last("master-addr");
    if (IsBareIpv6(endpoint)) endpoint = absl::StrCat("[", endpoint, "]");
    if (words.Has("master-port")) {
      absl::StrAppend(&endpoint, ":", words.Last("master-port"));
    }
  }
  const bool v6 = absl::StartsWith(endpoint, "[");
  const size_t colon = endpoint.find(':', v6 ? endpoint.find(']') : 0);
  if (endpoint.empty() || colon != std::string::npos) return endpoint;
  return absl::StrCat(endpoint, ":", kDefaultPort);
}

}  // namespace lockstep::launcher
