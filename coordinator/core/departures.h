// SPDX-License-Identifier: Apache-2.0
// Workers that are to leave a job: who of several goes first, how few may save what there is and
// leave, and whose end is not waited for.
//
// The first is asked where each has a part of the state (train.zero_stage: 1). Each part is on two
// workers, on two hosts where there are several: those of one host may leave together, or one. The
// others stay for a generation, in which those that remain take over the parts that are left with
// one holder, and the next one is made at once.
// Thread-safety: thread-compatible.
#ifndef LOCKSTEP_COORDINATOR_CORE_DEPARTURES_H_
#define LOCKSTEP_COORDINATOR_CORE_DEPARTURES_H_

#include <vector>

#include "coordinator/core/context.h"

namespace lockstep::coordinator {

// Of `leaving`, living members of the job's last generation in the order of their places, those
// that are in the next one too; `staying` are its other workers, newcomers among them. Nobody may
// go while a member of the last generation is lost, since the second holder of its parts may be the
// one.
std::vector<Worker*> HeldBack(const Job& job, const std::vector<Worker*>& staying,
                              const std::vector<Worker*>& leaving);

// Returns how many workers the next generation has at least: elastic.min_workers; one, where a job
// that is to save and leave has some that hold its state. They take no step, so none has to have
// memory for a larger share of one. Workers of builds that would take one wait for as many as ever,
// and so do those with train.zero_stage, which take over moments, where elastic.min_workers is
// above 2: there is room for all moments only where it is not.
int LeastMembers(const Job& job);

// Takes those that were let go out of their places when their nodes have been out of sight for as
// long as a silent worker has (SilenceLimit): others may be started there. Should their nodes come
// back, they are ended.
void RetireUnseen(Context& context, Job& job);

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_CORE_DEPARTURES_H_
