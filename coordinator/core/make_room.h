// SPDX-License-Identifier: Apache-2.0
// For the first job that has no room: when it will have some, and who makes it. Part of
// queue_pass.h. Thread-safety: pure functions.
#ifndef LOCKSTEP_COORDINATOR_CORE_MAKE_ROOM_H_
#define LOCKSTEP_COORDINATOR_CORE_MAKE_ROOM_H_

#include <optional>
#include <vector>

#include "coordinator/core/queue_pass.h"

namespace lockstep::coordinator {

// Room as soon as enough of `running` have ended: those that leave first, then by their time
// limits, then those without one, the oldest first. Nodes that are expected back count as there
// (NodeFacts::awaited_until). Nothing: an empty cluster would not hold it.
std::optional<Reservation> WhenFree(const Queue& queue, const Waiting& waiting,
                                    const std::vector<Running>& running);

// Who of lower priority has to give up workers, or to stop, so that it fits (Decisions::shrink,
// ::stop); nobody when that would not help, or when what leaves already is enough. Those that are
// to stop are marked in `running` as leaving.
Decisions MakeRoom(const NodePool& cluster, const Waiting& waiting, std::vector<Running>& running);

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_CORE_MAKE_ROOM_H_
