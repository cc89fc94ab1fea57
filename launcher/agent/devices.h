// SPDX-License-Identifier: Apache-2.0
// The devices of this node as the coordinator hears of them, and whether what it deals out is such
// as the node has. Thread-safety: pure functions.
#ifndef LOCKSTEP_LAUNCHER_AGENT_DEVICES_H_
#define LOCKSTEP_LAUNCHER_AGENT_DEVICES_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "launcher/agent/gpus.h"
#include "proto/coordinator.pb.h"

namespace lockstep::launcher {

// The CPUs and `gpus`, for the hello. A GPU that is listed more than once is shared by workers.
void AddDevices(const std::vector<Gpu>& gpus, AgentHello* hello);

// The coordinator deals the devices out; a GPU that is not among `gpus` cannot be used. Errors:
// FailedPrecondition, with the GPU.
absl::Status CheckDevice(const WorkerAssignment& assignment, const std::vector<Gpu>& gpus);

// A sentence about the GPU that `assignment` has in common with a worker of another job among
// `others`, though it is not meant to be shared; empty: there is none.
std::string SharedWithAnotherJob(const WorkerAssignment& assignment,
                                 const std::vector<const WorkerAssignment*>& others);

}  // namespace lockstep::launcher

#endif  // LOCKSTEP_LAUNCHER_AGENT_DEVICES_H_
