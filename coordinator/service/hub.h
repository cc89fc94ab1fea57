// SPDX-License-Identifier: Apache-2.0
// Joins the outbox, the core in it and the registry with the world: one lock around them, a thread
// for the passing of time and one that writes the journal. Thread-safety: thread-safe. Connections
// and callers are called back without the lock held.
#ifndef LOCKSTEP_COORDINATOR_SERVICE_HUB_H_
#define LOCKSTEP_COORDINATOR_SERVICE_HUB_H_

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "common/clock.h"
#include "common/cond_var.h"
#include "common/thread.h"
#include "coordinator/core/accounting.h"
#include "coordinator/core/core.h"
#include "coordinator/core/files.h"
#include "coordinator/core/questions.h"
#include "coordinator/outbox/outbox.h"
#include "coordinator/outbox/registry.h"
#include "coordinator/service/beginning.h"
#include "coordinator/store/store.h"

namespace lockstep::coordinator {

// Drives the outbox, hands what it says to the connections, and has a thread that wakes it when
// time has passed.
class Hub {
 public:
  // Goes on from `beginning`, which is what `store` holds. Followers know events of a later
  // coordinator by their higher sequence numbers. `on_broken` is called, once and without the lock,
  // when the journal has failed for good, with the reason: nothing is said any more, and the
  // process is to end. `on_later` is called when an agent shows that it has obeyed a later
  // coordinator of the same cluster (epoch_proof.h), or an administrator's agent says so, with its
  // epoch. `wall` has the time of day, at which tokens end, as `clock`
  // stands still with a machine that is suspended; null: `clock` has. Clocks and `store` outlive
  // the hub.
  Hub(Clock* clock, Store* store, Beginning beginning,
      std::function<void(const absl::Status&)> on_broken = nullptr,
      std::function<void(int64_t epoch)> on_later = nullptr, Clock* wall = nullptr);
  ~Hub();  // writes what is not written yet; stops the threads

  // What an event's sender is told.
  struct Reply {
    absl::Status status;
    SubmitJobResponse submitted;
    ScaleJobResponse scaled;
  };
  using Done = std::function<void(Reply)>;
  // Hands `event` to the outbox and carries out what follows. Does not block for the network or the
  // disk. `done`, if there is one, is called once with the event's reply, when what it led to is
  // durable. Errors, besides the core's: ResourceExhausted (the journal has no room), Unavailable
  // (its disk does not answer, or has failed); the event, if it is a user's request, has then not
  // happened.
  void Post(const Event& event, Done done = nullptr);
  // The same, and waits for the reply.
  Reply Handle(const Event& event);
  // Returns whether a job was made of this request, by its user and its request_id.
  bool IsRepeated(const SubmitJobRequest& request);
  // Submits under a new id; `done` as in Post. Errors: as SubmitJob.
  void Submit(const SubmitJobRequest& request, Done done);

  // A new connection: commands for it go to `outlet`, which the hub keeps until Remove. The core
  // hears of it with its first message.
  SessionId AddAgent(std::shared_ptr<Outlet<ToAgent>> outlet);
  SessionId AddWorker(std::shared_ptr<Outlet<ToWorker>> outlet);
  // The connection is over; the core hears of it.
  void RemoveAgent(SessionId session);
  void RemoveWorker(SessionId session);

  // Returns whether this coordinator still leads, if there are several (store.h).
  bool Leads() const { return store_->Leads(); }

  // Calls `done` when all that the calls below have shown until now is durable. Errors: as
  // Outbox::AwaitSaved.
  void AwaitSaved(Done done);

  // In these `who` asks: PermissionDenied where it is not theirs (core/access.h). What they show
  // may not be durable yet.

  // The id of the job that `reference` names, to follow it. Errors: NotFound.
  absl::StatusOr<std::string> JobId(const std::string& reference, const Requester& who);
  // A job with its workers as they are now. Errors: NotFound.
  absl::StatusOr<DescribeJobResponse> Describe(const std::string& job_id,
                                               const Requester& who = Requester());
  // All jobs, or the page of them that is asked for. Errors: as ListJobs (core/questions.h).
  absl::StatusOr<ListJobsResponse> List(const ListJobsRequest& request,
                                        const Requester& who = Requester());
  // Returns the workdirs of jobs that have not ended. Each job is looked at once, not what it waits
  // for, as List and Describe do.
  std::set<std::string> Workdirs();
  // All nodes with their slots.
  GetClusterResponse Cluster(const Requester& who = Requester());
  // Returns what users' jobs have used.
  GetUsageResponse Usage(const GetUsageRequest& request);
  // Where the files of a job's run are. Errors: NotFound.
  absl::StatusOr<FindFilesResponse> FindFiles(const std::string& job_id, const Requester& who);
  // Has a node's agent send files of a job's run, to the stream that `wanted.ticket` belongs to;
  // the rest of `wanted` says which. Errors: NotFound (the job has no such node), Unavailable (the
  // node is away).
  absl::Status AskForFiles(const std::string& job_id, const std::string& node_id, SendFiles wanted,
                           const Requester& who);
  // Whose token this is: a user's, a node's or a worker's. Errors: Unauthenticated: nobody's, or it
  // has expired.
  absl::StatusOr<Requester> WhoShows(absl::string_view token);
  // When the token ends whose certificate bears this name (client/token.h). Nothing: it is no
  // user's or node's, or is over.
  std::optional<absl::Time> EndOfToken(absl::string_view name);
  // The tokens that `who` may see.
  ListTokensResponse Tokens(const Requester& who);

  // The next event of the job after `place` for a follower, whose place moves on to it; `follower`
  // is called when there is more.
  using Next = Registry::Next;
  // Errors: NotFound.
  absl::StatusOr<Next> NextEvent(const std::string& job_id, FollowerPlace& place, bool logs);
  void AddFollower(const std::string& job_id, std::shared_ptr<StreamWriter> follower);
  void RemoveFollower(const std::string& job_id, const std::shared_ptr<StreamWriter>& follower);

 private:
  // What is to be called without the lock.
  struct Calls {
    Registry::Writers writers;
    std::vector<std::pair<Done, Reply>> answers;
    absl::Status broken;
  };

  void NoteEpoch(const Event& event) ABSL_LOCKS_EXCLUDED(mu_);
  void HandleLocked(const Event& event, Done done, Calls& calls) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void CarryOut(Outgoing outgoing, Calls& calls) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Make(Calls calls) ABSL_LOCKS_EXCLUDED(mu_);
  void LogTrouble(const absl::Status& before) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return stopping_ || !to_write_.empty();
  }
  void RunTicker();
  void RunJournal();

  Clock* const clock_;
  Clock* const wall_;
  Store* const store_;
  const std::function<void(const absl::Status&)> on_broken_;
  const std::function<void(int64_t)> on_later_;
  const Speaker speaker_;
  const std::string secret_;  // the journal's
  absl::Mutex mu_;
  Registry registry_ ABSL_GUARDED_BY(mu_);
  Outbox outbox_ ABSL_GUARDED_BY(mu_);
  std::vector<Row> to_write_ ABSL_GUARDED_BY(mu_);
  bool warned_of_claim_ ABSL_GUARDED_BY(mu_) = false;
  int64_t last_ticket_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<int64_t, Done> waiting_ ABSL_GUARDED_BY(mu_);  // by ticket
  absl::Time ticker_wakes_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
  CondVar wake_changed_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  Thread journal_;  // these run on the rest
  Thread ticker_;
};

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_SERVICE_HUB_H_
