// SPDX-License-Identifier: Apache-2.0
#include "worker/checkpoint/checkpointer.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/checkpoint_place.h"
#include "common/check.h"
#include "common/log.h"
#include "common/status.h"
#include "google/protobuf/util/json_util.h"
#include "proto/message_json.h"
#include "worker/checkpoint/checkpoint_identity.h"
#include "worker/checkpoint/run_data.h"
#include "worker/control/disk_wait.h"
#include "worker/text/bytes_text.h"

namespace lockstep::worker {
namespace {

// A copy up to this is made at once: handing it over costs as much.
constexpr size_t kCopyAtOnce = size_t{8} << 20;
// One line about a checkpoint in so long; the others are for debugging.
constexpr absl::Duration kLineEvery = absl::Seconds(10);
// For one's turn to save alone; without it the same is written twice.
constexpr absl::Duration kTurn = absl::Seconds(30);

// Returns where the folder's file system is to be mounted: as it is now, or, where there is no
// checkpoint, as the run noted when it saved some. Empty: that cannot be seen.
std::string MountPointOf(const Checkpointer::Settings& settings) {
  const std::string noted = checkpoint::NotedMountPoint(settings.storage, settings.run_dir,
                                                        settings.identity.run, settings.folder);
  std::string now = settings.storage->MountPoint(settings.folder).value_or("");
  if (noted.empty() || noted == now) return now;
  const absl::StatusOr<checkpoint::FolderContents> contents =
      checkpoint::FindCheckpoints(settings.storage, settings.folder);
  const bool none = contents.ok() && contents->checkpoints.empty() && contents->unread.ok();
  return none ? noted : now;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Checkpointer>> Checkpointer::Create(const Settings& settings) {
  // The range for any number of workers; memory comes with a part's size.
  LS_ASSIGN_OR_RETURN(std::unique_ptr<checkpoint::Snapshot> snapshot,
                      checkpoint::Snapshot::Reserve(settings.plan->state_bytes()));
  return std::unique_ptr<Checkpointer>(new Checkpointer(settings, std::move(snapshot)));
}

Checkpointer::Checkpointer(const Settings& settings, std::unique_ptr<checkpoint::Snapshot> snapshot)
    : settings_(settings),
      snapshot_(std::move(snapshot)),
      newest_(settings.clock->Now()),
      mount_point_(MountPointOf(settings)),
      thread_("checkpoint", [this] {
        snapshot_->Touch(settings_.ready_bytes, [this] { return writing_.load() == 0; });
      }) {}

Checkpointer::~Checkpointer() {
  leaving_.store(true);
  if (job_ != nullptr && parts_ > 1) job_->Cancel();
}

size_t Checkpointer::CopyBytes(const engine::Plan& plan, int least_workers) {
  return CheckpointLayout(&plan, CheckpointLayout::PartsFor(plan.state_bytes(), least_workers))
      .MostBytes();
}

absl::Status Checkpointer::CheckMounted() const {
  if (mount_point_.empty()) return absl::OkStatus();
  LS_ASSIGN_OR_RETURN(const std::string now, settings_.storage->MountPoint(settings_.folder));
  if (now == mount_point_) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat(settings_.folder, " lies on the file system mounted at ", now,
                   ", and lay on that of ", mount_point_, " before: is that mounted?"));
}

std::string Checkpointer::Writer() const {
  const std::string all = absl::StrCat(settings_.identity.run, "-g", generation_);
  // Who keeps a copy may have others beside it: a full disk hides who shares a folder.
  return alone_ || copies_.count() > 1 ? absl::StrCat(all, "-", settings_.worker) : all;
}

void Checkpointer::Enter(const Communicator& communicator, int64_t step,
                         const std::string& restored, const FolderCopies& copies) {
  // A checkpoint that rank 0 writes alone is whole without the others. Whoever does not know how
  // it ended asks for another.
  if (std::exchange(under_way_, false)) {
    owed_ = true;
    if (parts_ > 1) Drop();
  }
  // All know that such a one is whole; who was to give it its name may have died before.
  if (std::exchange(elsewhere_, false)) {
    thread_.Post([this, step = begun_] { LookWhetherPublished(step); });
  }
  const bool prepared = entered_ && Publishes();
  copies_ = copies;
  rank_ = communicator.rank();
  world_ = communicator.world_size();
  generation_ = communicator.generation();
  best_here_ = 0;
  if (CannotSave() && rank_ == 0) {
    LS_LOG_WARNING << "no checkpoint is saved: train.zero_stage: 1 over several hosts needs a "
                   << "checkpoint.dir that all of them share, and " << settings_.folder
                   << " is not, or a full or unwritable disk hides it; training goes on: mount it "
                   << "on all hosts, with room to write";
  }
  const std::string own = absl::StrCat(settings_.folder, "/", checkpoint::CheckpointName(step));
  if (restored == own) restored_step_ = step;
  if (copies_.run_number > 0) sequence_.store(copies_.run_number);
  const bool first = !std::exchange(entered_, true);
  if (first) newest_ = settings_.clock->Now();
  if (first) began_ = began_ || step == 0 || !restored.empty();
  const bool marks = Publishes() && !std::exchange(marked_, true);
  if (marks) thread_.Post([this] { LookForOthers(); });
  const bool prepares = copies_.count() > 1 ? !prepared : first;
  if (prepares && Publishes()) thread_.Post([this, writer = Writer()] { Prepare(writer); });
  // Now, since what the first checkpoint finds later may not be what the run began with.
  if (Publishes() && !std::exchange(data_asked_, true)) thread_.Post([this] { FindDataOfRun(); });
}

void Checkpointer::LookForOthers() {
  if (!CheckMounted().ok()) return;  // saving says so
  absl::StatusOr<std::unique_ptr<FolderMark>> mark =
      FolderMark::Leave(settings_.storage, settings_.folder, settings_.identity.run);
  if (!mark.ok() || *mark == nullptr) return;  // nobody can be told apart; saving says what fails
  mark_ = *std::move(mark);
  for (const std::string& other : mark_->Others()) {
    others_.store(true);
    LS_LOG_WARNING << settings_.folder << " is used by run " << other
                   << ", too, and only one of them can save there: give each job a checkpoint.dir "
                   << "of its own";
  }
}

void Checkpointer::Prepare(const std::string& writer) {
  // Older checkpoints stay: none of this run is there yet to take their place.
  absl::Status ready = CheckMounted();
  if (ready.ok()) ready = settings_.storage->MakeFolder(settings_.folder);
  if (ready.ok()) {
    const absl::Status tidied = checkpoint::Tidy(settings_.storage, settings_.folder, writer, -1);
    if (!tidied.ok()) {
      LS_LOG_WARNING << "what writers that are gone left stays in " << settings_.folder << ": "
                     << tidied.message();
    }
    // Found now, so that one that stands still meanwhile does not become a later run than its own.
    const absl::StatusOr<checkpoint::FolderContents> contents =
        checkpoint::FindCheckpoints(settings_.storage, settings_.folder);
    if (contents.ok() && sequence_.load() == 0) {
      sequence_.store(RunNumberOf(settings_.identity, settings_.takes_over, *contents));
    }
    return;
  }
  LS_LOG_WARNING << "checkpoints cannot be saved now: " << ready.message()
                 << "; training goes on: " << SavingAdvice(ready);
}

void Checkpointer::FindDataOfRun() {
  if (data_found_) return;
  const absl::StatusOr<checkpoint::FolderContents> contents =
      checkpoint::FindCheckpoints(settings_.storage, settings_.folder);
  const checkpoint::FoundCheckpoint* const found =
      contents.ok() ? FindRunData(*contents, settings_.identity.run) : nullptr;
  if (found != nullptr) {
    // Who saved before may have begun with the run; this worker may not.
    data_ = found->manifest.data;
    data_stamp_ = found->manifest.data_stamp;
  } else if (began_ && settings_.data != nullptr) {
    data_ = settings_.data([this] {
      data_moves_.fetch_add(1);
      return !leaving_.load() && !hurries_.load();
    });
    if (!data_.empty()) data_stamp_ = settings_.identity.data_stamp;
  }
  // What cannot be read now may say it later.
  data_found_ = !data_.empty() || (contents.ok() && contents->unread.ok());
}

void Checkpointer::SetDataOfRun(checkpoint::Manifest* manifest) {
  FindDataOfRun();
  manifest->data = data_;
  manifest->data_stamp = data_stamp_;
}

void Checkpointer::NotePlace() {
  if (settings_.run_dir.empty() || std::exchange(noted_, true)) return;
  const absl::Status noted = checkpoint::NoteCheckpointPlace(
      settings_.storage, settings_.run_dir, settings_.identity.run, settings_.folder);
  if (noted.ok()) return;
  LS_LOG_WARNING << "not noted where checkpoints are: " << noted.message()
                 << "; a folder that is not mounted would look like an empty one";
}

void Checkpointer::NoteDue(int64_t step) {
  const bool published =
      job_ != nullptr && job_->step() == step && job_->state() == CheckpointJob::State::kPublished;
  if (Publishes() && !published && restored_step_ != step) owed_ = true;
}

void Checkpointer::LookWhetherPublished(int64_t step) {
  // A publisher that lives, and is slower than this, saves it beside the one that is made for it.
  const absl::StatusOr<std::string> saved = FindSaved(step);
  if (!saved.ok() || saved->empty()) lost_.store(step);
}

bool Checkpointer::WantsSave() const {
  if (under_way_ || CannotSave()) return false;
  const bool lost = begun_ > 0 && lost_.load() == begun_;
  if (owed_ || lost) return writing_.load() == 0;
  return settings_.every != absl::InfiniteDuration() &&
         settings_.clock->Now() - newest_ >= settings_.every;
}

SavedPart Checkpointer::part() const {
  if (!under_way_) return SavedPart::kNone;
  if (busy_) return SavedPart::kFailed;
  if (job_ == nullptr) return SavedPart::kNone;
  switch (job_->state()) {
    case CheckpointJob::State::kFailed:
      return SavedPart::kFailed;
    case CheckpointJob::State::kPublished:
      return SavedPart::kDurable;
    case CheckpointJob::State::kDurable:
      return parts_ > 1 ? SavedPart::kDurable : SavedPart::kNone;
    case CheckpointJob::State::kWorking:
      break;
  }
  return SavedPart::kNone;
}

void Checkpointer::AtBoundary(int64_t step, bool due, const StepHeader::Contents& header,
                              const Decided& decided) {
  if (under_way_) {
    const bool all = header.parts_durable + header.parts_failed == parts_;
    if (header.parts_failed > 0 && (all || copies_.count() == 1)) owed_ = busy_;
    if (header.parts_failed > 0 && copies_.count() == 1) {
      Drop();
    } else if (all) {
      Conclude(header.parts_durable);
    }
  }
  if ((!due && !header.save) || CannotSave()) return;
  if (under_way_) {
    owed_ = true;
  } else {
    Begin(step, decided);
  }
}

void Checkpointer::Conclude(int durable) {
  const bool whole = job_ != nullptr && !busy_ && job_->state() != CheckpointJob::State::kFailed;
  if (Saves() && !whole && durable > 0) {
    LS_LOG_WARNING << "host " << settings_.host << " has no copy of the newest checkpoint; "
                   << durable << " of " << parts_ << " folders have it";
  }
  if (durable == 0 || (Saves() && !whole)) return Drop();
  under_way_ = false;
  elsewhere_ = parts_ > 1 && copies_.count() == 1 && !Publishes();
  if (Publishes() && parts_ > 1) {
    thread_.Post([this, job = job_, begun = newest_] { Publish(job.get(), begun); });
  }
}

void Checkpointer::Begin(int64_t step, const Decided& decided, bool in_place) {
  parts_ = Parts();
  owed_ = busy_ = elsewhere_ = false;
  under_way_ = true;
  begun_ = step;
  newest_ = settings_.clock->Now();
  job_.reset();
  if (!Saves()) return;
  if (writing_.load() > 0) {  // for an earlier generation
    busy_ = true;
    return;
  }
  if (settings_.publish) {
    if (const absl::Status published = settings_.publish(); !published.ok()) {
      LS_LOG_ERROR << "no checkpoint of step " << step << ": " << published.message();
      busy_ = true;
      return;
    }
  }
  const bool copies = copies_.count() > 1;
  const int files = copies ? 1 : parts_;
  const int part = copies ? 0 : rank_;
  if (layout_ == nullptr || layout_->parts() != files) {
    layout_ = std::make_shared<CheckpointLayout>(settings_.plan, files);
  }
  CheckpointJob::Settings own;
  own.storage = settings_.storage;
  own.folder = settings_.folder;
  own.writer = Writer();
  own.layout = layout_;
  own.part = part;
  own.keep = settings_.keep;
  in_place_ = in_place && (settings_.in_parts == nullptr || !settings_.in_parts());
  if (in_place_) own.in_place = static_cast<const char*>(settings_.state);
  own.takes_over = settings_.takes_over;
  own.check_mounted = [this] { return CheckMounted(); };
  own.manifest = settings_.identity;
  own.manifest.step = step;
  own.manifest.sequence = sequence_.load();
  own.manifest.generation = generation_;
  own.may_publish = settings_.may_publish;
  own.links_told = &links_told_;
  own.alone = [this] { return mark_ != nullptr && !mark_->SeesOthers(); };
  own.set_data = [this](checkpoint::Manifest* manifest) { SetDataOfRun(manifest); };
  own.manifest.evaluated_step = decided.evaluated_step;
  own.manifest.best_step = decided.best_step;
  own.manifest.best_sha256 = decided.best_sha256;
  own.match_best = [this, step = decided.best_step,
                    sha256 = decided.best_sha256](const std::function<bool()>& go_on) {
    return MatchBest(step, sha256, go_on);
  };
  if (decided.eval.has_value()) own.manifest.eval = MessageJson(*decided.eval);
  job_ = std::make_shared<CheckpointJob>(
      std::move(own),
      settings_.locate != nullptr ? settings_.locate : CheckpointJob::In(settings_.state),
      snapshot_.get());
  copying_ = !in_place_ && layout_->BytesOf(part) > kCopyAtOnce;
  if (!copying_) {
    job_->Copy();
    job_->NoteHeld(settings_.clock->Now() - newest_);
  }
  writing_.fetch_add(1);
  const bool alone = parts_ == 1;
  thread_.Post([this, job = job_, copy = copying_, begun = newest_, first = rank_ == 0, alone] {
    if (copy) job->Copy();
    job->Write();
    writing_.fetch_sub(1);
    if (job->state() != CheckpointJob::State::kDurable) return;
    if (settings_.on_durable != nullptr) settings_.on_durable(job->step(), first);
    if (alone) Publish(job.get(), begun);
  });
}

void Checkpointer::Publish(CheckpointJob* job, absl::Time begun) {
  const absl::StatusOr<checkpoint::FoundCheckpoint> made = job->Publish();
  if (!made.ok()) return;  // said
  sequence_.store(made->manifest.sequence);
  NotePlace();
  const absl::Time now = settings_.clock->Now();
  const std::string line = absl::StrFormat(
      "saved the state after step %d as %s: %s, held the steps for %.1f ms, durable after %.3f s",
      job->step(), made->path, BytesText(static_cast<double>(settings_.plan->state_bytes())),
      absl::ToDoubleMilliseconds(job->held()), absl::ToDoubleSeconds(now - begun));
  if (now - told_ < kLineEvery) {
    LS_LOG_DEBUG << line;
    return;
  }
  told_ = now;
  LS_LOG_INFO << line;
}

void Checkpointer::Drop() {
  under_way_ = false;
  WaitForCopy();
  if (job_ == nullptr || job_->state() == CheckpointJob::State::kPublished) return;
  job_->Cancel();
  if (Publishes()) thread_.Post([job = job_] { job->Remove(); });
  job_.reset();
}

void Checkpointer::WaitForCopy() {
  if (std::exchange(in_place_, false) && job_ != nullptr) job_->Cancel();
  if (!std::exchange(copying_, false)) return;
  const absl::Time start = settings_.clock->Now();
  job_->WaitForCopy();
  job_->NoteHeld(settings_.clock->Now() - start);
}

void Checkpointer::WaitForThread() {
  DiskWait wait(settings_.board, settings_.clock);
  while (!thread_.WaitIdle(kDiskLook)) {
    if (wait.Look((job_ == nullptr ? 0 : job_->moves()) + data_moves_.load())) continue;
    LS_LOG_WARNING << "the disk of " << settings_.folder << " has taken nothing for "
                   << absl::FormatDuration(kDiskPatience) << "; the last checkpoint is given up";
    return;
  }
}

absl::Status Checkpointer::Settle(Communicator* communicator, absl::Time deadline) {
  WaitForThread();
  const bool good = !busy_ && job_ != nullptr &&
                    (job_->state() == CheckpointJob::State::kDurable ||
                     job_->state() == CheckpointJob::State::kPublished);
  int32_t durable = good ? 1 : 0;
  LS_RETURN_IF_ERROR(communicator->AllReduce(&durable, 1, DType::kInt32, ReduceOp::kSum,
                                             ReduceOrder::kFixed, deadline));
  if (durable < parts_ && copies_.count() == 1) {
    Drop();
  } else {
    Conclude(durable);
  }
  under_way_ = false;
  WaitForThread();
  return absl::OkStatus();
}

absl::StatusOr<int64_t> Checkpointer::SavedStep(Communicator* communicator, absl::Time deadline) {
  int64_t step = std::numeric_limits<int64_t>::max();
  if (Publishes()) {
    const bool published = job_ != nullptr && job_->state() == CheckpointJob::State::kPublished;
    step = published ? job_->step() : restored_step_;
  }
  LS_RETURN_IF_ERROR(communicator->AllReduce(&step, 1, DType::kInt64, ReduceOp::kMin,
                                             ReduceOrder::kFixed, deadline));
  return step;
}

absl::Status Checkpointer::Complete(Communicator* communicator, int64_t step,
                                    const Decided& decided, absl::Time deadline, bool in_place) {
  if (CannotSave()) return absl::OkStatus();
  settings_.board->Enter(SAVING);
  WaitForThread();
  if (under_way_) LS_RETURN_IF_ERROR(Settle(communicator, deadline));
  LS_ASSIGN_OR_RETURN(const int64_t saved, SavedStep(communicator, deadline));
  if (saved == step) return absl::OkStatus();
  Begin(step, decided, in_place);
  if (!in_place_) WaitForCopy();
  LS_RETURN_IF_ERROR(Settle(communicator, deadline));
  // Nobody leaves before it is known to be whole, or not.
  LS_ASSIGN_OR_RETURN(const int64_t newest, SavedStep(communicator, deadline));
  if (newest != step && rank_ == 0) {
    LS_LOG_WARNING << "the state after step " << step
                   << ", the last one of this run, is not saved: nothing goes on from it";
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> Checkpointer::FindSaved(int64_t step) const {
  LS_ASSIGN_OR_RETURN(const checkpoint::FolderContents contents,
                      checkpoint::FindCheckpoints(settings_.storage, settings_.folder));
  for (const checkpoint::FoundCheckpoint& found : contents.checkpoints) {
    const bool own = found.manifest.run == settings_.identity.run;
    if (own && found.manifest.step >= step) return found.path;
  }
  return std::string();
}

absl::StatusOr<std::string> Checkpointer::SaveAlone(int64_t step, const Decided& decided) {
  if (std::exchange(under_way_, false) && parts_ > 1) Drop();  // the others are gone
  Hurry();
  WaitForThread();
  alone_ = true;
  copies_ = {};
  rank_ = 0;
  world_ = 1;
  LS_RETURN_IF_ERROR(CheckMounted());
  LS_RETURN_IF_ERROR(settings_.storage->MakeFolder(settings_.folder));
  std::unique_ptr<checkpoint::Storage::Hold> turn;
  const absl::Time patience = settings_.clock->Now() + kTurn;
  while (turn == nullptr && settings_.clock->Now() < patience) {
    auto taken = settings_.storage->TakeHold(settings_.folder, /*exclusive=*/true);
    if (absl::IsUnimplemented(taken.status())) break;  // nobody sees whose turn it is
    LS_ASSIGN_OR_RETURN(turn, std::move(taken));
    if (turn == nullptr) settings_.clock->Sleep(kDiskLook);
  }
  LS_ASSIGN_OR_RETURN(std::string saved, FindSaved(step));
  if (!saved.empty()) return saved;
  Begin(step, decided, /*in_place=*/true);
  if (!busy_ && !in_place_) WaitForCopy();
  WaitForThread();
  under_way_ = false;
  LS_ASSIGN_OR_RETURN(saved, FindSaved(step));
  if (!saved.empty()) return saved;
  return absl::UnavailableError(absl::StrCat("it could not be written to ", settings_.folder));
}

}  // namespace lockstep::worker
