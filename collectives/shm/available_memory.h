// SPDX-License-Identifier: Apache-2.0
// How much memory this process can still take. The kernel itself does not refuse a memfd that is
// too large: fallocate goes on until the OOM killer ends someone. So a reservation asks here first.
// Thread-safety: pure functions of the system's state.
#ifndef LOCKSTEP_COLLECTIVES_SHM_AVAILABLE_MEMORY_H_
#define LOCKSTEP_COLLECTIVES_SHM_AVAILABLE_MEMORY_H_

#include <cstdint>

namespace lockstep {

// Bytes: the smallest of MemAvailable and what the limits of this process's control groups (v2)
// leave. INT64_MAX when the system does not say.
int64_t AvailableMemory();

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_SHM_AVAILABLE_MEMORY_H_
