// SPDX-License-Identifier: Apache-2.0
// Hosts of a generation that cannot reach each other. Members that found no way to a peer say so
// before the first step; all such reports of a moment are looked at together, and so is a silence
// that comes again and again. When the job can go on without the hosts that stand in the way
// (mesh.h), because enough workers are left or others have room, these hosts go: their workers are
// started elsewhere, which costs no restart. Otherwise all stay and try again, a little later each
// time. The job says which two hosts it is about, what was tried and what to do. Thread-safety:
// thread-compatible.
#ifndef LOCKSTEP_COORDINATOR_CORE_REACHABILITY_H_
#define LOCKSTEP_COORDINATOR_CORE_REACHABILITY_H_

#include <string>

#include "coordinator/core/context.h"

namespace lockstep::coordinator {

// A member of the newest generation could make no connection to the peer at `lost.rank()`. Another
// member may have ended the generation meanwhile. Nothing once reports of it were decided upon.
void NoteUnreachable(Context& context, Job& job, const Worker& worker, const PeerLost& lost);

// A member heard from another that the way between that one and a third has failed, and left;
// `said` tells it. Nothing ends before those two, or others whom they stand for, have had time to
// say so themselves.
void NoteHearsay(Context& context, Job& job, std::string said);

// Returns whether that is so.
bool AwaitsFirstHand(const Job& job);

// Ends the generation when they have said nothing for that long.
void EndHearsay(Context& context, Job& job);

// Returns whether reports of the newest generation wait to be decided upon; no other is formed
// before.
bool HasCuts(Job& job);

// Once all who live have left an ended generation: what a host again and again hears nothing from,
// without a step of both between, it cannot reach, though connections can be made. Large packets
// may be lost where small ones pass. So it is with a host that is one of those two again and again,
// without a step of its own between, whoever the other is.
void NoteSilences(Context& context, Job& job);

// A member committed a step. Who did so in this generation, and did not copy what others had done,
// hears others; two of them hear each other.
void ForgetSilences(Job& job);

// Decides when the reports have had time to come.
void DecideCuts(Context& context, Job& job);

// Returns whether the next generation is put off because hosts could not reach each other; the
// job's state says why.
bool WaitsForReach(Context& context, Job& job);

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_CORE_REACHABILITY_H_
