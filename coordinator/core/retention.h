// SPDX-License-Identifier: Apache-2.0
// What is forgotten: jobs that ended long ago and nodes that have gone for good. A job that has
// ended is kept for those who ask how it ended; of many the newest are. Nothing else in the state
// grows with the time that a coordinator lives.
// Thread-safety: thread-compatible.
#ifndef LOCKSTEP_COORDINATOR_CORE_RETENTION_H_
#define LOCKSTEP_COORDINATOR_CORE_RETENTION_H_

#include "coordinator/core/context.h"

namespace lockstep::coordinator {

// Forgets the nodes that have been out of sight for Options::keep_node, have no work left and are
// not drained. Their rows go, and the jobs with lives there that nobody has seen end are touched.
// Looks at most once a second, when ForgetOld of the same step does.
void ForgetNodes(Context& context);

// Forgets the oldest ended jobs beyond Options::keep_ended, but none within Options::keep_ended_for
// of its end, or that of the last job of its array, and old use. Their rows go. Looks at most once
// a second. REQUIRES: no job is touched and not looked at.
void ForgetOld(Context& context);

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_CORE_RETENTION_H_
