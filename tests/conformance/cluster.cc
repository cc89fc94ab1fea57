// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/cluster.h"

#include <algorithm>
#include <numeric>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "collectives/fake/fake_transport.h"
#include "collectives/hosts/hosts_transport.h"
#include "collectives/nccl/nccl_transport.h"
#include "collectives/shm/shm_transport.h"
#include "common/check.h"
#include "gtest/gtest.h"
#include "tests/emulation/fake_gpu_queue.h"
#include "tests/emulation/fake_nccl.h"

namespace lockstep {

struct Cluster::Network {
  FakeNetwork fake;
};

namespace {

std::unique_ptr<Transport> NewShm(size_t arena_bytes) {
  ShmTransport::Options options;
  options.arena_bytes = arena_bytes;
  auto transport = ShmTransport::Create(options);
  LS_CHECK(transport.ok()) << transport.status().ToString();
  return *std::move(transport);
}

std::unique_ptr<Transport> NewHosts(size_t arena_bytes, bool overlap) {
  HostsTransport::Options options;
  options.overlap = overlap;
  options.shm.arena_bytes = arena_bytes;
  auto transport = HostsTransport::Create(options);
  LS_CHECK(transport.ok()) << transport.status().ToString();
  return *std::move(transport);
}

std::unique_ptr<Transport> NewNccl(int rank, std::unique_ptr<Transport> control,
                                   absl::Duration try_held_for, const NcclLibrary* library) {
  static const NcclLibrary* const whole = new NcclLibrary(fake_nccl::Library());
  fake_nccl::SetEnqueue(FakeGpuQueue::Enqueue);
  NcclTransport::Options options;
  options.library = library == nullptr ? whole : library;
  options.queue = std::make_unique<FakeGpuQueue>(absl::StrCat("GPU-", rank));
  options.control = std::move(control);
  options.try_held_for = try_held_for;
  options.piece = 256;  // so that small vectors have several
  return std::make_unique<NcclTransport>(std::move(options));
}

}  // namespace

Cluster::Cluster(Kind kind, int world, size_t arena_bytes,
                 const std::function<bool(int rank)>& idles, absl::Duration try_held_for,
                 const NcclLibrary* library)
    : kind_(kind), network_(std::make_unique<Network>()) {
  for (int r = 0; r < world; ++r) {
    if (kind == Kind::kFake) {
      transports_.push_back(std::make_unique<FakeTransport>(&network_->fake, arena_bytes));
    } else if (kind >= Kind::kHosts) {
      auto hosts = NewHosts(arena_bytes, idles == nullptr || !idles(r));
      transports_.push_back(kind == Kind::kNcclTurns
                                ? NewNccl(r, std::move(hosts), try_held_for, library)
                                : std::move(hosts));
    } else {
      auto shm = NewShm(arena_bytes);
      transports_.push_back(kind == Kind::kShm ? std::move(shm)
                                               : NewNccl(r, std::move(shm), try_held_for, library));
    }
  }
}

Cluster::~Cluster() = default;

std::string NodeOf(Kind kind, int rank, int world) {
  if (kind == Kind::kHosts) return absl::StrCat("node-", rank);
  if (kind == Kind::kTurns || kind == Kind::kNcclTurns) return absl::StrCat("node-", rank % 2);
  if (kind != Kind::kNeighbours) return "";
  // Three of four on the first, and so on: no two hosts need have equally many.
  return absl::StrCat("node-", rank < std::max(1, 3 * world / 4) ? 0 : 1 + rank % 2);
}

std::string Name(Kind kind) {
  if (kind == Kind::kHosts) return "hosts";
  if (kind == Kind::kNeighbours) return "neighbours";
  if (kind == Kind::kTurns) return "turns";
  if (kind == Kind::kNccl) return "nccl";
  if (kind == Kind::kNcclTurns) return "nccl_turns";
  return kind == Kind::kFake ? "fake" : "shm";
}

GroupSpec Cluster::Spec(int64_t generation, int shards, int rank) const {
  std::vector<int> all(transports_.size());
  std::iota(all.begin(), all.end(), 0);
  return {generation, "conformance", "a secret", MembersOf(all, shards), rank};
}

std::vector<GroupMember> Cluster::MembersOf(const std::vector<int>& ranks, int shards) const {
  const int count = static_cast<int>(ranks.size());
  std::vector<GroupMember> members;
  for (int r = 0; r < count; ++r) {
    const int own = ranks[static_cast<size_t>(r)];
    GroupMember member;
    member.rank = r;
    member.incarnation = absl::StrCat("incarnation-", own);
    member.host = "here";
    member.shm_address = transports_[own]->address();
    member.key = transports_[own]->key();
    member.node = NodeOf(kind_, own, world());
    if (const int port = transports_[own]->tcp_port(); port != 0) {
      member.tcp_addresses = {absl::StrCat("127.0.0.1:", port)};
    }
    member.shards = DealShards(shards == 0 ? count : shards, count, r);
    members.push_back(std::move(member));
  }
  return members;
}

void Cluster::Run(int64_t generation, int shards, const Body& body) {
  std::vector<int> all(transports_.size());
  std::iota(all.begin(), all.end(), 0);
  RunWith(all, generation, shards, body);
}

void Cluster::RunWith(const std::vector<int>& ranks, int64_t generation, int shards,
                      const Body& body) {
  for (const absl::Status& status : TryWith(ranks, generation, shards, body)) {
    ASSERT_TRUE(status.ok()) << status;
  }
}

std::vector<absl::Status> Cluster::TryWith(const std::vector<int>& ranks, int64_t generation,
                                           int shards, const Body& body) {
  std::vector<absl::Status> statuses(ranks.size());
  const GroupSpec all{generation, "conformance", "a secret", MembersOf(ranks, shards), -1};
  std::vector<std::jthread> threads;
  threads.reserve(ranks.size());  // growing would free memory while the first ranks run already
  for (size_t r = 0; r < ranks.size(); ++r) {
    threads.emplace_back([&, r] {
      Transport& transport = *transports_[ranks[r]];
      GroupSpec spec = all;
      spec.rank = static_cast<int>(r);
      auto communicator = transport.Connect(spec, Never());
      statuses[r] = communicator.status();
      if (!communicator.ok()) return;
      ASSERT_EQ((*communicator)->rank(), static_cast<int>(r));
      ASSERT_EQ((*communicator)->world_size(), static_cast<int>(ranks.size()));
      ASSERT_EQ((*communicator)->generation(), generation);
      body(**communicator, transport);
    });
  }
  threads.clear();
  return statuses;
}

absl::Time Never() { return absl::Now() + absl::Seconds(200); }

}  // namespace lockstep
