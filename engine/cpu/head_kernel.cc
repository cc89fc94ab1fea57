// SPDX-License-Identifier: Apache-2.0
// linear_softmax_cross_entropy (ops/linear_loss.cc): logits and their gradient exist for a strip of
// rows at a time. The weight is packed once for all strips, in the order of each of its two
// products. Where x and the weight are bf16, the logits are not rounded and their gradient is, row
// by row: all three products are those of pairs.
#include <algorithm>
#include <memory>
#include <optional>

#include "common/half.h"
#include "engine/cpu/gemm.h"
#include "engine/cpu/kernels.h"
#include "engine/cpu/row_blocks.h"
#include "engine/cpu/simd/half_kernels.h"
#include "engine/cpu/softmax_rows.h"

namespace lockstep::engine::cpu {
namespace {

// One block of k of the weight gradient's product: its sums over strips are those over such blocks.
constexpr int64_t kStripRows = 256;

size_t Padded(size_t floats) { return (floats + 15) / 16 * 16; }

// Returns whether the factors come in bf16 (kernel.h).
bool FactorsAreBf16(const Graph& graph, const Node& node) {
  return graph.type(node.inputs[0]).dtype == DType::kBF16;
}

// A product of which bf16 factors may have any k. Where that is odd, its last count is added alone,
// behind the pairs (docs/same_bits.md).
class HeadProduct {
 public:
  HeadProduct(const GemmShape& shape, const CpuTarget& target)
      : simd_(SimdFor(target.isa)), shape_(shape), odd_(shape.bf16 && !PairsBf16(shape.k)) {
    GemmShape pairs = shape;
    if (odd_) --pairs.k;
    if (pairs.k > 0) pairs_.emplace(pairs, target.isa, target.threads);
    if (!odd_) return;
    last_.emplace(GemmShape{.m = shape.m, .n = shape.n, .k = 1}, target.isa, target.threads);
    // Rows of an odd length are no rows of pairs.
    copies_a_ = !shape.a_transposed && shape.a_stride == 0;
    copies_b_ = shape.b_transposed;
  }

  // Floats of the scratch of all calls.
  size_t ScratchFloats() const {
    const size_t products = ProductFloats();
    if (!odd_) return products;
    return products + VectorFloats(shape_.m) + VectorFloats(shape_.n) +
           (copies_a_ ? CopyFloats(shape_.m) : 0) + (copies_b_ ? CopyFloats(shape_.n) : 0);
  }
  // Gemm's for the pairs; 0 also where there are none.
  size_t packed_bytes() const { return pairs_.has_value() ? pairs_->packed_bytes() : 0; }
  void PackAll(const void* b, float* packed, float* scratch, ThreadPool* pool) const {
    pairs_->PackAll(copies_b_ ? Pairs(b, shape_.n, CopyOfB(scratch), pool) : b, packed, scratch,
                    pool);
  }
  // `packed`: what PackAll has made of b, or null. `bias` may be null. REQUIRES: no bias with
  // `accumulate`.
  void Run(const void* a, const void* b, const float* packed, float* c, bool accumulate,
           const float* bias, float* scratch, ThreadPool* pool) const {
    if (pairs_.has_value()) {
      GemmEpilogue epilogue;
      if (!odd_) epilogue.bias = bias;
      const void* const pairs_of_a = copies_a_ ? Pairs(a, shape_.m, CopyOfA(scratch), pool) : a;
      if (packed != nullptr) {
        pairs_->RunPacked(pairs_of_a, packed, c, accumulate, epilogue, scratch, pool);
      } else {
        pairs_->Run(pairs_of_a, copies_b_ ? Pairs(b, shape_.n, CopyOfB(scratch), pool) : b, c,
                    accumulate, epilogue, scratch, pool);
      }
    }
    if (!odd_) return;
    float* const last_of_a = scratch + ProductFloats();
    float* const last_of_b = last_of_a + VectorFloats(shape_.m);
    const int64_t stride = shape_.a_stride > 0   ? shape_.a_stride
                           : shape_.a_transposed ? shape_.m
                                                 : shape_.k;
    WidenLast(a, shape_.m, shape_.a_transposed, stride, last_of_a);
    WidenLast(b, shape_.n, !shape_.b_transposed, shape_.b_transposed ? shape_.k : shape_.n,
              last_of_b);
    last_->Run(last_of_a, last_of_b, c, accumulate || pairs_.has_value(), {}, scratch, pool);
    if (bias == nullptr) return;
    for (int64_t row = 0; row < shape_.m; ++row) {
      simd_.add(c + row * shape_.n, bias, shape_.n, c + row * shape_.n);
    }
  }

