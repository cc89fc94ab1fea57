// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/cluster.h"

#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "collectives/fake/fake_transport.h"
#include "collectives/shm/shm_transport.h"
#include "common/check.h"
#include "gtest/gtest.h"

namespace lockstep {

struct Cluster::Network {
  FakeNetwork fake;
};

Cluster::Cluster(Kind kind, int world, size_t arena_bytes) : network_(std::make_unique<Network>()) {
  for (int r = 0; r < world; ++r) {
    if (kind == Kind::kFake) {
      transports_.push_back(std::make_unique<FakeTransport>(&network_->fake, arena_bytes));
      continue;
    }
    ShmTransport::Options options;
    options.arena_bytes = arena_bytes;
    auto transport = ShmTransport::Create(options);
    LS_CHECK(transport.ok()) << transport.status().ToString();
    transports_.push_back(*std::move(transport));
  }
}

Cluster::~Cluster() = default;

std::string Name(Kind kind) { return kind == Kind::kFake ? "fake" : "shm"; }

std::vector<GroupMember> Cluster::Members(int shards) const {
  std::vector<GroupMember> members;
  for (int r = 0; r < world(); ++r) {
    GroupMember member;
    member.rank = r;
    member.incarnation = absl::StrCat("incarnation-", r);
    member.host = "here";
    member.shm_address = transports_[r]->address();
    member.key = transports_[r]->key();
    member.shards = DealShards(shards == 0 ? world() : shards, world(), r);
    members.push_back(std::move(member));
  }
  return members;
}

void Cluster::Run(int64_t generation, int shards, const Body& body) {
  const std::vector<GroupMember> members = Members(shards);
  std::vector<std::jthread> threads;
  for (int r = 0; r < world(); ++r) {
    threads.emplace_back([&, r] {
      auto communicator = transports_[r]->Connect(generation, members, r, Never());
      ASSERT_TRUE(communicator.ok()) << communicator.status();
      ASSERT_EQ((*communicator)->rank(), r);
      ASSERT_EQ((*communicator)->world_size(), world());
      ASSERT_EQ((*communicator)->generation(), generation);
      body(**communicator, *transports_[r]);
    });
  }
}

absl::Time Never() { return absl::Now() + absl::Seconds(200); }

}  // namespace lockstep
