// SPDX-License-Identifier: Apache-2.0
// Attention, forward and backward (ops/attention.cc), in fp32. Each head is one unit of work of one
// thread.
#include <algorithm>
#include <memory>

#include "engine/cpu/attention_kernel_base.h"
#include "engine/math/math.h"

namespace lockstep::engine::cpu {
namespace {

class AttentionKernel : public AttentionKernelBase {
 public:
  AttentionKernel(const Graph& graph, const Node& node, const KernelOperands& operands,
                  const CpuTarget& target)
      : AttentionKernelBase(graph, node, operands, target, 0, Factors::kFloats) {}

  // K^T, V, and a strip's q, scores and result; random words.
  int64_t ScratchFloats() const override {
    return Padded(head_.padded_length * head_.depth) + Padded(head_.padded_depth * head_.length) +
           2 * Padded(head_.strip * head_.padded_depth) + Padded(head_.strip * head_.row) +
           WordFloats();
  }

  void Run(const RunContext& context) const override {
    ForHeads(context, ScratchFloats(),
             [&](const Head& h, float* scratch) { RunHead(context, h, scratch); });
  }

 private:
  void RunHead(const RunContext& context, const Head& h, float* scratch) const {
    float* keys_t = scratch;
    float* values = keys_t + Padded(head_.padded_length * head_.depth);
    float* q = values + Padded(head_.padded_depth * head_.length);
    float* out = q + Padded(head_.strip * head_.padded_depth);
    float* scores = out + Padded(head_.strip * head_.padded_depth);
    auto* words = reinterpret_cast<uint32_t*>(scores + Padded(head_.strip * head_.row));
    tiles_.PackTransposed(Part<float>(context, operands_.inputs, first_, 1, h), keys_t);
    tiles_.Pack(Part<float>(context, operands_.inputs, first_, 2, h), values);
    const float* queries = Part<float>(context, operands_.inputs, first_, 0, h);
    float* y = context.At<float>(operands_.outputs[0]) + h.out;
    float* log_sums = context.At<float>(operands_.outputs[1]) + h.sums;
    for (int64_t begin = 0; begin < head_.queries; begin += head_.strip) {
      const int64_t end = std::min(begin + head_.strip, head_.queries);
      const int64_t keys = tiles_.KeysOf(end);
      const HeadTiles::Strip strip{begin, end - begin, keys};
      tiles_.CopyStrip(queries, head_.stride, begin, end, head_.scale, q);
      tiles_.ByKeys(strip, q, keys_t, scores);
      float factors[kMaxStrip];
      for (int64_t i = begin; i < end; ++i) {
        float* row = scores + (i - begin) * head_.row;
        factors[i - begin] = Normalise(h, i, keys, row, words, log_sums + i);
      }
      tiles_.ByDepth(strip, scores, values, out);
      for (int64_t i = begin; i < end; ++i) {
        tiles_.FetchRow(y, shape_.width, i + kRowsAhead);
        simd_.scale(out + (i - begin) * head_.padded_depth, factors[i - begin], head_.depth, false,
                    y + i * shape_.width);
      }
    }
  }

  // Scores to exponentials, dropped where they are to be; returns what makes them probabilities.
  float Normalise(const Head& h, int64_t query, int64_t keys, float* row, uint32_t* words,
                  float* log_sum) const {
    const int64_t seen = tiles_.Mask(h.mask, query, keys, row);
    std::fill(row + seen, row + tiles_.Reach(query, keys), 0.0f);
    if (seen == 0) {
      *log_sum = 0;
      return 0;
    }
    const float max = simd_.max(row, seen);
    const double sum = simd_.exp_sum(row, max, seen, row);
    *log_sum = static_cast<float>(Log(sum) + static_cast<double>(max));
    if (shape_.rate > 0) {
      Words(h, query, seen, words);
      rows_.dropout(row, words, rule_.threshold, rule_.scale, nullptr, seen, row);
    }
    return static_cast<float>(1 / sum);
  }
};

// With P the probabilities, m their dropout, D = m P: y = D v; dD = dy v^T; dv = D^T dy;
// ds = P (m dD - rowsum(dy y)); dq = ds k scale; dk = ds^T q scale.
class AttentionBackwardKernel : public AttentionKernelBase {
 public:
  AttentionBackwardKernel(const Graph& graph, const Node& node, const KernelOperands& operands,
                          const CpuTarget& target)
      : AttentionKernelBase(graph, node, operands, target, 3, Factors::kFloats) {}

