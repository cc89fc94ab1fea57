// SPDX-License-Identifier: Apache-2.0
// A coordinator that is one of several on one etcd: it stands by, leads when it is elected, and
// stands by again when it leads no more.
// Thread-safety: called by main.
#ifndef LOCKSTEP_COORDINATOR_CANDIDATE_H_
#define LOCKSTEP_COORDINATOR_CANDIDATE_H_

#include <signal.h>

#include "coordinator/flags.h"

namespace lockstep::coordinator {

// Serves until a signal comes. The exit code. REQUIRES: --store.
int ServeAsCandidate(Flags& flags, const sigset_t& signals);

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_CANDIDATE_H_
