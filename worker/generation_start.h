// SPDX-License-Identifier: Apache-2.0
// What the members of a generation say to each other before they train: which hosts see the same
// folders, who knows what the run's data were when it began, and the state. All members call each
// function with the same generation; what they exchange is of one version (worker/peer_protocol.h).
// Thread-safety: confined to the worker's main thread.
#ifndef LOCKSTEP_WORKER_GENERATION_START_H_
#define LOCKSTEP_WORKER_GENERATION_START_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "collectives/communicator.h"
#include "common/clock.h"
#include "proto/coordinator.pb.h"
#include "worker/checkpoint/checkpointer.h"
#include "worker/checkpoint/folder_copies.h"
#include "worker/checkpoint/restore.h"
#include "worker/control/progress_board.h"
#include "worker/step/trainer.h"

namespace lockstep::worker {

// What a worker knows of its folders from generations before.
struct FoldersBefore {
  Sharing run = Sharing::kUnknown;
  Sharing checkpoints = Sharing::kUnknown;
};

// What a worker begins with; all of it outlives the calls.
struct GenerationStart {
  const WorkerAssignment* assignment = nullptr;
  ProgressBoard* board = nullptr;
  Clock* clock = nullptr;
  Trainer* trainer = nullptr;
  // Of a job that saves checkpoints; else null.
  Checkpointer* checkpointer = nullptr;
  ResumeSource* resume = nullptr;    // told what is found out
  FoldersBefore* folders = nullptr;  // likewise
  uint64_t data_stamp = 0;           // DataIdentity::stamp()
};

// Which hosts see the same checkpoint folder, and the same folder of this run. Blocks. Errors: as
// LookAtFolder.
absl::Status LookAtFolders(const GenerationStart& own, const Generation& generation,
                           Communicator* communicator);

// That, and all else up to the state that the generation begins with. `holders` is set as by
// Trainer::JoinState; empty: they are not known. Blocks. Errors: as LookAtFolder and
// Trainer::JoinState.
absl::Status JoinGeneration(const GenerationStart& own, const Generation& generation,
                            Communicator* communicator, std::vector<int>* holders);

}  // namespace lockstep::worker

#endif  // LOCKSTEP_WORKER_GENERATION_START_H_
