// SPDX-License-Identifier: Apache-2.0
// launcher validate: checks a job file without running anything.
// Thread-safety: as the streams.
#ifndef LOCKSTEP_LAUNCHER_CLI_VALIDATE_H_
#define LOCKSTEP_LAUNCHER_CLI_VALIDATE_H_

#include <ostream>

#include "launcher/cli/arguments.h"

namespace lockstep::launcher {

// Writes the resolved job to `out` (YAML; with -o json one object
// {"schema":1,"ok":true,"job":{...}}). For a bad file: all errors to `err`; with -o json to `out`
// as
// {"schema":1,"ok":false,"errors":[{"file","line","column","width","message"}...]}.
// Returns the exit code: 0 or 3.
int RunValidate(const ValidateArgs& args, std::ostream& out, std::ostream& err);

}  // namespace lockstep::launcher

#endif  // LOCKSTEP_LAUNCHER_CLI_VALIDATE_H_
