// SPDX-License-Identifier: Apache-2.0
// Warm spares (resources.standby): workers that are started, compiled and ready, and wait. When a
// worker fails, one of them takes its part in the next generation, copies the state like any
// newcomer, and the failed one's place becomes that of the next spare, which starts once the job
// steps again. They begin when the job has done its first step, take slots that are free, and
// nothing waits for them; their own ends are no failures of the job. Thread-safety:
// thread-compatible.
#ifndef LOCKSTEP_COORDINATOR_CORE_STANDBY_H_
#define LOCKSTEP_COORDINATOR_CORE_STANDBY_H_

#include <string>

#include "coordinator/core/context.h"

namespace lockstep::coordinator {

// Returns whether the quota of the job's user has room for one more spare. One that has no process
// counts against none, so this is asked each time before there is one.
bool MayStartSpare(const State& state, const Job& job);

// Lets spares work for places whose workers wait for a node, opens places for the spares that the
// job wants and lacks, and starts failed ones again. One that is ready and could not be let into a
// generation is ended, and the next one starts on another node.
void KeepStandbys(Context& context, Job& job);

// The spare that comes first into a generation: one that is ready, else one that is on its way; of
// several one that is not on `last_node`, which was the node of the worker whose part it takes. One
// that is not heard, or whose node is not, is none. Null: there is none.
Slot* FindStandby(const Context& context, Job& job, const std::string& last_node = "");

// A spare works in the place of `slot`, which becomes the next spare's. Returns whether there is
// one.
bool TakeOver(const Context& context, Job& job, Slot& slot);

// Spares that are ready to take over.
int ReadyStandbys(const Job& job);

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_CORE_STANDBY_H_
