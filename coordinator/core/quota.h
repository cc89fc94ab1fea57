// SPDX-License-Identifier: Apache-2.0
// What a job that runs may have more within its user's quota. Jobs that wait: queue_pass.h.
// Thread-safety: thread-compatible.
#ifndef LOCKSTEP_COORDINATOR_CORE_QUOTA_H_
#define LOCKSTEP_COORDINATOR_CORE_QUOTA_H_

#include <string>

#include "coordinator/core/state.h"

namespace lockstep::coordinator {

// Returns why the job's user may not have `more` workers or spares of it now, for a sentence;
// empty: they may. Takes time in proportion to the jobs that run, where there is a quota.
std::string WhyNoMore(const State& state, const Job& job, int more);

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_CORE_QUOTA_H_
