// SPDX-License-Identifier: Apache-2.0
// What attention's kernels share, forward and backward, in fp32 (attention_kernels.cc) and on pairs
// of bf16 (attention_pair_kernels.cc): heads as units of work, and where their operands lie.
// Thread-safety: as CpuKernel.
#ifndef LOCKSTEP_ENGINE_CPU_ATTENTION_KERNEL_BASE_H_
#define LOCKSTEP_ENGINE_CPU_ATTENTION_KERNEL_BASE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/cpu/attention_tiles.h"
#include "engine/cpu/kernels.h"
#include "engine/cpu/simd/row_kernels.h"

namespace lockstep::engine::cpu {

// As if all were fp32, which the shape is asked for with.
inline std::vector<TensorType> TypesOf(const Graph& graph, const Node& node) {
  std::vector<TensorType> types;
  for (const Value& input : node.inputs) {
    types.push_back(graph.type(input));
    if (IsHalf(types.back().dtype)) types.back().dtype = DType::kF32;
  }
  return types;
}

// Floats of scratch, each array on its own cache line.
inline int64_t Padded(int64_t floats) { return (floats + 15) / 16 * 16; }

// `first` is the number of the operand q.
class AttentionKernelBase : public CpuKernel {
 public:
  AttentionKernelBase(const Graph& graph, const Node& node, const KernelOperands& operands,
                      const CpuTarget& target, size_t first, Factors factors)
      : first_(first),
        shape_(*ops::AttentionShape::Of(TypesOf(graph, node), node.attrs, first)),
        simd_(SimdFor(target.isa)),
        rows_(RowKernelsFor(target.isa)),
        head_(shape_, simd_, factors),
        tiles_(head_, simd_),
        rule_(node.attrs),
        operands_(operands),
        threads_(target.threads) {}

  // Of each thread.
  virtual int64_t ScratchFloats() const = 0;

 protected:
  // Rows that are written one after the other are fetched so many before.
  static constexpr int64_t kRowsAhead = 8;

  // One head's place in the operands.
  struct Head {
    int64_t sample = 0;
    int64_t head = 0;
    int64_t offset = 0;   // of its first value in k, v (or packed) and their gradients
    int64_t queries = 0;  // the same in q
    int64_t out = 0;      // of its first value in y and dy
    int64_t sums = 0;     // in log_sums
    KeyMask mask;
    RandomSite site;
    int64_t random_row = 0;  // of query 0, in rows of padded length
  };

  Head HeadAt(const RunContext& context, int64_t unit) const {
    Head h;
    h.sample = unit / shape_.heads;
    h.head = unit % shape_.heads;
    const int64_t row = h.sample * shape_.length;
    h.offset = row * head_.stride + h.head * head_.depth;
    const int64_t first = h.sample * shape_.queries;
    h.queries = first * head_.stride + h.head * head_.depth;
    h.out = first * shape_.width + h.head * head_.depth;
    h.sums = unit * shape_.queries;
    if (shape_.masked) {
      const auto* keys = context.At<int32_t>(operands_.inputs[shape_.keys]);
      if (shape_.lengths) {
        h.mask.by_length = keys + h.sample;
      } else {
        h.mask.by_key = keys + row;
      }
    }
    if (shape_.rate > 0) {
      const auto* address = context.At<int32_t>(operands_.inputs[shape_.address]);
      h.site = rule_.At(address);
      const int64_t units = MicroOf(address) * shape_.batch * shape_.heads + unit;
      h.random_row = units * shape_.length;
    }
    return h;
  }

  // q, k and v of a head (part 0, 1, 2), or their gradients among `storages` from `first` on.
  template <typename T>
  T* Part(const RunContext& context, const std::vector<Storage>& storages, size_t first,
          int64_t part, const Head& h) const {
    if (!shape_.packed) {
      return context.At<T>(storages[first + static_cast<size_t>(part)]) +
             (part == 0 ? h.queries : h.offset);
    }
    return context.At<T>(storages[first]) + h.offset + part * shape_.width;
  }

  // The words of one query's row of probabilities, [0, keys).
  void Words(const Head& h, int64_t query, int64_t keys, uint32_t* words) const {
    const int64_t blocks = (shape_.length + kRandomBlock - 1) / kRandomBlock;
    const int64_t first = (h.random_row + query) * blocks;
    for (int64_t b = 0; b * kRandomBlock < keys; ++b) {
      rows_.random_halves(h.site, static_cast<uint64_t>(first + b), words + b * kRandomBlock);
    }
  }
  int64_t WordFloats() const {
    return shape_.rate > 0 ? (shape_.length + kRandomBlock - 1) / kRandomBlock * kRandomBlock : 0;
  }

  // run(head, scratch) for each head; `floats` of scratch for each thread.
  template <typename Body>
  void ForHeads(const RunContext& context, int64_t floats, const Body& run) const {
    context.pool->Run([&](int index) {
      float* scratch = context.At<float>(operands_.scratch) + floats * index;
      const auto [begin, end] = PartOf(shape_.batch * shape_.heads, index, threads_);
      for (int64_t unit = begin; unit < end; ++unit) {
        run(HeadAt(context, unit), scratch);
        context.pool->Moved();
      }
    });
  }

  const size_t first_;
  const ops::AttentionShape shape_;
  const SimdKernels& simd_;
  const RowKernels& rows_;
  const HeadShape head_;
  const HeadTiles tiles_;
  const DropRule rule_;
  const KernelOperands operands_;
  const int threads_;
};

// The kernels on pairs of bf16, and whether they take a node's operands; `first` as above.
bool AttentionTakesPairs(const Graph& graph, const Node& node, const CpuTarget& target,
                         size_t first);
std::unique_ptr<AttentionKernelBase> MakePairAttention(const Graph& graph, const Node& node,
                                                       const KernelOperands& operands,
                                                       const CpuTarget& target);
std::unique_ptr<AttentionKernelBase> MakePairAttentionBackward(const Graph& graph, const Node& node,
                                                               const KernelOperands& operands,
                                                               const CpuTarget& target);

}  // namespace lockstep::engine::cpu

#endif  // LOCKSTEP_ENGINE_CPU_ATTENTION_KERNEL_BASE_H_
