// SPDX-License-Identifier: Apache-2.0
#include "coordinator/service/anteroom.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/stat.h>

#include <algorithm>
#include <optional>

#include "common/status.h"

namespace lockstep::coordinator {
namespace {

constexpr uint64_t kCalled = 0;  // no socket's inode
constexpr int kEventsAtOnce = 64;
// gRPC does not say when it closes a connection whose handshake came to nothing. While others wait
// for its place that is looked for once in so long.
constexpr absl::Duration kLookForClosed = absl::Milliseconds(10);

bool IsStill(int fd, uint64_t id) {
  struct stat status;
  return ::fstat(fd, &status) == 0 && status.st_ino == id;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Anteroom>> Anteroom::Create(Clock* clock) {
  std::unique_ptr<Anteroom> room(new Anteroom(clock));
  room->events_.reset(::epoll_create1(EPOLL_CLOEXEC));
  room->called_.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!room->events_.valid() || !room->called_.valid() ||
      !room->Watch(room->called_.get(), kCalled, EPOLLIN, EPOLL_CTL_ADD)) {
    return ErrnoStatus(errno, "epoll for the coordinator");
  }
  return room;
}

bool Anteroom::Watch(int fd, uint64_t id, uint32_t events, int how) {
  epoll_event wanted = {};
  wanted.events = events;
  wanted.data.u64 = id;
  return ::epoll_ctl(events_.get(), how, fd, &wanted) == 0;
}

absl::Time Anteroom::wake_at() const {
  absl::Time wake = absl::InfiniteFuture();
  if (!came_.empty()) wake = came_.front().first + kSilence;
  if (turnstile_.anybody_waits()) wake = std::min(wake, clock_->Now() + kLookForClosed);
  return wake;
}

void Anteroom::Add(UniqueFd connection, uint64_t id, const std::string& host) {
  if (!Watch(connection.get(), id, EPOLLIN | EPOLLRDHUP, EPOLL_CTL_ADD)) return;
  const absl::Time now = clock_->Now();
  if (inside_.erase(id) > 0) turnstile_.Gone(id, now);  // who had the number before is gone
  guests_[id] = {std::move(connection), host, now};
  came_.emplace_back(now, id);
}

std::vector<UniqueFd> Anteroom::Turns() {
  const absl::Time now = clock_->Now();
  Look(now);
  SendSilentAway(now);
  if (turnstile_.anybody_waits() || inside_.size() > forget_from_) ForgetClosed(now);
  std::vector<UniqueFd> turns;
  while (const std::optional<uint64_t> id = turnstile_.Next(now)) {
    const auto guest = guests_.find(*id);
    inside_[*id] = guest->second.fd.get();
    Watch(guest->second.fd.get(), *id, 0, EPOLL_CTL_DEL);
    turns.push_back(std::move(guest->second.fd));
    guests_.erase(guest);
  }
  return turns;
}

void Anteroom::Look(absl::Time now) {
  epoll_event events[kEventsAtOnce];
  for (int n = kEventsAtOnce; n == kEventsAtOnce;) {
    n = ::epoll_wait(events_.get(), events, kEventsAtOnce, 0);
    for (int i = 0; i < n; ++i) {
      if (events[i].data.u64 == kCalled) {
        TakeThrough(now);
      } else {
        Hear(events[i].data.u64, events[i].events, now);
      }
    }
  }
}

void Anteroom::Hear(uint64_t id, uint32_t events, absl::Time now) {
  const auto guest = guests_.find(id);
  if (guest == guests_.end()) return;
  if ((events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) {
    turnstile_.Gone(id, now);
    guests_.erase(guest);
    return;
  }
  // What it said is read by whoever makes the handshake.
  guest->second.spoke = true;
  Watch(guest->second.fd.get(), id, EPOLLRDHUP, EPOLL_CTL_MOD);
  turnstile_.Came(id, guest->second.host, now);
}

void Anteroom::Through(uint64_t id) {
  {
    absl::MutexLock lock(&mu_);
    through_.push_back(id);
    if (through_.size() > 1) return;
  }
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t told = ::write(called_.get(), &one, sizeof(one));
}

void Anteroom::TakeThrough(absl::Time now) {
  uint64_t told = 0;
  [[maybe_unused]] const ssize_t taken = ::read(called_.get(), &told, sizeof(told));
  std::vector<uint64_t> through;
  {
    absl::MutexLock lock(&mu_);
    through.swap(through_);
  }
  for (const uint64_t id : through) {
    turnstile_.Through(id, now);
    inside_.erase(id);
  }
}

void Anteroom::ForgetClosed(absl::Time now) {
  if (now - looked_at_ < kLookForClosed) return;
  looked_at_ = now;
  std::erase_if(inside_, [&](const auto& entry) {
    if (IsStill(entry.second, entry.first)) return false;
    turnstile_.Gone(entry.first, now);
    return true;
  });
  forget_from_ = std::max(Turnstile::kMost, 2 * inside_.size());
}

void Anteroom::SendSilentAway(absl::Time now) {
  while (!came_.empty() && now - came_.front().first >= kSilence) {
    const auto [came, id] = came_.front();
    const auto guest = guests_.find(id);
    if (guest != guests_.end() && guest->second.came == came && !guest->second.spoke) {
      guests_.erase(guest);
    }
    came_.pop_front();
  }
}

void Anteroom::Clear() {
  const absl::Time now = clock_->Now();
  for (const auto& [id, guest] : guests_) turnstile_.Gone(id, now);
  guests_.clear();
  came_.clear();
}

}  // namespace lockstep::coordinator
