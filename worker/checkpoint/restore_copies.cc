// SPDX-License-Identifier: Apache-2.0
#include "worker/checkpoint/restore_copies.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "checkpoint/sha256.h"
#include "common/check.h"
#include "common/hash_bytes.h"
#include "common/log.h"
#include "common/status.h"
#include "worker/checkpoint/candidates.h"
#include "worker/checkpoint/checkpoint_identity.h"
#include "worker/control/disk_wait.h"
#include "worker/state/recovery.h"

namespace lockstep::worker {
namespace {

using checkpoint::FoundCheckpoint;

constexpr int64_t kPiece = int64_t{4} << 20;
constexpr int64_t kBehind = int64_t{1} << 40;  // no run has such a number

// What a rank that looks has found; the least of all counts. Versions before the negative ones tell
// of kFound instead.
enum Looked : int32_t { kOwnLost = -2, kOwnSome = -1, kFound = 0, kMissing = 1 };

// What a rank would take; it travels as bytes. Only those have one that write where they look. Of
// versions before the run's hash or `evaluated_other`, which have their place in `path`, that is 0.
struct Row {
  enum What : int32_t { kNone, kTry, kRefuse };
  int64_t sequence = 0;
  int64_t generation = 0;
  int64_t step = 0;
  int32_t what = kNone;
  char path[4072] = {};
  int32_t evaluated_other = 0;
  uint64_t run = 0;  // a hash of the id

  std::tuple<int64_t, int64_t, int64_t> order() const { return {sequence, generation, step}; }
  bool SameAs(const Row& other) const {
    return what == kTry && other.what == kTry && order() == other.order() && run == other.run;
  }
};
static_assert(sizeof(Row) == 4112);

class CopiesRestore {
 public:
  CopiesRestore(Communicator* communicator, const ResumeSource& source, const StateTarget& target,
                ProgressBoard* board, Clock* clock, absl::Time deadline)
      : communicator_(communicator),
        source_(source),
        target_(target),
        board_(board),
        clock_(clock),
        deadline_(deadline),
        rank_(communicator->rank()),
        looks_(source.copies.writes(rank_)),
        candidates_(source, rank_) {}

  absl::StatusOr<std::optional<Restored>> Run() {
    LS_RETURN_IF_ERROR(Look());
    while (true) {
      LS_RETURN_IF_ERROR(Choose());
      if (best_ < 0) return std::optional<Restored>();
      LS_ASSIGN_OR_RETURN(const bool taken, Take());
      if (!taken) continue;
      TellOfOlder();
      return std::optional<Restored>(std::move(restored_));
    }
  }

 private:
  size_t index(int rank) const { return static_cast<size_t>(rank); }
  absl::Status OnDisk(const std::function<absl::Status(const checkpoint::GoOn& go_on)>& work) {
    return WorkOnDisk(board_, clock_, work);
  }
  const Row& RowOf(int rank) const { return rows_[index(source_.copies.WriterOf(rank))]; }

  // A place that the user named need not be on each host. What any host knows of the run's own
  // checkpoints, all do.
  absl::Status Look() {
    absl::Status found;
    if (looks_) {
      found = OnDisk([this](const checkpoint::GoOn& go_on) { return candidates_.Find(go_on); });
    }
    const bool missing = absl::IsNotFound(found);
    Looked looked = missing || !looks_ ? kMissing : kFound;
    if (looks_ && found.ok() && candidates_.own() == OwnSaved::kSome) looked = kOwnSome;
    if (looks_ && found.ok() && candidates_.own() == OwnSaved::kLost) looked = kOwnLost;
    int32_t least = looked;
    LS_RETURN_IF_ERROR(communicator_->AllReduce(&least, 1, DType::kInt32, ReduceOp::kMin,
                                                ReduceOrder::kFixed, deadline_));
    if (missing && least < kMissing) found = absl::OkStatus();
    if (least <= kOwnSome) own_ = least == kOwnLost ? OwnSaved::kLost : OwnSaved::kSome;
    candidates_.KnowOwn(own_);
    const absl::Status told = found.ok() || !missing ? found : absl::UnavailableError("");
    LS_ASSIGN_OR_RETURN(const ReadVerdict verdict, AgreeOnReading(communicator_, told, deadline_));
    LS_RETURN_IF_ERROR(found);
    if (verdict.worst == ReadOutcome::kLoaded) return absl::OkStatus();
    return absl::AbortedError(absl::StrCat("rank ", verdict.rank, " found no way to resume"));
  }

