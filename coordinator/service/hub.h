// SPDX-License-Identifier: Apache-2.0
// Joins the core with the world: one lock around the state, rows saved before anything is said,
// effects put into the queues of the connections, and a thread for the passing of time.
// Thread-safety: thread-safe. Connections are called back without the lock held.
#ifndef LOCKSTEP_COORDINATOR_SERVICE_HUB_H_
#define LOCKSTEP_COORDINATOR_SERVICE_HUB_H_

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/clock.h"
#include "common/thread.h"
#include "coordinator/core/core.h"
#include "coordinator/service/event_log.h"
#include "coordinator/store/store.h"

namespace lockstep::coordinator {

// Something that may have something new to do: a connection with a queue, a follower.
class Pumped {
 public:
  virtual ~Pumped() = default;
  // Starts what can be started. Called without any lock; any number of times; does not block.
  virtual void Pump() = 0;
};

// The outgoing side of an agent's or a worker's connection.
template <typename Command>
class Outlet : public Pumped {
 public:
  // Queues `command` and, with `close`, the end of the stream. Called with the hub's lock held, so
  // that commands keep the order of the steps that made them; only queues.
  virtual void Enqueue(Command command, bool close) = 0;
};

// Owns the core's state: steps it by one event at a time, hands its effects to the connections, and
// has a thread that steps it when the core's next deadline has come.
class Hub {
 public:
  // Goes on from `state`, which is what `store` holds. `clock` and `store` outlive the hub.
  Hub(Clock* clock, Store* store, State state);
  ~Hub();  // stops the ticker

  // What an event's sender is told.
  struct Reply {
    absl::Status status;
    SubmitJobResponse submitted;
    ScaleJobResponse scaled;
  };
  // Steps the state by `event`, journals the step and carries its effects out. Does not block for
  // the network. The reply is that of the event, or, when the journal could not be written, why;
  // nobody is told anything then until a later step is saved.
  Reply Handle(const Event& event);
  // Submits under a new id. Errors: as SubmitJob.
  absl::StatusOr<SubmitJobResponse> Submit(const SubmitJobRequest& request);

  // A new connection: commands for it go to `outlet`, which the hub keeps until Remove. The core
  // hears of it with its first message.
  SessionId AddAgent(std::shared_ptr<Outlet<AgentCommand>> outlet);
  SessionId AddWorker(std::shared_ptr<Outlet<WorkerCommand>> outlet);
  // The connection is over; the core hears of it.
  void RemoveAgent(SessionId session);
  void RemoveWorker(SessionId session);

  // A job with its workers as they are now. Errors: NotFound.
  absl::StatusOr<DescribeJobResponse> Describe(const std::string& job_id);
  // All jobs, those that have ended only if asked for.
  ListJobsResponse List(bool include_ended);
  // All nodes with their slots.
  GetClusterResponse Cluster();

  // The next event of the job after `sequence` for a follower; `follower` is pumped when there is
  // more.
  struct Next {
    std::shared_ptr<const JobEvent> event;  // null: none now
    bool ended = false;                     // and none will come
  };
  // Errors: NotFound.
  absl::StatusOr<Next> NextEvent(const std::string& job_id, int64_t sequence, bool logs);
  void AddFollower(const std::string& job_id, std::shared_ptr<Pumped> follower);
  void RemoveFollower(const std::string& job_id, const std::shared_ptr<Pumped>& follower);

 private:
  using Pumps = std::vector<std::shared_ptr<Pumped>>;

  Reply StepLocked(const Event& event, Pumps& pumps) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status Save(const Effects& effects) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void HoldBack(Effects& effects) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Tell(Effects effects, Pumps& pumps) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void RunTicker();

  Clock* const clock_;
  Store* const store_;
  absl::Mutex mu_;
  State state_ ABSL_GUARDED_BY(mu_);
  // Answers and events of steps that could not be saved, in their order.
  Effects held_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, EventLog> logs_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, std::set<std::shared_ptr<Pumped>>> followers_ ABSL_GUARDED_BY(mu_);
  std::map<SessionId, std::shared_ptr<Outlet<AgentCommand>>> agents_ ABSL_GUARDED_BY(mu_);
  std::map<SessionId, std::shared_ptr<Outlet<WorkerCommand>>> workers_ ABSL_GUARDED_BY(mu_);
  SessionId last_session_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Time wake_at_ ABSL_GUARDED_BY(mu_) = absl::InfiniteFuture();
  bool wake_changed_ ABSL_GUARDED_BY(mu_) = false;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  Thread ticker_;  // last: runs on the rest
};

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_SERVICE_HUB_H_
