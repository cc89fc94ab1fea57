// SPDX-License-Identifier: Apache-2.0
// Prepares batches ahead of the step on its own threads, into buffers that are allocated once.
// Thread-safety: Next, Release and Restart are called by one consumer thread.
#ifndef LOCKSTEP_DATA_LOADER_H_
#define LOCKSTEP_DATA_LOADER_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "data/dataset.h"
#include "data/sampler.h"

namespace lockstep::data {

// One shard's samples of one step.
struct Batch {
  int64_t step = 0;  // 0-based stream step
  int shard = 0;
  int64_t samples = 0;
  // One array for each field of the data set, [samples, shape...], 64-byte aligned.
  absl::Span<const void* const> fields;
  // HashIds of the samples that were really read, for the ledger.
  uint64_t ids_hash = 0;
};

// A hash of the ids and of their order.
uint64_t HashIds(absl::Span<const int64_t> ids);

class Loader {
 public:
  struct Options {
    // 0: every batch is made inside Next, which is best when the job has no core to spare.
    int threads = 1;
    int prefetch = 4;      // batches ready or in work, at least 2
    int64_t end_step = 0;  // no batches from this step on
    // Called after a batch was made, on the thread that made it (the consumer's is `threads`), with
    // nanoseconds of the monotonic clock. Empty: nobody measures.
    std::function<void(int thread, int64_t step, int64_t begin, int64_t end)> on_made = {};
  };
  // `dataset` and `sampler` outlive the loader. All buffers are allocated here.
  // Errors: ResourceExhausted (memory or threads).
  static absl::StatusOr<std::unique_ptr<Loader>> Create(const Dataset* dataset,
                                                        const DistributedSampler* sampler,
                                                        const Options& options);
  virtual ~Loader() = default;

  // From here on batches are those of shards [shard_begin, shard_end) from `step` on, in the order
  // (step, shard). Drops what was prepared for another range. Called when a generation begins, and
  // once before the first Next. Blocks until batches that are being made are done (microseconds, or
  // as long as their disk takes); the two batches that Next returned last stay valid. REQUIRES:
  // step >= 0 and a range of the sampler's shards.
  virtual void Restart(int64_t step, int shard_begin, int shard_end) = 0;
  // The next batch. One that is ready is taken without a system call; when none is, the caller
  // makes batches itself instead of sleeping, and blocks only for one that a thread has begun. The
  // batch is valid until the call after next of Next. Errors: DataLoss (again on every further
  // call, until Restart), OutOfRange after the last step.
  virtual absl::StatusOr<Batch> Next() = 0;
  // All memory that batches lie in, for who locks its pages.
  virtual absl::Span<uint8_t> memory() = 0;
  // How long Next has found no batch ready so far, in seconds (the step waited for data).
  virtual double wait_seconds() const = 0;
};

}  // namespace lockstep::data

#endif  // LOCKSTEP_DATA_LOADER_H_
