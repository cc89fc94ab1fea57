// SPDX-License-Identifier: Apache-2.0
// Which coordinator of its cluster gave a command. Thread-safety: plain data.
#ifndef LOCKSTEP_LAUNCHER_AGENT_EPOCH_H_
#define LOCKSTEP_LAUNCHER_AGENT_EPOCH_H_

#include <cstdint>
#include <string>

namespace lockstep::launcher {

struct Epoch {
  int64_t number = 0;
  // AgentCommand.epoch_proof; empty: the coordinator, or the agent that left the worker, is of an
  // earlier version.
  std::string proof = {};
};

}  // namespace lockstep::launcher

#endif  // LOCKSTEP_LAUNCHER_AGENT_EPOCH_H_
