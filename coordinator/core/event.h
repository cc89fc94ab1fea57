// SPDX-License-Identifier: Apache-2.0
// What happened: the inputs of the core (core.h).
// Thread-safety: plain data.
#ifndef LOCKSTEP_COORDINATOR_CORE_EVENT_H_
#define LOCKSTEP_COORDINATOR_CORE_EVENT_H_

#include <string>
#include <variant>

#include "coordinator/core/state.h"
#include "proto/access.pb.h"
#include "proto/coordinator.pb.h"

namespace lockstep::coordinator {

// `by`, and that of a request: who asks. Nobody: the coordinator itself (access.h).
struct Submitted {
  std::string job_id;  // unused so far; letters, digits and '-'
  SubmitJobRequest request;
};
struct CancelRequested {
  std::string job_id;
  bool kill = false;
  Requester by = {};
};
struct ScaleRequested {
  std::string job_id;
  int workers = 0;
  Requester by = {};
};
struct DrainRequested {
  std::string node;  // a reference (drain.h)
  std::string reason;
  std::string user;
  Requester by = {};
};
struct UndrainRequested {
  std::string node;
  Requester by = {};
};
struct HoldRequested {
  std::string job_id;
  bool release = false;
  Requester by = {};
};
struct TokenCreated {
  TokenRecord record;  // with an id that is unused so far
};
struct TokenRevoked {
  std::string id;
  Requester by = {};
};
struct AgentSaid {
  SessionId session = 0;
  AgentMessage message;
  // The address that the connection comes from; empty: a Unix socket.
  std::string peer = {};
  std::string token_id = {};  // of the token that was shown
  // Whom that token with the role join is for; empty: an administrator shows who he is, and may be
  // any node.
  std::string owner = {};
};
struct AgentGone {
  SessionId session = 0;
};
struct WorkerSaid {
  SessionId session = 0;
  WorkerMessage message;
  // Whose token the connection has shown; empty: not asked for, as in tests.
  std::string shown = {};
};
struct WorkerGone {
  SessionId session = 0;
};
// Time has passed.
struct Tick {};
// What was decided is not said yet, because it is not durable: from now on time counts against
// nobody.
struct Held {};
// All that was decided has been said: time counts again.
struct Released {};
using Event = std::variant<Submitted, CancelRequested, ScaleRequested, AgentSaid, AgentGone,
                           WorkerSaid, WorkerGone, Tick, Held, Released, DrainRequested,
                           UndrainRequested, HoldRequested, TokenCreated, TokenRevoked>;

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_CORE_EVENT_H_
