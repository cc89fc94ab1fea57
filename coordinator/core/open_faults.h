// SPDX-License-Identifier: Apache-2.0
// Failures from the first sign until they are named and healed. A failure is one fault with
// everything that fails until the next generation is formed: the first one is named, the rest are
// its victims. It is named as soon as its agent has said how it ended, which nobody waits for once
// the job has stepped; what it cost is known when a new step is committed.
// Thread-safety: thread-compatible.
#ifndef LOCKSTEP_COORDINATOR_CORE_OPEN_FAULTS_H_
#define LOCKSTEP_COORDINATOR_CORE_OPEN_FAULTS_H_

#include "coordinator/core/context.h"

namespace lockstep::coordinator {

// The fault that is not followed by a generation yet. Null: there is none.
OpenFault* Unfollowed(Job& job);

// Opens one that begins with the failure of `worker`.
OpenFault& BeginFault(Context& context, Job& job, const Worker& worker);

// One more rank that failed before the next generation, when the fault has been named already.
void AddVictim(Job& job, const OpenFault& fault, int rank);

// Ends the faults that no member is part of once none is going to be: the members went on without
// the newcomers that failed, and lost nothing. None is any more with `now`: the members that have
// left the active generation together form the next one.
void EndNewcomersFaults(const Context& context, Job& job, bool now);

// A generation was formed after the open faults.
void NoteGeneration(Context& context, Job& job);

// A worker says how far it is in its generation: that it has the state, that it commits steps and
// that it commits new ones tells what the failures before it cost.
void NoteRecovery(Job& job, const WorkerHeartbeat& heartbeat, absl::Time now);

// Names the open faults of which a rank is to blame that lives and that its peers lost: the next
// generation, which is formed after this, knows nothing any more of who lost whom.
void NameLostRanks(Context& context, Job& job);

// Names the open faults whose workers' ends are known, or that have waited long enough; all of
// them with `now`.
void NameFaults(Context& context, Job& job, bool now);

// The newest step that is known to be committed.
int64_t NewestCommitted(const Job& job);

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_CORE_OPEN_FAULTS_H_
