// SPDX-License-Identifier: Apache-2.0
// A worker's session with its coordinator: the shell around ControlMachine, which decides, and a
// mailbox that the main thread looks into. A step never waits here. Losing the coordinator changes
// nothing for a running generation: the session reconnects by itself and reports again.
//
// Thread-safety: thread-safe. The session's thread fills the mailbox and aborts the communicator of
// an ended generation; the main thread does the rest.
#ifndef LOCKSTEP_WORKER_CONTROL_CONTROL_LINK_H_
#define LOCKSTEP_WORKER_CONTROL_CONTROL_LINK_H_

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/cond_var.h"
#include "coordinator/client/client.h"
#include "proto/coordinator.pb.h"
#include "worker/control/control_machine.h"

namespace lockstep::worker {

class ControlLink {
 public:
  // Opens the session; tests bring their own.
  using Open = std::function<std::unique_ptr<coordinator::WorkerSession>(
      const coordinator::ClientOptions&, coordinator::WorkerSession::Callbacks)>;

  explicit ControlLink(const WorkerBootstrap& bootstrap,
                       Open open = coordinator::OpenWorkerSession);
  ~ControlLink();

  // Connects in the background and says hello.
  void Start();

  // Says that the worker stands between generations with this state. Said again by itself after a
  // reconnect, until a generation is entered.
  void SendReady(const WorkerReady& ready);

  // Blocks until a generation newer than `after` that has this worker as a member is there, for
  // `timeout` at most: then there is none. One without members has ended before this worker could
  // enter it: it counts as seen. Errors: Cancelled when the worker is told to exit, or the
  // coordinator is lost.
  absl::StatusOr<std::optional<Generation>> WaitForGeneration(int64_t after,
                                                              absl::Duration timeout);

  // While a generation runs, `abort` is called (on the session's thread, with a lock held: it does
  // not call back) with the reason when the coordinator ends the generation or wants the worker to
  // leave; with `connecting`, while its members connect to each other, also when the coordinator is
  // lost (on that caller's thread). At most one at a time; called at once if it has ended already.
  void WatchGeneration(int64_t generation, std::function<void(const std::string&)> abort,
                       bool connecting = false);
  void UnwatchGeneration();
  // As ControlMachine::heard, since the newest WatchGeneration.
  bool heard() const;

  // Returns whether the job is to stop after a step that all agree on.
  bool drain_requested() const { return drain_.load(std::memory_order_relaxed); }
  // Returns whether the members are to leave `generation` together after a step that all agree on.
  bool regroup_requested(int64_t generation) const {
    return regroup_.load(std::memory_order_relaxed) == generation;
  }
  // Returns whether the worker was told to exit, and with what.
  std::optional<Exit> exit_requested() const;

  // There will never be a coordinator again: whoever waits for one waits no more, and the job is to
  // stop as if it were drained.
  void LoseCoordinator();
  bool coordinator_lost() const { return lost_.load(std::memory_order_relaxed); }

  // Queue a message and return at once. A heartbeat replaces one that has not left yet.
  void SendHeartbeat(const WorkerHeartbeat& heartbeat);
  void SendEval(const EvalResult& eval);
  // Whose rank is to blame for the end of the generation, or one of those; -1: it is not known.
  // Said again after a reconnect until there is another generation.
  void SendPeerLost(const PeerLost& lost);
  // Asks whether a checkpoint may appear, and blocks until that is known, for `timeout` at most: no
  // training depends on the coordinator, and the folder has an order of its own. Errors: Aborted
  // when it may not, the worker is told to exit, or nobody answers and its generation is over;
  // never for want of an answer once the coordinator is lost. One thread at a time.
  absl::Status OfferCheckpoint(const CheckpointMark& mark, absl::Duration timeout);
  // Says that the job has gone on from it; does not block.
  void TellCheckpoint(const CheckpointMark& mark);
  // Says that all is done and durable, and blocks until the coordinator lets the worker go. The
  // message is repeated after a reconnect. Empty: the generation was aborted, because the worker
  // that writes the result failed, and the work is not done; or the coordinator is lost.
  std::optional<Exit> FinishAndWait(const WorkerFinished& finished);
  // Says that all is done, and returns at once; what FinishAndWait waits for is asked for with
  // exit_requested and HasEnded.
  void SendFinished(const WorkerFinished& finished);
  // Returns whether the coordinator has ended `generation`.
  bool HasEnded(int64_t generation) const;
  // Returns whether the coordinator is heard: a connection to it is up.
  bool connected() const { return connected_.load(std::memory_order_relaxed); }
  // Says why the worker gives up; waits a moment for the message to leave.
  void SendFailed(int64_t generation, const absl::Status& status,
                  WorkerFailed::Kind kind = WorkerFailed::UNSPECIFIED);

 private:
  void OnCommand(const WorkerCommand& command);
  void OnConnection(bool connected);
  // Sends in the order in which the machine was asked.
  void CarryOut(const ControlMachine::Effects& effects) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const coordinator::ClientOptions options_;
  const Open open_;
  std::atomic<bool> drain_{false};
  std::atomic<bool> lost_{false};
  std::atomic<bool> connected_{false};
  std::atomic<int64_t> regroup_{0};

  mutable absl::Mutex mu_;
  CondVar changed_;  // what the machine was told by the session
  ControlMachine machine_ ABSL_GUARDED_BY(mu_);
  std::function<void(const std::string&)> abort_ ABSL_GUARDED_BY(mu_);

  std::unique_ptr<coordinator::WorkerSession> session_;  // last: its thread uses the rest
};

}  // namespace lockstep::worker

#endif  // LOCKSTEP_WORKER_CONTROL_CONTROL_LINK_H_
