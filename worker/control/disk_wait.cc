// SPDX-License-Identifier: Apache-2.0
#include "worker/control/disk_wait.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/cond_var.h"
#include "common/thread.h"

namespace lockstep::worker {
namespace {

// Looks that are farther apart are those of a process that stood still in between, and the disk
// with it: its time says nothing of the disk.
constexpr absl::Duration kMostBetweenLooks = absl::Seconds(1);

}  // namespace

bool DiskWait::Look(int64_t taken) {
  const absl::Time now = clock_->Now();
  waited_ += std::min(now - std::exchange(looked_at_, now), kMostBetweenLooks);
  if (std::exchange(taken_, taken) != taken) waited_ = absl::ZeroDuration();
  if (waited_ >= kDiskPatience) return false;
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
