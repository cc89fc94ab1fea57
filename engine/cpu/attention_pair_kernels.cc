// SPDX-License-Identifier: Apache-2.0
// Attention on bf16 operands as they are: factors of all products are pairs of them. Scores, sums
// and the softmax are fp32; probabilities, and in the backward pass the gradients of scores, are
// rounded to bf16 once, as factors of what follows. The scale is applied to the fp32 scores.
#include <algorithm>
#include <memory>

#include "engine/cpu/attention_kernel_base.h"
#include "engine/math/math.h"

namespace lockstep::engine::cpu {
namespace {

class PairKernelBase : public AttentionKernelBase {
 public:
  PairKernelBase(const Graph& graph, const Node& node, const KernelOperands& operands,
                 const CpuTarget& target, size_t first)
      : AttentionKernelBase(graph, node, operands, target, first, FactorsOf(true, target)) {}

 protected:
  int64_t KeyPanels() const {
    return Padded(head_.padded_length * head_.depth_pairs * head_.pair_floats);
  }
  int64_t DepthPanels() const {
    return Padded(head_.padded_depth * head_.key_pairs * head_.pair_floats);
  }
  int64_t Wide() const { return Padded(tiles_.WideFloats()); }
  int64_t Scores() const { return Padded(head_.block * head_.row); }
  int64_t Probabilities() const { return Padded(head_.strip * head_.pair_row); }
  int64_t Rows() const { return Padded(head_.strip * head_.padded_depth); }

  // Where results are read, behind `query`'s last one: products take two keys at a time.
  int64_t EndOf(int64_t query, int64_t keys) const {
    return (tiles_.Reach(query, keys) + 1) / 2 * 2;
  }
  static uint16_t* Halves(float* pairs) { return reinterpret_cast<uint16_t*>(pairs); }

  // Rows [begin, end) of a head.
  void Fetch(const uint16_t* rows, int64_t stride, int64_t begin, int64_t end) const {
    for (int64_t i = begin; i < end; ++i) tiles_.FetchRow(rows, stride, i);
  }
  // The next head's keys and values, as many as there are queries from `begin` to `end`.
  void FetchNext(const RunContext& context, const Head& h, int64_t begin, int64_t end) const {
    const int64_t unit = h.sample * shape_.heads + h.head + 1;
    if (unit == shape_.batch * shape_.heads) return;
    const Head next = HeadAt(context, unit);
    for (const int64_t part : {1, 2}) {
      Fetch(Part<uint16_t>(context, operands_.inputs, first_, part, next), head_.stride, begin,
            end);
    }
  }

  // Rows of scores of `query`, of which it looks at `seen` keys.
  ScoreRow RowOf(const Head& h, int64_t query, int64_t keys, int64_t seen, const float* scores,
                 uint32_t* words) const {
    ScoreRow row{.scores = scores, .seen = seen, .end = EndOf(query, keys), .scale = head_.scale};
    if (shape_.rate > 0) {
      Words(h, query, seen, words);
      row.words = words;
      row.threshold = rule_.threshold;
      row.keep = rule_.scale;
    }
    return row;
  }
};

class PairAttentionKernel : public PairKernelBase {
 public:
  PairAttentionKernel(const Graph& graph, const Node& node, const KernelOperands& operands,
                      const CpuTarget& target)
      : PairKernelBase(graph, node, operands, target, 0) {}

  int64_t ScratchFloats() const override {
    return KeyPanels() + DepthPanels() + Scores() + Probabilities() + Rows() + Wide() +
           WordFloats();
  }

  void Run(const RunContext& context) const override {
    ForHeads(context, ScratchFloats(),
             [&](const Head& h, float* scratch) { RunHead(context, h, scratch); });
  }

