// SPDX-License-Identifier: Apache-2.0
#include "worker/command/keeper_machine.h"

#include <algorithm>

namespace lockstep::worker {

KeeperMachine::Actions KeeperMachine::Begin(absl::Time now) {
  heard_ = now;
  Actions actions;
  actions.ready = true;
  return actions;
}

KeeperMachine::Actions KeeperMachine::Step(const Seen& seen, absl::Time now) {
  Actions actions;
  if (seen.connected) heard_ = now;
  if (seen.orphaned) {
    actions.kill = true;
    actions.leave = ProcessEnd{.code = 1};
    return actions;
  }
  if (state_ == State::kWaiting || state_ == State::kFinished) {
    Wait(seen, &actions);
  } else {
    Run(seen, now, &actions);
  }
  if (state_ == State::kRunning || state_ == State::kEnding) {
    const absl::Time lease_ends = heard_ + times_.lease;
    if (!seen.connected) {
      actions.next = std::min(
          actions.next, state_ == State::kRunning ? lease_ends - times_.lease_notice : lease_ends);
    }
    if (!killed_) actions.next = std::min(actions.next, kill_at_);
  }
  return actions;
}

void KeeperMachine::Wait(const Seen& seen, Actions* actions) {
  if (seen.exit.has_value() || seen.stop) {
    actions->leave = ProcessEnd{.code = seen.exit.value_or(0)};
    return;
  }
  if (state_ == State::kFinished) {
    // Some other rank has failed, or there will be other ranks: all begin again.
    if ((seen.aborted || seen.regroup) && !drained_) BecomeReady(actions);
    return;
  }
  if (seen.missed.has_value()) {
    generation_ = *seen.missed;
    return BecomeReady(actions);
  }
  if (!seen.generation.has_value()) return;
  generation_ = *seen.generation;
  state_ = State::kRunning;
  killed_ = false;
  kill_at_ = absl::InfiniteFuture();
  actions->start = true;
}

void KeeperMachine::Run(const Seen& seen, absl::Time now, Actions* actions) {
  if (seen.ended.has_value()) return OnEnded(seen, actions);
  const bool lease_over = now - heard_ >= times_.lease;
  const bool lease_ends = now - heard_ >= times_.lease - times_.lease_notice;
  if (seen.stop || seen.exit.has_value()) {
    leave_code_ = seen.exit.value_or(0);
    EndCommand(Then::kLeave, lease_over, now, actions);
  } else if (seen.drain) {
    EndCommand(Then::kFinished, lease_over, now, actions);
  } else if (seen.aborted || seen.regroup || lease_ends) {
    EndCommand(Then::kReady, lease_over, now, actions);
  }
  if (state_ == State::kEnding && now >= kill_at_ && !killed_) {
    killed_ = true;
    actions->kill = true;
  }
}

// Of two reasons to end the one counts after which less follows.
void KeeperMachine::EndCommand(Then then, bool at_once, absl::Time now, Actions* actions) {
  if (state_ != State::kEnding) {
    state_ = State::kEnding;
    then_ = then;
    kill_at_ = now + times_.grace;
    actions->terminate = !at_once;
  }
  then_ = std::max(then_, then);
  if (at_once) kill_at_ = std::min(kill_at_, now);
}

void KeeperMachine::OnEnded(const Seen& seen, Actions* actions) {
  const ProcessEnd end = *seen.ended;
  const bool good = end.code == 0 && end.signal == 0;
  if (state_ == State::kEnding) {
    if (then_ == Then::kLeave) {
      actions->leave = ProcessEnd{.code = leave_code_};
    } else if (then_ == Then::kFinished) {
      Finish(/*drained=*/true, actions);
    } else {
      BecomeReady(actions);
    }
  } else if (seen.drain) {
    Finish(/*drained=*/true, actions);
  } else if (good) {
    Finish(/*drained=*/false, actions);
  } else if (seen.aborted || seen.regroup) {
    BecomeReady(actions);  // it lost its peers
  } else {
    actions->leave = end;
    actions->failed = true;
  }
}

void KeeperMachine::BecomeReady(Actions* actions) {
  state_ = State::kWaiting;
  actions->ready = true;
}

void KeeperMachine::Finish(bool drained, Actions* actions) {
  state_ = State::kFinished;
  drained_ = drained;
  actions->finished = true;
}

}  // namespace lockstep::worker
