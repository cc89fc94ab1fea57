// SPDX-License-Identifier: Apache-2.0
// Files in the safetensors format: 8 bytes little-endian header length, a JSON header
// {"name":{"dtype":"F32","shape":[..],"data_offsets":[a,b]},...,"__metadata__":{..}}, then the
// bytes. Written atomically: a temporary file beside the target, fsync, rename, fsync of the
// folder. Thread-safety: pure functions; SafetensorsFile is immutable.
#ifndef LOCKSTEP_CHECKPOINT_SAFETENSORS_H_
#define LOCKSTEP_CHECKPOINT_SAFETENSORS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/safetensors_header.h"
#include "checkpoint/storage.h"

namespace lockstep::checkpoint {

struct TensorView {
  std::string name;
  std::string dtype;  // "F32", "I64", "F64", "BF16", ...
  std::vector<int64_t> shape;
  const void* data = nullptr;
  size_t bytes = 0;  // in the file
  // What `data` holds when that is not what the file has: "BF16" or "F16" for a dtype of "F32", to
  // which the numbers are widened as they are written. Empty: the same.
  std::string stored = "";
};

// Takes the bytes of a file, in order.
using ByteSink = std::function<absl::Status(const void* data, size_t bytes)>;
struct StreamedFile {
  uint64_t bytes = 0;
  std::string sha256;  // hex
};
// Gives a file's bytes, in pieces of at most 256 KiB, to `sink`, whose first error ends it. Errors:
// the sink's; InvalidArgument as for WriteSafetensors.
absl::StatusOr<StreamedFile> StreamSafetensors(const std::vector<TensorView>& tensors,
                                               const std::map<std::string, std::string>& metadata,
                                               const ByteSink& sink);

// Writes `path` (folders are made). The bytes depend on the arguments alone. Returns the sha256 of
// the file, hex. `go_on`, which may be empty, is asked between pieces of 256 KiB. Blocks until the
// file is durable. Errors: ResourceExhausted (disk full; nothing is left behind and an older file
// stays), FailedPrecondition (permission), InvalidArgument (a size that does not fit shape and
// dtype, a name used twice, text that is not UTF-8), Cancelled by `go_on`.
absl::StatusOr<std::string> WriteSafetensors(const std::string& path,
                                             const std::vector<TensorView>& tensors,
                                             const std::map<std::string, std::string>& metadata,
                                             const std::function<bool()>& go_on = nullptr);

// A file whose tensors are read into memory of the caller's, so that one that is truncated
// meanwhile, or on a disk that fails, is an error.
class SafetensorsFile {
 public:
  // Opens the file and checks the header and every range. Errors: NotFound, FailedPrecondition,
  // DataLoss, those of reading; all name the file.
  static absl::StatusOr<std::unique_ptr<SafetensorsFile>> Open(const std::string& path,
                                                               Storage* storage = Storage::Disk());
  uint64_t bytes() const { return file_->size(); }
  // In the order of their data.
  const std::vector<TensorEntry>& tensors() const { return tensors_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  // The tensor of that name, nullptr when there is none; as long as the file.
  const TensorEntry* Find(const std::string& name) const;
  // Reads bytes [at, at + bytes) of a tensor of this file. Blocks for the disk. Thread-safe.
  // Errors: DataLoss when the file was truncated meanwhile; those of reading; all name the file.
  absl::Status Read(const TensorEntry& tensor, uint64_t at, void* to, size_t bytes) const;

 private:
  SafetensorsFile() = default;
  std::unique_ptr<Storage::Source> file_;
  uint64_t data_ = 0;  // where the tensors' bytes begin
  std::vector<TensorEntry> tensors_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace lockstep::checkpoint

#endif  // LOCKSTEP_CHECKPOINT_SAFETENSORS_H_
