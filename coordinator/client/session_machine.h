// SPDX-License-Identifier: Apache-2.0
// A session that stays up, as a pure machine: what callers queue and what becomes of streams goes
// in with the time, what to do comes out. No gRPC, no thread, no clock, no randomness: session.cc
// is the shell around it, and a simulator drives it as well.
//
// A stream begins with a hello, which the shell makes when it opens it; then everything queued
// follows, one write at a time and in order. A message whose write failed goes first on the next
// stream. One that was written may still be lost with its stream: what must arrive is said again by
// those who know (launcher/agent/machine.h, worker/control/control_machine.h) until it is answered.
// The first try fails at once when nobody listens; later ones wait until somebody does, each a
// backoff after the end of the one before. A coordinator that turns the session away (it is another
// cluster's, or takes the token for none) would do so again: each such try waits twice as long as
// the one before, beyond what the backoff grows to.
// Thread-safety: thread-compatible.
#ifndef LOCKSTEP_COORDINATOR_CLIENT_SESSION_MACHINE_H_
#define LOCKSTEP_COORDINATOR_CLIENT_SESSION_MACHINE_H_

#include <algorithm>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/time/time.h"

namespace lockstep::coordinator {

// What is to be done, in order.
namespace session_action {
// Opens a stream and writes the hello on it.
struct Open {
  bool wait_for_ready = false;  // else it fails at once when nobody listens
};
template <typename Out>
struct Write {
  Out message;
};
// Nothing more will be written.
struct HalfClose {};
// Ends the stream; Done follows. With `cancel` at once, else its status is on the way.
struct End {
  bool cancel = false;
};
template <typename In>
struct Deliver {
  In command;
};
// The connection came or went, or the first try failed.
struct Announce {
  bool connected = false;
  std::string reason;
  bool explain = false;  // with a better reason, if one can be found
};
// There is still no connection: announces why, if that can be found out.
struct Explain {};
}  // namespace session_action

template <typename Out, typename In>
class SessionMachine {
 public:
  using Action =
      std::variant<session_action::Open, session_action::Write<Out>, session_action::HalfClose,
                   session_action::End, session_action::Deliver<In>, session_action::Announce,
                   session_action::Explain>;
  using Actions = std::vector<Action>;
  // A message of this kind is never replaced by a later one.
  static constexpr int kNoKind = -1;
  // How long a stream may wait for a connection before that is explained; twice as long, and it is
  // explained again, and so on: to find out takes a handshake of a coordinator that may be busy
  // with too many of them.
  static constexpr absl::Duration kExplainAfter = absl::Seconds(5);
  static constexpr absl::Duration kExplainAtLeastEvery = absl::Minutes(1);
  // And how long when the one before was turned away.
  static constexpr absl::Duration kExplainAgainAfter = absl::Seconds(1);
  // A stream that was up for so long was not turned away.
  static constexpr absl::Duration kSteady = absl::Seconds(5);
  // From this try on the backoff grows no more; who is turned away waits up to 64 times as long.
  static constexpr int kLongestFrom = 5;
  static constexpr int kMostDoublings = 6;

  // `backoff` says how long to wait after try number `attempt` (from 0) before the next.
  explicit SessionMachine(std::function<absl::Duration(int attempt)> backoff)
      : backoff_(std::move(backoff)) {}

  // ---- the caller ----
  Actions Begin() {
    Actions actions;
    Open(&actions);
    return actions;
  }
  // Queues a message, in the place of a queued one of the same kind.
  Actions Send(Out message, int kind = kNoKind) {
    for (Queued& queued : queue_) {
      if (kind == kNoKind || queued.kind != kind) continue;
      queued.message = std::move(message);
      return {};
    }
    queue_.push_back({kind, std::move(message)});
    Actions actions;
    WriteNext(&actions);
    return actions;
  }
  // Hands over what is queued, if that is possible in time, half-closes and waits for the stream's
  // end; at `deadline` it is cut. The earliest deadline counts.
  Actions Close(absl::Time deadline, absl::Time now) {
    closing_ = true;
    close_by_ = std::min(close_by_, deadline);
    Actions actions = Wake(now);
    WriteNext(&actions);
    return actions;
  }

