// SPDX-License-Identifier: Apache-2.0
#include "collectives/nccl/nccl_join.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status.h"

namespace lockstep {
namespace {

std::string Version(int code) {
  return absl::StrCat(code / 10000, ".", code / 100 % 100, ".", code % 100);
}

bool SameText(const char (&a)[64], const char (&b)[64]) { return std::strncmp(a, b, 64) == 0; }

absl::Status CheckHellos(absl::Span<const NcclHello> hellos) {
  for (size_t r = 0; r < hellos.size(); ++r) {
    const NcclHello& hello = hellos[r];
    if (hello.version == 0) {
      return absl::FailedPreconditionError(
          absl::StrCat("rank ", r,
                       " has no NCCL on its host, others have: install the same everywhere, or set "
                       "nccl.use: never"));
    }
    if (hello.version / 100 != hellos[0].version / 100) {
      return absl::FailedPreconditionError(
          absl::StrCat("rank 0 has NCCL ", Version(hellos[0].version), ", rank ", r, " has ",
                       Version(hello.version), ": install the same everywhere"));
    }
    for (size_t other = 0; other < r; ++other) {
      if (hello.gpu[0] == '\0' || !SameText(hello.gpu, hellos[other].gpu) ||
          !SameText(hello.host, hellos[other].host) || hello.may_share_gpu != 0) {
        continue;
      }
      return absl::FailedPreconditionError(
          absl::StrCat("ranks ", other, " and ", r, " share ", std::string(hello.gpu),
                       ", which NCCL cannot: take fewer workers, NCCL 2.30 or newer, or "
                       "nccl.use: never"));
    }
  }
  return absl::OkStatus();
}

// Returns whether everyone holds the same communicator, in the order of the new ranks, and can
// shrink it.
bool CanShrink(absl::Span<const NcclHello> hellos) {
  for (size_t r = 0; r < hellos.size(); ++r) {
    if (hellos[r].can_shrink == 0 || hellos[r].held_generation < 0 ||
        hellos[r].held_generation != hellos[0].held_generation ||
        (r > 0 && hellos[r].held_rank <= hellos[r - 1].held_rank)) {
      return false;
    }
  }
  return static_cast<size_t>(hellos[0].held_world) > hellos.size();
}

// Returns whether the first ranks are all of one whole communicator, in its order, and the others
// new.
bool CanGrow(absl::Span<const NcclHello> hellos) {
  const int old_world = hellos[0].held_world;
  if (hellos[0].held_generation < 0 || static_cast<size_t>(old_world) >= hellos.size()) {
    return false;
  }
  for (size_t r = 0; r < hellos.size(); ++r) {
    if (hellos[r].can_grow == 0) return false;
    const bool old = static_cast<int>(r) < old_world;
    if (old && (hellos[r].held_whole == 0 || hellos[r].held_rank != static_cast<int>(r) ||
                hellos[r].held_generation != hellos[0].held_generation)) {
      return false;
    }
  }
  return true;
}

}  // namespace

absl::StatusOr<NcclJoin> PlanNcclJoin(absl::Span<const NcclHello> hellos) {
  LS_CHECK(!hellos.empty());
  LS_RETURN_IF_ERROR(CheckHellos(hellos));
  NcclJoin join;
  join.windows = std::all_of(hellos.begin(), hellos.end(), [&](const NcclHello& hello) {
    return hello.windows != 0 && hello.vectors == hellos[0].vectors &&
           hello.vector_sizes == hellos[0].vector_sizes;
  });
  if (CanShrink(hellos)) {
    join.way = NcclJoin::Way::kShrink;
    size_t next = 0;
    for (int held = 0; held < hellos[0].held_world; ++held) {
      const bool stays = next < hellos.size() && hellos[next].held_rank == held;
      if (stays) {
        ++next;
      } else {
        join.excluded.push_back(held);
      }
    }
  } else if (CanGrow(hellos)) {
    join.way = NcclJoin::Way::kGrow;
    join.old_world = hellos[0].held_world;
  }
  return join;
}

}  // namespace lockstep