 private:
  static size_t VectorFloats(int64_t count) { return Padded(static_cast<size_t>(count)); }
  size_t CopyFloats(int64_t rows) const { return VectorFloats(rows * (shape_.k / 2)); }
  size_t ProductFloats() const {
    size_t bytes = 0;
    if (pairs_.has_value()) bytes = pairs_->scratch_bytes();
    if (last_.has_value()) bytes = std::max(bytes, last_->scratch_bytes());
    return Padded(bytes / sizeof(float));
  }
  float* CopyOfA(float* scratch) const {
    return scratch + ProductFloats() + VectorFloats(shape_.m) + VectorFloats(shape_.n);
  }
  float* CopyOfB(float* scratch) const {
    return CopyOfA(scratch) + (copies_a_ ? CopyFloats(shape_.m) : 0);
  }

  // `rows` rows of k without the last element of each, one behind the other. Returns `copy`.
  const float* Pairs(const void* from, int64_t rows, float* copy, ThreadPool* pool) const {
    const auto* const halves = static_cast<const uint16_t*>(from);
    auto* const to = reinterpret_cast<uint16_t*>(copy);
    const int64_t even = shape_.k - 1;
    ForParts(rows, pool, [&](int64_t at, int64_t count) {
      for (int64_t row = at; row < at + count; ++row) {
        std::copy_n(halves + row * shape_.k, even, to + row * even);
      }
    });
    return copy;
  }
  // The last count of k of a factor: its last row, or the last of each of its rows.
  void WidenLast(const void* from, int64_t count, bool is_row, int64_t stride, float* to) const {
    const auto* const halves = static_cast<const uint16_t*>(from);
    const int64_t last = shape_.k - 1;
    for (int64_t i = 0; i < count; ++i) {
      to[i] = BFloat16{halves[is_row ? last * stride + i : i * stride + last]}.ToFloat();
    }
  }

  const SimdKernels& simd_;
  const GemmShape shape_;
  const bool odd_;
  std::optional<Gemm> pairs_;  // all of k unless that is odd
  std::optional<Gemm> last_;   // in fp32
  bool copies_a_ = false;
  bool copies_b_ = false;
};

// The products of a strip of so many rows, whose logits' gradient has rows of `pitch` elements.
struct StripProducts {
  StripProducts(int64_t rows, int64_t columns, int64_t depth, int64_t pitch, bool bf16,
                const CpuTarget& target)
      : forward({.m = rows,
                 .n = columns,
                 .k = depth,
                 .b_transposed = true,
                 .bf16 = bf16,
                 .pairs = target.bf16_pairs},
                target),
        input({.m = rows,
               .n = depth,
               .k = columns,
               .a_stride = pitch,
               .bf16 = bf16,
               .pairs = target.bf16_pairs},
              target),
        weight({.m = columns,
                .n = depth,
                .k = rows,
                .a_transposed = true,
                .a_stride = pitch,
                .bf16 = bf16,
                .pairs = target.bf16_pairs},
               target) {}
  size_t scratch_floats() const {
    return std::max({forward.ScratchFloats(), input.ScratchFloats(), weight.ScratchFloats()});
  }

