// SPDX-License-Identifier: Apache-2.0
#include "worker/generation_start.h"

#include <string>

#include "common/status.h"
#include "worker/checkpoint/folder_copies.h"
#include "worker/checkpoint/run_data.h"
#include "worker/control/run_dir.h"

namespace lockstep::worker {
namespace {

// Whoever takes a dead worker's place before a checkpoint says what the data was learns it from
// those that are there since the beginning.
absl::Status CompareWithBegan(const GenerationStart& own, const Generation& generation,
                              Communicator* communicator) {
  if (own.checkpointer == nullptr) return absl::OkStatus();
  LS_ASSIGN_OR_RETURN(const bool began,
                      OpenedAsBegun(communicator, generation, own.checkpointer->began(),
                                    own.data_stamp, own.trainer->Deadline()));
  if (began) own.checkpointer->KnowBegan();
  return absl::OkStatus();
}

}  // namespace

absl::Status LookAtFolders(const GenerationStart& own, const Generation& generation,
                           Communicator* communicator) {
  // A disk may keep a host busy for longer than a start may take: who stands still is judged.
  const absl::Time deadline = own.trainer->Deadline();
  const SharedFolder run{
      .path = RunDir(*own.assignment), .name = "the run's folder", .before = &own.folders->run};
  LS_RETURN_IF_ERROR(
      LookAtFolder(communicator, generation, run, own.board, own.clock, deadline).status());
  if (own.checkpointer == nullptr) return absl::OkStatus();
  const SharedFolder saved{.path = own.resume->folder,
                           .name = "checkpoint.dir",
                           .stated = own.assignment->spec().checkpoint().shared(),
                           .job = &own.resume->identity,
                           .takes_over = own.resume->takes_over(),
                           .check_mounted = [&own] { return own.checkpointer->CheckMounted(); },
                           .before = &own.folders->checkpoints};
  LS_ASSIGN_OR_RETURN(own.resume->copies, LookAtFolder(communicator, generation, saved, own.board,
                                                       own.clock, deadline));
  return absl::OkStatus();
}

absl::Status JoinGeneration(const GenerationStart& own, const Generation& generation,
                            Communicator* communicator, std::vector<int>* holders) {
  holders->clear();
  own.resume->previous_generation = generation.previous_generation();
  LS_RETURN_IF_ERROR(LookAtFolders(own, generation, communicator));
  LS_RETURN_IF_ERROR(CompareWithBegan(own, generation, communicator));
  own.resume->newest.reset();
  if (generation.has_newest_checkpoint()) own.resume->newest = generation.newest_checkpoint();
  return own.trainer->JoinState(communicator, generation, RunDir(*own.assignment), holders);
}

}  // namespace lockstep::worker
