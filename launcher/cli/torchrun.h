// SPDX-License-Identifier: Apache-2.0
// torchrun's command line: what of it is taken, and what it means here. It goes with commands, not
// with job files, whose text alone says what a job computes.
// Thread-safety: pure functions on values.
#ifndef LOCKSTEP_LAUNCHER_CLI_TORCHRUN_H_
#define LOCKSTEP_LAUNCHER_CLI_TORCHRUN_H_

#include <map>
#include <string>

#include "absl/status/status.h"
#include "launcher/cli/arguments.h"
#include "launcher/cli/flags.h"

namespace lockstep::launcher {

struct TorchrunFlag {
  bool takes_value = true;
  char letter = 0;  // 'm' for -m; 0: none
  // Why it does not go with a job file, and what does.
  std::string advice = {};
};
// By name: torchrun's flags that no flag of the launcher is called. Lives for ever.
const std::map<std::string, TorchrunFlag>& TorchrunFlags();

// Returns whether the program was started under torchrun's name.
bool IsTorchrun(const std::string& program);

// Returns whether a flag or a variable says that what comes next is a script or a program.
bool WantsScript(const Words& words);
bool WantsScript(const Environment& environment);

// Adds the flags that are not given and whose variable is set (PET_NNODES for --nnodes).
void TakeVariables(const Environment& environment, Words* words);

// The job of a line with a command. Errors: InvalidArgument.
absl::Status ApplyTorchrun(const Words& words, const Environment& environment, JobArgs* job);

// HOST:PORT of the run's rendezvous: --rdzv-endpoint, or --master-addr and --master-port; empty:
// the run is on this machine.
std::string EndpointOf(const Words& words);

}  // namespace lockstep::launcher

#endif  // LOCKSTEP_LAUNCHER_CLI_TORCHRUN_H_
