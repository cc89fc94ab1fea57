// SPDX-License-Identifier: Apache-2.0
#include "common/mutex_checks.h"

#include "absl/synchronization/mutex.h"

namespace lockstep {

void SkipMutexChecksInRelease() {
#ifdef NDEBUG
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
#endif
}

}  // namespace lockstep
