// SPDX-License-Identifier: Apache-2.0
// The launcher's program: the command line chooses the verb, which runs to its exit code.
#include <cstdlib>
#include <iostream>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include "common/inherited_signals.h"
#include "common/log.h"
#include "common/log_environment.h"
#include "common/mutex_checks.h"
#include "common/openssl_at_exit.h"
#include "common/printable.h"
#include "common/standard_descriptors.h"
#include "launcher/cli/arguments.h"
#include "launcher/cli/exit_codes.h"
#include "launcher/supervisor/supervisor_process.h"
#include "launcher/supervisor/wire.h"
#include "launcher/verbs/run_verb.h"

namespace lockstep::launcher {
namespace {

// Children inherit the level.
template <typename Args>
void ApplyCommon(const Args& args) {
  if constexpr (!std::is_same_v<Args, HelpArgs>) {
    if (args.common.log_level.empty()) return;
    SetLogLevel(LogLevelOf(args.common.log_level).value_or(LogLevel::kInfo));
    ::setenv("LOCKSTEP_LOG", args.common.log_level.c_str(), 1);
  }
}

int Main(const std::string& program, const std::vector<std::string>& arguments) {
  const auto environment = [](const std::string& name) -> std::string {
    const char* value = std::getenv(name.c_str());
    return value == nullptr ? "" : value;
  };
  const auto command = ParseCommandLine(arguments, environment, program);
  if (!command.ok()) {
    std::cerr << "error: " << PrintableLines(std::string(command.status().message())) << "\n";
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
  lockstep::TakeStandardDescriptors();
  lockstep::ResetInheritedSignals();
  lockstep::SkipMutexChecksInRelease();
  lockstep::KeepOpenSslUntilTheEnd();
  // What an agent starts for each job.
  if (argc > 1 && std::string(argv[1]) == lockstep::launcher::kSupervisorFlag) {
    return lockstep::launcher::RunSupervisorProcess();
  }
  lockstep::CheckLogEnvironment();
  const std::string program = argc > 0 ? argv[0] : "";
  return lockstep::launcher::Main(program.substr(program.rfind('/') + 1),
                                  std::vector<std::string>(argv + 1, argv + argc));
}
