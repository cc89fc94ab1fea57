// SPDX-License-Identifier: Apache-2.0
#include "worker/checkpoint/checkpoint_job.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "checkpoint/sha256.h"
#include "common/log.h"
#include "common/status.h"
#include "worker/checkpoint/checkpoint_identity.h"

namespace lockstep::worker {
namespace {

constexpr size_t kPiece = size_t{1} << 20;  // of the copy
constexpr int kTries = 100;
constexpr const char* kIndexName = "model.safetensors.index.json";

// Returns what a rank says of its part to the one that publishes.
std::string PartName(int part) { return absl::StrFormat("part-%05d.json", part + 1); }

}  // namespace

std::string SavingAdvice(const absl::Status& why) {
  if (absl::IsAborted(why)) return "change checkpoint.dir";
  if (absl::IsResourceExhausted(why)) return "free some space there, or change checkpoint.dir";
  if (absl::IsFailedPrecondition(why)) return "make it writable, or change checkpoint.dir";
  if (absl::IsUnavailable(why)) return "see that it is mounted and sound, or change checkpoint.dir";
  return "look at the disk, or change checkpoint.dir";
}

CheckpointJob::Locate CheckpointJob::In(const void* state) {
  return [state](size_t offset, size_t*) { return static_cast<const char*>(state) + offset; };
}

CheckpointJob::CheckpointJob(Settings settings, const Locate& locate,
                             checkpoint::Snapshot* snapshot)
    : settings_(std::move(settings)), snapshot_(snapshot) {
  size_t to = 0;
  for (const LayoutFile& file : settings_.layout->FilesOf(settings_.part)) {
    if (settings_.in_place != nullptr) break;
    for (const engine::StateEntry* entry : file.entries) {
      for (size_t at = 0; at < entry->bytes;) {
        size_t bytes = std::min(kPiece, entry->bytes - at);
        const char* const from = locate(entry->offset + at, &bytes);
        pieces_.push_back({from, to, bytes});
        to += bytes;
        at += bytes;
      }
    }
  }
  copied_ = pieces_.empty();
}

void CheckpointJob::Copy() {
  while (true) {
    const size_t number = next_piece_.fetch_add(1, std::memory_order_relaxed);
    if (number >= pieces_.size()) return;
    const Piece& piece = pieces_[number];
    std::memcpy(snapshot_->data() + piece.to, piece.from, piece.bytes);
    if (copied_pieces_.fetch_add(1, std::memory_order_acq_rel) + 1 < pieces_.size()) continue;
    absl::MutexLock lock(&mu_);
    copied_ = true;
  }
}

void CheckpointJob::WaitForCopy() {
  Copy();
  absl::MutexLock lock(&mu_);
  mu_.Await(absl::Condition(&copied_));
}

void CheckpointJob::Fail(const absl::Status& why) {
  if (absl::IsAborted(why)) {
    LS_LOG_WARNING << "the checkpoint after step " << step()
                   << " is not published: " << why.message();
  } else if (!absl::IsCancelled(why)) {
    LS_LOG_WARNING << "the checkpoint after step " << step() << " is not saved: " << why.message()
                   << "; training goes on and older checkpoints stay: " << SavingAdvice(why);
  }
  state_.store(State::kFailed, std::memory_order_release);
}

// Somebody who clears up may remove the folder before it is held: then once more.
absl::Status CheckpointJob::MakeHeldFolder() {
  checkpoint::Storage* const storage = settings_.storage;
  for (int i = 0; i < kTries; ++i) {
    LS_RETURN_IF_ERROR(storage->MakeFolder(settings_.folder));
    auto beside = HoldBeside();
    if (absl::IsNotFound(beside.status())) continue;
    LS_RETURN_IF_ERROR(beside.status());
    if (*beside == nullptr) continue;
    LS_RETURN_IF_ERROR(storage->MakeFolder(saving_path()));
    auto hold = storage->TakeHold(saving_path(), /*exclusive=*/false);
    if (absl::IsNotFound(hold.status())) continue;
    LS_RETURN_IF_ERROR(hold.status());
    if (*hold == nullptr) continue;
    hold_ = *std::move(hold);
    hold_beside_ = *std::move(beside);
    return absl::OkStatus();
  }
  return absl::CancelledError("somebody removes it");
}

absl::StatusOr<std::unique_ptr<checkpoint::Storage::Hold>> CheckpointJob::HoldBeside() {
  const std::string path = checkpoint::HoldPath(saving_path());
  auto hold = settings_.storage->TakeHold(path, /*exclusive=*/false);
  if (!absl::IsNotFound(hold.status())) return hold;
  // Other ranks make it, too, and none of them may find it held by one that does; over SMB that
  // fails while one holds it.
  const absl::Status made = settings_.storage->MakeFile(path);
  hold = settings_.storage->TakeHold(path, /*exclusive=*/false);
  if (absl::IsNotFound(hold.status()) && !made.ok()) return made;
  return hold;
}

void CheckpointJob::Release(bool remove) {
  hold_.reset();
  hold_beside_.reset();
  if (remove) settings_.storage->Remove(checkpoint::HoldPath(saving_path())).IgnoreError();
}

absl::Status CheckpointJob::WriteFiles() {
  checkpoint::Storage* const storage = settings_.storage;
  if (settings_.check_mounted != nullptr) LS_RETURN_IF_ERROR(settings_.check_mounted());
  LS_RETURN_IF_ERROR(MakeHeldFolder());
  const char* from = snapshot_->data();
  for (const LayoutFile& file : settings_.layout->FilesOf(settings_.part)) {
    std::vector<checkpoint::TensorView> tensors;
    for (const engine::StateEntry* entry : file.entries) {
      const char* const data =
          settings_.in_place != nullptr ? settings_.in_place + entry->offset : from;
      tensors.push_back(
          {TensorName(*entry), TensorDtype(*entry), entry->shape, data, entry->bytes});
      from += entry->bytes;
    }
    LS_ASSIGN_OR_RETURN(checkpoint::FileRecord record,
                        checkpoint::WriteShard(storage, saving_path(), file.name, tensors,
                                               [this] { return GoOn(); }));
    records_.push_back(std::move(record));
  }
  if (settings_.part == 0) return absl::OkStatus();  // it is this rank that collects
  return checkpoint::WriteWhole(storage, absl::StrCat(saving_path(), "/", PartName(settings_.part)),
                                checkpoint::FormatFileRecords(records_));
}

void CheckpointJob::Write() {
  WaitForCopy();
  const absl::Status written = GoOn() ? WriteFiles() : absl::CancelledError("given up");
  if (written.ok()) {
    state_.store(State::kDurable, std::memory_order_release);
    return;
  }
  // What is there of it takes the space of others.
  for (const LayoutFile& file : settings_.layout->FilesOf(settings_.part)) {
    settings_.storage->Remove(absl::StrCat(saving_path(), "/", file.name)).IgnoreError();
  }
  Release(/*remove=*/false);  // other ranks may be writing
  Fail(cancelled_.load(std::memory_order_relaxed) ? absl::CancelledError("given up") : written);
}

absl::StatusOr<std::vector<checkpoint::FileRecord>> CheckpointJob::Collect() {
  std::vector<checkpoint::FileRecord> all = records_;
  for (int part = 1; part < parts(); ++part) {
    const std::string path = absl::StrCat(saving_path(), "/", PartName(part));
    LS_ASSIGN_OR_RETURN(const std::string text,
                        settings_.storage->Read(path, checkpoint::kMaxManifestBytes));
    LS_ASSIGN_OR_RETURN(const auto records, checkpoint::ParseFileRecords(text));
    all.insert(all.end(), records.begin(), records.end());
    LS_RETURN_IF_ERROR(settings_.storage->Remove(path));
  }
  const std::string index = settings_.layout->Index();
  if (!index.empty()) {
    LS_RETURN_IF_ERROR(checkpoint::WriteWhole(settings_.storage,
                                              absl::StrCat(saving_path(), "/", kIndexName), index));
    all.push_back({kIndexName, index.size(), checkpoint::Sha256Hex(index)});
  }
  return all;
}

absl::Status CheckpointJob::TakeItsPlace(checkpoint::Manifest* manifest) {
  LS_ASSIGN_OR_RETURN(const checkpoint::FolderContents others,
                      checkpoint::FindCheckpoints(settings_.storage, settings_.folder));
  const checkpoint::Manifest own = AmongRivals(*manifest, settings_.takes_over, others);
  if (manifest->sequence == 0) manifest->sequence = own.sequence;
  for (const checkpoint::FoundCheckpoint& found : others.checkpoints) {
    if (!checkpoint::IsRival(found.manifest, own)) continue;
    // The same training begun again while somebody still saved for the run before: it gets on.
    const bool passes = found.manifest.order() < manifest->order() && found.manifest.step != step();
    const bool same =
        DifferenceOf(found.manifest, *manifest).empty() && !IsMadeLonger(found.manifest, *manifest);
    if (passes && same) continue;
    return checkpoint::RivalError(settings_.folder, found.manifest);
  }
  if (others.checkpoints.empty()) return absl::OkStatus();
  const checkpoint::FoundCheckpoint& newest = others.checkpoints[0];
  if (newest.manifest.order() <= manifest->order()) return absl::OkStatus();
  return absl::AbortedError(absl::StrCat(newest.path, ", of generation ",
                                         newest.manifest.generation, ", is newer than generation ",
                                         manifest->generation));
}

absl::StatusOr<checkpoint::FoundCheckpoint> CheckpointJob::TryToPublish() {
  checkpoint::FoundCheckpoint made{
      absl::StrCat(settings_.folder, "/", checkpoint::CheckpointName(step())), settings_.manifest};
  LS_ASSIGN_OR_RETURN(made.manifest.files, Collect());
  if (settings_.set_data != nullptr) settings_.set_data(&made.manifest);
  if (settings_.may_publish != nullptr) {
    LS_RETURN_IF_ERROR(settings_.may_publish(made.manifest, made.path));
  }
  // Looked at last: this process may have stood still.
  LS_RETURN_IF_ERROR(TakeItsPlace(&made.manifest));
  LS_ASSIGN_OR_RETURN(
      made.path, checkpoint::Publish(settings_.storage, settings_.folder, saving(), made.manifest));
  return made;
}

absl::StatusOr<checkpoint::FoundCheckpoint> CheckpointJob::Publish() {
  absl::StatusOr<checkpoint::FoundCheckpoint> made = TryToPublish();
  if (!made.ok()) {
    Remove();
    Fail(made.status());
    return made;
  }
  Release(/*remove=*/true);
  state_.store(State::kPublished, std::memory_order_release);
  // Before what they named may go.
  const absl::Status pointed = PointToNewest(made->manifest);
  if (!pointed.ok() && (settings_.links_told == nullptr || !*settings_.links_told)) {
    LS_LOG_WARNING << "the links last and best in " << settings_.folder
                   << " are missing or name older ones: " << pointed.message();
  }
  if (settings_.links_told != nullptr) *settings_.links_told = !pointed.ok();
  if (const absl::Status tidied = RemoveOld(made->manifest); !tidied.ok()) {
    LS_LOG_WARNING << "old files stay in " << settings_.folder << ": " << tidied.message();
  }
  return made;
}

absl::Status CheckpointJob::PointToNewest(const checkpoint::Manifest& manifest) {
  absl::Status pointed =
      settings_.storage->Point(settings_.folder + "/last", checkpoint::CheckpointName(step()));
  if (manifest.best_step > 0) {
    pointed.Update(PointToBest(manifest));
  } else if (settings_.alone != nullptr && settings_.alone()) {
    const std::string link = settings_.folder + "/best";  // an earlier run's
    pointed.Update(settings_.storage->Unpoint(link, checkpoint::IsBestName));
  }
  return pointed;
}

absl::Status CheckpointJob::RemoveOld(const checkpoint::Manifest& manifest) {
  checkpoint::Storage* const storage = settings_.storage;
  absl::Status removed = checkpoint::Tidy(storage, settings_.folder, settings_.writer, step());
  const bool alone = settings_.alone != nullptr && settings_.alone();
  removed.Update(checkpoint::Prune(storage, settings_.folder, settings_.keep, manifest, alone));
  return removed;
}

absl::Status CheckpointJob::PointToBest(const checkpoint::Manifest& manifest) {
  const std::string link = settings_.folder + "/best";
  const auto count = [this] {
    GoOn();
    return true;
  };
  const bool known = settings_.match_best != nullptr && !manifest.best_sha256.empty();
  switch (known ? settings_.match_best(count) : checkpoint::FileMatch::kOther) {
    case checkpoint::FileMatch::kSame:
      return settings_.storage->Point(link, checkpoint::BestName(manifest.best_step));
    case checkpoint::FileMatch::kOther:
      return settings_.storage->Unpoint(link, checkpoint::IsBestName);
    case checkpoint::FileMatch::kUnknown:
      break;
  }
  return absl::OkStatus();
}

void CheckpointJob::Remove() {
  settings_.storage->Remove(saving_path()).IgnoreError();
  Release(/*remove=*/true);
}

}  // namespace lockstep::worker