  const HeadProduct forward, input, weight;
};

class HeadKernel : public CpuKernel {
 public:
  HeadKernel(const Graph& graph, const Node& node, const KernelOperands& operands,
             const CpuTarget& target)
      : simd_(SimdFor(target.isa)),
        half_(HalfKernelsFor(target.isa)),
        bf16_(FactorsAreBf16(graph, node)),
        rows_(graph.type(node.inputs[0]).shape[0]),
        depth_(graph.type(node.inputs[0]).shape[1]),
        columns_(graph.type(node.inputs[1]).shape[0]),
        pitch_(bf16_ ? columns_ + columns_ % 2 : columns_),
        strip_(std::min(rows_, kStripRows)),
        classes_(node.attrs.Int("classes") > 0 ? node.attrs.Int("classes") : columns_),
        smoothing_(node.attrs.Double("label_smoothing")),
        whole_(strip_, columns_, depth_, pitch_, bf16_, target),
        dx_(node.outputs[2], depth_, operands.outputs.empty() ? Storage{} : operands.outputs[2],
            target.isa),
        operands_(operands) {
    if (rows_ % strip_ != 0) rest_.emplace(rows_ % strip_, columns_, depth_, pitch_, bf16_, target);
    packs_ = rows_ > strip_ && whole_.forward.packed_bytes() > 0 && whole_.input.packed_bytes() > 0;
  }

  // A strip's logits and what is rounded of it, the sum of the bias' gradient, the weight in both
  // orders, the products' own.
  size_t ScratchFloats() const {
    const size_t products =
        std::max(whole_.scratch_floats(), rest_.has_value() ? rest_->scratch_floats() : 0);
    return LogitFloats() + PairFloats() + DxFloats() + Padded(static_cast<size_t>(columns_)) +
           ForwardFloats() + InputFloats() + products;
  }

  void Run(const RunContext& context) const override {
    const void* weight = context.At<void>(operands_.inputs[1]);
    float* const logits = context.At<float>(operands_.scratch);
    auto* const pairs = reinterpret_cast<uint16_t*>(logits + LogitFloats());
    float* const dx_buffer = logits + LogitFloats() + PairFloats();
    float* const bias_sum = dx_buffer + DxFloats();
    float* const forward = bias_sum + Padded(static_cast<size_t>(columns_));
    float* const input = forward + ForwardFloats();
    float* const scratch = input + InputFloats();
    if (packs_) {
      whole_.forward.PackAll(weight, forward, scratch, context.pool);
      whole_.input.PackAll(weight, input, scratch, context.pool);
    }
    SoftmaxRows rows = Bind(context);
    if (HasBias()) {
      rows.bias = bias_sum;
      std::fill_n(bias_sum, columns_, 0.0f);
    }
    const size_t row_bytes = static_cast<size_t>(depth_) * (bf16_ ? 2 : 4);
    const void* const gradient = bf16_ ? static_cast<const void*>(pairs) : logits;
    SoftmaxSums sums;
    for (int64_t row = 0; row < rows_; row += strip_) {
      const int64_t count = std::min(strip_, rows_ - row);
      const StripProducts& products = count == strip_ ? whole_ : *rest_;
      const bool packed = packs_ && count == strip_;
      const auto* x = context.At<std::byte>(operands_.inputs[0]) + row * row_bytes;
      float* const dx = dx_.Place(context, row, dx_buffer);
      products.forward.Run(x, weight, packed ? forward : nullptr, logits, false,
                           HasBias() ? context.At<float>(operands_.inputs[4]) : nullptr, scratch,
                           context.pool);
      Differentiate(count, logits, pairs, &rows, &sums);
      const Storage& dw = operands_.outputs[3];
      products.weight.Run(gradient, x, nullptr, context.At<float>(dw), row > 0 || context.Adds(dw),
                          nullptr, scratch, context.pool);
      products.input.Run(gradient, weight, packed ? input : nullptr, dx, false, nullptr, scratch,
                         context.pool);
      dx_.Put(context, row, count, dx);
    }
    WriteSoftmaxSums(sums, rows);
    if (HasBias()) PutBias(context, bias_sum);
  }

