// SPDX-License-Identifier: Apache-2.0
// A folder of checkpoints:
//   step-0000000500/        a checkpoint: safetensors files and manifest.json
//   best-0000000450.safetensors   the weights of the best evaluation that a checkpoint knows of
//   last, best              links to the newest checkpoint and to the best weights, for people
//   .saving-...             a checkpoint, or a file of such weights, that is being written, or was
//                           when its writers died; .saving-....hold beside a checkpoint is a file
//                           that they hold, since file systems between hosts lock no folders
//   .linking-...            a link that is to take its place, or was when its writer died
//   .run-ID                 held by the run of that id while it saves here, or left by one that
//   died
// A checkpoint appears with its name whole or not at all, and vanishes likewise.
//
// Thread-safety: pure functions of the files; one writer of a folder at a time. Where there are
// more, as runs that begin together with one folder, none takes away what another has saved.
#ifndef LOCKSTEP_CHECKPOINT_CHECKPOINT_FOLDER_H_
#define LOCKSTEP_CHECKPOINT_CHECKPOINT_FOLDER_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/manifest.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/storage.h"
#include "common/durable_file.h"

namespace lockstep::checkpoint {

// "step-0000000500".
std::string CheckpointName(int64_t step);
// "best-0000000450.safetensors".
std::string BestName(int64_t step);
// Returns whether `name` is one of these.
bool IsBestName(const std::string& name);
// Where `writer` (letters, digits, '.', '-') puts together the checkpoint after `step`.
std::string SavingName(int64_t step, const std::string& writer);
// The file beside the folder at `saving` that its writers hold, as they hold the folder for those
// of versions that know of no file.
std::string HoldPath(const std::string& saving);
// What SavingName begins with, as the names of files that are being written.
inline constexpr const char* kSavingPrefix = kTemporaryPrefix;
// What links begin with that have not yet taken their places: Storage::Link and Point make them
// again when they are removed.
inline constexpr const char* kLinkingPrefix = ".linking-";

// A checkpoint that was found; its files have not been looked at.
struct FoundCheckpoint {
  std::string path;
  Manifest manifest;
};
struct FolderContents {
  std::vector<FoundCheckpoint> checkpoints;  // newest first, by Manifest::order
  std::vector<std::string> damaged;          // why others are none, a sentence each
  absl::Status unread;  // why others could not be looked at, which says nothing of them; the first
};
// Returns whether an error of reading a checkpoint says that it is damaged: bytes that are not what
// was written, a file that is not there. Any other one (permission, memory, a disk that fails, what
// a newer version of lockstep wrote) says nothing of what the checkpoint holds.
bool IsDamage(const absl::Status& status);

// The checkpoints in `folder` (none when it is not there), or `folder` itself, as it is given, when
// it is one.
// Errors: those of reading the folder.
absl::StatusOr<FolderContents> FindCheckpoints(Storage* storage, const std::string& folder);

// Called between pieces of long work; false ends it with Cancelled.
using GoOn = std::function<bool()>;

// The number of `run` among those that have checkpoints in a folder with `contents`
// (Manifest::sequence): that of its own ones there, or else one that is new.
int64_t RunNumber(const FolderContents& contents, const std::string& run);

// Returns whether another run saved `found`, and is no earlier one, which the run of `own` goes on
// from or takes the place of: they have the folder at the same time, or `found` is of a later one.
bool IsRival(const Manifest& found, const Manifest& own);
// Returns the error (Aborted) of saving beside such a run: its name, what it saved, what to do.
absl::Status RivalError(const std::string& folder, const Manifest& rival);
// Returns the rival in `contents` that knows other best weights of that step than those of `own`,
// or null. Nobody else's file may get their name.
const FoundCheckpoint* RivalOfBest(const FolderContents& contents, const Manifest& own);

// Checks whether a file is the one that was written: its size and its hash. Errors: DataLoss naming
// it; NotFound; Cancelled; those of reading it.
absl::Status CheckFile(Storage* storage, const std::string& folder, const FileRecord& record,
                       const GoOn& go_on);

// Writes one file of a checkpoint, makes it durable, and reads it back: it is what was written, as
// far as this host sees it. Errors: those of the storage; Cancelled; DataLoss when it reads
// differently.
absl::StatusOr<FileRecord> WriteShard(Storage* storage, const std::string& folder,
                                      const std::string& name,
                                      const std::vector<TensorView>& tensors, const GoOn& go_on);

// Makes `saving`, a folder in `folder` whose files are durable, the checkpoint of `manifest`:
// manifest, flush, rename, flush. Before the rename the manifest is read back, and the files are
// there with their sizes. A checkpoint of that step that was there is replaced, unless it is a
// rival's. Returns its path. Errors: those of the storage; DataLoss; that of RivalError; what was
// there stays.
absl::StatusOr<std::string> Publish(Storage* storage, const std::string& folder,
                                    const std::string& saving, const Manifest& manifest);

// Removes what was left half done by writers that are gone; not what `writer` puts together for a
// step after `settled`. Errors: the first one of the storage, after the others are removed; a later
// call goes on.
absl::Status Tidy(Storage* storage, const std::string& folder, const std::string& writer,
                  int64_t settled);

// Removes all checkpoints but the `keep` newest and that of their best step, and the best weights
// that none of them knows of: those of steps before the newest one's best and, where no other run
// is known to save there (`alone`), before the newest one: nobody comes to know of them any more.
// The newest is that of `own`, there whole: whoever calls has read it back. What its rivals saved
// is not theirs: it does not count and stays. Errors: as Tidy.
absl::Status Prune(Storage* storage, const std::string& folder, int keep, const Manifest& own,
                   bool alone);

}  // namespace lockstep::checkpoint

#endif  // LOCKSTEP_CHECKPOINT_CHECKPOINT_FOLDER_H_
