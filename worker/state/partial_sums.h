// SPDX-License-Identifier: Apache-2.0
// The partial sums of one step on one worker: shards are run from left to right, each writes a leaf
// gradient, and whole nodes of the shard tree are added as soon as both halves are there. What is
// left at the end are the whole nodes that the worker contributes to the collective.
// The additions are those of the tree, so the bits do not depend on who holds which shard.
//
// Thread-safety: confined to the worker's main thread.
#ifndef LOCKSTEP_WORKER_STATE_PARTIAL_SUMS_H_
#define LOCKSTEP_WORKER_STATE_PARTIAL_SUMS_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "collectives/communicator.h"
#include "collectives/shards.h"
#include "collectives/vector_memory.h"

namespace lockstep::worker {

class PartialSums {
 public:
  // Buffers that a worker needs at most when it holds `held` of `shards`.
  static int BuffersFor(int shards, ShardRange held);
  // The most over every legal deal to between `min_workers` and `max_workers` workers.
  static int BuffersForWorstDeal(int shards, int min_workers, int max_workers);

  // `buffers` are vectors of `count` floats in `vectors`; both outlive this. `rounded` is
  // TreeReduceArgs::rounded: 0 unless they lie on the host.
  PartialSums(int shards, int64_t count, std::vector<float*> buffers, VectorMemory* vectors,
              int64_t rounded = 0);

  // Forgets the last step; the worker holds `held` now.
  // REQUIRES: BuffersFor(shards, held) buffers.
  void Begin(ShardRange held);
  // Where the gradient of the next shard goes.
  float* NextLeaf();
  // Elements [begin, end) of the last shard's leaf are complete: adds what can be added of them, so
  // that those of whole() are there. Parts follow each other from 0 on. Errors: as LeafDone.
  absl::Status PartDone(int64_t begin, int64_t end);
  // Returns what nodes() will be after the last LeafDone.
  const std::vector<NodeBuffer>& whole() const { return whole_; }
  // The leaf of the next shard is complete: adds what can be added. Errors: those of the vectors'
  // memory.
  absl::Status LeafDone();
  // The whole nodes, left to right, after the last LeafDone.
  const std::vector<NodeBuffer>& nodes() const { return nodes_; }
  // The buffer of the first node, where the worker's own reduced slice may go.
  float* first() const { return buffers_[0]; }

 private:
  // Rounds elements [begin, end) of the leaf that is being written, as far as they are to be.
  void RoundLeaf(int64_t begin, int64_t end);
  // Adds elements [begin, end) of `b` to those of `a`.
  absl::Status Add(float* a, const float* b, int64_t begin, int64_t end);

  const int shards_;
  const int64_t count_;
  const int64_t rounded_;
  const std::vector<float*> buffers_;
  VectorMemory* const vectors_;
  ShardRange held_;
  int next_shard_ = 0;
  std::vector<NodeBuffer> nodes_;  // nodes_[i] lies in buffers_[i]
  std::vector<NodeBuffer> whole_;
  int64_t parts_end_ = 0;  // of the next leaf, what PartDone has added
};

}  // namespace lockstep::worker

#endif  // LOCKSTEP_WORKER_STATE_PARTIAL_SUMS_H_
