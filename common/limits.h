// SPDX-License-Identifier: Apache-2.0
// The limits of this process (ulimit) that would stop a run somewhere in its middle, looked at
// before anything starts, so that the message names the limit and not what came of it.
// Thread-safety: thread-safe.
#ifndef LOCKSTEP_COMMON_LIMITS_H_
#define LOCKSTEP_COMMON_LIMITS_H_

#include <cstdint>
#include <limits>
#include <string>

#include "absl/status/status.h"

namespace lockstep {

struct Limits {
  static constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
  int64_t open_files = kNone;     // ulimit -n
  int64_t file_bytes = kNone;     // ulimit -f
  int64_t address_bytes = kNone;  // ulimit -v
  int64_t data_bytes = kNone;     // ulimit -d
  int64_t processes = kNone;      // ulimit -u, threads of this user that may still be started
};

// Those that hold for this process and what it starts; of open files the hard one, up to which
// agent and spawner raise theirs. Blocks on /proc when the number of processes is limited.
Limits CurrentLimits();

// The same but for the number of processes; does not block.
Limits ProgramLimits();

// Checks what a host needs for `workers` workers; `local_run`: with a coordinator of its own.
// Errors: ResourceExhausted, naming the limit, what is needed and what is allowed.
absl::Status CheckLimits(const Limits& limits, int workers, bool local_run);

// Checks what a program needs that starts no workers, but for the size of files, of which a
// coordinator's journal is the only one and waits for room. Errors: as above.
absl::Status CheckProgramLimits(const Limits& limits);

// The part about open files alone, for `limit` of them. Errors: ResourceExhausted.
absl::Status CheckOpenFiles(int workers, int64_t limit);

// Why a process could not be started, with the limit that may have been in the way.
std::string ExplainStartFailure(const absl::Status& why);

}  // namespace lockstep

#endif  // LOCKSTEP_COMMON_LIMITS_H_
