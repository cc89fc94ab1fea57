// SPDX-License-Identifier: Apache-2.0
// What a command of a job with `run` is told about its place: the environment that torchrun gives
// its workers. An attempt of the command is a generation of the job; each restart is the next one.
// Thread-safety: pure functions.
#ifndef LOCKSTEP_WORKER_COMMAND_RANK_PLACE_H_
#define LOCKSTEP_WORKER_COMMAND_RANK_PLACE_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/coordinator.pb.h"

namespace lockstep::worker {

struct RankPlace {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;  // among the ranks of its node, in their order
  int local_world_size = 1;
  int group_rank = 0;  // of its node
  int group_world_size = 1;
  std::string master_addr;
  int master_port = 0;
  int64_t attempt = 0;  // restarts before this one
  // UUIDs of the GPUs of the node's ranks, in the order of the local ranks; empty: they have none.
  std::string gpus;
};

// The place of the member `incarnation`. Rank 0's address is the first that it published: that of
// this machine where all members are on one node. Errors: Internal when it is no member, or rank 0
// has published no port.
absl::StatusOr<RankPlace> PlaceInGeneration(const Generation& generation,
                                            const std::string& incarnation);

// "NAME=value" for the command. `environment` is what it has otherwise: a variable that the user
// may set (OMP_NUM_THREADS and the like) is only there where that does not have it.
std::vector<std::string> RankEnvironment(const RankPlace& place, const WorkerAssignment& assignment,
                                         const std::string& error_file,
                                         const std::function<bool(const std::string&)>& is_set);

}  // namespace lockstep::worker

#endif  // LOCKSTEP_WORKER_COMMAND_RANK_PLACE_H_
