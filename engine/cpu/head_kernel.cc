// SPDX-License-Identifier: Apache-2.0
// linear_softmax_cross_entropy (ops/linear_loss.cc): logits and their gradient exist for a strip of
// rows at a time. The weight is packed once for all strips, in the order of each of its two
// products. Where x and the weight are bf16, the logits are not rounded and their gradient is, row
// by row: all three products are those of pairs.
#include <algorithm>
#include <memory>
#include <optional>

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

// The products of a strip of so many rows.
struct StripProducts {
  StripProducts(int64_t rows, int64_t columns, int64_t depth, bool bf16, const CpuTarget& target)
      : StripProducts({.bf16 = bf16, .pairs = target.bf16_pairs}, rows, columns, depth, target) {}
  size_t scratch_floats() const {
    return std::max({forward.scratch_bytes(), input.scratch_bytes(), weight.scratch_bytes()}) /
           sizeof(float);
  }

  const Gemm forward, input, weight;

 private:
  StripProducts(GemmShape factors, int64_t rows, int64_t columns, int64_t depth,
                const CpuTarget& target)
      : forward(Product(factors, rows, columns, depth, false, true), target.isa, target.threads),
        input(Product(factors, rows, depth, columns, false, false), target.isa, target.threads),
        weight(Product(factors, columns, depth, rows, true, false), target.isa, target.threads) {}
  static GemmShape Product(GemmShape shape, int64_t m, int64_t n, int64_t k, bool a_transposed,
                           bool b_transposed) {
    shape.m = m;
    shape.n = n;
    shape.k = k;
    shape.a_transposed = a_transposed;
    shape.b_transposed = b_transposed;
    return shape;
  }
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
        strip_(std::min(rows_, kStripRows)),
        classes_(node.attrs.Int("classes") > 0 ? node.attrs.Int("classes") : columns_),
        smoothing_(node.attrs.Double("label_smoothing")),
        whole_(strip_, columns_, depth_, bf16_, target),
        dx_(node.outputs[2], depth_, operands.outputs.empty() ? Storage{} : operands.outputs[2],
            target.isa),
        operands_(operands) {
    if (rows_ % strip_ != 0) rest_.emplace(rows_ % strip_, columns_, depth_, bf16_, target);
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
      GemmEpilogue epilogue;
      if (HasBias()) epilogue.bias = context.At<float>(operands_.inputs[4]);
      packed
          ? products.forward.RunPacked(x, forward, logits, false, epilogue, scratch, context.pool)
          : products.forward.Run(x, weight, logits, false, epilogue, scratch, context.pool);
      Differentiate(count, logits, pairs, &rows, &sums);
      const Storage& dw = operands_.outputs[3];
      products.weight.Run(gradient, x, context.At<float>(dw), row > 0 || context.Adds(dw), {},
                          scratch, context.pool);
      packed ? products.input.RunPacked(gradient, input, dx, false, {}, scratch, context.pool)
             : products.input.Run(gradient, weight, dx, false, {}, scratch, context.pool);
      dx_.Put(context, row, count, dx);
    }
    WriteSoftmaxSums(sums, rows);
    if (HasBias()) PutBias(context, bias_sum);
  }

 private:
  bool HasBias() const { return operands_.inputs.size() == 5; }
  size_t LogitFloats() const { return Padded(static_cast<size_t>(strip_ * columns_)); }
  size_t PairFloats() const { return bf16_ ? Padded(LogitFloats() / 2) : 0; }
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
      if (bf16_) half_.narrow_bf16(values, columns_, pairs + row * columns_);
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

// Each product sums pairs: over the depth, over the columns, over the rows of a strip.
bool TakesBf16(const Graph& graph, const Node& node, const CpuTarget& target) {
  const Shape& x = graph.type(node.inputs[0]).shape;
  const Shape& w = graph.type(node.inputs[1]).shape;
  return FactorsAreBf16(graph, node) && graph.type(node.inputs[1]).dtype == DType::kBF16 &&
         PairsBf16(x[0]) && PairsBf16(x[1]) && PairsBf16(w[0]);
}

}  // namespace

const CpuKernelDef kLinearSoftmaxCrossEntropy = {.scratch_bytes = Scratch,
                                                 .prepare = Prepare,
                                                 .takes_half = TakesBf16,
                                                 .op_class = OpClass::kProducts};

}  // namespace lockstep::engine::cpu
