// SPDX-License-Identifier: Apache-2.0
// Silent corruption: every member holds the same training state after a step, bit for bit, so a
// rank whose state has another hash than the others' computed or kept something wrong (a flipped
// bit, a faulty core). Thread-safety: pure function on its arguments.
#ifndef LOCKSTEP_WORKER_STATE_REPLICA_CHECK_H_
#define LOCKSTEP_WORKER_STATE_REPLICA_CHECK_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "collectives/communicator.h"

namespace lockstep::worker {

// Compares the hashes of `state` over all ranks, which call it alike, all after `step`. Blocks.
// Errors: DataLoss on the ranks whose state is not that of the majority, or on all when there is no
// majority, naming them; Aborted on the others then; those of AllGather.
absl::Status CheckReplicas(Communicator* communicator, const void* state, size_t bytes,
                           int64_t step, absl::Time deadline);

// Says what `rank` of `world` says when `ranks` have another state than the majority after `step`,
// or, when there is no majority, differ among themselves: as CheckReplicas.
absl::Status ReplicasDiffer(const std::vector<int>& ranks, bool majority, int rank, int64_t step);

// The ranks whose hash is not the one that more than half of them have; all without such a one.
// None when all are equal.
std::vector<int> RanksThatDiffer(const std::vector<uint64_t>& hashes);

}  // namespace lockstep::worker

#endif  // LOCKSTEP_WORKER_STATE_REPLICA_CHECK_H_
