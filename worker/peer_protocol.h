// SPDX-License-Identifier: Apache-2.0
// The version of what the workers of one generation say to each other: which calls of the
// communicator they make, in which order and with how many elements, what the bytes mean, and how
// the data plane brings them. Workers of two versions are never in one generation
// (coordinator/core/generation.h), whatever their plans are.
//
// It rises by one with each change of that, in the commit that makes it: a call that is added, left
// out or moved, a struct of exchanged bytes that is another, a number that means something else.
// tests/unit/worker/peer_calls_test.cc has the calls with which a generation begins and fails when
// they are others; it does not see what the bytes mean. What it costs: while a job has workers of
// the version before, nodes that were upgraded take none of its work where they had none of it.
// Thread-safety: thread-safe.
#ifndef LOCKSTEP_WORKER_PEER_PROTOCOL_H_
#define LOCKSTEP_WORKER_PEER_PROTOCOL_H_

namespace lockstep::worker {

// Builds from before there were versions are of 0.
inline constexpr int kPeerProtocol = 1;

// kPeerProtocol, or what LOCKSTEP_PEER_PROTOCOL says: tests are of several versions.
int SpokenPeerProtocol();

}  // namespace lockstep::worker

#endif  // LOCKSTEP_WORKER_PEER_PROTOCOL_H_
