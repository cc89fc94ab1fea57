// SPDX-License-Identifier: Apache-2.0
#include "launcher/agent/run_disk.h"

#include <utility>

namespace lockstep::launcher {
namespace {

constexpr absl::Duration kLookAgain = absl::Minutes(1);

}  // namespace

RunDisk::RunDisk(Clock* clock) : clock_(clock), thread_("run-disk", [this] { Run(); }) {}

RunDisk::~RunDisk() {
  {
    absl::MutexLock lock(&mu_);
    stop_ = true;
  }
  changed_.NotifyAll();
  thread_.Join();
}

void RunDisk::Do(std::function<void()> task, size_t bytes) {
  {
    absl::MutexLock lock(&mu_);
    tasks_.push_back({std::move(task), bytes});
    waiting_ += bytes;
  }
  changed_.NotifyAll();
}

bool RunDisk::has_room() const {
  absl::MutexLock lock(&mu_);
  return waiting_ <= kRoom;
}

void RunDisk::WhenRoom(std::function<void()> on_room) {
  {
    absl::MutexLock lock(&mu_);
    on_room_.push_back(std::move(on_room));
  }
  changed_.NotifyAll();
}

bool RunDisk::stands(absl::Duration patience) const {
  absl::MutexLock lock(&mu_);
  return busy_ && clock_->Now() - busy_since_ > patience;
}

bool RunDisk::keeps_up() const {
  absl::MutexLock lock(&mu_);
  const absl::Time now = clock_->Now();
  return Done() || (now - stood_until_ > kPatience && now - busy_since_ <= kPatience);
}

bool RunDisk::Settle(absl::Duration timeout) {
  if (stands(timeout)) return false;
  absl::MutexLock lock(&mu_);
  const auto done = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return Done(); };
  return changed_.AwaitFor(&mu_, timeout, done);
}

void RunDisk::Run() {
  while (true) {
    std::vector<std::function<void()>> on_room;
    Task task{nullptr, 0};
    {
      absl::MutexLock lock(&mu_);
      while (tasks_.empty() && !stop_ && (on_room_.empty() || waiting_ > kRoom)) {
        changed_.WaitFor(&mu_, kLookAgain);
      }
      if (tasks_.empty() && stop_) return;
      if (waiting_ <= kRoom) on_room.swap(on_room_);
      if (!tasks_.empty()) {
        task = std::move(tasks_.front());
        tasks_.pop_front();
        busy_ = true;
        busy_since_ = clock_->Now();
      }
    }
    for (const auto& call : on_room) call();
    if (task.call == nullptr) continue;
    task.call();
    task.call = nullptr;  // what it holds goes here: closing a file may take long, too
    {
      absl::MutexLock lock(&mu_);
      busy_ = false;
      if (clock_->Now() - busy_since_ > kPatience) stood_until_ = clock_->Now();
      waiting_ -= task.bytes;
    }
    changed_.NotifyAll();
  }
}

}  // namespace lockstep::launcher
