// SPDX-License-Identifier: Apache-2.0
// What the workers of a job do together when their coordinator is gone for good and each has a part
// of the training state (train.zero_stage: 1): those that are left make a last generation among
// themselves, in which no step is made, and save in it the state that they hold between them.
// Thread-safety: confined to the worker's main thread.
#ifndef LOCKSTEP_WORKER_SURVIVORS_H_
#define LOCKSTEP_WORKER_SURVIVORS_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collectives/communicator.h"
#include "collectives/group_end.h"
#include "common/clock.h"
#include "common/life.h"
#include "proto/coordinator.pb.h"
#include "worker/step/trainer.h"

namespace lockstep::worker {

class Survivors {
 public:
  // This worker is in `generation`.
  void NoteGeneration(const Generation& generation);
  // The generation of `group` ended for `end`.
  void NoteLost(const GroupSpec& group, const GroupEnd& end);

  struct Parts {
    int64_t newest_generation = 0;  // that this worker has seen, and may not have come into
    const WorkerBootstrap* bootstrap = nullptr;
    LifePage* life = nullptr;
    Transport* transport = nullptr;
    Trainer* trainer = nullptr;
    Clock* clock = nullptr;
    // Called when all are connected, and one of them has begun `start_step`: this worker does, too,
    // where it has what was reduced for it.
    std::function<absl::Status(int64_t start_step)> catch_up;
    // Which hosts see the same folders; collective.
    std::function<absl::Status(const Generation& left, Communicator* communicator)> look_at_folders;
  };
  // First with all that were in the last generation on nodes that nobody missed; when these do not
  // find each other, with those of this node; alone as soon as this worker has the whole of a
  // state, which it may have gone back to. Returns the checkpoint's path. Blocks for a minute at
  // most, besides copying and saving. Errors: FailedPrecondition when no step was made; Aborted
  // when parts of the state are with nobody who is left, and names them; those of connecting and
  // saving.
  absl::StatusOr<std::string> SaveTogether(const Parts& parts);

 private:
  static absl::StatusOr<std::string> SaveIn(const Parts& parts, const Generation& left);

  std::optional<Generation> last_;
  std::string lost_node_;  // of the member without which it ended; empty: of none that is known
};

}  // namespace lockstep::worker

#endif  // LOCKSTEP_WORKER_SURVIVORS_H_