  // Who looks says what it would take next, and all see which is the newest of these.
  absl::Status Choose() {
    absl::Status refused;
    if (looks_ && used_) {
      used_ = false;
      refused = NextRow();
    }
    rows_.assign(index(communicator_->world_size()), Row{});
    LS_RETURN_IF_ERROR(
        communicator_->AllGather(&mine_, rows_.data(), sizeof(Row), DType::kUInt8, deadline_));
    LS_RETURN_IF_ERROR(refused);
    best_ = -1;
    for (int rank = 0; rank < communicator_->world_size(); ++rank) {
      const Row& row = rows_[index(rank)];
      if (row.what == Row::kRefuse) {
        return absl::AbortedError(absl::StrCat("rank ", rank, " found no way to resume"));
      }
      if (row.what != Row::kTry) continue;
      if (best_ < 0 || row.order() > rows_[index(best_)].order()) best_ = rank;
    }
    if (best_ >= 0) return absl::OkStatus();
    const absl::Status exhausted = looks_ ? candidates_.Exhausted() : absl::OkStatus();
    LS_ASSIGN_OR_RETURN(const ReadVerdict verdict,
                        AgreeOnReading(communicator_, exhausted, deadline_));
    LS_RETURN_IF_ERROR(exhausted);
    if (verdict.worst == ReadOutcome::kLoaded) return absl::OkStatus();
    return absl::AbortedError(absl::StrCat("rank ", verdict.rank, " found no way to resume"));
  }

  // What the run goes on from may be of a run before it, though it has saved some itself.
  void TellOfOlder() const {
    if (rank_ != 0 || own_ == OwnSaved::kNone) return;
    if (restored_.manifest.run == source_.identity.run) return;
    LS_LOG_WARNING << "no host has a whole checkpoint of this run, which has saved some; it goes "
                   << "on from one of run " << restored_.manifest.run;
  }

  absl::Status NextRow() {
    mine_ = Row{};
    const FoundCheckpoint* next = nullptr;
    absl::Status looked = OnDisk([&](const checkpoint::GoOn& go_on) -> absl::Status {
      LS_ASSIGN_OR_RETURN(next, candidates_.Next(go_on));
      return absl::OkStatus();
    });
    if (!looked.ok()) mine_.what = Row::kRefuse;
    LS_RETURN_IF_ERROR(looked);
    if (next == nullptr) return absl::OkStatus();
    const FoundCheckpoint& found = *next;
    if (found.path.size() >= sizeof(mine_.path)) {
      mine_.what = Row::kRefuse;
      return absl::InvalidArgumentError("checkpoint.dir: the path is too long");
    }
    mine_.what = Row::kTry;
    mine_.evaluated_other = candidates_.evaluated_other() ? 1 : 0;
    std::tie(mine_.sequence, mine_.generation, mine_.step) = found.manifest.order();
    // Whatever number an earlier run has on this host, those of this run come first.
    if (own_ != OwnSaved::kNone && !candidates_.IsOwn(found)) mine_.sequence -= kBehind;
    found.path.copy(mine_.path, sizeof(mine_.path) - 1);
    // Folders of different runs may have checkpoints of one order.
    mine_.run = HashBytes(found.manifest.run.data(), found.manifest.run.size());
    return absl::OkStatus();
  }

  // All ranks get the state of the newest one, or find that nobody has it whole.
  absl::StatusOr<bool> Take() {
    const Row best = rows_[index(best_)];
    const bool here = RowOf(rank_).SameAs(best);
    if (looks_ && here) used_ = true;
    restored_ = Restored{here ? RowOf(rank_).path : best.path, {}, here};
    // Each host has looked at its own files.
    restored_.evaluated_other = std::any_of(rows_.begin(), rows_.end(), [&best](const Row& row) {
      return row.SameAs(best) && row.evaluated_other != 0;
    });
    absl::Status loaded;
    if (here) loaded = Load();
    // By rank, so that all know whose hosts have read it whole.
    const int32_t mine = here ? static_cast<int32_t>(OutcomeOf(loaded)) : -1;
    std::vector<int32_t> outcomes(index(communicator_->world_size()));
    absl::Status agreed =
        communicator_->AllGather(&mine, outcomes.data(), 1, DType::kInt32, deadline_);
    if (!loaded.ok()) {
      target_.executor->InitState();
      if (!checkpoint::IsDamage(loaded)) return Unreadable(rank_, restored_.path, loaded);
      LS_LOG_WARNING << "the checkpoint " << restored_.path << " is damaged: " << loaded.message();
    }
    if (agreed.ok()) agreed = CheckReadable(outcomes);
    std::vector<int> holders;
    if (agreed.ok()) holders = Holders(outcomes);
    if (!agreed.ok() || holders.empty()) {
      target_.executor->InitState();
      LS_RETURN_IF_ERROR(agreed);
      return false;
    }
    LS_RETURN_IF_ERROR(Spread(holders));
    return true;
  }