 private:
  void RunHead(const RunContext& context, const Head& h, float* scratch) const {
    float* keys_t = scratch;
    float* values = keys_t + KeyPanels();
    float* scores = values + DepthPanels();
    float* p = scores + Scores();
    float* out = p + Probabilities();
    float* wide = out + Rows();
    auto* words = reinterpret_cast<uint32_t*>(wide + Wide());
    const uint16_t* q = Part<uint16_t>(context, operands_.inputs, first_, 0, h);
    const uint16_t* k = Part<uint16_t>(context, operands_.inputs, first_, 1, h);
    const uint16_t* v = Part<uint16_t>(context, operands_.inputs, first_, 2, h);
    tiles_.PackPairsTransposed(k, keys_t);
    tiles_.PackPairs(v, head_.stride, head_.length, values);
    uint16_t* y = context.At<uint16_t>(operands_.outputs[0]) + h.out;
    float* log_sums = context.At<float>(operands_.outputs[1]) + h.sums;
    for (int64_t begin = 0; begin < head_.queries; begin += head_.block) {
      const int64_t end = std::min(begin + head_.block, head_.queries);
      const HeadTiles::Strip strip{begin, end - begin, tiles_.KeysOf(end)};
      tiles_.PairsByKeys(strip, q + begin * head_.stride, head_.stride, keys_t, wide, scores);
      float factors[kMaxStrip];
      for (int64_t i = 0; i < strip.rows; ++i) {
        factors[i] = Normalise(h, begin + i, strip.keys, scores + i * head_.row, words,
                               Halves(p + i * head_.pair_row), log_sums + begin + i);
      }
      Fetch(q, head_.stride, end, std::min(end + head_.block, head_.queries));
      FetchNext(context, h, begin, end);
      tiles_.PairsByDepth(strip, p, values, wide, out);
      for (int64_t i = 0; i < strip.rows; ++i) {
        tiles_.FetchRow(y, shape_.width, begin + i + kRowsAhead);
        rows_.scale_to_bf16(out + i * head_.padded_depth, factors[i], head_.depth,
                            y + (begin + i) * shape_.width);
      }
    }
  }

  // Scores to exponentials, dropped where they are to be; returns what makes them probabilities.
  float Normalise(const Head& h, int64_t query, int64_t keys, float* scores, uint32_t* words,
                  uint16_t* p, float* log_sum) const {
    const int64_t seen = tiles_.Mask(h.mask, query, keys, scores);
    if (seen == 0) {
      std::fill_n(p, EndOf(query, keys), uint16_t{0});
      *log_sum = 0;
      return 0;
    }
    float max;
    const float sum = rows_.probabilities_bf16(RowOf(h, query, keys, seen, scores, words), p, &max);
    *log_sum = static_cast<float>(Log(static_cast<double>(sum)) +
                                  static_cast<double>(max) * static_cast<double>(head_.scale));
    return 1 / sum;
  }
};

// The formulas of AttentionBackwardKernel.
class PairAttentionBackwardKernel : public PairKernelBase {
 public:
  PairAttentionBackwardKernel(const Graph& graph, const Node& node, const KernelOperands& operands,
                              const CpuTarget& target)
      : PairKernelBase(graph, node, operands, target, 3) {}

  int64_t ScratchFloats() const override {
    return 2 * KeyPanels() + DepthPanels() + 2 * Scores() + 2 * Probabilities() + 2 * RowPanels() +
           Padded(tiles_.OuterFloats()) + Rows() + 2 * Sums() + Wide() + WordFloats();
  }

  void Run(const RunContext& context) const override {
    ForHeads(context, ScratchFloats(),
             [&](const Head& h, float* scratch) { RunHead(context, h, scratch); });
  }

 private:
  int64_t RowPanels() const {
    return Padded(head_.strip / 2 * head_.padded_depth * head_.pair_floats);
  }
  int64_t Sums() const { return Padded(head_.length * head_.padded_depth); }

