// SPDX-License-Identifier: Apache-2.0
#include "worker/control/membership.h"

#include <map>
#include <vector>

#include "collectives/shards.h"

namespace lockstep::worker {
namespace {

// A life slot is a word in the page of the member's own agent.
std::vector<GroupMember> MembersOf(const Generation& generation, const std::string& node_id) {
  std::vector<GroupMember> members;
  for (const Member& member : generation.members()) {
    members.push_back({member.rank(),
                       member.incarnation(),
                       member.host(),
                       member.pid(),
                       member.address().shm(),
                       member.address().key(),
                       member.address().node_id() == node_id ? member.address().life_slot() : -1,
                       {member.shard_begin(), member.shard_end()},
                       member.address().node_id(),
                       {member.address().tcp().begin(), member.address().tcp().end()}});
  }
  return members;
}

}  // namespace

GroupSpec GroupOf(const Generation& generation, const WorkerBootstrap& bootstrap) {
  GroupSpec group;
  group.generation = generation.generation();
  group.job = bootstrap.assignment().job_id();
  group.secret = generation.secret();
  group.members = MembersOf(generation, bootstrap.node_id());
  group.rank = -1;
  for (const GroupMember& member : group.members) {
    if (member.incarnation == bootstrap.assignment().incarnation()) group.rank = member.rank;
  }
  return group;
}

std::vector<int> FirstRanks(const Generation& generation) {
  std::map<std::string, int> first;
  std::vector<int> firsts;
  for (const Member& member : generation.members()) {
    firsts.push_back(first.try_emplace(member.address().node_id(), member.rank()).first->second);
  }
  return firsts;
}

bool IsElsewhere(const GroupSpec& group, int rank, const std::string& node_id) {
  return rank >= 0 && group.members[static_cast<size_t>(rank)].node != node_id;
}

bool IsOfTheNetwork(const GroupSpec& group, const GroupEnd& end, const std::string& node_id) {
  return end.cause == EndCause::kUnreachable || end.cause == EndCause::kDamaged ||
         (end.cause == EndCause::kPeerDied && IsElsewhere(group, end.rank, node_id));
}

Generation SurvivorsOf(const Generation& last, int64_t number,
                       const std::function<bool(const Member& member)>& is_left) {
  Generation left = last;
  left.set_generation(number);
  left.set_previous_generation(last.generation());
  left.clear_members();
  left.clear_bootstrap();
  std::map<std::string, int> on_node;
  for (const Member& member : last.members()) {
    if (!is_left(member)) continue;
    Member& each = *left.add_members();
    each = member;
    each.set_rank(left.members_size() - 1);
    each.set_local_rank(on_node[member.address().node_id()]++);
  }
  for (Member& member : *left.mutable_members()) {
    const ShardRange shards = DealShards(last.shards(), left.members_size(), member.rank());
    member.set_shard_begin(shards.begin);
    member.set_shard_end(shards.end);
  }
  return left;
}

}  // namespace lockstep::worker