  absl::Status Load() {
    const FolderCopies::Share share = source_.copies.ShareOf(rank_);
    LS_ASSIGN_OR_RETURN(restored_.manifest, LoadCheckpoint(source_, restored_.path, share.place,
                                                           share.of, target_, board_, clock_,
                                                           /*communicator=*/nullptr));
    return absl::OkStatus();
  }

  absl::Status CheckReadable(const std::vector<int32_t>& outcomes) const {
    for (size_t rank = 0; rank < outcomes.size(); ++rank) {
      if (outcomes[rank] != static_cast<int32_t>(ReadOutcome::kUnreadable)) continue;
      return absl::AbortedError(
          absl::StrCat("rank ", rank, " cannot read the checkpoint ", restored_.path));
    }
    return absl::OkStatus();
  }

  // The ranks of those folders that all who see them have read whole: each has checked its share.
  std::vector<int> Holders(const std::vector<int32_t>& outcomes) const {
    std::vector<bool> whole(outcomes.size(), true);
    for (size_t rank = 0; rank < outcomes.size(); ++rank) {
      if (outcomes[rank] == 0) continue;
      whole[index(source_.copies.WriterOf(static_cast<int>(rank)))] = false;
    }
    std::vector<int> holders;
    for (size_t rank = 0; rank < outcomes.size(); ++rank) {
      const int writer = source_.copies.WriterOf(static_cast<int>(rank));
      if (whole[index(writer)]) holders.push_back(static_cast<int>(rank));
    }
    return holders;
  }

  // From those who have it to those who do not, with its manifest.
  absl::Status Spread(const std::vector<int>& holders) {
    const bool have = std::count(holders.begin(), holders.end(), rank_) > 0;
    if (holders.size() < rows_.size()) {
      if (!have) target_.executor->BeginLoad();
      absl::Status copied =
          CopyState(communicator_, static_cast<char*>(target_.state),
                    static_cast<int64_t>(target_.plan->state_bytes()), holders, have, deadline_);
      if (!have) target_.executor->EndLoad();
      if (copied.ok()) copied = ShareManifest(holders.front());
      restored_.here = have;
      // Where this rank will have it, as soon as it is saved again.
      if (!have)
        restored_.path =
            absl::StrCat(source_.folder, "/", checkpoint::CheckpointName(restored_.manifest.step));
      if (copied.ok()) copied = ShareBest(holders.front());
      if (!copied.ok()) target_.executor->InitState();
      LS_RETURN_IF_ERROR(copied);
    }
    restored_.here = have;
    if (target_.executor->committed_step() == restored_.manifest.step) return absl::OkStatus();
    return absl::DataLossError("the state that was copied is not that of its checkpoint's step");
  }

  absl::Status ShareManifest(int from) {
    std::string text;
    if (rank_ == from) text = checkpoint::FormatManifest(restored_.manifest);
    int64_t bytes = static_cast<int64_t>(text.size());
    LS_RETURN_IF_ERROR(communicator_->Broadcast(&bytes, 1, DType::kInt64, from, deadline_));
    LS_CHECK(bytes > 0 && bytes <= static_cast<int64_t>(checkpoint::kMaxManifestBytes)) << bytes;
    text.resize(static_cast<size_t>(bytes));
    LS_RETURN_IF_ERROR(
        communicator_->Broadcast(text.data(), bytes, DType::kUInt8, from, deadline_));
    LS_ASSIGN_OR_RETURN(restored_.manifest, checkpoint::ParseManifest(text));
    return absl::OkStatus();
  }

  // Returns whether the best weights may have their name in this rank's folder: its file system is
  // mounted, and what has the name there, if anything, is this run's by its checkpoints. Another
  // run that has saved none yet may have kept its own.
  bool MayTakeBest(const std::string& best) const {
    if (source_.check_mounted != nullptr && !source_.check_mounted().ok()) return false;
    const auto contents = checkpoint::FindCheckpoints(source_.storage, source_.folder);
    if (!contents.ok() || !contents->unread.ok()) return false;
    checkpoint::Manifest own = source_.identity;
    own.sequence = source_.copies.run_number;
    own.best_step = restored_.manifest.best_step;
    own.best_sha256 = restored_.manifest.best_sha256;
    const bool takes_over = source_.takes_over();
    if (!CheckNoRivalsBest(own, takes_over, source_.folder, *contents).ok()) return false;
    const bool known = std::any_of(
        contents->checkpoints.begin(), contents->checkpoints.end(), [&](const auto& found) {
          return found.manifest.run == own.run && found.manifest.best_step == own.best_step;
        });
    return known || takes_over || absl::IsNotFound(source_.storage->Open(best).status());
  }

