// SPDX-License-Identifier: Apache-2.0
// What a run leaves behind while it goes: metrics.jsonl (for people and tools) and ledger.bin
// (which samples each committed step really read). Every line and record is keyed by its step and
// written after the commit, so that a step which is done again writes the same again: a reader
// keeps the last of equal keys. Written by the worker of rank 0; the others remember the newest
// seconds, so that a survivor can write what rank 0 took with it when it died.
//
// metrics.jsonl, one object a line:
//   {"kind":"step","step":12,"epoch":0.05,"loss":1.9,"lr":0.1,"samples":3072}
//     where losses are scaled also "loss_scale":65536,"skipped":false, else where it was skipped
//     "skipped":true
//   {"kind":"eval","step":235,"epoch":1,"loss":0.41,"accuracy":0.85,"top5_accuracy":0.99,
//    "samples":10000,"targets":10000}
//     with a moving average also "ema":{"loss":0.4,"accuracy":0.86,"top5_accuracy":0.99}
// Steps 1 to 100, then about a thousand over the run, and the last. A number that is not finite is
// null.
//
// ledger.bin: records of 24 bytes, little-endian: int64 step, int32 shard, int32 generation,
// uint64 hash of the sample ids in the order in which they were read.
//
// Thread-safety: thread-safe. Step, Eval, Ledger and SetWriter only fill a buffer and wait for no
// disk; Write does.
#ifndef LOCKSTEP_WORKER_CONTROL_RUN_RECORD_H_
#define LOCKSTEP_WORKER_CONTROL_RUN_RECORD_H_

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/fd.h"
#include "proto/coordinator.pb.h"

namespace lockstep::worker {

class RunRecord {
 public:
  // How long a file is waited for that others hold a lock on.
  static constexpr absl::Duration kLockPatience = absl::Seconds(2);

  // Of the run whose folder is `run_dir`. It remembers only, until SetWriter. `clock`, by which
  // locks are waited for, outlives this.
  RunRecord(const std::string& run_dir, int64_t total_steps, Clock* clock = Clock::Real())
      : run_dir_(run_dir), total_steps_(total_steps), clock_(clock) {}
  RunRecord(const RunRecord&) = delete;
  RunRecord& operator=(const RunRecord&) = delete;
  // Says how much is given up, which no Write could write.
  ~RunRecord();
  // From now on what is collected is to be written, or is remembered only. With `remembered`, what
  // was remembered until now is to be written, too. The next Write does it.
  void SetWriter(bool writes, bool remembered);
  // Returns whether something of what is to be written is not in the files yet, or is just being
  // written. Does not block for the disk.
  bool Owes() const;

  const std::string& run_dir() const { return run_dir_; }
  // Returns whether metrics.jsonl has a line for this step.
  bool WantsStep(int64_t step) const;
  // `loss_scale` is that of the step, 0 where losses are not scaled; `skipped`: the step left the
  // weights as they were.
  void Step(int64_t step, double epoch, double loss, double learning_rate, int64_t samples,
            double loss_scale = 0, bool skipped = false);
  void Eval(const EvalResult& eval);
  void Ledger(int64_t step, int shard, int64_t generation, uint64_t ids_hash);

  // Hands what is to be written to the file system; the files are opened the first time. What
  // cannot be opened, or what a full disk or a limit does not take, or others' lock holds up for
  // longer than kLockPatience, is kept, up to 8 MiB a file, and tried again by the next call, also
  // by one who is to write no more: it is said, and never ends the run. Blocks for the disk, and
  // for others' locks so long; what is collected meanwhile is 8 MiB a file at most, and what more
  // there was is said.
  void Write();

 private:
  // What was collected between two calls of Write.
  struct Piece {
    std::string metrics;
    std::string ledger;
    int64_t lost_lines = 0;  // left out: there were too many
    int64_t lost_records = 0;
  };
  static constexpr size_t kPieces = 32;  // remembered: seconds, at some beats a second
  // A file that is added to.
  struct Output {
    const char* name = nullptr;
    size_t record_bytes = 0;  // 0: it has lines
    UniqueFd fd;
    std::string kept;      // whole lines or records that are not in the file
    bool failing = false;  // and that was said
    int64_t lost = 0;      // lines or records that are given up
  };
  static constexpr size_t kMostKept = 8 << 20;
  static constexpr size_t kRecordBytes = 24;
  // Adds to what is collected.
  void Collect(std::string_view bytes, std::string* collected, int64_t* lost)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // What is collected is to be written, or remembered.
  void EndPiece() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Append(Output* output, const std::string& bytes, int64_t lost)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(file_mu_);
  // Writes what is kept as far as the disk takes it, and leaves whole lines or records in the file.
  absl::Status WriteKept(const std::string& path, Output* output)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(file_mu_);
  // Takes the lock on the file, where there are locks. Errors: DeadlineExceeded (kLockPatience).
  absl::Status Lock(int fd, const std::string& path) const;
  std::string PathOf(const Output& output) const;

  const std::string run_dir_;
  const int64_t total_steps_;
  Clock* const clock_;
  absl::Mutex file_mu_;  // one writer at a time; before mu_
  Output metrics_file_ ABSL_GUARDED_BY(file_mu_) = {"metrics.jsonl", 0, {}, {}};
  Output ledger_file_ ABSL_GUARDED_BY(file_mu_) = {"ledger.bin", kRecordBytes, {}, {}};

  mutable absl::Mutex mu_;
  bool unwritten_ ABSL_GUARDED_BY(mu_) = false;  // some that a Write has taken from owed_
  bool writes_ ABSL_GUARDED_BY(mu_) = false;
  std::deque<Piece> pieces_ ABSL_GUARDED_BY(mu_);
  Piece collected_ ABSL_GUARDED_BY(mu_);
  Piece owed_ ABSL_GUARDED_BY(mu_);  // the next Write writes it
};

}  // namespace lockstep::worker

#endif  // LOCKSTEP_WORKER_CONTROL_RUN_RECORD_H_
