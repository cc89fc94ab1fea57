// SPDX-License-Identifier: Apache-2.0
// launcher validate: checks a job file, with what the flags change, without running anything.
// Thread-safety: as the streams.
#ifndef LOCKSTEP_LAUNCHER_VERBS_VALIDATE_H_
#define LOCKSTEP_LAUNCHER_VERBS_VALIDATE_H_

#include <ostream>

#include "launcher/cli/arguments.h"

namespace lockstep::launcher {

// Writes the resolved job to `out` (YAML; with -o json one object); a word for the workers of a
// host ("gpu") stays one, since it is not counted on this host. For a bad job: all errors to
// `err`; with -o json to `out`. docs/json_output.md describes the objects. Returns the exit code:
// 0, 3, or 5 when the flags ask for more workers than the job may have, or for other hosts than
// they name.
int Validate(const ValidateArgs& args, std::ostream& out, std::ostream& err);

}  // namespace lockstep::launcher

#endif  // LOCKSTEP_LAUNCHER_VERBS_VALIDATE_H_