  // The best weights that the checkpoint knows of come into the folders that lack it, too, where
  // they come whole and take nobody's place: what is there already may be just them. Whoever takes
  // them from there compares their hash, so a failure here says nothing.
  absl::Status ShareBest(int from) {
    if (restored_.manifest.best_sha256.empty()) return absl::OkStatus();
    const std::string folder = restored_.path.substr(0, restored_.path.rfind('/') + 1);
    const std::string best = folder + checkpoint::BestName(restored_.manifest.best_step);
    const std::string part = folder + checkpoint::kSavingPrefix + "best";
    std::unique_ptr<checkpoint::Storage::Source> file;
    std::unique_ptr<checkpoint::Storage::File> to;
    OnDisk([&](const checkpoint::GoOn&) {
      if (rank_ == from) file = Taken(source_.storage->Open(best));
      if (looks_ && !restored_.here && MayTakeBest(best) &&
          source_.storage->MakeFolder(folder).ok()) {
        to = Taken(source_.storage->Create(part));
      }
      return absl::OkStatus();
    }).IgnoreError();
    int64_t bytes = file == nullptr ? 0 : static_cast<int64_t>(file->size());
    LS_RETURN_IF_ERROR(communicator_->Broadcast(&bytes, 1, DType::kInt64, from, deadline_));
    std::vector<char> piece(static_cast<size_t>(std::min(bytes, kPiece)));
    bool good = to != nullptr;
    checkpoint::Sha256 hash;
    for (int64_t at = 0; at < bytes; at += kPiece) {
      const int64_t size = std::min(kPiece, bytes - at);
      if (file != nullptr) {
        OnDisk([&](const checkpoint::GoOn&) {
          return file->ReadAt(static_cast<uint64_t>(at), piece.data(), static_cast<size_t>(size));
        }).IgnoreError();
      }
      LS_RETURN_IF_ERROR(
          communicator_->Broadcast(piece.data(), size, DType::kUInt8, from, deadline_));
      board_->Moved();
      if (!good) continue;
      good = OnDisk([&](const checkpoint::GoOn&) {
               hash.Update(piece.data(), static_cast<size_t>(size));
               return to->Append(piece.data(), static_cast<size_t>(size));
             }).ok();
    }
    if (to == nullptr) return absl::OkStatus();
    good = good && hash.FinishHex() == restored_.manifest.best_sha256;
    OnDisk([&](const checkpoint::GoOn& go_on) {
      good = good && to->Sync().ok();
      to.reset();  // over SMB its lock forbids reading
      if (good) source_.storage->Link(part, best, go_on).IgnoreError();
      return source_.storage->Remove(part);
    }).IgnoreError();
    return absl::OkStatus();
  }

  template <typename T>
  static std::unique_ptr<T> Taken(absl::StatusOr<std::unique_ptr<T>> made) {
    return made.ok() ? *std::move(made) : nullptr;
  }

  Communicator* const communicator_;
  const ResumeSource& source_;
  const StateTarget& target_;
  ProgressBoard* const board_;
  Clock* const clock_;
  const absl::Time deadline_;
  const int rank_;
  const bool looks_;  // this rank does, for all who see its folder
  Candidates candidates_;
  OwnSaved own_ = OwnSaved::kNone;
  bool used_ = true;  // the next candidate is to be looked at
  Row mine_;
  std::vector<Row> rows_;
  int best_ = -1;  // who has the newest one; -1: nobody has any
  Restored restored_;
};

}  // namespace

absl::StatusOr<std::optional<Restored>> RestoreFromCopies(Communicator* communicator,
                                                          const ResumeSource& source,
                                                          const StateTarget& target,
                                                          ProgressBoard* board, Clock* clock,
                                                          absl::Time deadline) {
  if (target.present != nullptr) {
    return absl::UnimplementedError(
        "train.zero_stage: 1 over several hosts goes on from a checkpoint.dir that all share");
  }
  return CopiesRestore(communicator, source, target, board, clock, deadline).Run();
}

}  // namespace lockstep::worker
