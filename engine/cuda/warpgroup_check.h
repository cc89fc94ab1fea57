// SPDX-License-Identifier: Apache-2.0
// Whether attention may go by warpgroups of sm_90a (kernels/attention_warpgroup*.cu): before a
// process takes these kernels on a GPU it compares them with those by mma.sync, which all GPUs
// have, and does without them where they differ. Thread-safety: thread-safe but for the device.
#ifndef LOCKSTEP_ENGINE_CUDA_WARPGROUP_CHECK_H_
#define LOCKSTEP_ENGINE_CUDA_WARPGROUP_CHECK_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "engine/cuda/device.h"
#include "engine/cuda/kernel.h"
#include "engine/exec/plan.h"

namespace lockstep::engine::cuda {

// What a kernel of the check, which takes microseconds, is given to end.
inline constexpr absl::Duration kWarpgroupPatience = absl::Seconds(20);

// Attention and its gradient on made inputs of that type by both: heads of a whole tile and of
// less, causal and not, with dropout and without. `memory` has kCudaWorkspaceBytes of the device.
// Blocks for less than a second, on a GPU for milliseconds; where a kernel does not end, for
// `patience`. REQUIRES: type is not kF32.
// Errors: Internal with the first value that differs by more than roundings do, or with what the
// GPU says; FailedPrecondition, with what to do, where the GPU does nothing more in this process
// after that, which is then abandoned if a kernel of it does not end.
absl::Status CheckWarpgroups(Device* device, Type type, void* memory,
                             absl::Duration patience = kWarpgroupPatience);

// Returns whether a plan's attention goes by warpgroups: its GPU and the module have them, a node
// suits them, and CheckWarpgroups is content, which is asked once for a process, GPU and type.
// Where it is not, a warning says why. `memory` as above. Errors: CheckWarpgroups's
// FailedPrecondition.
absl::StatusOr<bool> UsesWarpgroups(const CompiledPlan& plan, Device* device, void* memory);

}  // namespace lockstep::engine::cuda

#endif  // LOCKSTEP_ENGINE_CUDA_WARPGROUP_CHECK_H_
