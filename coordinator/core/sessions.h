// SPDX-License-Identifier: Apache-2.0
// What agents and workers say, and what agents are told. Both are level-triggered: whoever connects
// is brought up to date whatever was lost before. Thread-safety: thread-compatible.
#ifndef LOCKSTEP_COORDINATOR_CORE_SESSIONS_H_
#define LOCKSTEP_COORDINATOR_CORE_SESSIONS_H_

#include "coordinator/core/context.h"
#include "coordinator/core/event.h"

namespace lockstep::coordinator {

// One message of a session, or its end. Messages of a session that a newer one of the same node or
// incarnation has replaced are ignored; a connection that is gone is not yet a death: the process
// may come back until its failure detection runs out.
void OnAgentSaid(Context& context, const AgentSaid& event);
void OnAgentGone(Context& context, const AgentGone& event);
void OnWorkerSaid(Context& context, const WorkerSaid& event);
void OnWorkerGone(Context& context, const WorkerGone& event);

// Sends each node its desired workers if its connection was told otherwise.
void PushAgents(Context& context);

// Records the process's end; the first record stays.
void MarkExited(Context& context, Job& job, Worker& worker, const WorkerExited& record);

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_CORE_SESSIONS_H_