  int64_t ScratchFloats() const override {
    return 2 * Panels() + Padded(head_.padded_depth * head_.length) + 3 * Strip() + 2 * Scores() +
           2 * Sums() + WordFloats();
  }

  void Run(const RunContext& context) const override {
    ForHeads(context, ScratchFloats(),
             [&](const Head& h, float* scratch) { RunHead(context, h, scratch); });
  }

 private:
  int64_t Panels() const { return Padded(head_.padded_length * head_.depth); }
  int64_t Strip() const { return Padded(head_.strip * head_.padded_depth); }
  int64_t Scores() const { return Padded(head_.strip * head_.row); }
  int64_t Sums() const { return Padded(head_.length * head_.padded_depth); }

  struct Buffers {
    float *keys_t, *values_t, *keys, *q, *dy, *dq, *p, *dp, *dk, *dv;
    uint32_t* words;
  };
  Buffers Cut(float* scratch) const {
    Buffers b;
    const auto take = [&](int64_t floats) {
      float* at = scratch;
      scratch += floats;
      return at;
    };
    b.keys_t = take(Panels());
    b.values_t = take(Panels());
    b.keys = take(Padded(head_.padded_depth * head_.length));
    b.q = take(Strip());
    b.dy = take(Strip());
    b.dq = take(Strip());
    b.p = take(Scores());
    b.dp = take(Scores());
    b.dk = take(Sums());
    b.dv = take(Sums());
    b.words = reinterpret_cast<uint32_t*>(scratch);
    return b;
  }

  void RunHead(const RunContext& context, const Head& h, float* scratch) const {
    const Buffers b = Cut(scratch);
    const float* keys = Part<float>(context, operands_.inputs, first_, 1, h);
    tiles_.PackTransposed(keys, b.keys_t);
    tiles_.Pack(keys, b.keys);
    tiles_.PackTransposed(Part<float>(context, operands_.inputs, first_, 2, h), b.values_t);
    float* dq = Part<float>(context, operands_.outputs, 0, 0, h);
    // From the last strip to the first: with a causal mask the last one reaches every key, so the
    // sums begin there.
    const int64_t strips = (head_.queries + head_.strip - 1) / head_.strip;
    for (int64_t strip = strips - 1; strip >= 0; --strip) {
      const int64_t begin = strip * head_.strip;
      const int64_t end = std::min(begin + head_.strip, head_.queries);
      RunStrip(context, h, begin, end, b);
      for (int64_t i = begin; i < end; ++i) {
        tiles_.FetchRow(dq, head_.stride, i + kRowsAhead);
        simd_.scale(b.dq + (i - begin) * head_.padded_depth, head_.scale, head_.depth, false,
                    dq + i * head_.stride);
      }
    }
    float* dk = Part<float>(context, operands_.outputs, 0, 1, h);
    float* dv = Part<float>(context, operands_.outputs, 0, 2, h);
    const int64_t seen = tiles_.KeysOf(head_.queries);
    for (int64_t i = 0; i < seen; ++i) {
      tiles_.FetchRow(dk, head_.stride, i + kRowsAhead);
      tiles_.FetchRow(dv, head_.stride, i + kRowsAhead);
      std::copy_n(b.dk + i * head_.padded_depth, head_.depth, dk + i * head_.stride);
      std::copy_n(b.dv + i * head_.padded_depth, head_.depth, dv + i * head_.stride);
    }
    for (int64_t i = seen; i < head_.length; ++i) {  // behind the last query of a causal mask
      std::fill_n(dk + i * head_.stride, head_.depth, 0.0f);
      std::fill_n(dv + i * head_.stride, head_.depth, 0.0f);
    }
  }

