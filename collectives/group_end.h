// SPDX-License-Identifier: Apache-2.0
// Why a communicator can do no more, beside the message: carried by the status that it ends with,
// so that whoever hears of it can tell the rank to blame from those that only waited for it.
// Thread-safety: thread-safe.
#ifndef LOCKSTEP_COLLECTIVES_GROUP_END_H_
#define LOCKSTEP_COLLECTIVES_GROUP_END_H_

#include <cstdint>

#include "absl/status/status.h"

namespace lockstep {

enum class EndCause : uint8_t {
  kTold,         // the generation was aborted from outside, or the status does not say
  kPeerDied,     // the life word of `rank` says so
  kPeerMissing,  // `rank` did not come before the deadline; others may be missing too
  kPeerLeft,     // `rank` is in a later generation already: it has its own reason
  kMismatch,     // `rank` made another call
};

struct GroupEnd {
  EndCause cause = EndCause::kTold;
  int rank = -1;

  // The rank without which the others could go on; -1: none is known.
  int lost_rank() const {
    return cause == EndCause::kPeerDied || cause == EndCause::kPeerMissing ? rank : -1;
  }
  bool operator==(const GroupEnd&) const = default;
};

// `status`, an error, carrying `end`.
absl::Status WithEnd(absl::Status status, GroupEnd end);

// What `status` carries; kTold when that is nothing.
GroupEnd EndOf(const absl::Status& status);

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_GROUP_END_H_
