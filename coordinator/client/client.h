// SPDX-License-Identifier: Apache-2.0
// How the other programs speak to a coordinator. No gRPC type is visible here.
//
// Addresses: "unix:/path", "unix-abstract:name" or "host:port"; several with commas between them,
// when several coordinators take turns to lead: calls and sessions follow the leader.
// Channels reconnect with a backoff of 20 ms to 500 ms with jitter.
// Thread-safety: thread-safe unless said otherwise.
#ifndef LOCKSTEP_COORDINATOR_CLIENT_CLIENT_H_
#define LOCKSTEP_COORDINATOR_CLIENT_CLIENT_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "proto/coordinator.pb.h"

namespace lockstep::coordinator {

// A token whose certificate is renewed while it is used: the newest one, for all who have the cell.
// Thread-safety: thread-safe.
class RenewedToken {
 public:
  // From now on it is this one, with the same secret.
  void Set(const std::string& token) ABSL_LOCKS_EXCLUDED(mu_);
  // Empty: it was not renewed yet.
  std::string Get() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  mutable absl::Mutex mu_;
  std::string token_ ABSL_GUARDED_BY(mu_);
};

struct ClientOptions {
  std::string address;
  // One that ParseToken (token.h) takes: it says, too, whether the connection is encrypted.
  std::string token = {};
  // What new connections use in its place once there is one; null: nothing does.
  std::shared_ptr<RenewedToken> renewed = nullptr;
  // Whether a Client warns when what it is shown is not in the coordinator's journal yet.
  bool warns_of_unsaved = true;
};
// The token that is to be used now.
std::string CurrentToken(const ClientOptions& options);

// Returns whether a call that ended with this may have been carried out: a coordinator was asked,
// and then no more heard of.
inline constexpr char kUnanswered[] = "lockstep/unanswered";  // the payload's name
inline bool IsUnanswered(const absl::Status& status) {
  return status.GetPayload(kUnanswered).has_value();
}

// The verbs of a user. All calls block until the reply or `timeout`; Unavailable when nobody
// answers at the address; Unauthenticated when the coordinator does not take the token or asks for
// one; FailedPrecondition when TLS does not come about, with what to do.
class Client {
 public:
  // Does not block: the connection is made by the first call. Never null.
  static std::unique_ptr<Client> Create(const ClientOptions& options);
  virtual ~Client() = default;

  // Hands in a job, once however often it is tried: the request's id tells repetitions. Errors:
  // InvalidArgument (the job), FailedPrecondition, Unavailable, DeadlineExceeded. Where
  // IsUnanswered it may be accepted all the same.
  virtual absl::StatusOr<SubmitJobResponse> SubmitJob(const SubmitJobRequest& request,
                                                      absl::Duration timeout) = 0;
  // The jobs that the coordinator knows, those that have ended if asked for. With a page_size one
  // page; without one all, which are asked for page by page, so that each call answers soon:
  // `timeout` is each page's. Errors: Unavailable, DeadlineExceeded.
  virtual absl::StatusOr<ListJobsResponse> ListJobs(const ListJobsRequest& request,
                                                    absl::Duration timeout) = 0;
  // One job with its workers. Errors: NotFound, Unavailable, DeadlineExceeded.
  virtual absl::StatusOr<DescribeJobResponse> DescribeJob(const DescribeJobRequest& request,
                                                          absl::Duration timeout) = 0;
  // Asks for the job's end; does not wait for it. Errors: NotFound, FailedPrecondition (it has
  // ended already), Unavailable, DeadlineExceeded.
  virtual absl::StatusOr<CancelJobResponse> CancelJob(const CancelJobRequest& request,
                                                      absl::Duration timeout) = 0;
  // Changes the number of a running job's workers; does not wait for it. Errors: NotFound,
  // InvalidArgument (more or fewer than the job allows), FailedPrecondition (it does not run),
  // ResourceExhausted (no node has room), Unavailable, DeadlineExceeded.
  virtual absl::StatusOr<ScaleJobResponse> ScaleJob(const ScaleJobRequest& request,
                                                    absl::Duration timeout) = 0;
  // The nodes with their slots. Errors: Unavailable, DeadlineExceeded.
  virtual absl::StatusOr<GetClusterResponse> GetCluster(absl::Duration timeout) = 0;
  // Empties a node, or gives it work again; neither waits for what follows. Errors: NotFound,
  // InvalidArgument, FailedPrecondition (several nodes are meant; nothing to give back),
  // Unavailable, DeadlineExceeded.
  virtual absl::StatusOr<DrainNodeResponse> DrainNode(const DrainNodeRequest& request,
                                                      absl::Duration timeout) = 0;
  virtual absl::StatusOr<UndrainNodeResponse> UndrainNode(const UndrainNodeRequest& request,
                                                          absl::Duration timeout) = 0;
  // Errors: NotFound, FailedPrecondition (it does not wait; it is not held), Unavailable,
  // DeadlineExceeded.
  virtual absl::StatusOr<HoldJobResponse> HoldJob(const HoldJobRequest& request,
                                                  absl::Duration timeout) = 0;
  // Errors: Unavailable, DeadlineExceeded.
  virtual absl::StatusOr<GetUsageResponse> GetUsage(const GetUsageRequest& request,
                                                    absl::Duration timeout) = 0;

