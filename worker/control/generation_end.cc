// SPDX-License-Identifier: Apache-2.0
#include "worker/control/generation_end.h"

#include <algorithm>
#include <set>
#include <string>
#include <string_view>

#include "collectives/group_end.h"
#include "common/printable.h"
#include "job/meaning/defaults.h"
#include "worker/control/membership.h"

namespace lockstep::worker {
namespace {

// As long as a connection may take: packets are lost and sent again after a second, two, four.
constexpr absl::Duration kLeastReachPatience = absl::Seconds(5);

PeerLost Lost(const GroupSpec& group, int rank, PeerLost::Kind kind, std::string_view detail) {
  PeerLost lost;
  lost.set_generation(group.generation);
  lost.set_rank(rank);
  lost.set_kind(kind);
  lost.set_detail(PrintableLines(detail));
  return lost;
}

}  // namespace

absl::Duration ReachPatience(const JobSpec& job) {
  return std::max(kLeastReachPatience, job::FailureDetection(job));
}

GenerationEnd AfterNoConnection(const GroupSpec& group, const std::string& node_id,
                                const absl::Status& status, bool heard) {
  const GroupEnd end = EndOf(status);
  // Of a way between two others it can say nothing here either.
  const bool missing =
      (end.cause == EndCause::kUnreachable && !end.hearsay) || end.cause == EndCause::kPeerMissing;
  if (!missing || !IsElsewhere(group, end.rank, node_id)) {
    if (end.cause == EndCause::kPeerMissing && !heard) {
      return {{}, absl::AbortedError(status.message()), /*not_met=*/true};
    }
    GenerationEnd told = AfterFailure(group, node_id, status);
    told.status = status;
    return told;
  }
  GenerationEnd result{{}, absl::AbortedError(status.message()), /*not_met=*/true};
  std::set<std::string> nodes;
  for (const MissingRank& each : MissingOf(status)) {
    const std::string& node = group.members[static_cast<size_t>(each.rank)].node;
    if (node == node_id || !nodes.insert(node).second) continue;
    result.told.push_back(Lost(group, each.rank, PeerLost::UNREACHABLE, each.text));
  }
  return result;
}

GenerationEnd AfterFailure(const GroupSpec& group, const std::string& node_id,
                           const absl::Status& status) {
  const GroupEnd end = EndOf(status);
  const std::string detail(status.message());
  if (IsOfTheNetwork(group, end, node_id)) {
    const bool damaged = end.cause == EndCause::kDamaged;
    // Of a way between two others it can say nothing.
    return {{Lost(group, end.hearsay ? -1 : end.rank,
                  damaged ? PeerLost::DAMAGED : PeerLost::SILENT, detail)},
            absl::AbortedError(status.message())};
  }
  if (end.lost_rank() < 0 && !absl::IsAborted(status)) return {{}, status};
  return {{Lost(group, end.lost_rank(), PeerLost::DIED, detail)}, status};
}

}  // namespace lockstep::worker
