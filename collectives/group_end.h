// SPDX-License-Identifier: Apache-2.0
// Why a communicator can do no more, beside the message: carried by the status that it ends with,
// so that whoever hears of it can tell the rank to blame from those that only waited for it.
// Thread-safety: thread-safe.
#ifndef LOCKSTEP_COLLECTIVES_GROUP_END_H_
#define LOCKSTEP_COLLECTIVES_GROUP_END_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "collectives/communicator.h"

namespace lockstep {

enum class EndCause : uint8_t {
  kTold,         // the generation was aborted from outside, or the status does not say
  kPeerDied,     // the life word of `rank` says so
  kPeerMissing,  // `rank` did not come before the deadline; others may be missing too
  kPeerLeft,     // `rank` is in a later generation already: it has its own reason
  kMismatch,     // `rank` made another call
  kUnreachable,  // the connection to `rank` ended or is silent, and nothing says that it died
  kDamaged,      // what came from `rank` is not what it sent; the rank is as good as any
};

struct GroupEnd {
  EndCause cause = EndCause::kTold;
  int rank = -1;
  bool hearsay = false;  // another rank said so as it left; this one had no sign of it

  // The rank without which the others could go on; -1: none is known.
  int lost_rank() const {
    const bool lost = cause == EndCause::kPeerDied || cause == EndCause::kPeerMissing ||
                      cause == EndCause::kUnreachable;
    return lost ? rank : -1;
  }
  bool operator==(const GroupEnd&) const = default;
};

// `status`, an error, carrying `end`.
absl::Status WithEnd(absl::Status status, GroupEnd end);

// Returns what messages call a member: "rank 1 (host b)", or without its host where none is known.
std::string NameOf(const GroupMember& member);

// Returns that a rank and its `peer` on another node are out of reach of each other (kUnreachable):
// the node of `without`, one of the two, has no address; `other` is the other one.
absl::Status NoAddress(const GroupMember& without, const GroupMember& other, int peer);

// Returns what `status` carries; kTold when that is nothing.
GroupEnd EndOf(const absl::Status& status);

// A rank without which a generation does not come about, and what is known of it.
struct MissingRank {
  int rank = -1;
  std::string text;
};
// `status`, an error, carrying all that are missing.
absl::Status WithMissing(absl::Status status, const std::vector<MissingRank>& missing);
// Returns what `status`, an error, carries of them; when that is nothing, the lost rank of EndOf,
// if there is one, with the message.
std::vector<MissingRank> MissingOf(const absl::Status& status);

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_GROUP_END_H_
