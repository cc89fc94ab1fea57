// SPDX-License-Identifier: Apache-2.0
#include "launcher/agent/event_loop.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "common/clock.h"
#include "common/status.h"

namespace lockstep::launcher {

absl::StatusOr<std::unique_ptr<EventLoop>> EventLoop::Create() {
  std::unique_ptr<EventLoop> loop(new EventLoop());
  loop->epoll_.reset(::epoll_create1(EPOLL_CLOEXEC));
  loop->wake_.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!loop->epoll_.valid() || !loop->wake_.valid()) return ErrnoStatus(errno, "epoll_create");
  LS_RETURN_IF_ERROR(loop->Watch(loop->wake_.get(), [fd = loop->wake_.get()] {
    uint64_t count;
    (void)!::read(fd, &count, sizeof(count));
  }));
  return loop;
}

EventLoop::~EventLoop() { Stop(); }

void EventLoop::Start(const std::string& name, std::function<absl::Time()> after_events) {
  thread_ = Thread(name, [this, after_events = std::move(after_events)] { Run(after_events); });
}

void EventLoop::Stop() {
  {
    absl::MutexLock lock(&mu_);
    stop_ = true;
  }
  const uint64_t one = 1;
  (void)!::write(wake_.get(), &one, sizeof(one));
  thread_.Join();
}

void EventLoop::Post(std::function<void()> function) {
  {
    absl::MutexLock lock(&mu_);
    posted_.push_back(std::move(function));
    if (posted_.size() > 1) return;  // the loop has been woken for the first one
  }
  const uint64_t one = 1;
  (void)!::write(wake_.get(), &one, sizeof(one));
}

absl::Status EventLoop::Watch(int fd, std::function<void()> on_readable) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = fd;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    return ErrnoStatus(errno, "epoll_ctl");
  }
  watched_[fd] = std::make_shared<std::function<void()>>(std::move(on_readable));
  return absl::OkStatus();
}

void EventLoop::Forget(int fd) {
  if (watched_.erase(fd) > 0) ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
}

bool EventLoop::RunPosted() {
  std::vector<std::function<void()>> functions;
  bool stop;
  {
    absl::MutexLock lock(&mu_);
    functions.swap(posted_);
    stop = stop_;
  }
  for (const auto& function : functions) function();
  return !stop;
}

void EventLoop::Run(const std::function<absl::Time()>& after_events) {
  epoll_event events[64];
  while (true) {
    const absl::Time next = after_events();
    int timeout_ms = -1;
    if (next != absl::InfiniteFuture()) {
      const int64_t ms =
          absl::ToInt64Milliseconds(next - Clock::Real()->Now() + absl::Microseconds(999));
      timeout_ms = static_cast<int>(std::clamp<int64_t>(ms, 0, 60000));
    }
    const int n = ::epoll_wait(epoll_.get(), events, 64, timeout_ms);
    for (int i = 0; i < n; ++i) {
      const auto it = watched_.find(events[i].data.fd);
      if (it == watched_.end()) continue;
      const std::shared_ptr<std::function<void()>> callback = it->second;  // it may forget itself
      (*callback)();
    }
    if (!RunPosted()) return;
  }
}

}  // namespace lockstep::launcher
