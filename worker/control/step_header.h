// SPDX-License-Identifier: Apache-2.0
// What the workers tell each other with every step: wishes (drain, save, regroup) on which all act
// at the same boundary, and the hash of the sample ids that each shard really read. It rides at the
// end of the gradient vector, so it needs no message of its own on any transport: every value is a
// small integer, written by one leaf and zero in all others, so the tree's float additions are
// exact.
//
// Thread-safety: thread-compatible.
#ifndef LOCKSTEP_WORKER_CONTROL_STEP_HEADER_H_
#define LOCKSTEP_WORKER_CONTROL_STEP_HEADER_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "collectives/communicator.h"

namespace lockstep::worker {

// How far a worker's part of the checkpoint under way is.
enum class SavedPart { kNone, kDurable, kFailed };

class StepHeader {
 public:
  // Floats that the header of a job with `shards` shards takes; a multiple of 16.
  static int64_t Count(int shards);

  struct Contents {
    bool drain = false;
    bool save = false;
    bool regroup = false;  // the members leave the generation after this step
    // Workers whose part of the checkpoint under way is durable, or failed.
    int parts_durable = 0;
    int parts_failed = 0;
    std::vector<uint64_t> ids_hash;  // by shard
  };

  // What a worker would like all to do after the step.
  struct Wishes {
    bool drain = false;
    bool save = false;
    bool regroup = false;
    SavedPart part = SavedPart::kNone;
  };
  // Writes the part of the leaf of `shard` into `header` [Count(shards)]. Wishes are written by the
  // first leaf of a worker.
  static void Write(int shards, int shard, uint64_t ids_hash, const Wishes& wishes, float* header);

  // Reads the reduced header, which begins at element `begin` of the reduced vector.
  static void Read(int shards, int64_t begin, absl::Span<const Slice> reduced, Contents* contents);
};

}  // namespace lockstep::worker

#endif  // LOCKSTEP_WORKER_CONTROL_STEP_HEADER_H_
