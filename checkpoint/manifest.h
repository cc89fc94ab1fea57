// SPDX-License-Identifier: Apache-2.0
// What makes a folder of safetensors files a checkpoint: manifest.json, which is written last. It
// names the files with their sizes and hashes, the step, and what the state is of; nothing in it
// says how many workers there were. It carries a hash of itself, so that a flipped bit anywhere in
// a checkpoint is found.
//
// Thread-safety: pure functions.
#ifndef LOCKSTEP_CHECKPOINT_MANIFEST_H_
#define LOCKSTEP_CHECKPOINT_MANIFEST_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lockstep::checkpoint {

inline constexpr const char* kManifestName = "manifest.json";
// Longer ones are refused.
inline constexpr uint64_t kMaxManifestBytes = 16 << 20;

// A file of a checkpoint.
struct FileRecord {
  std::string name;  // in the checkpoint's folder; letters, digits, '.', '-' and '_'
  uint64_t bytes = 0;
  std::string sha256;  // 64 hex digits in lower case
  bool operator==(const FileRecord&) const = default;
};

// A file that the job reads its samples from.
struct DataRecord {
  std::string path;
  // Of a folder: the number of its files, and the hash of their names.
  uint64_t bytes = 0;
  uint64_t hash = 0;
  bool operator==(const DataRecord&) const = default;
};

struct Manifest {
  int64_t step = 0;  // the state is that after it
  // Counts the runs that have checkpoints in the folder that this one lies in: equal for those of
  // one run, higher for those of a later one.
  int64_t sequence = 0;
  // In which the state was reached; 0: not known, an older version wrote it.
  int64_t generation = 0;
  std::string run;        // the job's id
  std::string plan_hash;  // engine::Plan::math_hash()
  // Of a job, and not in the file: what older versions wrote, engine::Plan::older_math_hash() and,
  // before, hash().
  std::vector<std::string> older_plan_hashes;
  std::string device_hash;
  std::string device;   // for people
  int32_t threads = 1;  // of each worker; for people
  std::string train;    // the job's `train` section: a JSON object
  int64_t samples = 0;  // of the training split; 0: not known, an older version wrote it
  // Those of the data that are known; none of an older version. As the run began.
  std::vector<DataRecord> data;
  // data::StampFiles of these, on the host that found them; 0: not known.
  uint64_t data_stamp = 0;
  std::string eval;  // the newest evaluation: a JSON object, or empty
  int64_t evaluated_step = 0;
  // The step of the best evaluation so far, whose weights lie beside the checkpoint; 0: none.
  int64_t best_step = 0;
  std::string best_sha256;  // of that file, which may be missing; empty: not known
  std::vector<FileRecord> files;

  // A folder's checkpoints in the order of their runs, generations and steps. What a generation
  // that is over has still written is none newer than those of the next one, whenever it came.
  std::tuple<int64_t, int64_t, int64_t> order() const { return {sequence, generation, step}; }
};

// The text of the file. REQUIRES: `train` and `eval` are JSON objects (`eval` may be empty).
std::string FormatManifest(const Manifest& manifest);

// Reads it strictly: types, ranges, names that stay in the folder, its own hash. Errors: DataLoss,
// saying what is wrong; InvalidArgument when it is whole and a newer version of lockstep wrote it,
// naming what this one does not know.
absl::StatusOr<Manifest> ParseManifest(std::string_view text);

// Returns what one worker wrote, for the one that writes the manifest; the same strictness.
std::string FormatFileRecords(const std::vector<FileRecord>& files);
absl::StatusOr<std::vector<FileRecord>> ParseFileRecords(std::string_view text);

}  // namespace lockstep::checkpoint

#endif  // LOCKSTEP_CHECKPOINT_MANIFEST_H_
