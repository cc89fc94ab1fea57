// SPDX-License-Identifier: Apache-2.0
#include "collectives/tcp/mesh_thread.h"

#include <utility>

#include "common/check.h"

namespace lockstep {

MeshThread::~MeshThread() {
  TakeBack().IgnoreError();
  {
    absl::MutexLock lock(&mu_);
    ends_ = true;
    changed_.SignalAll();
  }
  thread_.Join();
}

void MeshThread::Lend(MeshUser* user) {
  LS_CHECK(!lent_);
  lent_ = true;
  stop_.store(false, std::memory_order_relaxed);
  {
    absl::MutexLock lock(&mu_);
    met_ = absl::OkStatus();
    user_ = user;
    changed_.SignalAll();
  }
  if (!thread_.running()) thread_ = Thread("data plane", [this] { Loop(); });
}

absl::Status MeshThread::Met() const {
  absl::MutexLock lock(&mu_);
  return met_;
}

absl::Status MeshThread::TakeBack() {
  if (!std::exchange(lent_, false)) return absl::OkStatus();
  stop_.store(true, std::memory_order_release);
  mesh_->Wake();
  absl::MutexLock lock(&mu_);
  while (user_ != nullptr) changed_.Wait(&mu_);
  return met_;
}

void MeshThread::Loop() {
  while (true) {
    MeshUser* user = nullptr;
    {
      absl::MutexLock lock(&mu_);
      while (user_ == nullptr && !ends_) changed_.Wait(&mu_);
      if (ends_) return;
      user = user_;
    }
    absl::Status met = mesh_->Serve(user, stop_);
    absl::MutexLock lock(&mu_);
    met_ = std::move(met);
    user_ = nullptr;
    changed_.SignalAll();
  }
}

}  // namespace lockstep
