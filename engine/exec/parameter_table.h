// SPDX-License-Identifier: Apache-2.0
// The parameters as the update sees them: where each one, its moments and its average lie, what its
// settings are, and fixed blocks of 64 Ki elements for sums. Norms are fp64 sums of a block in the
// order of NormLanes, added in block order, so they depend on neither slices nor threads.
// Thread-safety: one caller at a time.
#ifndef LOCKSTEP_ENGINE_EXEC_PARAMETER_TABLE_H_
#define LOCKSTEP_ENGINE_EXEC_PARAMETER_TABLE_H_

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "engine/cpu/simd/simd.h"
#include "engine/cpu/thread_pool.h"
#include "engine/exec/plan.h"
#include "engine/exec/state_region.h"
#include "engine/exec/weight_storage.h"

namespace lockstep::engine {

// One parameter.
struct ParameterTarget {
  const ParameterSpec* spec = nullptr;
  ParameterSettings settings;
  Optimizer::Method method = Optimizer::Method::kElementwise;
  int64_t begin = 0;  // of its gradient in the vector
  int64_t count = 0;
  WeightStorage weights;
  float* average = nullptr;  // null: there is none
  std::vector<float*> moments;
  int64_t first_block = 0;
  int64_t blocks = 0;
};

class ParameterTable {
 public:
  static constexpr int64_t kCut = 16;  // slices and threads cut at multiples of it
  static constexpr int64_t kBlock = 65536;
  static constexpr size_t kMaxMoments = 8;  // of one parameter

  // Both outlive it.
  ParameterTable(const CompiledPlan* plan, StateRegion* state);

  const std::vector<ParameterTarget>& targets() const { return targets_; }

  // What a thread's part of a block is: elements [begin, end) of its parameter.
  struct Block {
    int target = 0;
    int64_t begin = 0;
    int64_t end = 0;
  };
  // Calls visit(index, block) for the blocks of the targets of `method`, dealt over the threads.
  template <typename Visit>
  void ForBlocks(ThreadPool* pool, Visit visit) const {
    pool->Run([&](int part) {
      const auto [first, last] =
          PartOf(static_cast<int64_t>(blocks_.size()), part, pool->threads());
      for (int64_t i = first; i < last; ++i) visit(i, blocks_[static_cast<size_t>(i)]);
    });
  }
  int64_t block_count() const { return static_cast<int64_t>(blocks_.size()); }

  // |gradients|^2 before scaling. NaN or infinite exactly when a gradient is.
  double SumSquares(absl::Span<const GradientSlice> reduced, ThreadPool* pool);
  // The sum over a parameter's blocks, in order.
  static double SumOf(const ParameterTarget& target, const std::vector<double>& blocks);
  // The index of the first target with a gradient that is not finite, or -1.
  int FirstNonFinite(absl::Span<const GradientSlice> reduced) const;

 private:
  const OptimKernels& kernels_;
  const SimdKernels& simd_;
  std::vector<ParameterTarget> targets_;  // in the order of the state
  std::vector<Block> blocks_;
  std::vector<double> sums_;  // by block
};

// Calls visit(data, at, count) for the pieces of elements [begin, end) of the gradient vector, in
// order; `at` counts from `begin`.
template <typename Visit>
void ForPieces(absl::Span<const GradientSlice> reduced, int64_t begin, int64_t end, Visit visit) {
  for (const GradientSlice& slice : reduced) {
    const int64_t first = std::max(begin, slice.begin), last = std::min(end, slice.end);
    if (first < last) visit(slice.data + (first - slice.begin), first - begin, last - first);
  }
}

// The slice [first, second) of `count` elements for part `index`, cut at multiples of kCut.
inline std::pair<int64_t, int64_t> CutPart(int64_t count, int index, int parts) {
  constexpr int64_t kCut = ParameterTable::kCut;
  const auto [begin, end] = PartOf((count + kCut - 1) / kCut, index, parts);
  return {std::min(begin * kCut, count), std::min(end * kCut, count)};
}

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_EXEC_PARAMETER_TABLE_H_