  // ---- the stream ----
  // Its first metadata came.
  Actions Up(absl::Time now) {
    if (phase_ != Phase::kOpen || up_) return {};
    up_ = told_ = true;
    up_at_ = now;
    Actions actions = {session_action::Announce{true, ""}};
    WriteNext(&actions);
    return actions;
  }
  // An explanation says that no connection comes about unless somebody does something about it.
  Actions Hopeless() {
    Actions actions;
    if (phase_ != Phase::kOpen || up_) return actions;
    hopeless_ = true;
    End(/*cancel=*/true, &actions);
    return actions;
  }
  // A command came on it.
  Actions Received(In command) {
    if (phase_ != Phase::kOpen) return {};
    return {session_action::Deliver<In>{std::move(command)}};
  }
  // The newest write is through, or was not taken.
  Actions WriteDone(bool ok) {
    writing_ = false;
    Actions actions;
    if (ok) {
      in_flight_.reset();
      WriteNext(&actions);
    } else if (in_flight_) {
      queue_.push_front(*std::exchange(in_flight_, std::nullopt));
    }
    if (!ok) End(/*cancel=*/true, &actions);
    return actions;
  }
  // The server will say no more.
  Actions ReadEnded() {
    Actions actions;
    End(/*cancel=*/false, &actions);
    return actions;
  }
  // The stream is over, after an End; nothing of it follows. `ended`: the coordinator ended it by
  // itself, and was neither lost nor stopped.
  Actions Done(const std::string& reason, absl::Time now, bool ended = false) {
    Actions actions;
    // Of attempts that fail, only the very first is told: the rest would say the same.
    if (up_ || !told_) actions.push_back(session_action::Announce{false, reason, !told_});
    told_ = true;
    if (in_flight_) queue_.push_front(*std::exchange(in_flight_, std::nullopt));
    retry_at_ = now + WaitAfter(hopeless_ || (ended && !(up_ && now - up_at_ >= kSteady)));
    phase_ = Phase::kWaiting;
    Append(Wake(now), &actions);
    return actions;
  }

  // ---- time ----
  Actions Wake(absl::Time now) {
    Actions actions;
    if (phase_ == Phase::kOpen && now >= close_by_) End(/*cancel=*/true, &actions);
    if (phase_ == Phase::kOpen && !up_ && now >= explain_at_) {
      actions.push_back(session_action::Explain{});
      explain_after_ = std::min(2 * explain_after_, kExplainAtLeastEvery);
      explain_at_ = now + explain_after_;
    }
    if (phase_ != Phase::kWaiting) return actions;
    if (closing_ && (queue_.empty() || now >= close_by_)) {
      phase_ = Phase::kClosed;
    } else if (now >= retry_at_) {
      Open(&actions);
      explain_after_ = turned_away_ > 0 ? kExplainAgainAfter : kExplainAfter;
      explain_at_ = now + explain_after_;
    }
    return actions;
  }
  absl::Time wake_at() const {
    if (phase_ == Phase::kOpen) return up_ ? close_by_ : std::min(close_by_, explain_at_);
    return phase_ == Phase::kWaiting ? std::min(retry_at_, close_by_) : absl::InfiniteFuture();
  }

  // Everything queued has been written.
  bool flushed() const { return queue_.empty() && !writing_ && !in_flight_; }
  bool empty() const { return queue_.empty(); }
  // It was closed, and is through.
  bool closed() const { return phase_ == Phase::kClosed; }

 private:
  enum class Phase { kNew, kOpen, kEnding, kWaiting, kClosed };
  struct Queued {
    int kind = kNoKind;
    Out message;
  };

  static void Append(Actions more, Actions* actions) {
    for (Action& action : more) actions->push_back(std::move(action));
  }
  absl::Duration WaitAfter(bool turned_away) {
    if (turned_away) {
      ++attempt_;
      const int times = turned_away_++;
      return backoff_(times) * (1 << std::clamp(times - kLongestFrom, 0, kMostDoublings));
    }
    if (up_) attempt_ = turned_away_ = 0;
    return backoff_(attempt_++);
  }
  void Open(Actions* actions) {
    phase_ = Phase::kOpen;
    up_ = half_closed_ = hopeless_ = false;
    writing_ = true;  // the hello
    actions->push_back(session_action::Open{attempt_ > 0});
  }
  void WriteNext(Actions* actions) {
    if (phase_ != Phase::kOpen || writing_ || half_closed_) return;
    if (!queue_.empty()) {
      // What a stream takes that nobody answers on, a standby's or that of one who dies, is lost.
      if (!up_) return;
      in_flight_ = std::move(queue_.front());
      queue_.pop_front();
      writing_ = true;
      actions->push_back(session_action::Write<Out>{in_flight_->message});
    } else if (closing_) {
      half_closed_ = true;
      actions->push_back(session_action::HalfClose{});
    }
  }
  void End(bool cancel, Actions* actions) {
    if (phase_ != Phase::kOpen) return;
    phase_ = Phase::kEnding;
    actions->push_back(session_action::End{cancel});
  }

  const std::function<absl::Duration(int)> backoff_;
  Phase phase_ = Phase::kNew;
  std::deque<Queued> queue_;
  std::optional<Queued> in_flight_;  // the one being written
  bool writing_ = false;             // it, or the hello
  bool up_ = false;
  bool half_closed_ = false;
  bool hopeless_ = false;
  bool told_ = false;  // the user has heard of the connection
  absl::Time up_at_;
  int attempt_ = 0;      // tries since it was up
  int turned_away_ = 0;  // times, since it was up and was not
  absl::Time retry_at_ = absl::InfinitePast();
  absl::Time explain_at_ = absl::InfiniteFuture();  // of an open stream that is not up
  absl::Duration explain_after_ = kExplainAfter;
  bool closing_ = false;
  absl::Time close_by_ = absl::InfiniteFuture();
};

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_CLIENT_SESSION_MACHINE_H_
