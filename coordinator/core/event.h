// SPDX-License-Identifier: Apache-2.0
// What happened: the inputs of the core (core.h).
// Thread-safety: plain data.
#ifndef LOCKSTEP_COORDINATOR_CORE_EVENT_H_
#define LOCKSTEP_COORDINATOR_CORE_EVENT_H_

#include <string>
#include <variant>

#include "coordinator/core/state.h"
#include "proto/coordinator.pb.h"

namespace lockstep::coordinator {

struct Submitted {
  std::string job_id;  // unused so far; letters, digits and '-'
  SubmitJobRequest request;
};
struct CancelRequested {
  std::string job_id;
  bool kill = false;
};
struct ScaleRequested {
  std::string job_id;
  int workers = 0;
};
struct DrainRequested {
  std::string node;  // a reference (drain.h)
  std::string reason;
  std::string user;
};
struct UndrainRequested {
  std::string node;
};
struct HoldRequested {
  std::string job_id;
  bool release = false;
};
struct AgentSaid {
  SessionId session = 0;
  AgentMessage message;
  // The address that the connection comes from; empty: a Unix socket.
  std::string peer = {};
};
struct AgentGone {
  SessionId session = 0;
};
struct WorkerSaid {
  SessionId session = 0;
  WorkerMessage message;
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
using Event =
    std::variant<Submitted, CancelRequested, ScaleRequested, AgentSaid, AgentGone, WorkerSaid,
                 WorkerGone, Tick, Held, Released, DrainRequested, UndrainRequested, HoldRequested>;

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_CORE_EVENT_H_
