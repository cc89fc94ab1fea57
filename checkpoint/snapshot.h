// SPDX-License-Identifier: Apache-2.0
// Memory that a part of the training state is copied into, so that it can be written while training
// goes on. Its address range is reserved once; its pages come the first time that they are written,
// or ahead of it by Touch, and stay.
// Thread-safety: thread-compatible; Touch may run beside Copy of another part.
#ifndef LOCKSTEP_CHECKPOINT_SNAPSHOT_H_
#define LOCKSTEP_CHECKPOINT_SNAPSHOT_H_

#include <cstddef>
#include <functional>
#include <memory>

#include "absl/status/statusor.h"

namespace lockstep::checkpoint {

class Snapshot {
 public:
  // Room for `bytes`. Errors: ResourceExhausted (address space).
  static absl::StatusOr<std::unique_ptr<Snapshot>> Reserve(size_t bytes);
  ~Snapshot();

  char* data() const { return data_; }
  size_t bytes() const { return bytes_; }

  // Gives the first `bytes` their pages, piece by piece while `go_on` says so, without changing
  // what is in them.
  void Touch(size_t bytes, const std::function<bool()>& go_on);

 private:
  Snapshot(char* data, size_t bytes) : data_(data), bytes_(bytes) {}
  char* const data_;
  const size_t bytes_;
};

}  // namespace lockstep::checkpoint

#endif  // LOCKSTEP_CHECKPOINT_SNAPSHOT_H_
