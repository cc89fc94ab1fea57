// SPDX-License-Identifier: Apache-2.0
// Members that were to leave (the job was scaled down, lends the place, or the node is drained) and
// stay, because others were lost meanwhile and the job cannot go on without them.
// Thread-safety: pure functions on values.
#ifndef LOCKSTEP_COORDINATOR_CORE_STAYS_H_
#define LOCKSTEP_COORDINATOR_CORE_STAYS_H_

#include "coordinator/core/state.h"

namespace lockstep::coordinator {

// Right before a generation is formed: one that has the job's state stays if nobody else has it,
// and as many as elastic.min_workers lacks stay in the places of workers that wait for a node. The
// places that they change with are then the ones that were given up, lent or left. Returns whether
// anybody stays for that: who waits for the place has to get another one.
bool KeepWhoIsNeeded(Job& job);

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_CORE_STAYS_H_
