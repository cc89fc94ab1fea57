// SPDX-License-Identifier: Apache-2.0
// linear and its gradients as matrix products. bf16 factors are multiplied as they are; what else
// is bf16, the result above all, goes through fp32 by blocks of rows.
#include <algorithm>
#include <memory>
#include <optional>
#include <string>

#include "engine/cpu/gemm.h"
#include "engine/cpu/kernels.h"
#include "engine/cpu/row_blocks.h"
#include "engine/cpu/simd/half_kernels.h"
#include "engine/graph/op.h"
#include "engine/ops/ops.h"

namespace lockstep::engine::cpu {
namespace {

// Returns whether both factors come in bf16 (kernel.h).
bool FactorsAreBf16(const Graph& graph, const Node& node) {
  return graph.type(node.inputs[0]).dtype == DType::kBF16;
}

GemmShape ForwardShape(const Graph& graph, const Node& node, const CpuTarget& target) {
  const Shape& x = graph.type(node.inputs[0]).shape;
  const Shape& w = graph.type(node.inputs[1]).shape;
  const bool in_out = node.attrs.Int("in_out") != 0;
  return {.m = x[0],
          .n = w[in_out ? 1 : 0],
          .k = x[1],
          .a_transposed = false,
          .b_transposed = !in_out,
          .bf16 = FactorsAreBf16(graph, node),
          .pairs = target.bf16_pairs,
          .rounds_b = node.attrs.Int(kRoundsWeightAttr) != 0};
}

// (dy [m, n], w [n, k]) -> dx [m, k]
GemmShape InputShape(const Graph& graph, const Node& node, const CpuTarget& target) {
  const Shape& dy = graph.type(node.inputs[0]).shape;
  const Shape& w = graph.type(node.inputs[1]).shape;
  const bool in_out = node.attrs.Int("in_out") != 0;
  return {.m = dy[0],
          .n = w[in_out ? 0 : 1],
          .k = dy[1],
          .a_transposed = false,
          .b_transposed = in_out,
          .bf16 = FactorsAreBf16(graph, node),
          .pairs = target.bf16_pairs,
          .rounds_b = node.attrs.Int(kRoundsWeightAttr) != 0};
}

// (dy [m, n], x [m, k]) -> dw [n, k]
GemmShape WeightShape(const Graph& graph, const Node& node, const CpuTarget& target) {
  const Shape& dy = graph.type(node.inputs[0]).shape;
  const Shape& x = graph.type(node.inputs[1]).shape;
  return {.m = dy[1],
          .n = x[1],
          .k = dy[0],
          .a_transposed = true,
          .b_transposed = false,
          .bf16 = FactorsAreBf16(graph, node),
          .pairs = target.bf16_pairs};
}

// A product by blocks of rows: all of them at once where every matrix of its result's shape is
// fp32.
class RowProduct {
 public:
  // `blocked`: there is such a matrix in bf16.
  RowProduct(const GemmShape& shape, bool blocked, const CpuTarget& target)
      : shape_(shape),
        block_(blocked ? BlockOf(shape) : shape.m),
        whole_(Rows(block_), target.isa, target.threads) {
    if (shape.m % block_ != 0) rest_.emplace(Rows(shape.m % block_), target.isa, target.threads);
    if (block_ < shape.m) packed_floats_ = Padded(whole_.packed_bytes() / sizeof(float));
  }

  int64_t block() const { return block_; }
  // Of B for few rows, packed once for all runs (Gemm::packed_bytes); 0 for other products.
  size_t packed_bytes() const { return shape_.m <= kMostFewRows ? whole_.packed_bytes() : 0; }
  void Pack(const void* b, float* packed, ThreadPool* pool) const {
    whole_.PackAll(b, packed, nullptr, pool);
  }
  size_t scratch_floats() const {
    const size_t rest = rest_.has_value() ? rest_->scratch_bytes() : 0;
    return packed_floats_ + Padded(std::max(whole_.scratch_bytes(), rest) / sizeof(float));
  }

  // Calls make(row, rows, multiply) for each block; there multiply(sums, epilogue) makes these rows
  // of the product. `packed`: what Pack has made of b, or null.
  template <typename Make>
  void Run(const void* a, const void* b, const float* packed, float* scratch, ThreadPool* pool,
           const Make& make) const {
    float* const own = scratch + packed_floats_;
    if (packed_floats_ > 0) whole_.PackAll(b, scratch, own, pool);
    const size_t row_bytes = static_cast<size_t>(shape_.k) * (shape_.bf16 ? 2 : 4);
    for (int64_t row = 0; row < shape_.m; row += block_) {
      const int64_t rows = std::min(block_, shape_.m - row);
      const auto* from = static_cast<const std::byte*>(a) + static_cast<size_t>(row) * row_bytes;
      make(row, rows, [&](float* sums, const GemmEpilogue& epilogue) {
        if (packed != nullptr) {
          whole_.RunPacked(from, packed, sums, false, epilogue, own, pool);
        } else if (rows < block_) {
          rest_->Run(from, b, sums, false, epilogue, own, pool);
        } else if (packed_floats_ > 0) {
          whole_.RunPacked(from, scratch, sums, false, epilogue, own, pool);
        } else {
          whole_.Run(from, b, sums, false, epilogue, own, pool);
        }
      });
    }
  }

