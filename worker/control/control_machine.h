// SPDX-License-Identifier: Apache-2.0
// A worker's side of the control plane as a pure machine: events in (commands, connections, what
// the main thread has to say), effects out (messages, the end of the watched generation), and a
// mailbox that tells what the worker is part of. No threads, no network and no clock: nothing that
// a worker does for its coordinator depends on time. ControlLink is the shell around it.
//
//   effects = machine.Command(command);   // and carry them out, in order
//   generation = machine.TakeGeneration(after);
//
// Thread-safety: thread-compatible.
#ifndef LOCKSTEP_WORKER_CONTROL_CONTROL_MACHINE_H_
#define LOCKSTEP_WORKER_CONTROL_CONTROL_MACHINE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "proto/coordinator.pb.h"

namespace lockstep::worker {

class ControlMachine {
 public:
  // What an event brings about.
  struct Effects {
    std::vector<WorkerMessage> messages;  // to be sent, in order
    std::optional<std::string> abort;     // the watched generation is to end, for this reason
    std::string refused;                  // why the command was not obeyed; empty: it was
  };

  ControlMachine(const WorkerBootstrap& bootstrap, int64_t pid);

  // ---- the session ----
  // The first message of a connection.
  WorkerMessage Hello() const;
  // A connection is up. On all but the first what stands is said again: all whom it lost in the
  // generation that it has left, then the newest of ready and finished, while they are still true.
  Effects Connected();
  // The connection is lost.
  void Disconnected() { connected_ = heard_ = false; }
  // A coordinator with a lower epoch than the newest that was obeyed, of the same cluster, is one
  // that lives on beside its successor; one of another cluster knows nothing of this worker, and
  // its agent decides what becomes of it. Neither is obeyed, nor is one that does not say whose it
  // is, where the agent said whose the worker is.
  Effects Command(const WorkerCommand& command);
  // No coordinator comes back, says the agent: a generation that runs is to stop after a step that
  // all agree on, and who is in none leaves; one whose members still connect ends.
  Effects LoseCoordinator();

  // ---- the main thread ----
  // A message in this worker's name, still empty.
  WorkerMessage NewMessage() const;
  // It lost a peer in the generation that it leaves, maybe one of several; said before it is ready.
  Effects LostPeer(const PeerLost& lost);
  // It stands between generations.
  Effects Ready(const WorkerReady& ready);
  // All its work is done and durable.
  Effects Finished(const WorkerFinished& finished);
  // `generation` runs from now on, or with `connecting` its members connect to each other, which is
  // no use without a coordinator: its end is an effect, now if it has ended already.
  Effects Watch(int64_t generation, bool connecting = false);
  void Unwatch() { watched_ = 0; }
  // Returns whether the coordinator has been heard all the time since the newest Watch. Where not,
  // it may have told some of the members of the generation and not the others.
  bool heard() const { return heard_; }
  // A checkpoint is to appear, or has; said again after a reconnect until there is a verdict on it.
  Effects Offer(const CheckpointOffer& offer);

  // ---- the mailbox ----
  // Returns whether TakeGeneration has something to give.
  bool HasGeneration(int64_t after) const;
  // A generation newer than `after`: the newest, or one without members that had ended before this
  // worker could enter it. It stands between generations no more. REQUIRES: HasGeneration(after).
  Generation TakeGeneration(int64_t after);
  // Returns whether `generation` was ended.
  bool HasEnded(int64_t generation) const { return ended_through_ >= generation; }
  // With what the worker is to leave, if it is.
  const std::optional<Exit>& exit() const { return exit_; }
  // Returns whether there will never be a coordinator again.
  bool lost() const { return lost_; }
  // Returns whether the job is to stop after a step that all agree on.
  bool drain() const { return drain_; }
  // The generation that its members are to leave together; 0: none.
  int64_t regroup() const { return regroup_; }
  // The verdict on the newest offer; null: there is none yet.
  const CheckpointVerdict* verdict() const { return verdict_ ? &*verdict_ : nullptr; }

 private:
  // Empty: the command is obeyed.
  std::string WhyRefused(const WorkerCommand& command) const;
  // Generations up to this one are over.
  void End(int64_t generation, const std::string& reason, Effects* effects);

  const WorkerBootstrap bootstrap_;
  const int64_t pid_;
  // Of the newest coordinator that was obeyed, first the agent.
  std::string cluster_id_;
  int64_t epoch_;
  bool connected_ = false;
  bool connected_before_ = false;
  bool heard_ = false;
  std::vector<WorkerMessage> lost_peers_;
  std::optional<WorkerMessage> standing_;
  std::optional<Generation> newest_;
  std::optional<Exit> exit_;
  bool drain_ = false;
  bool lost_ = false;
  int64_t regroup_ = 0;
  int64_t watched_ = 0;
  bool connecting_ = false;  // the members of the watched one are
  int64_t ended_through_ = 0;
  std::string end_reason_;
  std::optional<WorkerMessage> offer_;  // without a verdict
  std::optional<CheckpointVerdict> verdict_;
};

}  // namespace lockstep::worker

#endif  // LOCKSTEP_WORKER_CONTROL_CONTROL_MACHINE_H_
