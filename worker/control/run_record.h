// SPDX-License-Identifier: Apache-2.0
// What a run leaves behind while it goes: metrics.jsonl (for people and tools) and ledger.bin
// (which samples each committed step really read). Every line and record is keyed by its step and
// written after the commit, so that a step which is done again writes the same again: a reader
// keeps the last of equal keys. Written by the worker of rank 0; the others remember the newest
// seconds, so that a survivor can write what rank 0 took with it when it died.
//
// metrics.jsonl, one object a line:
//   {"kind":"step","step":12,"epoch":0.05,"loss":1.9,"lr":0.1,"samples":3072}
//   {"kind":"eval","step":235,"epoch":1,"loss":0.41,"accuracy":0.85,"top5_accuracy":0.99,
//    "samples":10000}
//     with a moving average also "ema":{"loss":0.4,"accuracy":0.86,"top5_accuracy":0.99}
// Steps 1 to 100, then about a thousand over the run, and the last. A number that is not finite is
// null.
//
// ledger.bin: records of 24 bytes, little-endian: int64 step, int32 shard, int32 generation,
// uint64 hash of the sample ids in the order in which they were read.
//
// Thread-safety: Step, Eval and Ledger are called by the main thread and only fill a buffer; Write
// is called by the telemetry thread, SetWriter by the main thread.
#ifndef LOCKSTEP_WORKER_CONTROL_RUN_RECORD_H_
#define LOCKSTEP_WORKER_CONTROL_RUN_RECORD_H_

#include <cstdint>
#include <deque>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "common/fd.h"
#include "proto/coordinator.pb.h"

namespace lockstep::worker {

class RunRecord {
 public:
  // Of the run whose folder is `run_dir`. It remembers only, until SetWriter.
  RunRecord(const std::string& run_dir, int64_t total_steps)
      : run_dir_(run_dir), total_steps_(total_steps) {}
  // Begins to write (the files are opened the first time), or ceases to after what there is was
  // written. With `remembered`, what was remembered is written first. What cannot be opened or
  // written is tried again with each Write, and costs no run.
  void SetWriter(bool writes, bool remembered);

  const std::string& run_dir() const { return run_dir_; }
  // Returns whether metrics.jsonl has a line for this step.
  bool WantsStep(int64_t step) const;
  // `loss_scale` is that of the step, 0 where losses are not scaled; `overflow` with it: the step
  // was skipped.
  void Step(int64_t step, double epoch, double loss, double learning_rate, int64_t samples,
            double loss_scale = 0, bool overflow = false);
  void Eval(const EvalResult& eval);
  void Ledger(int64_t step, int shard, int64_t generation, uint64_t ids_hash);

  // Hands what has been collected to the file system. What a full disk or a limit does not take is
  // kept, up to 8 MiB a file, and tried again by the next call: it is said, and never ends the run.
  void Write();

 private:
  // As Write does.
  void WriteCollected() ABSL_EXCLUSIVE_LOCKS_REQUIRED(file_mu_);
  // What was collected between two calls of Write.
  struct Piece {
    std::string metrics;
    std::string ledger;
  };
  static constexpr size_t kPieces = 32;  // remembered: seconds, at some beats a second
  // A file that is added to.
  struct Output {
    const char* name = nullptr;
    size_t record_bytes = 0;  // 0: it has lines
    UniqueFd fd;
    std::string kept;      // whole lines or records, of which not all is in the file
    size_t begun = 0;      // bytes of the first of them that are
    bool failing = false;  // and that was said
    bool lossy = false;    // lines or records are missing
  };
  static constexpr size_t kMostKept = 8 << 20;
  static constexpr size_t kRecordBytes = 24;
  void Append(Output* output, const std::string& bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(file_mu_);
  // Opens it, and cuts off the half line or record of one who was killed or whose disk was full, so
  // that what follows is whole.
  static absl::Status Open(const std::string& path, Output* output);
  // Says why, once until it is written again.
  void NoteFailing(Output* output, const absl::Status& why);

  const std::string run_dir_;
  const int64_t total_steps_;
  absl::Mutex file_mu_;  // one writer at a time; before mu_
  Output metrics_file_ ABSL_GUARDED_BY(file_mu_) = {"metrics.jsonl", 0, {}, {}};
  Output ledger_file_ ABSL_GUARDED_BY(file_mu_) = {"ledger.bin", kRecordBytes, {}, {}};

  absl::Mutex mu_;
  bool writes_ ABSL_GUARDED_BY(mu_) = false;
  std::deque<Piece> pieces_ ABSL_GUARDED_BY(mu_);
  std::string metrics_ ABSL_GUARDED_BY(mu_);
  std::string ledger_ ABSL_GUARDED_BY(mu_);
};

}  // namespace lockstep::worker

#endif  // LOCKSTEP_WORKER_CONTROL_RUN_RECORD_H_