 private:
  // Floats of a block of the result: they stay in L2, or near it where rows are long. A block of
  // fewer rows would be multiplied in another order (Gemm) or pass over B too often.
  static constexpr int64_t kBlockFloats = 128 * 1024;
  static constexpr int64_t kLeastRows = 192;
  static int64_t BlockOf(const GemmShape& shape) {
    return std::min(std::max(kBlockFloats / shape.n / kLeastRows, int64_t{1}) * kLeastRows,
                    shape.m);
  }
  static size_t Padded(size_t floats) { return (floats + 15) / 16 * 16; }
  GemmShape Rows(int64_t rows) const {
    GemmShape shape = shape_;
    shape.m = rows;
    return shape;
  }

  const GemmShape shape_;
  const int64_t block_;
  const Gemm whole_;
  std::optional<Gemm> rest_;
  size_t packed_floats_ = 0;  // B for all blocks
};

bool AnyBf16(const Graph& graph, const Node& node, size_t first_input) {
  for (size_t i = first_input; i < node.inputs.size(); ++i) {
    if (graph.type(node.inputs[i]).dtype == DType::kBF16) return true;
  }
  return node.outputs[0].dtype == DType::kBF16;
}

class LinearKernel : public CpuKernel {
 public:
  LinearKernel(const Graph& graph, const Node& node, const KernelOperands& operands,
               const CpuTarget& target)
      : product_(ForwardShape(graph, node, target), AnyBf16(graph, node, 3), target),
        operands_(operands),
        row_simd_(RowKernelsFor(target.isa)),
        columns_(node.outputs[0].shape[1]),
        relu_(node.attrs.String("activation") == "relu") {
    const std::string activation = node.attrs.String("activation", "none");
    if (activation == "gelu") activation_ = Activation::kGeluErf;
    if (activation == "gelu_tanh") activation_ = Activation::kGeluTanh;
    if (activation == "silu") activation_ = Activation::kSilu;
    const auto rows = [&](const TensorType& type, const std::vector<Storage>& storages, size_t i) {
      return RowBlocks(type, columns_, i < storages.size() ? storages[i] : Storage{}, target.isa);
    };
    y_ = rows(node.outputs[0], operands.outputs, 0);
    keeps_ = node.outputs.size() == 2;
    if (keeps_) sums_ = rows(node.outputs[1], operands.outputs, 1);
    if (node.inputs.size() >= 3) {
      bias_ = rows(graph.type(node.inputs[2]), operands.inputs, 2);
    }
    if (node.inputs.size() == 4) residual_ = rows(graph.type(node.inputs[3]), operands.inputs, 3);
  }

  // The product's, then buffers of each operand that is bf16.
  size_t ScratchBytes() const {
    return (product_.scratch_floats() +
            static_cast<size_t>(bias_.BufferFloats(1) + residual_.BufferFloats(product_.block()) +
                                y_.BufferFloats(product_.block()) +
                                sums_.BufferFloats(product_.block()))) *
           sizeof(float);
  }

  void Run(const RunContext& context) const override {
    float* const scratch = context.At<float>(operands_.scratch);
    float* const bias = scratch + product_.scratch_floats();
    float* const residual = bias + bias_.BufferFloats(1);
    float* const y_buffer = residual + residual_.BufferFloats(product_.block());
    float* const sums_buffer = y_buffer + y_.BufferFloats(product_.block());
    GemmEpilogue epilogue;
    if (operands_.inputs.size() >= 3) epilogue.bias = bias_.Read(context, 0, 1, bias);
    epilogue.relu = relu_;
    if (!keeps_) epilogue.activation = activation_;
    const auto make = [&](int64_t row, int64_t rows, const auto& multiply) {
      if (operands_.inputs.size() == 4) {
        epilogue.residual = residual_.Read(context, row, rows, residual);
      }
      float* const y = y_.Place(context, row, y_buffer);
      float* const sums = keeps_ ? sums_.Place(context, row, sums_buffer) : y;
      multiply(sums, epilogue);
      if (keeps_) {
        row_simd_.activation[static_cast<size_t>(*activation_)](sums, rows * columns_, y);
        sums_.Put(context, row, rows, sums);
      }
      y_.Put(context, row, rows, y);
    };
    product_.Run(context.At<void>(operands_.inputs[0]), context.At<void>(operands_.inputs[1]),
                 operands_.packed.has_value() ? context.At<float>(*operands_.packed) : nullptr,
                 scratch, context.pool, make);
  }

