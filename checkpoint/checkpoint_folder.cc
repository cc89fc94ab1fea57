// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/checkpoint_folder.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "checkpoint/sha256.h"
#include "common/status.h"

namespace lockstep::checkpoint {
namespace {

constexpr const char* kRemovingPrefix = ".removing-";
constexpr const char* kHoldSuffix = ".hold";

// The step of "step-0000000500", or -1.
int64_t StepOf(absl::string_view name, absl::string_view prefix, absl::string_view suffix) {
  int64_t step = -1;
  if (!absl::ConsumePrefix(&name, prefix) || !absl::ConsumeSuffix(&name, suffix) ||
      name.size() < 10 || !absl::c_all_of(name, absl::ascii_isdigit) ||
      !absl::SimpleAtoi(name, &step)) {
    return -1;
  }
  return step;
}

int64_t CheckpointStep(const std::string& name) { return StepOf(name, "step-", ""); }

std::string In(const std::string& folder, const std::string& name) {
  return absl::StrCat(folder, "/", name);
}

absl::StatusOr<FoundCheckpoint> ReadOne(Storage* storage, const std::string& path) {
  LS_ASSIGN_OR_RETURN(const std::string text,
                      storage->Read(In(path, kManifestName), kMaxManifestBytes));
  absl::StatusOr<Manifest> manifest = ParseManifest(text);
  // (Of damage the folder's contents say where.)
  if (absl::IsInvalidArgument(manifest.status())) {
    return absl::InvalidArgumentError(
        absl::StrCat("the checkpoint ", path, " is ", manifest.status().message()));
  }
  LS_RETURN_IF_ERROR(manifest.status());
  return FoundCheckpoint{path, *std::move(manifest)};
}

// Checks whether what is to be the checkpoint is there, as this host sees it: the manifest reads as
// `text`, and its files, which their writers have read back, have their sizes.
absl::Status CheckThere(Storage* storage, const std::string& path, const Manifest& manifest,
                        const std::string& text) {
  LS_ASSIGN_OR_RETURN(const std::string read,
                      storage->Read(In(path, kManifestName), kMaxManifestBytes));
  if (read != text) {
    return absl::DataLossError(
        absl::StrCat(In(path, kManifestName), " does not read as it was written"));
  }
  for (const FileRecord& record : manifest.files) {
    LS_ASSIGN_OR_RETURN(const std::unique_ptr<Storage::Source> file,
                        storage->Open(In(path, record.name)));
    if (file->size() == record.bytes) continue;
    return absl::DataLossError(absl::StrCat(In(path, record.name), " has ", file->size(),
                                            " bytes, ", record.bytes, " were written"));
  }
  return absl::OkStatus();
}

// Checks that what is at `path`, if anything, is no rival's.
absl::Status CheckNoRivals(Storage* storage, const std::string& folder, const std::string& path,
                           const Manifest& own) {
  const absl::StatusOr<FoundCheckpoint> found = ReadOne(storage, path);
  const bool rival = found.ok() && IsRival(found->manifest, own);
  return rival ? RivalError(folder, found->manifest) : absl::OkStatus();
}

// Takes a checkpoint away under another name first, so that it is never there in part.
absl::Status RemoveCheckpoint(Storage* storage, const std::string& folder,
                              const std::string& name) {
  const std::string removing = In(folder, kRemovingPrefix + name);
  LS_RETURN_IF_ERROR(storage->Remove(removing));
  LS_RETURN_IF_ERROR(storage->Rename(In(folder, name), removing));
  return storage->Remove(removing);
}

// Removes what nobody works on. A folder is held by its writers on this host, and where it can be
// on others; the file beside it, which older versions do not make, by those on all hosts.
absl::Status RemoveLeft(Storage* storage, const std::string& path) {
  const auto hold = storage->TakeHold(path, /*exclusive=*/true);
  if (absl::IsNotFound(hold.status())) return absl::OkStatus();  // it has got its name
  const bool can_be_held = !absl::IsUnimplemented(hold.status());
  if (can_be_held) LS_RETURN_IF_ERROR(hold.status());
  if (can_be_held && *hold == nullptr) return absl::OkStatus();
  const auto beside = storage->TakeHold(HoldPath(path), /*exclusive=*/true);
  if (beside.ok() && *beside == nullptr) return absl::OkStatus();
  if (!beside.ok() && !can_be_held) return absl::OkStatus();  // nothing says who writes there
  if (!absl::IsNotFound(beside.status()) && !absl::IsUnimplemented(beside.status())) {
    LS_RETURN_IF_ERROR(beside.status());
  }
  LS_RETURN_IF_ERROR(storage->Remove(path));
  return beside.ok() ? storage->Remove(HoldPath(path)) : absl::OkStatus();
}

}  // namespace

std::string CheckpointName(int64_t step) { return absl::StrFormat("step-%010d", step); }

std::string BestName(int64_t step) { return absl::StrFormat("best-%010d.safetensors", step); }
bool IsBestName(const std::string& name) { return StepOf(name, "best-", ".safetensors") >= 0; }

std::string SavingName(int64_t step, const std::string& writer) {
  return absl::StrCat(kSavingPrefix, CheckpointName(step), "-", writer);
}

std::string HoldPath(const std::string& saving) { return absl::StrCat(saving, kHoldSuffix); }

bool IsDamage(const absl::Status& status) {
  return absl::IsDataLoss(status) || absl::IsNotFound(status);
}

absl::StatusOr<FolderContents> FindCheckpoints(Storage* storage, const std::string& folder) {
  FolderContents contents;
  LS_ASSIGN_OR_RETURN(const std::vector<std::string> names, storage->List(folder));
  const auto look = [&](const std::string& path) {
    absl::StatusOr<FoundCheckpoint> found = ReadOne(storage, path);
    if (found.ok()) {
      contents.checkpoints.push_back(*std::move(found));
    } else if (!IsDamage(found.status())) {
      contents.unread.Update(found.status());
    } else {
      contents.damaged.push_back(absl::StrCat(path, ": ", found.status().message()));
    }
  };
  if (std::count(names.begin(), names.end(), kManifestName) > 0) {
    look(folder);
    if (contents.damaged.empty()) return contents;  // else it may be of something else
  }
  for (const std::string& name : names) {
    if (CheckpointStep(name) >= 0) look(In(folder, name));
  }
  std::sort(contents.checkpoints.begin(), contents.checkpoints.end(),
            [](const FoundCheckpoint& a, const FoundCheckpoint& b) {
              return a.manifest.order() > b.manifest.order();
            });
  return contents;
}

int64_t RunNumber(const FolderContents& contents, const std::string& run) {
  int64_t highest = 0;
  for (const FoundCheckpoint& found : contents.checkpoints) {
    if (found.manifest.run == run) return found.manifest.sequence;
    highest = std::max(highest, found.manifest.sequence);
  }
  return highest + 1;
}

bool IsRival(const Manifest& found, const Manifest& own) {
  return found.run != own.run && found.sequence >= own.sequence;
}

absl::Status RivalError(const std::string& folder, const Manifest& rival) {
  return absl::AbortedError(absl::StrCat(folder, " is used by run ", rival.run,
                                         ", too, which saved ", CheckpointName(rival.step),
                                         " there: give each job a checkpoint.dir of its own"));
}

const FoundCheckpoint* RivalOfBest(const FolderContents& contents, const Manifest& own) {
  for (const FoundCheckpoint& found : contents.checkpoints) {
    const bool same_step = found.manifest.best_step == own.best_step;
    const bool same = same_step && found.manifest.best_sha256 == own.best_sha256;
    if (same_step && !same && IsRival(found.manifest, own)) return &found;
  }
  return nullptr;
}

absl::Status CheckFile(Storage* storage, const std::string& folder, const FileRecord& record,
                       const GoOn& go_on) {
  const std::string path = In(folder, record.name);
  LS_ASSIGN_OR_RETURN(const HashedFile found, HashFile(storage, path, go_on));
  if (found.bytes != record.bytes) {
    return absl::DataLossError(
        absl::StrCat(path, " has ", found.bytes, " bytes, ", record.bytes, " were written"));
  }
  if (found.sha256 == record.sha256) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(path, " is not what was written: its sha256 differs"));
}

