// SPDX-License-Identifier: Apache-2.0
// Saves the training state while training goes on. After a step on which all ranks agree each
// copies its part of the state; a thread of its own writes and flushes the copy, and when the step
// header has told that all parts are durable, rank 0's publishes the checkpoint. The copy is made
// beside the next step's forward and backward pass, which never write the state; the update waits
// for it.
//
//   at each step:    wishes.save = WantsSave(), wishes.part = part()   // into the step header
//   before updates:  WaitForCopy()
//   after each step: AtBoundary(step, due, header, decided)
//   at the end:      Complete(communicator, decided)
//
// Where hosts do not share the folder (FolderCopies) one rank for each folder saves the whole state
// there, and all copies are published when all are durable, or have failed. Where the state is in
// parts (Settings::in_parts) too, nothing is saved.
//
// One checkpoint is under way at a time; one that falls due meanwhile is saved after it. What a
// generation's end cut short is saved in the next one. A checkpoint that cannot be written costs
// the checkpoint and a warning, never the run.
//
// Thread-safety: confined to the worker's main thread, but for the thread "checkpoint" that it
// owns.
#ifndef LOCKSTEP_WORKER_CHECKPOINT_CHECKPOINTER_H_
#define LOCKSTEP_WORKER_CHECKPOINT_CHECKPOINTER_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "checkpoint/manifest.h"
#include "checkpoint/sha256.h"
#include "checkpoint/snapshot.h"
#include "checkpoint/storage.h"
#include "checkpoint/task_thread.h"
#include "collectives/communicator.h"
#include "common/clock.h"
#include "engine/engine.h"
#include "proto/coordinator.pb.h"
#include "worker/checkpoint/checkpoint_job.h"
#include "worker/checkpoint/checkpoint_layout.h"
#include "worker/checkpoint/folder_copies.h"
#include "worker/checkpoint/folder_mark.h"
#include "worker/control/progress_board.h"
#include "worker/control/step_header.h"

namespace lockstep::worker {

class Checkpointer {
 public:
  struct Settings {
    checkpoint::Storage* storage = checkpoint::Storage::Disk();
    Clock* clock = nullptr;  // of deadlines and of `every`
    std::string folder;
    std::string run_dir;  // of this run, which notes there where its checkpoints are; empty: not
    std::string host;     // for messages
    std::string worker;   // names this rank among all that save in the folder
    int keep = 3;
    bool takes_over = false;                          // the folder, whatever was saved there
    absl::Duration every = absl::InfiniteDuration();  // by the clock
    checkpoint::Manifest identity;                    // of the job
    const engine::Plan* plan = nullptr;
    const void* state = nullptr;  // the state region
    // Where the state's bytes lie when that is not there alone. May be empty.
    CheckpointJob::Locate locate;
    // Returns whether no rank of the generation need have all of them, so that none can save a copy
    // of its own; the same on all ranks. May be empty: each can.
    std::function<bool()> in_parts;
    // Brings the state region up to date before it is copied. May be empty.
    std::function<absl::Status()> publish;
    ProgressBoard* board = nullptr;
    size_t part_bytes = CheckpointLayout::kPartBytes;
    // Bytes of the copy that get their memory now, not with the first checkpoint.
    size_t ready_bytes = 0;
    // Called by the thread when this rank's part is durable and the checkpoint is not whole yet:
    // `first` on the rank of part 0, which makes it whole. May be empty.
    std::function<void(int64_t step, bool first)> on_durable;
    // As in CheckpointJob; in the thread. May be empty.
    MayPublish may_publish;
    // Returns the records of the job's data as it was when this worker opened it, or none: not
    // known. Called by the thread, of a rank that makes checkpoints appear alone; blocks for the
    // disk, and calls `go_on` meanwhile: false ends it. May be empty. Its stamp is the identity's.
    std::function<std::vector<checkpoint::DataRecord>(const checkpoint::GoOn& go_on)> data;
  };
  // What has been decided about evaluations at a boundary.
  struct Decided {
    std::optional<EvalResult> eval;
    int64_t evaluated_step = 0;
    int64_t best_step = 0;
    std::string best_sha256;  // of its weights' file; empty: not known
  };

  // Reserves the copy's address range and starts the thread. What `settings` points to outlives
  // this. Errors: ResourceExhausted.
  static absl::StatusOr<std::unique_ptr<Checkpointer>> Create(const Settings& settings);
  // Waits for what is being written.
  ~Checkpointer();

  // A generation begins in which this rank's state is that after `step`; `restored` is the path of
  // the checkpoint that this rank has just read it from, in its folder or elsewhere; empty: none.
  void Enter(const Communicator& communicator, int64_t step, const std::string& restored,
             const FolderCopies& copies = {});

  // Before this rank's first generation: what it opened is what the run began with, though it was
  // not there then. In a later one it changes nothing.
  void KnowBegan() {
    if (!entered_) began_ = true;
  }
  // Returns whether this rank knows that. On the thread of Enter.
  bool began() const { return began_; }

