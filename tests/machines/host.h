// SPDX-License-Identifier: Apache-2.0
// Hosts with their clocks and links, and processes that are killed, stopped and go on.
// Thread-safety: thread-compatible.
#ifndef LOCKSTEP_TESTS_MACHINES_HOST_H_
#define LOCKSTEP_TESTS_MACHINES_HOST_H_

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "tests/machines/timeline.h"

namespace lockstep::simulation {

struct Host {
  int number = 0;
  std::string name;
  bool up = true;
  bool suspended = false;
  // Of its link, one way each.
  bool cut_in = false;
  bool cut_out = false;
  absl::Time cut_since = absl::InfinitePast();
  absl::Duration slow;  // added to each message
  double loss = 0;      // of a packet; TCP sends it again, later

  // Its clocks: each host counts from a boot of its own, and not while it is suspended; the wall
  // clock is somewhere.
  absl::Duration boot;
  absl::Duration slept;
  absl::Time slept_since;
  absl::Duration wall_offset;

  // Until when what happens to it may be put down to a fault: it was disturbed.
  absl::Time disturbed = absl::InfinitePast();
  // Until when what its processes say, and are told, may not get through or late.
  absl::Time impaired = absl::InfinitePast();
  // Until when its processes may be given up though they live.
  absl::Time given_up = absl::InfinitePast();

  absl::Time Monotonic(absl::Time now) const {
    const absl::Duration sleeps = suspended ? now - slept_since : absl::ZeroDuration();
    return now + boot - slept - sleeps;
  }
  absl::Time Wall(absl::Time now) const { return now + wall_offset; }
  void Disturb(absl::Time until) { disturbed = std::max(disturbed, until); }
};

// Without acknowledgements TCP sends what is under way again and again, and nothing new: so long
// after the way back is cut, the other way carries nothing either.
inline constexpr absl::Duration kUnacknowledged = absl::Milliseconds(400);

// Returns whether packets get from one host to the other.
inline bool Passes(const Host& from, const Host& to) {
  if (!from.up || !to.up || from.suspended || to.suspended) return false;
  return &from == &to || (!from.cut_out && !to.cut_in);
}
// Returns whether new data of a connection do.
inline bool Carries(const Host& from, const Host& to, absl::Time now) {
  if (!Passes(from, to)) return false;
  if (Passes(to, from)) return true;
  return now - std::max(from.cut_since, to.cut_since) < kUnacknowledged;
}
inline absl::Duration Latency(Random& random, const Host& from, const Host& to) {
  if (&from == &to) return random.Between(absl::Microseconds(20), absl::Microseconds(200));
  absl::Duration latency = random.Between(absl::Microseconds(100), absl::Milliseconds(2));
  latency += from.slow + to.slow;
  for (absl::Duration again = absl::Milliseconds(200); again < absl::Seconds(3); again *= 2) {
    if (!random.Chance(from.loss + to.loss)) break;
    latency += again;
  }
  return latency;
}

// Things happen to it while it lives; while it is stopped they wait.
class Process : public std::enable_shared_from_this<Process> {
 public:
  Process(Timeline* timeline, Host* host) : timeline_(timeline), host_(host) {}
  virtual ~Process() = default;

  Host* host() const { return host_; }
  bool alive() const { return alive_; }
  bool stopped() const { return stops_ > 0; }
  absl::Time Now() const { return host_->Monotonic(timeline_->now()); }
  Timeline& timeline() const { return *timeline_; }
  Random& random() const { return timeline_->random; }

  void After(absl::Duration delay, std::function<void()> what) {
    timeline_->In(delay, [self = weak_from_this(), what = std::move(what)] {
      if (const std::shared_ptr<Process> process = self.lock()) process->Happen(what);
    });
  }
  template <typename What>
  void Happen(What&& what) {
    if (!alive_) return;
    if (stops_ > 0) return backlog_.push_back(std::forward<What>(what));
    what();
  }
  // SIGSTOP and SIGCONT; they count.
  void Stop() { ++stops_; }
  void Continue() {
    if (--stops_ > 0) return;
    while (!backlog_.empty() && alive_ && stops_ == 0) {
      const std::function<void()> what = std::move(backlog_.front());
      backlog_.pop_front();
      what();
    }
  }
  // No code of it runs any more.
  void Die() {
    if (!alive_) return;
    alive_ = false;
    backlog_.clear();
    OnDeath();
  }

 protected:
  virtual void OnDeath() {}

 private:
  Timeline* const timeline_;
  Host* const host_;
  bool alive_ = true;
  int stops_ = 0;
  std::deque<std::function<void()>> backlog_;
};

}  // namespace lockstep::simulation

#endif  // LOCKSTEP_TESTS_MACHINES_HOST_H_
