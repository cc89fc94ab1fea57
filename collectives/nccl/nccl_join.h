// SPDX-License-Identifier: Apache-2.0
// How the members of a generation come to a common NCCL communicator: decided by all alike from
// what each says of itself. Survivors who still hold that of an earlier generation shrink it, or
// grow it for joiners; otherwise it is made anew. Thread-safety: pure functions.
#ifndef LOCKSTEP_COLLECTIVES_NCCL_NCCL_JOIN_H_
#define LOCKSTEP_COLLECTIVES_NCCL_NCCL_JOIN_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace lockstep {

// What a rank says of itself. Plain data: it travels as bytes.
struct NcclHello {
  int32_t version = 0;  // of its library; 0: it has none
  uint8_t can_shrink = 0;
  uint8_t can_grow = 0;
  uint8_t may_share_gpu = 0;
  uint8_t windows = 0;  // wants and can register its vectors
  char gpu[64] = {};
  char host[64] = {};
  // The communicator that it still holds: of which generation, its rank there, how many ranks.
  int64_t held_generation = -1;
  int32_t held_rank = -1;
  int32_t held_world = 0;
  uint8_t held_whole = 0;  // never revoked
  uint8_t reserved[7] = {};
  // Its vectors for reductions: how many, and a hash of their sizes.
  int64_t vectors = 0;
  uint64_t vector_sizes = 0;
};

struct NcclJoin {
  enum class Way { kNew, kShrink, kGrow } way = Way::kNew;
  std::vector<int> excluded;  // kShrink: ranks of the held communicator
  int old_world = 0;          // kGrow: ranks below are in the held communicator
  bool windows = false;       // every rank registers the same vectors
};

// From the hellos of all ranks, by rank.
// Errors: FailedPrecondition that names two ranks and what to do: one has no NCCL, versions differ,
// or they share a GPU and may not.
absl::StatusOr<NcclJoin> PlanNcclJoin(absl::Span<const NcclHello> hellos);

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_NCCL_NCCL_JOIN_H_
