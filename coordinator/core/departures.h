// SPDX-License-Identifier: Apache-2.0
// Who of several workers that are to leave a job goes first, where each has a part of the state
// (train.zero_stage: 1). Each part is on two workers, on two hosts where there are several: those
// of one host may leave together, or one. The others stay for a generation, in which those that
// remain take over the parts that are left with one holder, and the next one is made at once.
// Thread-safety: pure functions.
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

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_CORE_DEPARTURES_H_