absl::StatusOr<FileRecord> WriteShard(Storage* storage, const std::string& folder,
                                      const std::string& name,
                                      const std::vector<TensorView>& tensors, const GoOn& go_on) {
  LS_ASSIGN_OR_RETURN(std::unique_ptr<Storage::File> file, storage->Create(In(folder, name)));
  LS_ASSIGN_OR_RETURN(
      const StreamedFile streamed,
      StreamSafetensors(tensors, {{"format", "pt"}}, [&](const void* data, size_t bytes) {
        return go_on() ? file->Append(data, bytes) : absl::CancelledError("given up");
      }));
  LS_RETURN_IF_ERROR(file->Sync());
  file.reset();  // over SMB its lock forbids reading
  FileRecord record{name, streamed.bytes, streamed.sha256};
  LS_RETURN_IF_ERROR(CheckFile(storage, folder, record, go_on));
  return record;
}

absl::StatusOr<std::string> Publish(Storage* storage, const std::string& folder,
                                    const std::string& saving, const Manifest& manifest) {
  const std::string from = In(folder, saving);
  const std::string to = In(folder, CheckpointName(manifest.step));
  const std::string text = FormatManifest(manifest);
  LS_RETURN_IF_ERROR(WriteWhole(storage, In(from, kManifestName), text));
  LS_RETURN_IF_ERROR(CheckThere(storage, from, manifest, text));
  LS_RETURN_IF_ERROR(storage->SyncFolder(from));
  LS_RETURN_IF_ERROR(CheckNoRivals(storage, folder, to, manifest));
  LS_RETURN_IF_ERROR(storage->Rename(from, to));
  if (absl::Status taken = CheckNoRivals(storage, folder, from, manifest); !taken.ok()) {
    LS_RETURN_IF_ERROR(storage->Rename(from, to));  // it came in between: its name is its own again
    return taken;
  }
  LS_RETURN_IF_ERROR(storage->SyncFolder(folder));
  // What had the name before has the other one now.
  storage->Remove(from).IgnoreError();
  return to;
}

