// SPDX-License-Identifier: Apache-2.0
// Which nodes have joined over a connection, and which were refused: a line of the audit for each
// agent that says hello, with what it was told next. Thread-safety: thread-safe.
#ifndef LOCKSTEP_COORDINATOR_SERVICE_JOIN_AUDIT_H_
#define LOCKSTEP_COORDINATOR_SERVICE_JOIN_AUDIT_H_

#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "coordinator/service/audit.h"
#include "proto/coordinator_agent.pb.h"

namespace lockstep::coordinator {

// Of one agent's connection.
class JoinAudit {
 public:
  // `who`: the caller. `audit` outlives this.
  JoinAudit(Audit* audit, Requester who) : audit_(audit), who_(std::move(who)) {}

  // These are called, one after the other, with what the agent says before anybody else hears of
  // it, with what it is told, and when the connection is over. None blocks.
  void Said(const AgentMessage& message) ABSL_LOCKS_EXCLUDED(mu_);
  void Told(const AgentCommand& command) ABSL_LOCKS_EXCLUDED(mu_);
  void Ended() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void Note(const absl::Status& outcome) ABSL_LOCKS_EXCLUDED(mu_);

  Audit* const audit_;
  const Requester who_;
  absl::Mutex mu_;
  // The hello that was not answered yet.
  std::optional<AuditEntry> asks_ ABSL_GUARDED_BY(mu_);
};

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_SERVICE_JOIN_AUDIT_H_
