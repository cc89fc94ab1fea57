// SPDX-License-Identifier: Apache-2.0
// Who is connected, who follows which job, and what the followers may still read, as a pure
// machine: what the outbox says goes in, whom to call comes out. No gRPC, no lock, no time;
// service/hub.h is the shell around it.
// Thread-safety: thread-compatible; the caller guards it.
#ifndef LOCKSTEP_COORDINATOR_OUTBOX_REGISTRY_H_
#define LOCKSTEP_COORDINATOR_OUTBOX_REGISTRY_H_

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/outbox/event_log.h"
#include "coordinator/outbox/event_logs.h"
#include "coordinator/outbox/outbox.h"

namespace lockstep::coordinator {

// Something that may have something new to do: a connection with a queue, a follower.
class StreamWriter {
 public:
  virtual ~StreamWriter() = default;
  // Starts what can be started. Called without any lock; any number of times; does not block.
  virtual void WriteNext() = 0;
};

// The outgoing side of an agent's or a worker's connection.
template <typename Outbound>
class Outlet : public StreamWriter {
 public:
  // Queues the command and, if it closes, the end of the stream. Called with the hub's lock held,
  // so that commands keep the order of the steps that made them; only queues.
  virtual void Enqueue(Outbound outbound) = 0;
};

// Sessions by number, logs by job.
class Registry {
 public:
  using Writers = std::vector<std::shared_ptr<StreamWriter>>;

  // Events are numbered after `first_sequence`; of log lines so many bytes are kept of all jobs
  // together (event_logs.h).
  Registry(int64_t first_sequence, size_t most_log_bytes) : logs_(first_sequence, most_log_bytes) {}

  // A connection's number, of which no two are alike.
  SessionId AddAgent(std::shared_ptr<Outlet<ToAgent>> outlet);
  SessionId AddWorker(std::shared_ptr<Outlet<ToWorker>> outlet);
  // Null: it is over.
  std::shared_ptr<Outlet<ToAgent>> AgentAt(SessionId session) const;
  // The connection is over. Whether it was there.
  bool RemoveAgent(SessionId session) { return agents_.erase(session) > 0; }
  // As RemoveAgent.
  bool RemoveWorker(SessionId session) { return workers_.erase(session) > 0; }

  // Queues the commands of `outgoing` at their connections, in order, writes its events down and
  // forgets its forgotten jobs; what is for nobody is dropped. Returns whose WriteNext is to be
  // called, each once.
  Writers Deliver(Outgoing& outgoing);
  // An event that nobody is told at once.
  void Append(const std::string& job_id, JobEvent event);

  // The next event of the job after `place`, which moves on to it; a follower of it is called when
  // there is more.
  struct Next {
    std::shared_ptr<const JobEvent> event;  // null: none now
    bool ended = false;                     // and none will come that the follower waits for
  };
  // Errors: NotFound.
  absl::StatusOr<Next> NextEvent(const std::string& job_id, FollowerPlace& place, bool logs) const;
  void AddFollower(const std::string& job_id, std::shared_ptr<StreamWriter> follower);
  void RemoveFollower(const std::string& job_id, const std::shared_ptr<StreamWriter>& follower);

 private:
  void AddFollowersTo(const std::string& job_id, Writers& writers) const;

  SessionId last_session_ = 0;
  std::map<SessionId, std::shared_ptr<Outlet<ToAgent>>> agents_;
  std::map<SessionId, std::shared_ptr<Outlet<ToWorker>>> workers_;
  EventLogs logs_;
  std::map<std::string, std::set<std::shared_ptr<StreamWriter>>> followers_;
};

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_OUTBOX_REGISTRY_H_
