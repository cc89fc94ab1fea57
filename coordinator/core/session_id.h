// SPDX-License-Identifier: Apache-2.0
// The number of a connection. Thread-safety: plain data.
#ifndef LOCKSTEP_COORDINATOR_CORE_SESSION_ID_H_
#define LOCKSTEP_COORDINATOR_CORE_SESSION_ID_H_

#include <cstdint>

namespace lockstep::coordinator {

// One connection of an agent or a worker; given by the service, never reused. 0: none.
using SessionId = int64_t;

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_CORE_SESSION_ID_H_
