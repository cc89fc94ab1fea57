// SPDX-License-Identifier: Apache-2.0
// How the members of a generation in which nobody has any state find a checkpoint and take the
// state from it, together: rank 0 chooses, every rank reads all tensors, and the hashes of the
// files are checked by the ranks in turn. A checkpoint that is damaged is left for the one before;
// one that a rank cannot read for another reason (permission, memory, a disk that fails) may be
// whole, so that this ends the attempt.
//
// Thread-safety: confined to the worker's main thread.
#ifndef LOCKSTEP_WORKER_CHECKPOINT_RESTORE_H_
#define LOCKSTEP_WORKER_CHECKPOINT_RESTORE_H_

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/manifest.h"
#include "checkpoint/storage.h"
#include "collectives/communicator.h"
#include "common/clock.h"
#include "engine/engine.h"
#include "proto/coordinator.pb.h"
#include "worker/checkpoint/checkpointer.h"
#include "worker/checkpoint/folder_copies.h"
#include "worker/control/progress_board.h"

namespace lockstep::worker {

// Where a job looks for checkpoints.
struct ResumeSource {
  std::string folder;  // the job's own
  // "auto": the newest in the folder. "never": the newest of this run there, so that a run which
  // lost all its workers goes on. A path: as "never", else the checkpoint or folder at that path.
  std::string resume = "auto";
  checkpoint::Manifest identity;  // of the job
  bool reproducible = true;       // refuse what would give other bits; else it is a warning
  // Returns whether checkpoints of other trainings in the folder are no reason to refuse, so that
  // the run comes after them.
  bool takes_over() const { return resume != "auto" || !reproducible; }
  // Of this run, where it and its sister runs note where their checkpoints are. May be empty.
  std::string run_dir = {};
  checkpoint::Storage* storage = checkpoint::Storage::Disk();
  // The newest of this run that its coordinator let appear, and the newest generation before this
  // one that made a step, whose members may have published more while it was away. Others of this
  // run that are higher are of workers that stood still while the job went on, and are not taken.
  // Not set: nothing is known.
  std::optional<CheckpointMark> newest = {};
  int64_t previous_generation = 0;
  // Where `folder` is not shared by all hosts, who sees the same one.
  FolderCopies copies = {};
  // Returns the records of the job's data; empty: not known. Asked by the rank that finds a
  // checkpoint which has some, in a thread, since it blocks for the disk; calls `go_on` meanwhile.
  // May be empty: identity.data.
  std::function<std::vector<checkpoint::DataRecord>(const checkpoint::GoOn& go_on)> data = {};
  // Checks that the folder's file system is mounted; asked before anything is written. May be
  // empty.
  std::function<absl::Status()> check_mounted = {};
};

struct Restored {
  std::string path;
  checkpoint::Manifest manifest;
  bool here = true;  // this rank has read it; else it took the state from those who did
  // What it has evaluated says nothing of the job's data. All ranks have the same.
  bool evaluated_other = false;
};

// The state region of an executor.
struct StateTarget {
  const engine::Plan* plan = nullptr;
  engine::StateAccess* executor = nullptr;
  void* state = nullptr;
  // What is there of it, ascending; null: all.
  const std::vector<engine::StateRange>* present = nullptr;
};

// All ranks call it with the same source, and get the same. Empty: there is no checkpoint, and the
// state is the initial one. Blocks; `board` moves while this rank's disk is waited for
// (WorkOnDisk). Errors: InvalidArgument when the newest checkpoint is of another job, naming what
// differs; NotFound or DataLoss when a path was given that is none; NotFound, Unavailable where
// there should be some and are none (CheckNoneIsLost); FailedPrecondition, ResourceExhausted,
// Unavailable on a rank that cannot read what may be whole, with rank, file and advice; Aborted on
// the other ranks, and when the generation ended. After an error the state is the initial one.
absl::StatusOr<std::optional<Restored>> RestoreState(Communicator* communicator,
                                                     const ResumeSource& source,
                                                     const StateTarget& target,
                                                     ProgressBoard* board, Clock* clock,
                                                     absl::Time deadline);

// Fills the state from the files of the checkpoint at `path`, which `source` led to and of which
// part `share` of `shares` are checked with their hashes. Returns its manifest. Blocks, while
// `board` moves (WorkOnDisk). Errors: DataLoss, saying what is wrong; InvalidArgument when it is of
// a plan with another state (train.reproducible: false looks at it, too); NotFound; Cancelled when
// the generation of `communicator`, which may be null, has ended; those of reading. After an error
// the state is undefined.
absl::StatusOr<checkpoint::Manifest> LoadCheckpoint(const ResumeSource& source,
                                                    const std::string& path, int share, int shares,
                                                    const StateTarget& target, ProgressBoard* board,
                                                    Clock* clock, const Communicator* communicator);

// The newest evaluation that the manifest knows of.
std::optional<EvalResult> EvaluationOf(const checkpoint::Manifest& manifest);

// Returns the job's train section that the manifest knows, without what this version knows not of;
// nothing when it cannot be read.
std::optional<Train> TrainOf(const checkpoint::Manifest& manifest);

// Puts the best weights that the checkpoint knows of at `path` again, and among those that
// `checkpointer` keeps. They may be at `path` already: what is there is removed only when it is
// known to be other ones. Returns whether they are there; where not, that is said, unless they are
// those of the checkpoint's own step: the next better ones replace them.
// `go_on`, which may be empty, is asked while they are read; `rank` is for messages. Errors: those
// of reading them beside the checkpoint, when they may be there; Cancelled.
absl::StatusOr<bool> BringBest(int rank, checkpoint::Storage* storage, const Restored& restored,
                               const std::string& path, Checkpointer* checkpointer,
                               const std::function<bool()>& go_on);

}  // namespace lockstep::worker

#endif  // LOCKSTEP_WORKER_CHECKPOINT_RESTORE_H_
