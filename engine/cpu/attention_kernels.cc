// SPDX-License-Identifier: Apache-2.0
// Attention, forward and backward (ops/attention.cc). Each head is one unit of work of one thread.
#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "engine/cpu/attention_tiles.h"
#include "engine/cpu/kernels.h"

namespace lockstep::engine::cpu {
namespace {

std::vector<TensorType> TypesOf(const Graph& graph, const Node& node) {
  std::vector<TensorType> types;
  for (const Value& input : node.inputs) types.push_back(graph.type(input));
  return types;
}

// What both directions share. `first` is the number of the operand q.
class AttentionKernelBase : public CpuKernel {
 public:
  AttentionKernelBase(const Graph& graph, const Node& node, const KernelOperands& operands,
                      const CpuTarget& target, size_t first)
      : first_(first),
        shape_(*ops::AttentionShape::Of(TypesOf(graph, node), node.attrs, first)),
        simd_(SimdFor(target.isa)),
        rows_(RowKernelsFor(target.isa)),
        head_(shape_, simd_),
        tiles_(head_, simd_, rows_),
        rule_(node.attrs),
        operands_(operands),
        threads_(target.threads) {}

 protected:
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
  float* Part(const RunContext& context, const std::vector<Storage>& storages, size_t first,
              int64_t part, const Head& h) const {
    if (!shape_.packed) {
      return context.At<float>(storages[first + static_cast<size_t>(part)]) +
             (part == 0 ? h.queries : h.offset);
    }
    return context.At<float>(storages[first]) + h.offset + part * shape_.width;
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
      for (int64_t unit = begin; unit < end; ++unit) run(HeadAt(context, unit), scratch);
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

// Floats of scratch, each array on its own cache line.
int64_t Padded(int64_t floats) { return (floats + 15) / 16 * 16; }

class AttentionKernel : public AttentionKernelBase {
 public:
  AttentionKernel(const Graph& graph, const Node& node, const KernelOperands& operands,
                  const CpuTarget& target)
      : AttentionKernelBase(graph, node, operands, target, 0) {}

  // K^T, V, and a strip's q, scores and result; random words.
  int64_t ScratchFloats() const {
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
    tiles_.PackTransposed(Part(context, operands_.inputs, first_, 1, h), keys_t);
    tiles_.Pack(Part(context, operands_.inputs, first_, 2, h), values);
    const float* queries = Part(context, operands_.inputs, first_, 0, h);
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
    *log_sum = static_cast<float>(std::log(sum) + static_cast<double>(max));
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
      : AttentionKernelBase(graph, node, operands, target, 3) {}

  int64_t ScratchFloats() const {
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
    const float* keys = Part(context, operands_.inputs, first_, 1, h);
    tiles_.PackTransposed(keys, b.keys_t);
    tiles_.Pack(keys, b.keys);
    tiles_.PackTransposed(Part(context, operands_.inputs, first_, 2, h), b.values_t);
    float* dq = Part(context, operands_.outputs, 0, 0, h);
    // From the last strip to the first: with a causal mask the last one reaches every key, so the
    // sums begin there.
    const int64_t strips = (head_.queries + head_.strip - 1) / head_.strip;
    for (int64_t strip = strips - 1; strip >= 0; --strip) {
      const int64_t begin = strip * head_.strip;
      const int64_t end = std::min(begin + head_.strip, head_.queries);
      RunStrip(context, h, begin, end, b);
      for (int64_t i = begin; i < end; ++i) {
        simd_.scale(b.dq + (i - begin) * head_.padded_depth, head_.scale, head_.depth, false,
                    dq + i * head_.stride);
      }
    }
    float* dk = Part(context, operands_.outputs, 0, 1, h);
    float* dv = Part(context, operands_.outputs, 0, 2, h);
    const int64_t seen = tiles_.KeysOf(head_.queries);
    for (int64_t i = 0; i < seen; ++i) {
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
    tiles_.CopyStrip(Part(context, operands_.inputs, first_, 0, h), head_.stride, begin, end,
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

template <typename Kernel>
std::unique_ptr<CpuKernel> Prepare(const Graph& graph, const Node& node,
                                   const KernelOperands& operands, const CpuTarget& target) {
  return std::make_unique<Kernel>(graph, node, operands, target);
}

template <typename Kernel>
size_t Scratch(const Graph& graph, const Node& node, const CpuTarget& target) {
  const Kernel kernel(graph, node, {}, target);
  return static_cast<size_t>(kernel.ScratchFloats() * target.threads) * sizeof(float);
}

}  // namespace

const CpuKernelDef kAttention = {Scratch<AttentionKernel>, Prepare<AttentionKernel>};
const CpuKernelDef kAttentionBackward = {Scratch<AttentionBackwardKernel>,
                                         Prepare<AttentionBackwardKernel>};

}  // namespace lockstep::engine::cpu