  // A checkpoint was due after `step`, after which this generation began; the last one may have
  // ended before it was begun. Unless this rank knows that it is there, it is made up for.
  void NoteDue(int64_t step);

  // Returns whether this rank would like a checkpoint after the step that begins.
  bool WantsSave() const;
  // How far this rank's part of the checkpoint under way is.
  SavedPart part() const;

  // All ranks stand after `step`, whose header was `header`; `due` says whether the job asks for a
  // checkpoint there. Blocks no longer than a copy of 8 MiB takes.
  void AtBoundary(int64_t step, bool due, const StepHeader::Contents& header,
                  const Decided& decided);

  // Blocks until no copy is being made; what is written without one is given up. Before anything
  // writes the state, or lets peers write theirs where it is read.
  void WaitForCopy();

  // The worker is to leave, within a grace: what is still to be read of the job's data, for what
  // its checkpoints say of it, is given up.
  void Hurry() { hurries_.store(true); }

  // All ranks stand after `step`, the last one: the checkpoint after it is saved, if that can be,
  // when this returns; `in_place`: without memory for a copy, where each rank has all of the state.
  // Collective. Errors: those of the communicator.
  absl::Status Complete(Communicator* communicator, int64_t step, const Decided& decided,
                        absl::Time deadline, bool in_place = false);

  // This rank stands after `step` in no generation, and none follows: saves the whole state, which
  // it has, unless a checkpoint of this run as new as that is in the folder; without memory for a
  // copy. Returns its path.
  // Workers of one host take turns. Blocks. Errors: why it could not be saved.
  absl::StatusOr<std::string> SaveAlone(int64_t step, const Decided& decided);

  // The newest checkpoint of this run in the folder, if it is of `step` or later; else empty.
  // Errors: those of looking.
  absl::StatusOr<std::string> FindSaved(int64_t step) const;
  const std::string& folder() const { return settings_.folder; }
  // Checks that the folder lies on the file system on which it lay when this worker began, or,
  // where it had no checkpoint then, on that on which the run noted that it had saved some: what is
  // written to another one would be hidden when that is mounted again. Errors: Unavailable; those
  // of looking. Thread-safe.
  absl::Status CheckMounted() const;

  // Returns whether this rank keeps the best weights beside its checkpoints, though it does not
  // write the run's files: it is the one that saves in its folder.
  bool KeepsBestToo() const { return copies_.count() > 1 && copies_.writes(rank_); }
  // Keeps the weights in the file `path`, which has that sha256, as those of the best evaluation,
  // of `step`; `path` may be where they are kept. When they cannot be kept, that is said, and what
  // is there under their name, as of another run, stays. Those that this rank kept before them in
  // this generation go, in the thread, unless a checkpoint that is there or under way knows of
  // them. `go_on`, which may be empty, is asked while a file is read or copied. Blocks for the
  // disk.
  void KeepBest(int64_t step, const std::string& path, const std::string& sha256,
                const std::function<bool()>& go_on);
  // Compares what is kept under their name with them; once it was the same, no more while it is
  // the same file. `go_on` as there. Blocks for the disk. Thread-safe.
  checkpoint::FileMatch MatchBest(int64_t step, const std::string& sha256,
                                  const std::function<bool()>& go_on);
  // The file that holds them, whether it is there or not.
  std::string BestPath(int64_t step) const;

  // Bytes of the largest copy that a worker of a job with so many workers may have to make.
  static size_t CopyBytes(const engine::Plan& plan, int least_workers);

