// SPDX-License-Identifier: Apache-2.0
// The group that the workers of a test form. Thread-safety: a plain function.
#ifndef LOCKSTEP_TESTS_UNIT_WORKER_GROUP_MEMBERS_H_
#define LOCKSTEP_TESTS_UNIT_WORKER_GROUP_MEMBERS_H_

#include <vector>

#include "collectives/communicator.h"

namespace lockstep::worker {

// The members that `ranks` are, in this order, with one shard each. `transport(rank)` gives the
// Transport of an element.
template <typename Ranks, typename TransportOf>
std::vector<GroupMember> GroupMembers(const Ranks& ranks, TransportOf transport) {
  std::vector<GroupMember> members;
  for (const auto& rank : ranks) {
    GroupMember member;
    member.rank = static_cast<int>(members.size());
    member.shm_address = transport(rank).address();
    member.key = transport(rank).key();
    member.shards = {member.rank, member.rank + 1};
    members.push_back(member);
  }
  return members;
}

}  // namespace lockstep::worker

#endif  // LOCKSTEP_TESTS_UNIT_WORKER_GROUP_MEMBERS_H_
