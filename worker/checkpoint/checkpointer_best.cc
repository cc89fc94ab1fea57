// SPDX-License-Identifier: Apache-2.0
// The best weights that are kept beside the checkpoints.
#include <sys/stat.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/sha256.h"
#include "common/log.h"
#include "common/status.h"
#include "worker/checkpoint/checkpoint_identity.h"
#include "worker/checkpoint/checkpointer.h"

namespace lockstep::worker {

std::string Checkpointer::BestPath(int64_t step) const {
  return absl::StrCat(settings_.folder, "/", checkpoint::BestName(step));
}

void Checkpointer::KeepBest(int64_t step, const std::string& path, const std::string& sha256,
                            const std::function<bool()>& go_on) {
  const std::string to = BestPath(step);
  absl::Status kept = CheckMounted();
  if (kept.ok() && path != to) kept = settings_.storage->MakeFolder(settings_.folder);
  if (kept.ok() && path != to) kept = CheckBestIsOurs(step, sha256, go_on);
  if (kept.ok() && path != to) kept = settings_.storage->Link(path, to, go_on);
  if (kept.ok()) NoteKept(step, sha256, FileAt(to));
  if (kept.ok() || MatchBest(step, sha256, go_on) == checkpoint::FileMatch::kSame) {
    return RemoveReplacedBest(step);
  }
  LS_LOG_WARNING << "the weights of step " << step
                 << ", the best so far, are not kept with the checkpoints: " << kept.message()
                 << "; training goes on: " << SavingAdvice(kept);
}

void Checkpointer::RemoveReplacedBest(int64_t step) {
  const int64_t former = std::exchange(best_here_, step);
  if (former == 0 || former == step) return;
  // After what was posted before has been published, so that its manifest is there.
  thread_.Post([this, former, job = job_] {
    if (job != nullptr && job->best_step() == former &&
        (job->state() == CheckpointJob::State::kWorking ||
         job->state() == CheckpointJob::State::kDurable)) {
      return;
    }
    if (mark_ == nullptr ? others_.load() : mark_->SeesOthers()) return;
    const absl::StatusOr<checkpoint::FolderContents> contents =
        checkpoint::FindCheckpoints(settings_.storage, settings_.folder);
    if (!contents.ok() || !contents->unread.ok()) return;
    for (const checkpoint::FoundCheckpoint& found : contents->checkpoints) {
      if (found.manifest.best_step == former) return;
    }
    // What stays goes after a later checkpoint, which says why it cannot.
    settings_.storage->Remove(BestPath(former)).IgnoreError();
  });
}

absl::Status Checkpointer::CheckBestIsOurs(int64_t step, const std::string& sha256,
                                           const std::function<bool()>& go_on) {
  checkpoint::Manifest own = settings_.identity;
  own.sequence = sequence_.load();
  own.best_step = step;
  own.best_sha256 = sha256;
  const absl::StatusOr<checkpoint::FolderContents> contents =
      checkpoint::FindCheckpoints(settings_.storage, settings_.folder);
  if (contents.ok()) {
    LS_RETURN_IF_ERROR(CheckNoRivalsBest(own, settings_.takes_over, settings_.folder, *contents));
  }
  if (!others_.load()) return absl::OkStatus();
  // Checkpoints that know of what is there may be still to come.
  const auto there = checkpoint::HashFile(settings_.storage, BestPath(step), go_on);
  if (!there.ok() || there->sha256 == sha256) return absl::OkStatus();
  return absl::AbortedError(absl::StrCat("another run that uses ", settings_.folder,
                                         ", too, may have kept its own as ",
                                         checkpoint::BestName(step)));
}

std::optional<Checkpointer::FileId> Checkpointer::FileAt(const std::string& path) {
  struct stat found {};
  if (::stat(path.c_str(), &found) != 0) return std::nullopt;
  return FileId{found.st_dev, found.st_ino, found.st_size, found.st_mtim.tv_sec,
                found.st_mtim.tv_nsec};
}

void Checkpointer::NoteKept(int64_t step, const std::string& sha256,
                            const std::optional<FileId>& file) {
  absl::MutexLock lock(&best_mu_);
  kept_best_ = {step, sha256, file};
}

checkpoint::FileMatch Checkpointer::MatchBest(int64_t step, const std::string& sha256,
                                              const std::function<bool()>& go_on) {
  const std::optional<FileId> file = FileAt(BestPath(step));  // before it is read
  {
    absl::MutexLock lock(&best_mu_);
    const bool known = kept_best_.step == step && kept_best_.sha256 == sha256;
    if (known && file.has_value() && file == kept_best_.file) return checkpoint::FileMatch::kSame;
  }
  const checkpoint::FileMatch match =
      checkpoint::MatchFile(settings_.storage, BestPath(step), sha256, go_on);
  if (match == checkpoint::FileMatch::kSame) NoteKept(step, sha256, file);
  return match;
}

}  // namespace lockstep::worker