 private:
  Checkpointer(const Settings& settings, std::unique_ptr<checkpoint::Snapshot> snapshot);
  // Who puts together what this generation saves.
  std::string Writer() const;
  // Parts of a checkpoint of this generation, or copies of it; who saves one, and whether this rank
  // makes one appear.
  int Parts() const {
    if (copies_.count() > 1) return copies_.count();
    return CheckpointLayout::PartsFor(settings_.plan->state_bytes(), world_, settings_.part_bytes);
  }
  // Where the state is in parts and the folder is not shared, nobody saves anything.
  bool CannotSave() const {
    return settings_.in_parts != nullptr && settings_.in_parts() && copies_.count() > 1;
  }
  bool Saves() const { return copies_.count() > 1 ? copies_.writes(rank_) : rank_ < parts_; }
  bool Publishes() const { return copies_.count() > 1 ? copies_.writes(rank_) : rank_ == 0; }
  // All parts are durable, or have failed: brings the checkpoint under way to its end.
  void Conclude(int durable);
  // The generation in which the checkpoint after `step` was whole ended: finds out whether it is
  // there. In the thread.
  void LookWhetherPublished(int64_t step);
  void Begin(int64_t step, const Decided& decided, bool in_place = false);
  // Gives up the checkpoint under way.
  void Drop();
  // Makes the checkpoint of `job`, and says so. In the thread.
  void Publish(CheckpointJob* job, absl::Time begun);
  // Leaves a mark that this run saves in the folder, and says which others do. In the thread.
  void LookForOthers();
  // Checks that no other run that has the folder, too, knows other weights by the name of these.
  absl::Status CheckBestIsOurs(int64_t step, const std::string& sha256,
                               const std::function<bool()>& go_on);
  // Makes the folder and removes what is left in it of dead writers. In the thread.
  void Prepare(const std::string& writer);
  // Finds out once what the job's data was when this run began: what a checkpoint of the run says,
  // or what this worker opened. Looks again where the folder could not be read. In the thread.
  void FindDataOfRun();
  void SetDataOfRun(checkpoint::Manifest* manifest);
  // Notes once where the checkpoints of this run are. In the thread.
  void NotePlace();
  // Blocks until the thread has nothing to do, or does not get on.
  void WaitForThread();
  // Brings the checkpoint under way to an end, good or bad. Collective.
  absl::Status Settle(Communicator* communicator, absl::Time deadline);
  // Which file is at a path, as it was written: one that takes its place has another inode, and one
  // that is written over another size, or another time.
  struct FileId {
    uint64_t device = 0;
    uint64_t inode = 0;
    int64_t size = 0;
    int64_t seconds = 0;  // when it was written to last
    int64_t nanoseconds = 0;
    bool operator==(const FileId&) const = default;
  };
  // Best weights that are known to be in the folder.
  struct KeptBest {
    int64_t step = 0;
    std::string sha256;
    std::optional<FileId> file;  // not set: it could not be seen
  };
  static std::optional<FileId> FileAt(const std::string& path);
  // The best weights, of `step`, are in the folder, as `file`.
  void NoteKept(int64_t step, const std::string& sha256, const std::optional<FileId>& file);
  // Those of `step` are kept: has what they take the place of removed when nobody knows of it. Of
  // another generation it stays, as others may have saved for the run since.
  void RemoveReplacedBest(int64_t step);
  // The newest step that is saved, in all folders. Collective.
  absl::StatusOr<int64_t> SavedStep(Communicator* communicator, absl::Time deadline);

  const Settings settings_;
  std::unique_ptr<checkpoint::Snapshot> snapshot_;
  std::shared_ptr<const CheckpointLayout> layout_;
  int rank_ = 0;
  int world_ = 1;
  int64_t generation_ = 0;
  FolderCopies copies_;
  bool alone_ = false;                      // in no generation any more
  bool in_place_ = false;                   // what is under way is written without a copy
  bool under_way_ = false;                  // a checkpoint is, on all ranks
  int parts_ = 1;                           // of it
  bool owed_ = false;                       // one is to be begun as soon as can be
  bool busy_ = false;                       // the copy's memory was not free for the one under way
  std::atomic<int> writing_{0};             // jobs that use the copy's memory
  int64_t begun_ = 0;                       // after which step the newest was
  bool elsewhere_ = false;                  // that one is whole, and another rank publishes it
  std::atomic<int64_t> lost_{0};            // whose publisher is gone: its step; 0: none
  bool entered_ = false;                    // some generation
  absl::Time newest_;                       // when the newest was begun
  absl::Time told_ = absl::InfinitePast();  // when the newest line was logged; the thread's
  bool noted_ = false;                      // where checkpoints are; the thread's
  bool links_told_ = false;                 // that there are none; the thread's
  bool began_ = false;                      // it opened what the run began or went on with
  bool marked_ = false;                     // the thread was asked to
  std::unique_ptr<FolderMark> mark_;        // the thread's
  std::atomic<bool> others_{false};         // other runs have the folder, as was seen
  bool data_asked_ = false;                 // the thread was, for FindDataOfRun
  bool data_found_ = false;                 // it knows all there is to know; the thread's
  std::vector<checkpoint::DataRecord> data_;  // what it found; the thread's
  uint64_t data_stamp_ = 0;                   // likewise
  std::atomic<int64_t> data_moves_{0};        // counts what was read of the data
  std::atomic<bool> leaving_{false};
  std::atomic<bool> hurries_{false};
  std::atomic<int64_t> sequence_{0};    // Manifest::sequence of this run; 0: not known
  const std::string mount_point_;       // of the folder's file system; empty: not known
  std::shared_ptr<CheckpointJob> job_;  // this rank's part of the newest, if it has one
  bool copying_ = false;                // that job's copy may still be made
  int64_t restored_step_ = -1;          // that the state was taken from
  int64_t best_here_ = 0;               // whose weights were kept last in this generation; 0: none
  absl::Mutex best_mu_;
  KeptBest kept_best_ ABSL_GUARDED_BY(best_mu_);
  checkpoint::TaskThread thread_;  // last: uses the rest
};

}  // namespace lockstep::worker

#endif  // LOCKSTEP_WORKER_CHECKPOINT_CHECKPOINTER_H_
