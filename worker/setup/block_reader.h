// SPDX-License-Identifier: Apache-2.0
// Blocks of a data set, as evaluation and prediction take them: read into memory that is allocated
// once, and on a device with memory of its own the next one while it computes.
// Thread-safety: confined to one thread.
#ifndef LOCKSTEP_WORKER_SETUP_BLOCK_READER_H_
#define LOCKSTEP_WORKER_SETUP_BLOCK_READER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/mapped_bytes.h"
#include "data/dataset.h"
#include "engine/engine.h"
#include "worker/control/progress_board.h"

namespace lockstep::worker {

class BlockReader {
 public:
  struct Block {
    int64_t number = 0;
    int64_t first = 0;  // its first sample
    int64_t valid = 0;  // samples; what follows them is padding
    engine::Fields fields;
  };
  // Which blocks of a data set are run.
  struct Which {
    int64_t first = 0;
    int64_t stride = 1;
    int times = 1;                         // each is run so often, one time after the other
    std::function<bool()> cancelled = {};  // BlockHooks::cancelled
  };
  // Hands the fields and the hooks to the executor.
  using Run = std::function<absl::Status(const Block&, const engine::Inference::BlockHooks&)>;

  // Blocks of `block` samples. `dataset`, `executor` and `board`, which says when this reads and
  // may be null, outlive this. Allocates their memory, which is page-locked for the executor's
  // device. Errors: ResourceExhausted.
  static absl::StatusOr<std::unique_ptr<BlockReader>> Create(const data::Dataset* dataset,
                                                             engine::Executor* executor,
                                                             int64_t block, ProgressBoard* board);
  // How many blocks are read ahead and run at once, on such a device or not.
  static constexpr int Held(bool stages) { return stages ? 2 : 1; }

  int64_t blocks() const;
  // Calls `run` for each of `which`, in order. Blocks. Errors: those of the data and of `run`.
  absl::Status ForEach(const Which& which, const Run& run);

 private:
  // Memory of one block.
  struct Place {
    std::vector<void*> fields;
    std::vector<const void*> read_only;  // the same
  };

  BlockReader(const data::Dataset* dataset, engine::Executor* executor, int64_t block,
              ProgressBoard* board);
  absl::Status Reserve();
  absl::Status Read(int64_t number, const Place& place);
  int64_t Valid(int64_t number) const;

  const data::Dataset* const dataset_;
  engine::Executor* const executor_;
  const int64_t block_;
  ProgressBoard* const board_;
  MappedBytes memory_;
  std::vector<Place> places_;
  std::vector<int64_t> indices_;
  std::optional<engine::LockedFields> locked_;  // last: unlocked before the memory goes
};

}  // namespace lockstep::worker

#endif  // LOCKSTEP_WORKER_SETUP_BLOCK_READER_H_
