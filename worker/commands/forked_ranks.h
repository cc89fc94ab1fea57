// SPDX-License-Identifier: Apache-2.0
// A generation of processes on this host without a coordinator: the caller forks its ranks, which
// find each other through memory that they share. For measuring the data plane.
// Thread-safety: called by main while it is the only thread.
#ifndef LOCKSTEP_WORKER_COMMANDS_FORKED_RANKS_H_
#define LOCKSTEP_WORKER_COMMANDS_FORKED_RANKS_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collectives/communicator.h"

namespace lockstep::worker {

struct ForkedRanks {
  int ranks = 1;
  int shards = 1;  // at least as many as ranks
  // What each rank can allocate from its transport.
  size_t arena_bytes = 0;
  // Makes the transport of a rank over that in the host's memory, in the rank's process; empty: it
  // is that one.
  std::function<absl::StatusOr<std::unique_ptr<Transport>>(int rank, std::unique_ptr<Transport>)>
      over;
  // By rank, for ranks that are to do as if they were on several hosts, which TCP joins: the node
  // of each, and the address at which others reach it. Empty: all are on one.
  std::vector<std::string> nodes;
  std::vector<std::string> addresses;
  // The first thing that a rank's process does: to enter another network namespace, say.
  std::function<absl::Status(int rank)> enter;
};

// Runs `body` in ForkedRanks::ranks processes that have a communicator, and waits for all of them.
// When one fails, or is killed, the others are ended. Errors: ResourceExhausted (no memory for the
// arenas), what `body` returned first (in the rank that failed first), Internal for a rank that
// ended by a signal.
absl::Status RunForked(const ForkedRanks& options,
                       const std::function<absl::Status(Communicator&, Transport&)>& body);

}  // namespace lockstep::worker

#endif  // LOCKSTEP_WORKER_COMMANDS_FORKED_RANKS_H_