  void RunStrip(const RunContext& context, const Head& h, int64_t begin, int64_t end,
                const Buffers& b) const {
    const float* dy = context.At<float>(operands_.inputs[0]) + h.out;
    const float* y = context.At<float>(operands_.inputs[1]) + h.out;
    const float* log_sums = context.At<float>(operands_.inputs[2]) + h.sums;
    const int64_t keys = tiles_.KeysOf(end);
    const HeadTiles::Strip strip{begin, end - begin, keys};
    tiles_.CopyStrip(Part<float>(context, operands_.inputs, first_, 0, h), head_.stride, begin, end,
                     head_.scale, b.q);
    tiles_.CopyStrip(dy, shape_.width, begin, end, 1, b.dy);
    tiles_.ByKeys(strip, b.q, b.keys_t, b.p);
    tiles_.ByKeys(strip, b.dy, b.values_t, b.dp);
    for (int64_t i = begin; i < end; ++i) {
      float* p = b.p + (i - begin) * head_.row;
      float* dp = b.dp + (i - begin) * head_.row;
      const int64_t seen = tiles_.Mask(h.mask, i, keys, p);
      const int64_t reach = tiles_.Reach(i, keys);
      std::fill(p + seen, p + reach, 0.0f);
      std::fill(dp + seen, dp + reach, 0.0f);
      if (seen == 0) continue;
      tiles_.FetchRow(y, shape_.width, i + 2);  // a row of scores is long
      rows_.exp_shifted(p, log_sums[i], seen, p);
      const float delta = rows_.dot(dy + i * shape_.width, y + i * shape_.width, head_.depth);
      if (shape_.rate > 0) Words(h, i, seen, b.words);
      rows_.probability_gradient(p, shape_.rate > 0 ? b.words : nullptr, rule_.threshold,
                                 rule_.scale, delta, seen, dp);
    }
    const bool first = end == head_.queries;
    tiles_.AddOuter(strip, b.p, b.dy, !first, b.dv);
    tiles_.AddOuter(strip, b.dp, b.q, !first, b.dk);
    tiles_.ByDepth(strip, b.dp, b.keys, b.dq);
  }
};

bool TakesHalf(const Graph& graph, const Node& node, const CpuTarget& target) {
  return AttentionTakesPairs(graph, node, target, 0);
}
bool BackwardTakesHalf(const Graph& graph, const Node& node, const CpuTarget& target) {
  return AttentionTakesPairs(graph, node, target, 3);
}

std::unique_ptr<AttentionKernelBase> Make(const Graph& graph, const Node& node,
                                          const KernelOperands& operands, const CpuTarget& target) {
  if (TakesHalf(graph, node, target)) return MakePairAttention(graph, node, operands, target);
  return std::make_unique<AttentionKernel>(graph, node, operands, target);
}
std::unique_ptr<AttentionKernelBase> MakeBackward(const Graph& graph, const Node& node,
                                                  const KernelOperands& operands,
                                                  const CpuTarget& target) {
  if (BackwardTakesHalf(graph, node, target)) {
    return MakePairAttentionBackward(graph, node, operands, target);
  }
  return std::make_unique<AttentionBackwardKernel>(graph, node, operands, target);
}

template <auto kMake>
std::unique_ptr<CpuKernel> Prepare(const Graph& graph, const Node& node,
                                   const KernelOperands& operands, const CpuTarget& target) {
  return kMake(graph, node, operands, target);
}

template <auto kMake>
size_t Scratch(const Graph& graph, const Node& node, const CpuTarget& target) {
  const int64_t floats = kMake(graph, node, {}, target)->ScratchFloats();
  return static_cast<size_t>(floats * target.threads) * sizeof(float);
}

}  // namespace

const CpuKernelDef kAttention = {.scratch_bytes = Scratch<Make>,
                                 .prepare = Prepare<Make>,
                                 .takes_half = TakesHalf,
                                 .op_class = OpClass::kAttention};
const CpuKernelDef kAttentionBackward = {.scratch_bytes = Scratch<MakeBackward>,
                                         .prepare = Prepare<MakeBackward>,
                                         .takes_half = BackwardTakesHalf,
                                         .op_class = OpClass::kAttention};

}  // namespace lockstep::engine::cpu