  struct Buffers {
    float *keys_t, *values_t, *keys, *scores, *dp, *p, *ds, *q, *dy, *packed, *dq, *dk, *dv, *wide;
    uint32_t* words;
  };
  Buffers Cut(float* scratch) const {
    Buffers b;
    const auto take = [&](int64_t floats) {
      float* at = scratch;
      scratch += floats;
      return at;
    };
    b.keys_t = take(KeyPanels());
    b.values_t = take(KeyPanels());
    b.keys = take(DepthPanels());
    b.scores = take(Scores());
    b.dp = take(Scores());
    b.p = take(Probabilities());
    b.ds = take(Probabilities());
    b.q = take(RowPanels());
    b.dy = take(RowPanels());
    b.packed = take(Padded(tiles_.OuterFloats()));
    b.dq = take(Rows());
    b.dk = take(Sums());
    b.dv = take(Sums());
    b.wide = take(Wide());
    b.words = reinterpret_cast<uint32_t*>(scratch);
    return b;
  }

  void RunHead(const RunContext& context, const Head& h, float* scratch) const {
    const Buffers b = Cut(scratch);
    const uint16_t* keys = Part<uint16_t>(context, operands_.inputs, first_, 1, h);
    const uint16_t* values = Part<uint16_t>(context, operands_.inputs, first_, 2, h);
    tiles_.PackPairsTransposed(keys, b.keys_t);
    tiles_.PackPairs(keys, head_.stride, head_.length, b.keys);
    tiles_.PackPairsTransposed(values, b.values_t);
    // From the last strip to the first: with a causal mask the last one reaches every key, so the
    // sums begin there.
    const int64_t strips = (head_.queries + head_.strip - 1) / head_.strip;
    for (int64_t strip = strips - 1; strip >= 0; --strip) {
      const int64_t begin = strip * head_.strip;
      RunStrip(context, h, begin, std::min(begin + head_.strip, head_.queries), b);
    }
    uint16_t* dk = Part<uint16_t>(context, operands_.outputs, 0, 1, h);
    uint16_t* dv = Part<uint16_t>(context, operands_.outputs, 0, 2, h);
    const int64_t seen = tiles_.KeysOf(head_.queries);
    Put(b.dk, head_.scale, seen, dk);
    Put(b.dv, 1, seen, dv);
    for (int64_t i = seen; i < head_.length; ++i) {  // behind the last query of a causal mask
      std::fill_n(dk + i * head_.stride, head_.depth, uint16_t{0});
      std::fill_n(dv + i * head_.stride, head_.depth, uint16_t{0});
    }
  }

  // The sums of `rows` rows, times `factor`, to where they belong.
  void Put(const float* sums, float factor, int64_t rows, uint16_t* to) const {
    for (int64_t i = 0; i < rows; ++i) {
      tiles_.FetchRow(to, head_.stride, i + kRowsAhead);
      rows_.scale_to_bf16(sums + i * head_.padded_depth, factor, head_.depth,
                          to + i * head_.stride);
    }
  }

  void RunStrip(const RunContext& context, const Head& h, int64_t begin, int64_t end,
                const Buffers& b) const {
    const HeadTiles::Strip strip{begin, end - begin, tiles_.KeysOf(end)};
    for (int64_t at = begin; at < end; at += head_.block) {
      RunBlock(context, h, begin, at, std::min(at + head_.block, end), b);
    }
    if (strip.rows % 2 != 0) {
      std::fill_n(b.p + strip.rows * head_.pair_row, head_.pair_row, 0.0f);
      std::fill_n(b.ds + strip.rows * head_.pair_row, head_.pair_row, 0.0f);
    }
    const uint16_t* q = Part<uint16_t>(context, operands_.inputs, first_, 0, h);
    const uint16_t* dy = context.At<uint16_t>(operands_.inputs[0]) + h.out;
    tiles_.PackPairs(q + begin * head_.stride, head_.stride, strip.rows, b.q);
    tiles_.PackPairs(dy + begin * shape_.width, shape_.width, strip.rows, b.dy);
    const bool first = end == head_.queries;
    tiles_.AddPairsOuter(strip, b.p, b.dy, !first, b.packed, b.dv);
    tiles_.AddPairsOuter(strip, b.ds, b.q, !first, b.packed, b.dk);
    tiles_.PairsByDepth(strip, b.ds, b.keys, b.wide, b.dq);
    uint16_t* dq = Part<uint16_t>(context, operands_.outputs, 0, 0, h);
    Put(b.dq, head_.scale, strip.rows, dq + begin * head_.stride);
  }

