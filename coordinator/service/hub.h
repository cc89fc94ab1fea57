// SPDX-License-Identifier: Apache-2.0
// Joins the core with the world: one lock around the state, rows saved before anything is said,
// effects put into the queues of the connections, a thread for the passing of time and one that
// writes the journal. Steps go on while it writes: what they change goes into the next batch, and
// what they say is said after it. Thread-safety: thread-safe. Connections and callers are called
// back without the lock held.
#ifndef LOCKSTEP_COORDINATOR_SERVICE_HUB_H_
#define LOCKSTEP_COORDINATOR_SERVICE_HUB_H_

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/clock.h"
#include "common/thread.h"
#include "coordinator/core/core.h"
#include "coordinator/core/questions.h"
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

// Owns the core's state: steps it by one event at a time, hands its effects to the connections once
// they are saved, and has a thread that steps it when the core's next deadline has come.
class Hub {
 public:
  // Goes on from `state`, which is what `store` holds. `life` counts the coordinators that `store`
  // has served, from 1: followers know events of a later one by their higher sequence numbers.
  // `clock` and `store` outlive the hub.
  Hub(Clock* clock, Store* store, State state, int64_t life = 1);
  ~Hub();  // writes what is not written yet; stops the threads

  // What an event's sender is told.
  struct Reply {
    absl::Status status;
    SubmitJobResponse submitted;
    ScaleJobResponse scaled;
  };
  using Done = std::function<void(Reply)>;
  // Steps the state by `event`, journals the step and carries its effects out. Does not block for
  // the network or the disk. `done`, if there is one, is called once with the event's reply, when
  // the step is durable, or with why the journal could not be written; nobody is told anything then
  // until a later step is saved.
  void Post(const Event& event, Done done = nullptr);
  // The same, and waits for the reply.
  Reply Handle(const Event& event);
  // Submits under a new id; `done` as in Post. Errors: as SubmitJob.
  void Submit(const SubmitJobRequest& request, Done done);

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
  using Answer = std::pair<Done, Reply>;

  // What one step or several made, and whom they answer.
  struct Batch {
    Effects effects;
    std::vector<Answer> answers;
  };
  // What is to be called without the lock.
  struct Calls {
    Pumps pumps;
    std::vector<Answer> answers;
    void Make();
  };

  void StepLocked(const Event& event, Done done, Calls& calls) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Tell(Batch batch, Calls& calls) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void HoldBack(Batch batch, const absl::Status& why, Calls& calls)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void WakeAt(absl::Time time) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return stopping_ || !queued_.effects.rows.empty();
  }
  void RunTicker();
  void RunJournal();

  Clock* const clock_;
  Store* const store_;
  const int64_t first_sequence_;
  absl::Mutex mu_;
  State state_ ABSL_GUARDED_BY(mu_);
  // Steps that are not saved: those after the batch that is being written, in their order.
  Batch queued_ ABSL_GUARDED_BY(mu_);
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool failing_ ABSL_GUARDED_BY(mu_) = false;  // the last write failed
  std::map<std::string, EventLog> logs_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, std::set<std::shared_ptr<Pumped>>> followers_ ABSL_GUARDED_BY(mu_);
  std::map<SessionId, std::shared_ptr<Outlet<AgentCommand>>> agents_ ABSL_GUARDED_BY(mu_);
  std::map<SessionId, std::shared_ptr<Outlet<WorkerCommand>>> workers_ ABSL_GUARDED_BY(mu_);
  SessionId last_session_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Time wake_at_ ABSL_GUARDED_BY(mu_) = absl::InfiniteFuture();
  bool wake_changed_ ABSL_GUARDED_BY(mu_) = false;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  Thread journal_;  // these run on the rest
  Thread ticker_;
};

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_SERVICE_HUB_H_
