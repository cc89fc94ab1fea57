// SPDX-License-Identifier: Apache-2.0
// How long those who come back are waited for: workers and agents, to a coordinator that was away.
// Thread-safety: thread-compatible.
#ifndef LOCKSTEP_COORDINATOR_CORE_RETURNS_H_
#define LOCKSTEP_COORDINATOR_CORE_RETURNS_H_

#include "coordinator/core/context.h"

namespace lockstep::coordinator {

// When what began then is waited for no more. A pause of this coordinator does not count, nor the
// time that all may take to come back to it.
absl::Time SettledAt(const Context& context, absl::Time began);

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_CORE_RETURNS_H_
