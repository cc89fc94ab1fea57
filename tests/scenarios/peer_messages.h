// SPDX-License-Identifier: Apache-2.0
// What agents and workers say by a script's commands.
//
//   agent NODE [slots=4] [host=H] [life=1] [gpus=0] [private] [version=1] [labels=K:V] [owner=USER]
//   died W order=1           log W line="..."
//   exit W [code=0] [signal=0] [order=1] [wanted] [line="..."] [error="..."] [unfit] [passing]
//   ready W [plan=p] [device=d] [seen=0] [step=N]
//         [data=HASH [bytes=1000] [file=PATH] [folder] [also=PATH]]
//   peer-lost W rank=1 [generation=1] [kind=DIED] [detail="..."]
//   checkpoint W step=20 [generation=1]           one that is there whole and is to appear
//   finished W [steps=10] [drained]              failed W code=13 message="..."
//   eval W step=10 accuracy=0.9
// Thread-safety: pure functions.
#ifndef LOCKSTEP_TESTS_SCENARIOS_PEER_MESSAGES_H_
#define LOCKSTEP_TESTS_SCENARIOS_PEER_MESSAGES_H_

#include <string>

#include "proto/coordinator.pb.h"
#include "tests/scenarios/script.h"

namespace lockstep::coordinator {

// What the process of "j.2" has for a pid unless a command says otherwise.
int64_t PidOf(const std::string& worker);
std::string JobOf(const std::string& worker);

// Of an `agent` command, but what runs there.
AgentHello ParseHello(const Command& command);
// What an agent says of the worker with this incarnation. Returns whether the command is such.
bool ParseAgentReport(const Command& command, const std::string& incarnation,
                      AgentMessage& message);
// What a worker says, but hello and heartbeats. Returns whether the command is such.
bool ParseWorkerReport(const Command& command, WorkerMessage& message);

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_TESTS_SCENARIOS_PEER_MESSAGES_H_
