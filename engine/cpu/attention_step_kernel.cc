// SPDX-License-Identifier: Apache-2.0
// Attention of new positions over the kept keys and values (ops/attention_step.cc). Each head
// is one unit of work of one thread.
#include <algorithm>
#include <cmath>
#include <memory>

#include "engine/cpu/kernels.h"
#include "engine/cpu/simd/row_kernels.h"
#include "engine/cpu/simd/simd.h"

namespace lockstep::engine::cpu {
namespace {

// Floats of one thread's scores, on cache lines of their own.
int64_t ScoresOf(int64_t positions) { return (positions + 15) / 16 * 16; }

class AttentionStepKernel : public CpuKernel {
 public:
  AttentionStepKernel(const Graph& graph, const Node& node, const KernelOperands& operands,
                      const CpuTarget& target)
      : simd_(SimdFor(target.isa)),
        rows_(RowKernelsFor(target.isa)),
        heads_(node.attrs.Int("heads")),
        new_rows_(graph.type(node.inputs[0]).shape[0]),
        positions_(graph.type(node.inputs[1]).shape[1]),
        width_(graph.type(node.inputs[1]).shape[2]),
        operands_(operands) {}

  void Run(const RunContext& context) const override {
    const auto* before = context.At<float>(operands_.inputs[1]);
    auto* const keys = context.At<float>(operands_.outputs[1]);
    if (keys != before) std::copy_n(before, 2 * positions_ * width_, keys);
    const auto* const q = context.At<float>(operands_.inputs[0]);
    const auto* const position = context.At<int32_t>(operands_.inputs[2]);
    float* const values = keys + positions_ * width_;
    for (int64_t row = 0; row < new_rows_; ++row) {
      if (!IsThere(position[row])) continue;
      const float* const own = q + 3 * row * width_;
      std::copy_n(own + width_, width_, keys + position[row] * width_);
      std::copy_n(own + 2 * width_, width_, values + position[row] * width_);
    }
    auto* const y = context.At<float>(operands_.outputs[0]);
    context.pool->Run([&](int index) {
      float* const scores =
          context.At<float>(operands_.scratch) + ScoresOf(positions_) * int64_t{index};
      const auto [begin, end] = PartOf(heads_, index, context.pool->threads());
      const int64_t depth = width_ / heads_;
      for (int64_t head = begin; head < end; ++head) {
        for (int64_t row = 0; row < new_rows_; ++row) {
          const int64_t at = head * depth;
          float* const out = y + row * width_ + at;
          if (IsThere(position[row])) {
            RunHead(q + 3 * row * width_ + at, keys + at, values + at, position[row] + 1, scores,
                    out);
          } else {
            std::fill_n(out, depth, 0.0f);
          }
        }
      }
    });
  }

 private:
  bool IsThere(int32_t position) const { return position >= 0 && position < positions_; }
  // `count` positions; keys and values have the stride of a row.
  void RunHead(const float* q, const float* keys, const float* values, int64_t count, float* scores,
               float* y) const {
    const int64_t depth = width_ / heads_;
    const auto scale = static_cast<float>(1 / std::sqrt(static_cast<double>(depth)));
    for (int64_t i = 0; i < count; ++i) {
      scores[i] = scale * rows_.dot(q, keys + i * width_, depth);
    }
    const float max = simd_.max(scores, count);
    const double sum = simd_.exp_sum(scores, max, count, scores);
    const auto factor = static_cast<float>(1 / sum);
    for (int64_t i = 0; i < count; ++i) {
      simd_.scale(values + i * width_, scores[i] * factor, depth, i > 0, y);
    }
  }

  const SimdKernels& simd_;
  const RowKernels& rows_;
  const int64_t heads_;
  const int64_t new_rows_;
  const int64_t positions_;
  const int64_t width_;
  const KernelOperands operands_;
};

std::unique_ptr<CpuKernel> Prepare(const Graph& graph, const Node& node,
                                   const KernelOperands& operands, const CpuTarget& target) {
  return std::make_unique<AttentionStepKernel>(graph, node, operands, target);
}

size_t Scratch(const Graph& graph, const Node& node, const CpuTarget& target) {
  const int64_t floats = ScoresOf(graph.type(node.inputs[1]).shape[1]) * target.threads;
  return static_cast<size_t>(floats) * sizeof(float);
}

}  // namespace

const CpuKernelDef kAttentionStep = {Scratch, Prepare};

}  // namespace lockstep::engine::cpu
