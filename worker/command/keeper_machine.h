// SPDX-License-Identifier: Apache-2.0
// What the keeper of one rank decides: when its command starts, is asked to end and is killed, and
// what the coordinator is told. What is seen goes in with the time, what is to be done comes out;
// no process, thread, network or clock.
//
// The command runs while its generation lasts. A generation that ends (another rank failed, the job
// changes its size, the coordinator is out of sight and the lease nearly over) ends the command,
// SIGTERM first and SIGKILL after the grace, with the lease at the latest, and the keeper is ready
// for the next one. A command that fails by
// itself ends the keeper in the same way. One that succeeds is reported; it begins again when
// another rank fails before all have succeeded.
//
// Thread-safety: thread-compatible.
#ifndef LOCKSTEP_WORKER_COMMAND_KEEPER_MACHINE_H_
#define LOCKSTEP_WORKER_COMMAND_KEEPER_MACHINE_H_

#include <cstdint>
#include <optional>

#include "absl/time/time.h"
#include "worker/command/rank_process.h"

namespace lockstep::worker {

struct KeeperTimes {
  absl::Duration grace = absl::Seconds(10);  // from SIGTERM to SIGKILL
  // Without a word from the coordinator for so long the command is killed: another one may be
  // started elsewhere.
  absl::Duration lease = absl::Seconds(30);
  // So long before the lease's end it gets SIGTERM. What is away for a shorter time ends nothing.
  absl::Duration lease_notice = absl::Seconds(3);
};

class KeeperMachine {
 public:
  // What there is to see at one moment.
  struct Seen {
    std::optional<int64_t> generation = {};  // a new one that it is a member of
    std::optional<int64_t> missed = {};      // one that had ended before it could be entered
    bool aborted = false;                    // the generation that it is in has ended
    bool regroup = false;                    // its members are to leave it
    bool drain = false;                      // the job is to stop
    std::optional<int> exit = {};            // the keeper is to leave with this code
    bool stop = false;                       // its agent ends it politely
    bool orphaned = false;                   // its agent is gone
    bool connected = true;
    std::optional<ProcessEnd> ended = {};  // the command has, and all that came of it
  };
  // What is to be done, in this order.
  struct Actions {
    bool terminate = false;                    // SIGTERM to the command
    bool kill = false;                         // SIGKILL to it and all that came of it
    bool start = false;                        // the command of `generation()`
    bool ready = false;                        // says so, with a new port
    bool finished = false;                     // says so
    std::optional<ProcessEnd> leave = {};      // ends like this
    bool failed = false;                       // with `leave`: because the command failed
    absl::Time next = absl::InfiniteFuture();  // when to look again at the latest
  };

  explicit KeeperMachine(KeeperTimes times) : times_(times) {}

  // Once, when the keeper could begin.
  Actions Begin(absl::Time now);
  Actions Step(const Seen& seen, absl::Time now);

  int64_t generation() const { return generation_; }  // the newest one seen; 0: none
  bool waits() const { return state_ == State::kWaiting; }
  bool finished() const { return state_ == State::kFinished; }
  bool drained() const { return drained_; }

 private:
  enum class State {
    kWaiting,   // for a generation
    kRunning,   // the command runs
    kEnding,    // it was sent SIGTERM
    kFinished,  // it has succeeded, or the job drains and it has ended
  };
  // What follows when an ending command has ended.
  enum class Then { kReady, kFinished, kLeave };

  void Wait(const Seen& seen, Actions* actions);
  void Run(const Seen& seen, absl::Time now, Actions* actions);
  void OnEnded(const Seen& seen, Actions* actions);
  void BecomeReady(Actions* actions);
  void Finish(bool drained, Actions* actions);
  void EndCommand(Then then, bool at_once, absl::Time now, Actions* actions);

  const KeeperTimes times_;
  State state_ = State::kWaiting;
  Then then_ = Then::kReady;
  int64_t generation_ = 0;
  int leave_code_ = 0;
  bool drained_ = false;
  bool killed_ = false;
  absl::Time kill_at_ = absl::InfiniteFuture();
  absl::Time heard_ = absl::InfinitePast();
};

}  // namespace lockstep::worker

#endif  // LOCKSTEP_WORKER_COMMAND_KEEPER_MACHINE_H_
