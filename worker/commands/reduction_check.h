// SPDX-License-Identifier: Apache-2.0
// Whether ranks of this host can add their gradients: a reduction between processes, whose result
// is known, by each of the ways that jobs take. For `launcher doctor`. Thread-safety: called by
// main while it is the only thread, and before it has used a GPU.
#ifndef LOCKSTEP_WORKER_COMMANDS_REDUCTION_CHECK_H_
#define LOCKSTEP_WORKER_COMMANDS_REDUCTION_CHECK_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace lockstep::worker {

// Through the host's memory: "2 ranks, 4.0 MiB: right, 6.1 GB/s". Blocks for less than a second.
// Errors: those of RunForked; Internal when a sum is wrong.
absl::StatusOr<std::string> CheckHostReduction();

// By NCCL between these GPUs, one rank on each; the same GPU twice is NCCL's to allow. The result
// is as above. Blocks for seconds. Errors: as above; those of NCCL and the GPUs.
absl::StatusOr<std::string> CheckNcclReduction(const std::vector<std::string>& uuids);

}  // namespace lockstep::worker

#endif  // LOCKSTEP_WORKER_COMMANDS_REDUCTION_CHECK_H_
