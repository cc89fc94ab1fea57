// SPDX-License-Identifier: Apache-2.0
// What the coordinator knows of a host. Plain data, as in state.h. Thread-safety:
// thread-compatible.
#ifndef LOCKSTEP_COORDINATOR_CORE_NODE_H_
#define LOCKSTEP_COORDINATOR_CORE_NODE_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "coordinator/core/node_trust.h"
#include "coordinator/core/session_id.h"
#include "proto/coordinator.pb.h"

namespace lockstep::coordinator {

// An administrator wants a node emptied (drain.h).
struct DrainOrder {
  std::string reason;
  std::string user;
  absl::Time since = absl::InfinitePast();
};

// A host that runs an agent.
struct Node {
  std::string id;
  std::string incarnation;  // of the agent's process
  std::string host;
  int slots = 0;
  std::vector<Device> devices;
  bool is_private = false;
  // The job that a private agent serves; empty: none yet.
  std::string private_job;
  SessionId session = 0;
  absl::Time last_contact = absl::InfinitePast();
  // When its agent was heard, for those who ask: of `last_contact` what was nobody's silence is
  // taken out. InfinitePast: not yet by this coordinator.
  absl::Time heard = absl::InfinitePast();
  // When it came back after it was out of sight. Its workers have not had the time to speak before.
  absl::Time back_since = absl::InfinitePast();
  int64_t revision = 0;
  // The desired state that this connection was told last (without its revision), to send changes
  // only.
  std::optional<std::string> sent;
  AgentHeartbeat usage;  // the newest figures, for those who watch
  int cores = 0;
  int64_t memory = 0;
  std::vector<NumaNode> numa;
  std::map<std::string, std::string> labels;
  // Where the coordinator sees this connection come from; empty: a Unix socket.
  std::string seen_address;
  std::string token_id;  // of the token that it showed; empty: the cluster's own
  // AgentSaid::owner of it; nothing: not known, of a former version's journal.
  std::optional<std::string> owner;
  // Jobs and their places whose workers were put here and may still be: who looks for workers on
  // the node looks there alone (NotePlace).
  std::set<std::pair<std::string, int>> places;
  std::optional<DrainOrder> drain;
  NodeTrust trust;  // what its failures have led to
  // Why its agent's checks say that no work can be done there; empty: it can. Not journaled, as
  // the agent says it again.
  std::string problem;
  // Its agent leaves and ends its workers; not journaled, as the next thing heard is a hello.
  bool stopping = false;
  // It keeps workers that hand over to others or save, for a while.
  bool keeps = false;
  // When so much of that while is over that they save, rather than wait on for others.
  absl::Time saves_at = absl::InfiniteFuture();
};

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_CORE_NODE_H_
