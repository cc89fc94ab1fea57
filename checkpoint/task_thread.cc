// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/task_thread.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <utility>

namespace lockstep::checkpoint {
namespace {
constexpr int kNiceness = 5;
}  // namespace

TaskThread::TaskThread(const std::string& name, std::function<void()> first)
    : thread_(name, [this, first = std::move(first)] { Loop(first); }) {}

TaskThread::~TaskThread() {
  absl::MutexLock lock(&mu_);
  stop_ = true;
}

void TaskThread::Post(std::function<void()> task) {
  absl::MutexLock lock(&mu_);
  tasks_.push_back(std::move(task));
}

bool TaskThread::WaitIdle(absl::Duration timeout) const {
  absl::MutexLock lock(&mu_);
  return became_idle_.AwaitFor(
      &mu_, timeout, [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return tasks_.empty() && !busy_; });
}

void TaskThread::Loop(const std::function<void()>& first) {
  if (first != nullptr) first();
  // On Linux niceness is a thread's own. Without leave to change it the thread works as any other.
  ::setpriority(PRIO_PROCESS, static_cast<id_t>(::syscall(SYS_gettid)), kNiceness);
  absl::MutexLock lock(&mu_);
  while (true) {
    const auto ready = [this]()
                           ABSL_SHARED_LOCKS_REQUIRED(mu_) { return stop_ || !tasks_.empty(); };
    mu_.Await(absl::Condition(&ready));
    if (tasks_.empty()) return;
    const std::function<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    busy_ = true;
    mu_.Unlock();
    task();
    mu_.Lock();
    busy_ = false;
    if (tasks_.empty()) became_idle_.NotifyAll();
  }
}

}  // namespace lockstep::checkpoint
