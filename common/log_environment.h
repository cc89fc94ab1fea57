// SPDX-License-Identifier: Apache-2.0
// The levels' names, and LOCKSTEP_LOG, which a process and those that it starts take their level of
// logging from.
// Thread-safety: called by main, before there are threads.
#ifndef LOCKSTEP_COMMON_LOG_ENVIRONMENT_H_
#define LOCKSTEP_COMMON_LOG_ENVIRONMENT_H_

#include <optional>
#include <string_view>

#include "common/log.h"

namespace lockstep {

// Returns the level of this name: debug, info, warning or error; nothing: there is none.
std::optional<LogLevel> LogLevelOf(std::string_view name);

// Warns of a LOCKSTEP_LOG that names no level, and sets it to info, so that the processes which
// this one starts say nothing of it.
void CheckLogEnvironment();

}  // namespace lockstep

#endif  // LOCKSTEP_COMMON_LOG_ENVIRONMENT_H_