 private:
  bool HasBias() const { return operands_.inputs.size() == 5; }
  size_t LogitFloats() const { return Padded(static_cast<size_t>(strip_ * columns_)); }
  size_t PairFloats() const { return bf16_ ? Padded(static_cast<size_t>(strip_ * pitch_ / 2)) : 0; }
  size_t DxFloats() const { return static_cast<size_t>(dx_.BufferFloats(strip_)); }
  size_t ForwardFloats() const {
    return packs_ ? Padded(whole_.forward.packed_bytes() / sizeof(float)) : 0;
  }
  size_t InputFloats() const {
    return packs_ ? Padded(whole_.input.packed_bytes() / sizeof(float)) : 0;
  }

  // The next `count` rows: logits to their gradient, in their place or rounded to `pairs` while a
  // row is in the cache.
  void Differentiate(int64_t count, float* logits, uint16_t* pairs, SoftmaxRows* rows,
                     SoftmaxSums* sums) const {
    const int64_t each = bf16_ ? 1 : count;
    for (int64_t row = 0; row < count; row += each) {
      float* const values = logits + row * columns_;
      rows->logits = rows->gradient = values;
      RunSoftmaxRows(simd_, *rows, each, sums);
      rows->labels += each;
      if (bf16_) half_.narrow_bf16(values, columns_, pairs + row * pitch_);
    }
  }

  SoftmaxRows Bind(const RunContext& context) const {
    SoftmaxRows rows;
    rows.columns = columns_;
    rows.classes = classes_;
    rows.smoothing = smoothing_;
    rows.labels = context.At<int32_t>(operands_.inputs[2]);
    rows.seed = context.At<float>(operands_.inputs[3]);
    rows.loss = context.At<float>(operands_.outputs[0]);
    rows.count = context.At<float>(operands_.outputs[1]);
    rows.add_sums = context.Adds(operands_.outputs[0]);
    return rows;
  }
  void PutBias(const RunContext& context, const float* sum) const {
    float* const out = context.At<float>(operands_.outputs[4]);
    if (context.Adds(operands_.outputs[4])) {
      simd_.add(out, sum, columns_, out);
    } else {
      std::copy_n(sum, columns_, out);
    }
  }

  const SimdKernels& simd_;
  const HalfKernels& half_;
  const bool bf16_;
  const int64_t rows_;
  const int64_t depth_;
  const int64_t columns_;
  const int64_t pitch_;  // of the logits' gradient that is multiplied: rows of pairs
  const int64_t strip_;
  const int64_t classes_;
  const double smoothing_;
  const StripProducts whole_;
  std::optional<StripProducts> rest_;
  const RowBlocks dx_;
  const KernelOperands operands_;
  bool packs_ = false;
};

std::unique_ptr<CpuKernel> Prepare(const Graph& graph, const Node& node,
                                   const KernelOperands& operands, const CpuTarget& target) {
  return std::make_unique<HeadKernel>(graph, node, operands, target);
}

size_t Scratch(const Graph& graph, const Node& node, const CpuTarget& target) {
  return HeadKernel(graph, node, {}, target).ScratchFloats() * sizeof(float);
}

bool TakesBf16(const Graph& graph, const Node& node, const CpuTarget& target) {
  return FactorsAreBf16(graph, node) && graph.type(node.inputs[1]).dtype == DType::kBF16;
}

}  // namespace

const CpuKernelDef kLinearSoftmaxCrossEntropy = {.scratch_bytes = Scratch,
                                                 .prepare = Prepare,
                                                 .takes_half = TakesBf16,
                                                 .op_class = OpClass::kProducts};

}  // namespace lockstep::engine::cpu
