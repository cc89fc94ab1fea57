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
  // Rows that share the reading of keys and values.
  static constexpr int64_t kTogether = 4;

  AttentionStepKernel(const Graph& graph, const Node& node, const KernelOperands& operands,
                      const CpuTarget& target)
      : simd_(SimdFor(target.isa)),
        rows_(RowKernelsFor(target.isa)),
        heads_(node.attrs.Int("heads")),
        new_rows_(graph.type(node.inputs[0]).shape[0]),
        positions_(graph.type(node.inputs[1]).shape[1]),
        width_(graph.type(node.inputs[1]).shape[2]),
        depth_(width_ / heads_),
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
          context.At<float>(operands_.scratch) + kTogether * ScoresOf(positions_) * int64_t{index};
      const auto [begin, end] = PartOf(heads_, index, context.pool->threads());
      for (int64_t head = begin; head < end; ++head) {
        const int64_t at = head * depth_;
        for (int64_t row = 0; row < new_rows_; row += kTogether) {
          RunRows(q + 3 * row * width_ + at, keys + at, values + at, position + row,
                  std::min(kTogether, new_rows_ - row), scores, y + row * width_ + at);
        }
      }
    });
  }

 private:
  bool IsThere(int32_t position) const { return position >= 0 && position < positions_; }
  // `rows` rows of one head.
  void RunRows(const float* q, const float* keys, const float* values, const int32_t* position,
               int64_t rows, float* scores, float* y) const {
    const auto scale = static_cast<float>(1 / std::sqrt(static_cast<double>(depth_)));
    const int64_t score_stride = ScoresOf(positions_);
    const auto kept = [&](const float* from, int64_t first, int64_t count) {
      return KeptRows{from + first * width_, width_, count - first, depth_};
    };
    // What all of them see, and for each what it sees besides.
    int64_t shared = positions_;
    for (int64_t row = 0; row < rows; ++row) {
      shared = std::min(shared, IsThere(position[row]) ? int64_t{position[row]} + 1 : 0);
    }
    rows_.kept_scores(kept(keys, 0, shared), {q, 3 * width_, rows}, scale, {scores, score_stride});
    for (int64_t row = 0; row < rows; ++row) {
      if (!IsThere(position[row])) continue;
      const int64_t count = int64_t{position[row]} + 1;
      float* const own = scores + row * score_stride;
      rows_.kept_scores(kept(keys, shared, count), {q + 3 * row * width_, 0, 1}, scale,
                        {own + shared, 0});
      const float max = simd_.max(own, count);
      const double sum = simd_.exp_sum(own, max, count, own);
      simd_.scale(own, static_cast<float>(1 / sum), count, false, own);
    }
    rows_.kept_sums(kept(values, 0, shared), {scores, score_stride}, rows, false, y, width_);
    for (int64_t row = 0; row < rows; ++row) {
      float* const to = y + row * width_;
      if (!IsThere(position[row])) {
        std::fill_n(to, depth_, 0.0f);
        continue;
      }
      rows_.kept_sums(kept(values, shared, int64_t{position[row]} + 1),
                      {scores + row * score_stride + shared, 0}, 1, shared > 0, to, 0);
    }
  }

  const SimdKernels& simd_;
  const RowKernels& rows_;
  const int64_t heads_;
  const int64_t new_rows_;
  const int64_t positions_;
  const int64_t width_;
  const int64_t depth_;  // of a head
  const KernelOperands operands_;
};

std::unique_ptr<CpuKernel> Prepare(const Graph& graph, const Node& node,
                                   const KernelOperands& operands, const CpuTarget& target) {
  return std::make_unique<AttentionStepKernel>(graph, node, operands, target);
}

size_t Scratch(const Graph& graph, const Node& node, const CpuTarget& target) {
  const int64_t floats = AttentionStepKernel::kTogether *
                         ScoresOf(graph.type(node.inputs[1]).shape[1]) * target.threads;
  return static_cast<size_t>(floats) * sizeof(float);
}

}  // namespace

const CpuKernelDef kAttentionStep = {Scratch, Prepare};

}  // namespace lockstep::engine::cpu
