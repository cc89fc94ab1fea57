// SPDX-License-Identifier: Apache-2.0
#include "worker/control/disk_wait.h"

#include <atomic>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/cond_var.h"
#include "common/thread.h"

namespace lockstep::worker {

bool DiskWait::Look(int64_t taken) {
  const absl::Time now = clock_->Now();
  if (std::exchange(taken_, taken) != taken) taken_at_ = now;
  if (now - taken_at_ >= kDiskPatience) return false;
  board_->Moved();
  return true;
}

absl::Status WorkOnDisk(
    ProgressBoard* board, Clock* clock,
    const std::function<absl::Status(const std::function<bool()>& go_on)>& work) {
  absl::Mutex mu;
  CondVar finished;
  bool done = false;
  absl::Status result;
  std::atomic<int64_t> taken{0};
  Thread thread("disk", [&] {
    absl::Status status = work([&taken] {
      taken.fetch_add(1, std::memory_order_relaxed);
      return true;
    });
    {
      absl::MutexLock lock(&mu);
      result = std::move(status);
      done = true;
    }
    finished.NotifyAll();
  });
  DiskWait wait(board, clock);
  absl::MutexLock lock(&mu);
  while (!finished.AwaitFor(&mu, kDiskLook, [&done] { return done; })) {
    wait.Look(taken.load(std::memory_order_relaxed));
  }
  return result;
}

}  // namespace lockstep::worker