  size_t PackedBytes() const { return product_.packed_bytes(); }
  void Pack(const RunContext& context) const override {
    product_.Pack(context.At<void>(operands_.inputs[1]), context.At<float>(*operands_.packed),
                  context.pool);
  }

 private:
  const RowProduct product_;
  const KernelOperands operands_;
  const RowKernels& row_simd_;
  const int64_t columns_;
  const bool relu_;
  bool keeps_ = false;
  RowBlocks y_, sums_, bias_, residual_;
  std::optional<Activation> activation_;
};

class BackwardInputKernel : public CpuKernel {
 public:
  BackwardInputKernel(const Graph& graph, const Node& node, const KernelOperands& operands,
                      const CpuTarget& target)
      : product_(InputShape(graph, node, target), AnyBf16(graph, node, 2), target),
        operands_(operands),
        row_simd_(RowKernelsFor(target.isa)),
        columns_(node.outputs[0].shape[1]),
        role_(ops::ThirdOf(node.attrs)) {
    const auto rows = [&](const TensorType& type, const std::vector<Storage>& storages, size_t i) {
      return RowBlocks(type, columns_, i < storages.size() ? storages[i] : Storage{}, target.isa);
    };
    dx_ = rows(node.outputs[0], operands.outputs, 0);
    if (node.inputs.size() == 3) third_ = rows(graph.type(node.inputs[2]), operands.inputs, 2);
  }

  size_t ScratchBytes() const {
    return (product_.scratch_floats() + static_cast<size_t>(third_.BufferFloats(product_.block()) +
                                                            dx_.BufferFloats(product_.block()))) *
           sizeof(float);
  }

  void Run(const RunContext& context) const override {
    float* const scratch = context.At<float>(operands_.scratch);
    float* const third_buffer = scratch + product_.scratch_floats();
    float* const dx_buffer = third_buffer + third_.BufferFloats(product_.block());
    const auto make = [&](int64_t row, int64_t rows, const auto& multiply) {
      GemmEpilogue epilogue;
      const float* third = nullptr;
      if (operands_.inputs.size() == 3) {
        third = third_.Read(context, row, rows, third_buffer);
        if (role_ == ops::Third::kMask) epilogue.mask = third;
        if (role_ == ops::Third::kAddend) epilogue.residual = third;
      }
      float* const dx = dx_.Place(context, row, dx_buffer);
      multiply(dx, epilogue);
      if (third != nullptr && role_ == ops::Third::kGelu) {
        row_simd_.activation_backward[static_cast<size_t>(Activation::kGeluTanh)](
            dx, third, rows * columns_, dx);
      }
      dx_.Put(context, row, rows, dx);
    };
    product_.Run(context.At<void>(operands_.inputs[0]), context.At<void>(operands_.inputs[1]),
                 nullptr, scratch, context.pool, make);
  }

 private:
  const RowProduct product_;
  const KernelOperands operands_;
  const RowKernels& row_simd_;
  const int64_t columns_;
  const ops::Third role_;
  RowBlocks dx_, third_;
};

class BackwardWeightKernel : public CpuKernel {
 public:
  BackwardWeightKernel(const Graph& graph, const Node& node, const KernelOperands& operands,
                       const CpuTarget& target)
      : gemm_(WeightShape(graph, node, target), target.isa, target.threads),
        operands_(operands),
        simd_(SimdFor(target.isa)),
        half_(HalfKernelsFor(target.isa)),
        bf16_(FactorsAreBf16(graph, node)),
        rows_(graph.type(node.inputs[0]).shape[0]),
        summed_(static_cast<size_t>(node.attrs.Int("sums"))),
        columns_(node.outputs.back().shape[0]) {}

  static size_t ScratchBytes(const Graph& graph, const Node& node, const CpuTarget& target) {
    const size_t product =
        Gemm(WeightShape(graph, node, target), target.isa, target.threads).scratch_bytes();
    if (!FactorsAreBf16(graph, node) || node.attrs.Int("sums") == 0) return product;
    const int64_t columns = node.outputs.back().shape[0];
    return std::max(product, static_cast<size_t>(kWidenedRows * columns) * sizeof(float));
  }

