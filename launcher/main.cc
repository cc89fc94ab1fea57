// SPDX-License-Identifier: Apache-2.0
// The launcher's program: the spawner is forked first, then the command line chooses the verb.
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include "common/log.h"
#include "launcher/cli/arguments.h"
#include "launcher/cli/exit_codes.h"
#include "launcher/cli/validate.h"
#include "launcher/local_run/run_here.h"
#include "launcher/local_run/stop_signals.h"
#include "launcher/spawner/spawner.h"
#include "launcher/verbs/connect.h"
#include "launcher/verbs/jobs.h"
#include "launcher/verbs/join.h"
#include "launcher/verbs/offline.h"
#include "launcher/verbs/top.h"

namespace lockstep::launcher {
namespace {

constexpr char kVersion[] = "0.1.0";

void SetLevel(const std::string& level) {
  if (level == "debug") SetLogLevel(LogLevel::kDebug);
  if (level == "info") SetLogLevel(LogLevel::kInfo);
  if (level == "warning") SetLogLevel(LogLevel::kWarning);
  if (level == "error") SetLogLevel(LogLevel::kError);
}

// Children inherit the level.
template <typename Args>
void ApplyCommon(const Args& args) {
  if constexpr (!std::is_same_v<Args, HelpArgs>) {
    if (args.common.log_level.empty()) return;
    SetLevel(args.common.log_level);
    ::setenv("LOCKSTEP_LOG", args.common.log_level.c_str(), 1);
  }
}

template <typename Args>
constexpr bool kStartsProcesses = std::is_same_v<Args, RunArgs> || std::is_same_v<Args, JoinArgs>;

template <typename Args>
int RunVerb(const Args& args) {
  if constexpr (kStartsProcesses<Args>) {
    auto spawner = Spawner::Fork();
    if (!spawner.ok()) return Complain(spawner.status());
    StopSignals::Block();
    if constexpr (std::is_same_v<Args, RunArgs>) {
      return RunHere(args, spawner->get());
    } else {
      return RunJoin(args, spawner->get());
    }
  } else if constexpr (std::is_same_v<Args, ValidateArgs>) {
    return RunValidate(args, std::cout, std::cerr);
  } else if constexpr (std::is_same_v<Args, PlanArgs>) {
    return RunPlan(args);
  } else if constexpr (std::is_same_v<Args, EvalArgs>) {
    return RunEval(args);
  } else if constexpr (std::is_same_v<Args, PredictArgs>) {
    return RunPredict(args);
  } else if constexpr (std::is_same_v<Args, CompareArgs>) {
    return RunCompare(args);
  } else if constexpr (std::is_same_v<Args, GenerateArgs>) {
    return RunGenerate(args);
  } else if constexpr (std::is_same_v<Args, BenchArgs>) {
    return RunBench(args);
  } else if constexpr (std::is_same_v<Args, DoctorArgs>) {
    return RunDoctor(args);
  } else if constexpr (std::is_same_v<Args, VersionArgs>) {
    std::cout << "launcher " << kVersion << "\n";
    return kExitOk;
  } else if constexpr (std::is_same_v<Args, HelpArgs>) {
    std::cout << HelpText(args.verb);
    return kExitOk;
  } else {
    StopSignals::Block();
    if constexpr (std::is_same_v<Args, SubmitArgs>) return RunSubmit(args);
    if constexpr (std::is_same_v<Args, ListArgs>) return RunList(args);
    if constexpr (std::is_same_v<Args, DescribeArgs>) return RunDescribe(args);
    if constexpr (std::is_same_v<Args, LogsArgs>) return RunLogs(args);
    if constexpr (std::is_same_v<Args, CancelArgs>) return RunCancel(args);
    if constexpr (std::is_same_v<Args, ScaleArgs>) return RunScale(args);
    if constexpr (std::is_same_v<Args, TopArgs>) return RunTop(args);
  }
}

int Main(const std::vector<std::string>& arguments) {
  const auto command = ParseCommandLine(arguments, [](const std::string& name) -> std::string {
    const char* value = std::getenv(name.c_str());
    return value == nullptr ? "" : value;
  });
  if (!command.ok()) {
    std::cerr << "error: " << command.status().message() << "\n";
    return kExitUsage;
  }
  const int code = std::visit(
      [](const auto& args) {
        ApplyCommon(args);
        return RunVerb(args);
      },
      *command);
  if (code == kExitOk && !std::cout.flush()) {
    std::cerr << "error: cannot write to the standard output: the answer is not complete\n";
    return kExitFailure;
  }
  return code;
}

}  // namespace
}  // namespace lockstep::launcher

int main(int argc, char** argv) {
  return lockstep::launcher::Main(std::vector<std::string>(argv + 1, argv + argc));
}
