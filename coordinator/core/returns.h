// SPDX-License-Identifier: Apache-2.0
// What is yet to be said by those who come back: workers to a new coordinator, agents with ends of
// workers that nobody has heard of. In which order they come says nothing of what happened, so
// nothing is made of a failure before, as long as they can be expected to speak at once.
// Thread-safety: thread-compatible.
#ifndef LOCKSTEP_COORDINATOR_CORE_RETURNS_H_
#define LOCKSTEP_COORDINATOR_CORE_RETURNS_H_

#include <cstdint>

#include "coordinator/core/context.h"

namespace lockstep::coordinator {

// A member that trains says nothing but heartbeats on a new connection, of which the first may have
// been written before what it had to say.
inline constexpr int64_t kBeatsOfAccount = 2;

// When what began then is waited for no more. A pause of this coordinator does not count, nor the
// time that all may take to come back to it.
absl::Time SettledAt(const Context& context, absl::Time began);

// A node's agent says who of its workers have ended; how follows at once, in any order.
void NoteAnnouncedEnds(Context& context, const Node& node, const AgentHello& hello);

// Returns whether an agent has announced the end of a worker of the job, and is about to say of its
// death.
bool AwaitsEnds(const Context& context, const Job& job);

// Returns whether that is so, or a living member of the newest generation is yet to tell this
// coordinator how far it is: it may have finished, or have steps that nobody else tells of.
bool AwaitsAccounts(const Context& context, const Job& job);

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_CORE_RETURNS_H_
