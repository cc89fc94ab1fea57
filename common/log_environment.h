// SPDX-License-Identifier: Apache-2.0
// LOCKSTEP_LOG, which a process and those that it starts take their level of logging from.
// Thread-safety: called by main, before there are threads.
#ifndef LOCKSTEP_COMMON_LOG_ENVIRONMENT_H_
#define LOCKSTEP_COMMON_LOG_ENVIRONMENT_H_

namespace lockstep {

// Warns of a LOCKSTEP_LOG that names no level, and sets it to info, so that the processes which
// this one starts say nothing of it.
void CheckLogEnvironment();

}  // namespace lockstep

#endif  // LOCKSTEP_COMMON_LOG_ENVIRONMENT_H_
