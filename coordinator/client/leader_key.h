// SPDX-License-Identifier: Apache-2.0
// How a coordinator that stands by names the one that leads.
// Thread-safety: a constant.
#ifndef LOCKSTEP_COORDINATOR_CLIENT_LEADER_KEY_H_
#define LOCKSTEP_COORDINATOR_CLIENT_LEADER_KEY_H_

namespace lockstep::coordinator {

// The trailing metadata of its UNAVAILABLE: the leader's address.
inline constexpr char kLeaderKey[] = "lockstep-leader";

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_CLIENT_LEADER_KEY_H_
