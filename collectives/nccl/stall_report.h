// SPDX-License-Identifier: Apache-2.0
// What NCCL's own watch knows when a collective stands still, asked on a thread of its own so that
// the waiting rank goes on looking for aborts. Thread-safety: Begin by one thread.
#ifndef LOCKSTEP_COLLECTIVES_NCCL_STALL_REPORT_H_
#define LOCKSTEP_COLLECTIVES_NCCL_STALL_REPORT_H_

#include <atomic>

#include "common/thread.h"

namespace lockstep {

class StallReport {
 public:
  // Asks and logs the answer, or that there is none, in a few seconds; nothing while the last
  // question is open. Does not block.
  void Begin();

 private:
  std::atomic<bool> asking_{false};
  Thread thread_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_NCCL_STALL_REPORT_H_
