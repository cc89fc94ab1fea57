// SPDX-License-Identifier: Apache-2.0
// Which hosts of a generation see the same folder under one path, and so how many copies of a
// checkpoint there are: one on each file system. The first rank of each host leaves a file with a
// name that nobody can guess, and looks for those of the others.
//
// Thread-safety: confined to the worker's main thread.
#ifndef LOCKSTEP_WORKER_CHECKPOINT_FOLDER_COPIES_H_
#define LOCKSTEP_WORKER_CHECKPOINT_FOLDER_COPIES_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "checkpoint/manifest.h"
#include "checkpoint/storage.h"
#include "collectives/communicator.h"
#include "common/clock.h"
#include "proto/coordinator.pb.h"
#include "worker/control/progress_board.h"

namespace lockstep::worker {

// Equal on all ranks.
struct FolderCopies {
  // By rank: the one that writes where this rank sees the folder. Empty: all see the same.
  std::vector<int> writers = {};
  // Of the run among those that have checkpoints in any of them, as Manifest::sequence.
  int64_t run_number = 0;

  // Who saves where `rank` sees the folder, and whether that is `rank` itself.
  int WriterOf(int rank) const { return writers.empty() ? 0 : writers[static_cast<size_t>(rank)]; }
  bool writes(int rank) const { return WriterOf(rank) == rank; }
  // How many folders there are.
  int count() const;
  struct Share {
    int place = 0;
    int of = 1;
  };
  // How many ranks before `rank`, and how many in all, see the same folder as it.
  Share ShareOf(int rank) const;
};

// What is known of a folder: whether all hosts saw the same in the newest generation of several
// hosts in which each had room to leave a file. Its numbers travel.
enum class Sharing : int32_t { kUnknown = 0, kShared = 1, kApart = 2 };

// What all ranks look at together.
struct SharedFolder {
  std::string path;
  std::string name;  // as the user knows it: "checkpoint.dir"
  // What the job says of it: "auto", "always", "never".
  std::string stated = "auto";
  // Whose number among the runs is looked up, and how (RunNumberOf); null: it is not.
  const checkpoint::Manifest* job = nullptr;
  bool takes_over = false;
  checkpoint::Storage* storage = checkpoint::Storage::Disk();
  // Checks that the folder's file system is mounted; asked before anything is written. May be
  // empty.
  std::function<absl::Status()> check_mounted = {};
  // What this worker knows of it from generations before; it is told what this one finds out. Null:
  // nothing is kept.
  Sharing* before = nullptr;
};

// All ranks call it with the same folder, which is made where it is missing. A generation of one
// host looks at nothing. Blocks; while this rank's disk is waited for `board` moves (WorkOnDisk)
// and says SAVING, since who has to leave the generation leaves then. Errors: FailedPrecondition on
// a rank whose host does not see what `stated` says all see, naming path and both hosts; Aborted on
// the others; those of the communicator. What cannot be written or read is not shared: saving will
// say so. But where a host has no room to write, all share it still if they did before, as those
// know who were there.
absl::StatusOr<FolderCopies> LookAtFolder(Communicator* communicator, const Generation& generation,
                                          const SharedFolder& folder, ProgressBoard* board,
                                          Clock* clock, absl::Time deadline);

}  // namespace lockstep::worker

#endif  // LOCKSTEP_WORKER_CHECKPOINT_FOLDER_COPIES_H_
