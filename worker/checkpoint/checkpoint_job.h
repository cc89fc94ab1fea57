// SPDX-License-Identifier: Apache-2.0
// One rank's part in writing one checkpoint: copied from the state, written and flushed by the
// checkpoint thread. The rank that publishes it writes the manifest when all parts are there.
//
// Thread-safety: as each member says.
#ifndef LOCKSTEP_WORKER_CHECKPOINT_CHECKPOINT_JOB_H_
#define LOCKSTEP_WORKER_CHECKPOINT_CHECKPOINT_JOB_H_

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/manifest.h"
#include "checkpoint/sha256.h"
#include "checkpoint/snapshot.h"
#include "checkpoint/storage.h"
#include "worker/checkpoint/checkpoint_layout.h"

namespace lockstep::worker {

// Asks whether what is there whole may appear under its name, as `path`. Blocks. Errors: Aborted
// when a later generation of the job goes on without it.
using MayPublish =
    std::function<absl::Status(const checkpoint::Manifest& manifest, const std::string& path)>;

class CheckpointJob {
 public:
  struct Settings {
    checkpoint::Storage* storage = nullptr;
    std::string folder;
    std::string writer;  // names what is being put together, as for SavingName
    std::shared_ptr<const CheckpointLayout> layout;
    int part = 0;
    // But for the data and the files; the sequence is 0 while it is not known.
    checkpoint::Manifest manifest;
    // Sets what the data was when the run began. May be empty: not known.
    std::function<void(checkpoint::Manifest*)> set_data;
    // Compares what is kept as the manifest's best weights with them. May be empty: none are.
    std::function<checkpoint::FileMatch(const std::function<bool()>& go_on)> match_best;
    int keep = 1;
    bool takes_over = false;  // as in RunNumberOf
    // Checks that the folder's file system is mounted; asked before anything is written. May be
    // empty.
    std::function<absl::Status()> check_mounted;
    MayPublish may_publish;  // may be empty
    // The state region, all of which is there, where nothing is to write it before the job has
    // ended, or was cancelled: it is written from there, without a copy. Null: from the copy.
    const char* in_place = nullptr;
    // Whether the job before this one said that the links for people could not be made: then they
    // are not told of again until they can. The checkpoint thread's; may be null.
    bool* links_told = nullptr;
    // Returns whether no other run saves in the folder; false where that cannot be told. The
    // checkpoint thread. May be empty: it cannot.
    std::function<bool()> alone;
  };
  enum class State { kWorking, kDurable, kPublished, kFailed };

  // Where byte `offset` of the state lies, and how much of `*bytes` from there on.
  using Locate = std::function<const char*(size_t offset, size_t* bytes)>;
  // All of it at `state`.
  static Locate In(const void* state);
  // Asks `locate` here; what it names outlives the copy, and `snapshot` the job.
  CheckpointJob(Settings settings, const Locate& locate, checkpoint::Snapshot* snapshot);

  // Copies what is left of this rank's part of the state, piece by piece; two threads share the
  // work. Thread-safe.
  void Copy();
  // Copies too, and blocks until the whole copy is there: whoever waits does not wait for a thread
  // that the machine has no time for. Thread-safe.
  void WaitForCopy();

  // Writes and flushes this rank's part. The checkpoint thread. A failure is said once.
  void Write();
  // Makes the checkpoint, whose parts are all there, and removes old ones, unless a newer one is
  // there or it is not to be. The checkpoint thread of the rank that writes part 0.
  absl::StatusOr<checkpoint::FoundCheckpoint> Publish();
  // Removes what there is of the checkpoint. The checkpoint thread.
  void Remove();

  // Has Write end soon. Thread-safe.
  void Cancel() { cancelled_.store(true, std::memory_order_relaxed); }
  // Thread-safe.
  State state() const { return state_.load(std::memory_order_acquire); }
  // Counts what was written so far. Thread-safe.
  int64_t moves() const { return moves_.load(std::memory_order_relaxed); }
  // Notes that the steps waited for the copy. Thread-safe.
  void NoteHeld(absl::Duration time) {
    held_.fetch_add(absl::ToInt64Nanoseconds(time), std::memory_order_relaxed);
  }
  absl::Duration held() const { return absl::Nanoseconds(held_.load(std::memory_order_relaxed)); }
  int64_t step() const { return settings_.manifest.step; }
  int64_t best_step() const { return settings_.manifest.best_step; }
  int parts() const { return settings_.layout->parts(); }

 private:
  bool GoOn() {
    moves_.fetch_add(1, std::memory_order_relaxed);
    return !cancelled_.load(std::memory_order_relaxed);
  }
  // The folder that the files are written into, held so that nobody clears it away.
  absl::Status MakeHeldFolder();
  // Holds the file beside it, which is made where it is not there. Null, or NotFound: somebody
  // clears up.
  absl::StatusOr<std::unique_ptr<checkpoint::Storage::Hold>> HoldBeside();
  // Gives up what is held of it, and removes the file where that is wanted.
  void Release(bool remove);
  absl::Status WriteFiles();
  absl::StatusOr<std::vector<checkpoint::FileRecord>> Collect();
  // Gives the manifest its place among those in the folder. Errors: Aborted when a newer one is
  // there, as this rank stood still while its job went on, or that of another training that has
  // the folder at the same time.
  absl::Status TakeItsPlace(checkpoint::Manifest* manifest);
  absl::StatusOr<checkpoint::FoundCheckpoint> TryToPublish();
  // After it was made, with that manifest: the links for people.
  absl::Status PointToNewest(const checkpoint::Manifest& manifest);
  // And then what is older.
  absl::Status RemoveOld(const checkpoint::Manifest& manifest);
  // Has the link for people name the best weights, where they are there.
  absl::Status PointToBest(const checkpoint::Manifest& manifest);
  std::string saving() const {
    return checkpoint::SavingName(settings_.manifest.step, settings_.writer);
  }
  std::string saving_path() const { return absl::StrCat(settings_.folder, "/", saving()); }
  // A stretch of the state, and where its copy lies.
  struct Piece {
    const char* from = nullptr;
    size_t to = 0;
    size_t bytes = 0;
  };
  void Fail(const absl::Status& why);

  const Settings settings_;
  checkpoint::Snapshot* const snapshot_;
  std::unique_ptr<checkpoint::Storage::Hold> hold_, hold_beside_;
  std::vector<checkpoint::FileRecord> records_;  // of this rank's part
  std::atomic<State> state_{State::kWorking};
  std::atomic<bool> cancelled_{false};
  std::atomic<int64_t> moves_{0};
  std::atomic<int64_t> held_{0};
  std::vector<Piece> pieces_;
  std::atomic<size_t> next_piece_{0};
  std::atomic<size_t> copied_pieces_{0};
  mutable absl::Mutex mu_;
  bool copied_ ABSL_GUARDED_BY(mu_) = false;
};

// Returns what is to be done about an error of saving, for people.
std::string SavingAdvice(const absl::Status& why);

}  // namespace lockstep::worker

#endif  // LOCKSTEP_WORKER_CHECKPOINT_CHECKPOINT_JOB_H_
