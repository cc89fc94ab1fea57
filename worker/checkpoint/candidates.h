// SPDX-License-Identifier: Apache-2.0
// The checkpoints that one rank finds where a job looks for them, in the order in which it would
// go on from them, and what the ranks tell each other of reading one.
//
// Thread-safety: thread-compatible.
#ifndef LOCKSTEP_WORKER_CHECKPOINT_CANDIDATES_H_
#define LOCKSTEP_WORKER_CHECKPOINT_CANDIDATES_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "checkpoint/checkpoint_folder.h"
#include "collectives/communicator.h"
#include "worker/checkpoint/restore.h"

namespace lockstep::worker {

// What is known of the checkpoints that this run has saved: kSome: there are some, or were by the
// coordinator's word; kLost: a host whose folder has none knows that it had some.
enum class OwnSaved { kNone, kSome, kLost };

class Candidates {
 public:
  // `source` outlives this; `rank` is for messages.
  Candidates(const ResumeSource& source, int rank) : source_(source), rank_(rank) {}

  // Looks; `go_on` is called meanwhile. Blocks for the disk. Errors: NotFound when the user named a
  // place where none is; InvalidArgument when the job's own folder is a checkpoint; as Unreadable
  // when some may be whole and cannot be read; those of CheckNoneIsLost. That this run's own are
  // gone here, or on a file system that is not mounted here, is left to Exhausted where other
  // hosts, which have folders of their own, may have them.
  absl::Status Find(const checkpoint::GoOn& go_on);
  // Returns what Find found out of this run's own.
  OwnSaved own() const;
  // Hosts have folders of their own: what is known on any of them. With kSome this run's come
  // first; with kLost alone.
  void KnowOwn(OwnSaved own);
  // Returns whether this run saved it.
  bool IsOwn(const checkpoint::FoundCheckpoint& found) const {
    return found.manifest.run == source_.identity.run;
  }
  // The next one to try, newest first; null: there is none. `go_on` as in Find. Blocks for the
  // disk. Errors: InvalidArgument when it is of another job; but what another run left is passed
  // over, and left to Exhausted, where this run is known to have saved some, which other hosts may
  // have.
  absl::StatusOr<const checkpoint::FoundCheckpoint*> Next(const checkpoint::GoOn& go_on);
  // Returns whether the one that Next returned last was evaluated on other data than the job's.
  bool evaluated_other() const { return evaluated_other_; }
  // No host has one that is whole. Errors: DataLoss when it was the user who named the place; what
  // was left to this.
  absl::Status Exhausted() const;

 private:
  absl::Status Add(const std::string& folder, bool own_alone);
  // The job's, with its data where `found` knows its own.
  checkpoint::Manifest IdentityFor(const checkpoint::Manifest& found,
                                   const checkpoint::GoOn& go_on) const;
  // Returns whether it lies in the job's own folder, and the other run that saved it is at work.
  bool IsHeldByOther(const checkpoint::FoundCheckpoint& found) const;
  // The one that the coordinator knows as the newest may be gone.
  void TellOfMissing() const;
  // The user named a place, and an earlier run of the same training came farther in the job's own.
  void TellOfFarther(const checkpoint::GoOn& go_on) const;
  // Returns whether it is higher than all that the job's coordinator knows of.
  bool IsTooLate(const checkpoint::Manifest& manifest) const;

  const ResumeSource& source_;
  const int rank_;
  std::vector<checkpoint::FoundCheckpoint> found_;
  std::vector<checkpoint::FoundCheckpoint> of_others_;  // of other runs in the job's own folder
  std::vector<std::string> damaged_;
  size_t next_ = 0;
  bool given_ = false;
  OwnSaved own_elsewhere_ = OwnSaved::kNone;
  absl::Status refused_;  // for Exhausted
  bool evaluated_other_ = false;
};

// Returns what a user may do who gets the checkpoint of `found`, which is not the job's: name
// another place, that in which `source` has found it, or begin anew.
std::string InsteadOf(const checkpoint::Manifest& found, const ResumeSource& source);

// An error of reading what may be whole, for people. What was read and does not fit
// (InvalidArgument) says all itself.
absl::Status Unreadable(int rank, const std::string& path, const absl::Status& why);

// What became of reading a checkpoint on a rank; higher is worse.
enum class ReadOutcome { kLoaded = 0, kDamaged = 1, kUnreadable = 2 };
// Returns what `status`, of reading one, comes to.
ReadOutcome OutcomeOf(const absl::Status& status);

// The worst outcome of all ranks, and one that had it.
struct ReadVerdict {
  ReadOutcome worst = ReadOutcome::kLoaded;
  int rank = 0;
};
// Collective. Errors: those of the communicator.
absl::StatusOr<ReadVerdict> AgreeOnReading(Communicator* communicator, const absl::Status& mine,
                                           absl::Time deadline);

// The manifest of the checkpoint at `path`. Errors: those of reading it; DataLoss.
absl::StatusOr<checkpoint::Manifest> ReadManifest(checkpoint::Storage* storage,
                                                  const std::string& path);

}  // namespace lockstep::worker

#endif  // LOCKSTEP_WORKER_CHECKPOINT_CANDIDATES_H_
