// SPDX-License-Identifier: Apache-2.0
// Ranks as threads of one process over any transport, for the communicator suite.
// Thread-safety: one test thread drives it.
#ifndef LOCKSTEP_TESTS_CONFORMANCE_CLUSTER_H_
#define LOCKSTEP_TESTS_CONFORMANCE_CLUSTER_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "collectives/communicator.h"
#include "collectives/nccl/nccl_library.h"

namespace lockstep {

// kNccl is the fake NCCL on threads for GPUs, above shm. From kHosts on there are hosts, TCP
// between them, that are all this machine: a host of its own for each rank, neighbours sharing one
// (unequally many), and ranks dealt to two hosts in turn, also with NCCL above.
enum class Kind { kFake, kShm, kNccl, kHosts, kNeighbours, kTurns, kNcclTurns };
inline constexpr Kind kAllKinds[] = {Kind::kFake,       Kind::kShm,   Kind::kNccl,     Kind::kHosts,
                                     Kind::kNeighbours, Kind::kTurns, Kind::kNcclTurns};
// The host of a rank.
std::string NodeOf(Kind kind, int rank, int world);
// As tests are named after it.
std::string Name(Kind kind);

class Cluster {
 public:
  // `idles`, by rank: one between hosts that moves data of a TreeReduce in it alone; null: none.
  // `try_held_for`: what NCCL's ranks give each other to shrink or grow what they hold. `library`
  // outlives the cluster; null: the fake's as it is.
  Cluster(Kind kind, int world, size_t arena_bytes,
          const std::function<bool(int rank)>& idles = nullptr,
          absl::Duration try_held_for = absl::Minutes(1), const NcclLibrary* library = nullptr);
  ~Cluster();

  // Runs `body` on a thread for each rank, connected as `generation` with `shards` dealt (0: one
  // each).
  using Body = std::function<void(Communicator& communicator, Transport& transport)>;
  void Run(int64_t generation, int shards, const Body& body);

  // The same with the members `ranks` of the cluster, renumbered in this order.
  void RunWith(const std::vector<int>& ranks, int64_t generation, int shards, const Body& body);
  // The same; `body` runs on those that connect. Returns what each heard of it.
  std::vector<absl::Status> TryWith(const std::vector<int>& ranks, int64_t generation, int shards,
                                    const Body& body);

  // As all ranks of the cluster would connect.
  GroupSpec Spec(int64_t generation, int shards, int rank) const;
  Transport& transport(int rank) { return *transports_[rank]; }
  int world() const { return static_cast<int>(transports_.size()); }

 private:
  struct Network;
  std::vector<GroupMember> MembersOf(const std::vector<int>& ranks, int shards) const;

  const Kind kind_;
  std::unique_ptr<Network> network_;
  std::vector<std::unique_ptr<Transport>> transports_;
};

// Long enough never to pass in a test that does not want it to.
absl::Time Never();

}  // namespace lockstep

#endif  // LOCKSTEP_TESTS_CONFORMANCE_CLUSTER_H_