  // Calls `on_event` on the calling thread for each event until the job has ended, `on_event`
  // returns false or StopFollowing is called. Reconnects and goes on after the last event seen;
  // gives up with Unavailable when the coordinator stays unreachable for `give_up_after`, and with
  // Unauthenticated when it does not take the token any more.
  virtual absl::Status FollowJob(const FollowJobRequest& request,
                                 std::function<bool(const JobEvent&)> on_event,
                                 absl::Duration give_up_after) = 0;
  // Ends a FollowJob that runs on another thread; does not wait for it.
  virtual void StopFollowing() = 0;
  // Ends what runs on other threads, and what is asked later: with Cancelled, but for FollowJob,
  // which StopFollowing ends. Does not wait for it.
  virtual void StopCalls() = 0;
};

// A bidirectional stream that stays up: it reconnects by itself, sends `hello` first on each
// connection and then everything queued. Messages queued while disconnected are kept in order.
//   Out = AgentMessage or WorkerMessage, In = AgentCommand or WorkerCommand.
template <typename Out, typename In>
class Session {
 public:
  struct Callbacks {
    // The first message of a new connection. Called on the session's thread.
    std::function<Out()> hello;
    // A command arrived. Called on the session's thread, one at a time; must not block.
    std::function<void(const In&)> on_command;
    // The connection came or went, or the first attempt failed (with the reason). May be empty.
    std::function<void(bool connected, const std::string& reason)> on_connection;
    // The token has another certificate (renewal.h). Called on a thread of its own. May be empty.
    std::function<void(const std::string& token)> on_renewed = {};
  };
  virtual ~Session() = default;  // closes and joins
  // Queues `message`; does not block.
  virtual void Send(const Out& message) = 0;
  // Queues `message`, replacing a queued, not yet sent one of the same `kind` (heartbeats,
  // progress).
  virtual void SendLatest(int kind, const Out& message) = 0;
  // Waits until everything queued has been handed to the transport, or until the deadline.
  virtual bool Flush(absl::Duration timeout) = 0;
  // Half-closes, waits for the stream's end at most `timeout`, and ends the session's threads.
  virtual void Close(absl::Duration timeout) = 0;
};
using AgentSession = Session<AgentMessage, AgentCommand>;
using WorkerSession = Session<WorkerMessage, WorkerCommand>;

// Start to connect in the background and return at once; never null. The callbacks may be called
// before these return, and until Close or the destructor has returned.
std::unique_ptr<AgentSession> OpenAgentSession(const ClientOptions& options,
                                               AgentSession::Callbacks callbacks);
std::unique_ptr<WorkerSession> OpenWorkerSession(const ClientOptions& options,
                                                 WorkerSession::Callbacks callbacks);

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_CLIENT_CLIENT_H_
