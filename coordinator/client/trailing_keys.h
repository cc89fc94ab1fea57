// SPDX-License-Identifier: Apache-2.0
// What a coordinator adds to its answers, as trailing metadata.
// Thread-safety: constants.
#ifndef LOCKSTEP_COORDINATOR_CLIENT_TRAILING_KEYS_H_
#define LOCKSTEP_COORDINATOR_CLIENT_TRAILING_KEYS_H_

namespace lockstep::coordinator {

// The leader's address, of the UNAVAILABLE of one that stands by.
inline constexpr char kLeaderKey[] = "lockstep-leader";
// Why what an answer shows is not in the journal yet.
inline constexpr char kUnsavedKey[] = "lockstep-unsaved-bin";

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_CLIENT_TRAILING_KEYS_H_