  void Run(const RunContext& context) const override {
    const Storage& out = operands_.outputs[0];
    gemm_.Run(context.At<void>(operands_.inputs[0]), context.At<void>(operands_.inputs[1]),
              context.At<float>(out), context.Adds(out), {}, context.At<float>(operands_.scratch),
              context.pool);
    if (summed_ == 0) return;
    const Storage& summed = operands_.inputs[summed_ - 1];
    const Storage& sums = operands_.outputs[1];
    float* const to = context.At<float>(sums);
    if (!bf16_) {
      simd_.sum_rows(context.At<float>(summed), columns_, rows_, columns_, context.Adds(sums), to);
      return;
    }
    const auto* halves = context.At<uint16_t>(summed);
    float* const widened = context.At<float>(operands_.scratch);
    for (int64_t row = 0; row < rows_; row += kWidenedRows) {
      const int64_t count = std::min(kWidenedRows, rows_ - row);
      half_.widen_bf16(halves + row * columns_, count * columns_, widened);
      simd_.sum_rows(widened, columns_, count, columns_, row > 0 || context.Adds(sums), to);
    }
  }

 private:
  static constexpr int64_t kWidenedRows = 16;

  const Gemm gemm_;
  const KernelOperands operands_;
  const SimdKernels& simd_;
  const HalfKernels& half_;
  const bool bf16_;
  const int64_t rows_;
  const size_t summed_;    // the operand, from 1; 0: none
  const int64_t columns_;  // of it
};

class BiasBackwardKernel : public CpuKernel {
 public:
  BiasBackwardKernel(const Graph& graph, const Node& node, const KernelOperands& operands,
                     const CpuTarget& target)
      : simd_(SimdFor(target.isa)),
        rows_(graph.type(node.inputs[0]).shape[0]),
        columns_(graph.type(node.inputs[0]).shape[1]),
        operands_(operands) {}

  void Run(const RunContext& context) const override {
    const Storage& out = operands_.outputs[0];
    simd_.sum_rows(context.At<float>(operands_.inputs[0]), columns_, rows_, columns_,
                   context.Adds(out), context.At<float>(out));
  }

 private:
  const SimdKernels& simd_;
  const int64_t rows_;
  const int64_t columns_;
  const KernelOperands operands_;
};

template <typename Kernel>
std::unique_ptr<CpuKernel> Prepare(const Graph& graph, const Node& node,
                                   const KernelOperands& operands, const CpuTarget& target) {
  return std::make_unique<Kernel>(graph, node, operands, target);
}

template <typename Kernel>
size_t Scratch(const Graph& graph, const Node& node, const CpuTarget& target) {
  return Kernel(graph, node, {}, target).ScratchBytes();
}

size_t ForwardPacked(const Graph& graph, const Node& node, const CpuTarget& target) {
  return LinearKernel(graph, node, {}, target).PackedBytes();
}

template <GemmShape (*kShape)(const Graph&, const Node&, const CpuTarget&)>
bool TakesBf16(const Graph& graph, const Node& node, const CpuTarget& target) {
  const GemmShape shape = kShape(graph, node, target);
  return shape.bf16 && PairsBf16(shape.k) &&
         (shape.rounds_b || graph.type(node.inputs[1]).dtype == DType::kBF16);
}

// Few rows read the weight where it lies, once.
bool RoundsWeight(const Graph& graph, const Node& node) {
  const TensorType& rows = graph.type(node.inputs[0]);
  return rows.dtype == DType::kBF16 && rows.shape[0] > kMostFewRows && PairsBf16(rows.shape[1]);
}

}  // namespace

const CpuKernelDef kLinear = {.scratch_bytes = Scratch<LinearKernel>,
                              .prepare = Prepare<LinearKernel>,
                              .packed_input = 1,
                              .packs_only_once = true,
                              .packed_bytes = ForwardPacked,
                              .takes_half = TakesBf16<ForwardShape>,
                              .rounds_weight = RoundsWeight,
                              .op_class = OpClass::kProducts};
const CpuKernelDef kLinearBackwardInput = {.scratch_bytes = Scratch<BackwardInputKernel>,
                                           .prepare = Prepare<BackwardInputKernel>,
                                           .takes_half = TakesBf16<InputShape>,
                                           .rounds_weight = RoundsWeight,
                                           .op_class = OpClass::kProducts};
const CpuKernelDef kLinearBackwardWeight = {.scratch_bytes = BackwardWeightKernel::ScratchBytes,
                                            .prepare = Prepare<BackwardWeightKernel>,
                                            .takes_half = TakesBf16<WeightShape>,
                                            .op_class = OpClass::kProducts};
const CpuKernelDef kBiasBackward = {nullptr, Prepare<BiasBackwardKernel>};

}  // namespace lockstep::engine::cpu
