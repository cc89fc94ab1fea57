// SPDX-License-Identifier: Apache-2.0
#include "worker/checkpoint/candidates.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "checkpoint/checkpoint_place.h"
#include "common/log.h"
#include "common/status.h"
#include "worker/checkpoint/checkpoint_identity.h"

namespace lockstep::worker {
namespace {

using checkpoint::FoundCheckpoint;

// "saved/last" of "saved/last/" and "saved/last/.": what is beside it is found by its name.
std::string WithoutEnd(absl::string_view path) {
  while (path.size() > 1 && (absl::ConsumeSuffix(&path, "/.") || absl::ConsumeSuffix(&path, "/"))) {
  }
  return path.empty() ? "/" : std::string(path);
}

std::string ReadingAdvice(const absl::Status& why) {
  if (absl::IsFailedPrecondition(why)) return "make it readable, or take another path";
  if (absl::IsResourceExhausted(why)) return "raise the limit or make room";
  return "see that its file system is mounted and sound";
}

}  // namespace

std::string InsteadOf(const checkpoint::Manifest& found, const ResumeSource& source) {
  const bool named =
      source.resume != "auto" && source.resume != "never" && found.run != source.identity.run;
  return absl::StrCat("another ", named ? "checkpoint.resume" : "checkpoint.dir",
                      ", or resume: never to begin anew");
}

absl::Status Unreadable(int rank, const std::string& path, const absl::Status& why) {
  if (absl::IsInvalidArgument(why)) return why;  // it was read, and says what does not fit
  return absl::Status(
      why.code(), absl::StrCat("rank ", rank, " cannot read ", path, ": ", why.message(),
                               "; it may be whole, so no older state is used: ", ReadingAdvice(why),
                               ", then start the job again"));
}

absl::Status Candidates::Find(const checkpoint::GoOn& go_on) {
  const bool automatic = source_.resume == "auto";
  LS_RETURN_IF_ERROR(Add(source_.folder, !automatic));
  if (found_.empty() && damaged_.empty()) {
    refused_ = checkpoint::CheckNoneIsLost(source_.storage, source_.run_dir, source_.identity.run,
                                           source_.folder, /*earlier=*/automatic);
    const bool own = !checkpoint::NotedMountPoint(source_.storage, source_.run_dir,
                                                  source_.identity.run, source_.folder)
                          .empty();
    if (own && source_.copies.count() > 1) return absl::OkStatus();
    LS_RETURN_IF_ERROR(refused_);
  }
  TellOfMissing();
  if (automatic || source_.resume == "never" || !found_.empty()) return absl::OkStatus();
  given_ = true;
  LS_RETURN_IF_ERROR(Add(WithoutEnd(source_.resume), false));
  TellOfFarther(go_on);
  if (!found_.empty()) return absl::OkStatus();
  return absl::NotFoundError(absl::StrCat("checkpoint.resume: there is no whole checkpoint at ",
                                          source_.resume, damaged_.empty() ? "" : ": ",
                                          absl::StrJoin(damaged_, "; ")));
}

OwnSaved Candidates::own() const {
  if (!refused_.ok()) return OwnSaved::kLost;
  const bool some = source_.newest.has_value() ||
                    std::any_of(found_.begin(), found_.end(),
                                [this](const FoundCheckpoint& found) { return IsOwn(found); });
  return some ? OwnSaved::kSome : OwnSaved::kNone;
}

void Candidates::KnowOwn(OwnSaved own) {
  own_elsewhere_ = own;
  if (own == OwnSaved::kNone) return;
  std::stable_partition(found_.begin(), found_.end(),
                        [this](const FoundCheckpoint& found) { return IsOwn(found); });
}

absl::StatusOr<const FoundCheckpoint*> Candidates::Next(const checkpoint::GoOn& go_on) {
  while (next_ < found_.size()) {
    const FoundCheckpoint& found = found_[next_++];
    const checkpoint::Manifest identity = IdentityFor(found.manifest, go_on);
    evaluated_other_ = HasEvaluatedOther(found.manifest, identity);
    const std::string difference = DifferenceOf(found.manifest, identity);
    absl::Status refused;
    if (!difference.empty() && source_.reproducible) {
      refused = absl::InvalidArgumentError(
          absl::StrCat("the checkpoint ", found.path, " is of another training: ", difference,
                       "; take the job as it was, ", InsteadOf(found.manifest, source_),
                       " (train.reproducible: false goes on with other numbers)"));
    } else if (IsMadeLonger(found.manifest, identity) && IsHeldByOther(found)) {
      refused = absl::InvalidArgumentError(absl::StrCat(
          "the checkpoint ", found.path, " is of run ", found.manifest.run,
          ", which is shorter and still holds the folder: start the longer one when it has ended"));
    }
    const bool passed = !refused.ok() || own_elsewhere_ == OwnSaved::kLost;
    if (passed && own_elsewhere_ != OwnSaved::kNone && !IsOwn(found)) {
      LS_LOG_WARNING << "not taken, since this run has saved checkpoints of its own: " << found.path
                     << ", of run " << found.manifest.run;
      refused_.Update(refused);
      continue;
    }
    LS_RETURN_IF_ERROR(refused);
    if (!difference.empty()) {
      LS_LOG_WARNING << "goes on from a checkpoint of another training (reproducible: false): "
                     << difference;
    }
    return &found;
  }
  return nullptr;
}

bool Candidates::IsHeldByOther(const FoundCheckpoint& found) const {
  return !IsOwn(found) && !given_ &&
         HoldsFolder(source_.storage, source_.folder, found.manifest.run);
}

checkpoint::Manifest Candidates::IdentityFor(const checkpoint::Manifest& found,
                                             const checkpoint::GoOn& go_on) const {
  checkpoint::Manifest identity = source_.identity;
  if (!found.data.empty() && source_.data != nullptr) identity.data = source_.data(go_on);
  return identity;
}

absl::Status Candidates::Exhausted() const {
  LS_RETURN_IF_ERROR(refused_);
  if (!given_) {
    if (!found_.empty() || !damaged_.empty()) {
      LS_LOG_WARNING << "no checkpoint in " << source_.folder << " is whole; begins at step 0";
    }
    return absl::OkStatus();
  }
  return absl::DataLossError(
      absl::StrCat("checkpoint.resume: no checkpoint at ", source_.resume, " is whole"));
}

absl::Status Candidates::Add(const std::string& folder, bool own_alone) {
  absl::StatusOr<checkpoint::FolderContents> looked =
      checkpoint::FindCheckpoints(source_.storage, folder);
  absl::Status read = looked.ok() ? looked->unread : looked.status();
  if (!read.ok()) return Unreadable(rank_, folder, read);
  checkpoint::FolderContents contents = *std::move(looked);
  for (FoundCheckpoint& found : contents.checkpoints) {
    if (found.path == source_.folder) {
      return absl::InvalidArgumentError(absl::StrCat(
          "checkpoint.dir: ", source_.folder, " is a checkpoint itself, of step ",
          found.manifest.step,
          ": name the folder that it is in, or another one and this as checkpoint.resume"));
    }
    if (own_alone && found.manifest.run != source_.identity.run) {
      of_others_.push_back(std::move(found));
      continue;
    }
    if (IsTooLate(found.manifest)) {
      LS_LOG_WARNING << "not taken: " << found.path << ", which generation "
                     << found.manifest.generation << " wrote when the job had gone on without it";
      continue;
    }
    found_.push_back(std::move(found));
  }
  for (const std::string& why : contents.damaged) {
    LS_LOG_WARNING << "not a whole checkpoint: " << why;
  }
  damaged_ = std::move(contents.damaged);
  return absl::OkStatus();
}

void Candidates::TellOfMissing() const {
  if (!source_.newest.has_value() || source_.copies.count() > 1) return;
  const std::pair wanted(source_.newest->generation(), source_.newest->step());
  for (const FoundCheckpoint& found : found_) {
    if (std::pair(found.manifest.generation, found.manifest.step) >= wanted) return;
  }
  LS_LOG_WARNING << "the newest checkpoint of this run, " << source_.newest->path()
                 << ", is not there";
}

void Candidates::TellOfFarther(const checkpoint::GoOn& go_on) const {
  if (found_.empty()) return;
  for (const FoundCheckpoint& other : of_others_) {
    if (other.manifest.step <= found_.front().manifest.step) continue;
    if (!DifferenceOf(other.manifest, IdentityFor(other.manifest, go_on)).empty()) continue;
    LS_LOG_WARNING << other.path << " is of the same training and step " << other.manifest.step
                   << ", and checkpoint.resume names one of step " << found_.front().manifest.step
                   << ": resume: auto goes on from the newest in checkpoint.dir";
    return;
  }
}

bool Candidates::IsTooLate(const checkpoint::Manifest& manifest) const {
  if (!source_.newest.has_value() || manifest.run != source_.identity.run) return false;
  if (manifest.generation >= source_.previous_generation) return false;
  return std::pair(manifest.generation, manifest.step) >
         std::pair(source_.newest->generation(), source_.newest->step());
}

ReadOutcome OutcomeOf(const absl::Status& status) {
  if (status.ok()) return ReadOutcome::kLoaded;
  return checkpoint::IsDamage(status) ? ReadOutcome::kDamaged : ReadOutcome::kUnreadable;
}

absl::StatusOr<ReadVerdict> AgreeOnReading(Communicator* communicator, const absl::Status& mine,
                                           absl::Time deadline) {
  constexpr int32_t kRanks = 1 << 24;
  int32_t worst = static_cast<int32_t>(OutcomeOf(mine)) * kRanks + communicator->rank();
  LS_RETURN_IF_ERROR(communicator->AllReduce(&worst, 1, DType::kInt32, ReduceOp::kMax,
                                             ReduceOrder::kFixed, deadline));
  return ReadVerdict{static_cast<ReadOutcome>(worst / kRanks), worst % kRanks};
}

absl::StatusOr<checkpoint::Manifest> ReadManifest(checkpoint::Storage* storage,
                                                  const std::string& path) {
  LS_ASSIGN_OR_RETURN(const std::string text,
                      storage->Read(absl::StrCat(path, "/", checkpoint::kManifestName),
                                    checkpoint::kMaxManifestBytes));
  return checkpoint::ParseManifest(text);
}

}  // namespace lockstep::worker