absl::Status Tidy(Storage* storage, const std::string& folder, const std::string& writer,
                  int64_t settled) {
  LS_ASSIGN_OR_RETURN(const std::vector<std::string> names, storage->List(folder));
  absl::Status failed;  // the first; what cannot be removed keeps no other
  for (const std::string& name : names) {
    const absl::string_view saving = absl::StripSuffix(name, kHoldSuffix);
    // Its other ranks may have made the folder and not yet said that they hold it.
    if (StepOf(saving, absl::StrCat(kSavingPrefix, "step-"), "-" + writer) > settled) continue;
    if (absl::StartsWith(name, kRemovingPrefix) || absl::StartsWith(name, kLinkingPrefix)) {
      failed.Update(storage->Remove(In(folder, name)));  // nobody writes there
    } else if (absl::StartsWith(name, kSavingPrefix)) {
      // What stands for a folder goes with it.
      if (saving != name && absl::c_binary_search(names, saving)) continue;
      failed.Update(RemoveLeft(storage, In(folder, name)));
    }
  }
  return failed;
}

absl::Status Prune(Storage* storage, const std::string& folder, int keep, const Manifest& own,
                   bool alone) {
  LS_ASSIGN_OR_RETURN(const FolderContents contents, FindCheckpoints(storage, folder));
  // What cannot be read is nobody's to remove.
  std::set<std::string> removed;
  std::set<int64_t> bests;
  int64_t newest_best = 0;
  int64_t decided = 0;  // no checkpoint to come has a best step before it that none has now
  int count = 0;
  for (const FoundCheckpoint& found : contents.checkpoints) {
    if (IsRival(found.manifest, own)) {
      bests.insert(found.manifest.best_step);
      continue;
    }
    if (count == 0) {
      newest_best = found.manifest.best_step;
      decided = alone ? found.manifest.step : newest_best;
    }
    const bool best = newest_best > 0 && found.manifest.step == newest_best;
    if (count++ >= keep && !best) {
      removed.insert(CheckpointName(found.manifest.step));
    } else {
      bests.insert(found.manifest.best_step);
    }
  }
  LS_ASSIGN_OR_RETURN(const std::vector<std::string> names, storage->List(folder));
  absl::Status failed;  // the first, as in Tidy
  for (const std::string& name : names) {
    if (removed.count(name) > 0) {
      failed.Update(RemoveCheckpoint(storage, folder, name));
    } else if (const int64_t step = StepOf(name, "best-", ".safetensors");
               step >= 0 && step < decided && bests.count(step) == 0 && contents.unread.ok()) {
      // (A checkpoint that could not be looked at may know of it.)
      failed.Update(storage->Remove(In(folder, name)));
    }
  }
  return failed;
}

}  // namespace lockstep::checkpoint