  // Probabilities and gradients of scores of queries [begin, end) of the strip from `first` on.
  void RunBlock(const RunContext& context, const Head& h, int64_t first, int64_t begin, int64_t end,
                const Buffers& b) const {
    const uint16_t* q = Part<uint16_t>(context, operands_.inputs, first_, 0, h);
    const uint16_t* dy = context.At<uint16_t>(operands_.inputs[0]) + h.out;
    const uint16_t* y = context.At<uint16_t>(operands_.inputs[1]) + h.out;
    const float* log_sums = context.At<float>(operands_.inputs[2]) + h.sums;
    const HeadTiles::Strip block{begin, end - begin, tiles_.KeysOf(end)};
    Fetch(dy, shape_.width, begin, end);
    Fetch(y, shape_.width, begin, end);
    FetchNext(context, h, begin, end);
    tiles_.PairsByKeys(block, q + begin * head_.stride, head_.stride, b.keys_t, b.wide, b.scores);
    tiles_.PairsByKeys(block, dy + begin * shape_.width, shape_.width, b.values_t, b.wide, b.dp);
    for (int64_t i = begin; i < end; ++i) {
      float* scores = b.scores + (i - begin) * head_.row;
      uint16_t* p = Halves(b.p + (i - first) * head_.pair_row);
      uint16_t* ds = Halves(b.ds + (i - first) * head_.pair_row);
      const int64_t seen = tiles_.Mask(h.mask, i, block.keys, scores);
      if (seen == 0) {
        std::fill_n(p, EndOf(i, block.keys), uint16_t{0});
        std::fill_n(ds, EndOf(i, block.keys), uint16_t{0});
        continue;
      }
      const float delta = rows_.dot_bf16(dy + i * shape_.width, y + i * shape_.width, head_.depth);
      rows_.probability_gradient_bf16(RowOf(h, i, block.keys, seen, scores, b.words),
                                      b.dp + (i - begin) * head_.row, log_sums[i], delta, p, ds);
    }
  }
};

}  // namespace

bool AttentionTakesPairs(const Graph& graph, const Node& node, const CpuTarget& target,
                         size_t first) {
  const ops::AttentionShape shape =
      *ops::AttentionShape::Of(TypesOf(graph, node), node.attrs, first);
  const size_t factors = first + (shape.packed ? 1 : 3);
  for (size_t i = 0; i < factors; ++i) {
    const bool sums = first != 0 && i == 2;
    if (graph.type(node.inputs[i]).dtype != (sums ? DType::kF32 : DType::kBF16)) return false;
  }
  for (size_t o = 0; o < node.outputs.size(); ++o) {
    const bool sums = first == 0 && o == 1;
    if (node.outputs[o].dtype != (sums ? DType::kF32 : DType::kBF16)) return false;
  }
  return (shape.width / shape.heads) % 2 == 0;
}

std::unique_ptr<AttentionKernelBase> MakePairAttention(const Graph& graph, const Node& node,
                                                       const KernelOperands& operands,
                                                       const CpuTarget& target) {
  return std::make_unique<PairAttentionKernel>(graph, node, operands, target);
}

std::unique_ptr<AttentionKernelBase> MakePairAttentionBackward(const Graph& graph, const Node& node,
                                                               const KernelOperands& operands,
                                                               const CpuTarget& target) {
  return std::make_unique<PairAttentionBackwardKernel>(graph, node, operands, target);
}

}  // namespace lockstep::engine::cpu
