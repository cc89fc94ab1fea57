// SPDX-License-Identifier: Apache-2.0
// Adds vectors along the fixed shard tree. The order of additions of an element depends on the
// nodes alone: not on the vector's length, its cut into slices or chunks, or the instruction set.
// (The payload of a NaN may differ; that a result is NaN does not.) Thread-safety: a TreeSum
// runs on one thread at a time; the rest are pure functions.
#ifndef LOCKSTEP_COLLECTIVES_TREE_SUM_H_
#define LOCKSTEP_COLLECTIVES_TREE_SUM_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "collectives/shards.h"

namespace lockstep {

// out[i] = a[i] + b[i]. `out` may be `a` or `b`, but not overlap them otherwise. Vectorised for the
// instruction set of the machine.
void AddFloats(const float* a, const float* b, float* out, int64_t count);
// The same rounded to bf16, to nearest even, as TreeReduceArgs::rounded wants it.
void AddRounded(const float* a, const float* b, float* out, int64_t count);
// out[i] = a[i] rounded so. `out` may be `a`.
void RoundFloats(const float* a, float* out, int64_t count);

// The additions that make the sum over [0, shards) from given nodes.
class TreeSum {
 public:
  // `nodes` are nodes of the tree over [0, shards), left to right, that cover it once.
  // Errors: InvalidArgument, naming what is missing or overlaps.
  static absl::StatusOr<TreeSum> Create(int shards, absl::Span<const ShardRange> nodes);
  // The same for the sum over `top`, a node of a tree.
  static absl::StatusOr<TreeSum> CreateFor(ShardRange top, absl::Span<const ShardRange> nodes);

  // out[0..count) = the sum; `inputs[i]` belongs to nodes[i]. `out` may be one of the inputs, but
  // not overlap them otherwise. Each of the first `rounded` sums, also of nodes in between, is
  // rounded to bf16. Allocates nothing.
  void Run(absl::Span<const float* const> inputs, float* out, int64_t count, int64_t rounded = 0);

  // The sum in postfix: an index of an input pushes it, kAdd adds the two on top. For those who add
  // elsewhere than on this CPU.
  static constexpr int kAdd = -1;
  absl::Span<const int> program() const { return program_; }

 private:
  enum class Shape { kCopy, kTwo, kFour, kGeneral };

  TreeSum() = default;
  absl::Status Append(ShardRange node, absl::Span<const ShardRange> nodes, size_t* next);
  // Elements [begin, end), rounded or not.
  void RunPart(absl::Span<const float* const> inputs, float* out, int64_t begin, int64_t end,
               bool rounds);
  void RunGeneral(absl::Span<const float* const> inputs, float* out, int64_t begin, int64_t end,
                  bool rounds);

  Shape shape_ = Shape::kGeneral;
  int input_count_ = 0;
  std::vector<int> program_;
  // Of RunGeneral: what stands on the stack, and the sums among it, piece by piece.
  std::vector<const float*> stack_;
  std::vector<float> temporaries_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_TREE_SUM_H_
