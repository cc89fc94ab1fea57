// SPDX-License-Identifier: Apache-2.0
// What a job's data is, for its checkpoints: the size and hash of its files, found when they are
// first asked for, and once. That reads the files, which takes long on a slow disk, and few workers
// need it.
//
// Thread-safety: thread-safe. Who asks while another thread finds them waits for it.
#ifndef LOCKSTEP_WORKER_CHECKPOINT_DATA_IDENTITY_H_
#define LOCKSTEP_WORKER_CHECKPOINT_DATA_IDENTITY_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/manifest.h"
#include "data/dataset.h"
#include "data/fingerprint.h"

namespace lockstep::worker {

// The path as text: as it is, or, where it is not UTF-8, as it is shown.
std::string PathText(const std::string& path);

class DataIdentity {
 public:
  // `evaluates`: whether the job reads the test split. Else it may be anything, and is not looked
  // at. `stamp` is what data::StampFiles said of the files before they were opened, so that a later
  // change of one is seen.
  DataIdentity(data::Source source, bool evaluates, uint64_t stamp);

  uint64_t stamp() const { return stamp_; }
  // Returns whether a file was replaced or written to, or only touched, since they were opened.
  // Reads none. Blocks for the file system.
  bool Changed() const;

  // Takes what data::FingerprintFiles found of these files without a bound for folders, unless they
  // are a folder: of one less is read here.
  void Know(const std::vector<data::FileFingerprint>& files);

  // Returns the records of the files as they were when this was first asked. Empty: made data, or
  // they are not known, since a file cannot be read (that is said once) or `go_on` ended it (the
  // next call looks again). `go_on` is called before each file. Blocks for the disk.
  std::vector<checkpoint::DataRecord> Records(const checkpoint::GoOn& go_on);
  // As Records, but empty when a file may have changed since they were opened, which is said.
  std::vector<checkpoint::DataRecord> RecordsAsMade(const checkpoint::GoOn& go_on);

 private:
  const data::Source source_;
  const bool evaluates_;
  const uint64_t stamp_;
  absl::Mutex mu_;
  std::optional<std::vector<checkpoint::DataRecord>> records_ ABSL_GUARDED_BY(mu_);
};

}  // namespace lockstep::worker

#endif  // LOCKSTEP_WORKER_CHECKPOINT_DATA_IDENTITY_H_
