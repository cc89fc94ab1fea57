// SPDX-License-Identifier: Apache-2.0
// Batch normalisation. Sums over rows are fp32 within blocks of rows and fp64 over the blocks, in
// block order; threads cut channels for sums and rows for the rest. Values in 16 bits are widened
// block by block, in L1.
#include <algorithm>
#include <cmath>
#include <memory>

#include "engine/cpu/converting_kernel.h"
#include "engine/cpu/image/image_simd.h"
#include "engine/cpu/kernels.h"
#include "engine/cpu/simd/half_kernels.h"

namespace lockstep::engine::cpu {
namespace {

constexpr int64_t kBlockRows = 128;
constexpr int64_t kGroup = 64;  // channels that a thread sums at a time

struct Extents {
  int64_t rows;
  int64_t channels;
};
Extents ExtentsOf(const TensorType& x) { return {x.elements() / x.shape.back(), x.shape.back()}; }

// The values of an operand of x's shape, in fp32 or 16 bits.
struct Values {
  Values(const RunContext& context, const Storage& storage, DType type)
      : at(context.At<void>(storage)), type(type) {}
  Values() = default;

  void* at = nullptr;
  DType type = DType::kF32;
};

// A block of values as fp32: where they lie, or widened into memory of its own when any operand of
// the node has 16 bits, since all have to lie alike.
class Blocks {
 public:
  // Of one operand.
  static constexpr int64_t kFloats = kBlockRows * kGroup;
  struct Buffer {
    alignas(64) float floats[kFloats];
  };

  Blocks(bool any_half, const HalfKernels& half) : any_half_(any_half), half_(half) {}

  bool copies() const { return any_half_; }
  // The block as its copies lie.
  RowBlock Of(const RowBlock& block) const {
    return any_half_ ? RowBlock{block.rows, block.channels, block.channels} : block;
  }
  // Null for no operand.
  const float* Read(const Values& values, const RowBlock& block, int64_t first,
                    Buffer* buffer) const {
    if (values.at == nullptr) return nullptr;
    if (!any_half_) return static_cast<const float*>(values.at) + first;
    const size_t size = IsHalf(values.type) ? 2 : 4;
    const auto* ahead = static_cast<const char*>(values.at) +
                        static_cast<size_t>(first + block.rows * block.stride) * size;
    for (int64_t i = 0; i < block.rows; ++i) {
      const int64_t from = first + i * block.stride;
      float* to = buffer->floats + i * block.channels;
      // The next block is on its way meanwhile: operands are read in turn, too short for the
      // processor to see that they go on.
      for (size_t byte = 0; byte < static_cast<size_t>(block.channels) * size; byte += 64) {
        __builtin_prefetch(ahead + static_cast<size_t>(i * block.stride) * size + byte);
      }
      if (IsHalf(values.type)) {
        half_.Widen(values.type, static_cast<const uint16_t*>(values.at) + from, block.channels,
                    to);
      } else {
        std::copy_n(static_cast<const float*>(values.at) + from, block.channels, to);
      }
    }
    return buffer->floats;
  }
  // Where the block is made, and its way from there to where it belongs.
  float* Place(const Values& values, int64_t first, Buffer* buffer) const {
    return any_half_ ? buffer->floats : static_cast<float*>(values.at) + first;
  }
  void Put(const Buffer& buffer, const RowBlock& block, int64_t first, const Values& values) const {
    for (int64_t i = 0; any_half_ && i < block.rows; ++i) {
      const int64_t to = first + i * block.stride;
      const float* from = buffer.floats + i * block.channels;
      if (IsHalf(values.type)) {
        half_.Narrow(values.type, from, block.channels, static_cast<uint16_t*>(values.at) + to);
      } else {
        std::copy_n(from, block.channels, static_cast<float*>(values.at) + to);
      }
    }
  }

 private:
  const bool any_half_;
  const HalfKernels& half_;
};

// Two sums over all rows of channels [first, first + count), count <= kGroup: sums(block, row, a,
// b) puts those of one block to a and b.
template <typename Sums>
void SumBlocks(const Extents& x, int64_t count, const Sums& sums, double* a, double* b) {
  float block_a[kGroup], block_b[kGroup];
  std::fill_n(a, count, 0.0);
  std::fill_n(b, count, 0.0);
  for (int64_t row = 0; row < x.rows; row += kBlockRows) {
    sums(RowBlock{std::min(kBlockRows, x.rows - row), count, x.channels}, row, block_a, block_b);
    for (int64_t j = 0; j < count; ++j) {
      a[j] += static_cast<double>(block_a[j]);
      b[j] += static_cast<double>(block_b[j]);
    }
  }
}

// body(first channel, count) for groups of channels.
template <typename Body>
void ForGroups(const Extents& x, ThreadPool* pool, const Body& body) {
  pool->Run([&](int index) {
    const auto [begin, end] = PartOf((x.channels + kGroup - 1) / kGroup, index, pool->threads());
    for (int64_t group = begin; group < end; ++group) {
      body(group * kGroup, std::min(kGroup, x.channels - group * kGroup));
    }
  });
}

// body(block, first value, first channel) for all values; with copies, for blocks that fit into a
// few KiB.
template <typename Body>
void ForRows(const Extents& x, bool copies, ThreadPool* pool, const Body& body) {
  constexpr int64_t kFewFloats = 2048;
  pool->Run([&](int index) {
    const auto [begin, end] = PartOf(x.rows, index, pool->threads());
    if (begin == end) return;
    if (!copies) return body(RowBlock{end - begin, x.channels, x.channels}, begin * x.channels, 0);
    const int64_t width = std::min(x.channels, kFewFloats);
    const int64_t height = kFewFloats / width;
    for (int64_t row = begin; row < end; row += height) {
      for (int64_t j = 0; j < x.channels; j += width) {
        body(RowBlock{std::min(height, end - row), std::min(width, x.channels - j), x.channels},
             row * x.channels + j, j);
      }
    }
  });
}

class BatchNormKernel : public CpuKernel {
 public:
  BatchNormKernel(const Graph& graph, const Node& node, const KernelOperands& operands,
                  const CpuTarget& target)
      : simd_(ImageSimdFor(target.isa)),
        blocks_(HasHalfOperand(graph, node), HalfKernelsFor(target.isa)),
        x_type_(graph.type(node.inputs[0]).dtype),
        residual_type_(node.inputs.size() == 4 ? graph.type(node.inputs[3]).dtype : DType::kF32),
        y_type_(node.outputs[0].dtype),
        extents_(ExtentsOf(node.outputs[0])),
        eps_(node.attrs.Double("eps", 1e-5)),
        relu_(node.attrs.String("activation") == "relu"),
        operands_(operands) {}

  void Run(const RunContext& context) const override {
    const auto in = [&](size_t i) { return context.At<float>(operands_.inputs[i]); };
    const Values x(context, operands_.inputs[0], x_type_);
    float* mean = context.At<float>(operands_.outputs[1]);
    float* inverse = context.At<float>(operands_.outputs[2]);
    float* variance = context.At<float>(operands_.outputs[3]);
    float* scale = context.At<float>(operands_.scratch);
    float* shift = scale + extents_.channels;
    const double n = static_cast<double>(extents_.rows);
    ForGroups(extents_, context.pool, [&](int64_t first, int64_t count) {
      double sum[kGroup], square[kGroup];
      Blocks::Buffer buffer, first_row;
      // Around the first row: the square of a large mean would swallow the variance.
      const float* around =
          blocks_.Read(x, RowBlock{1, count, extents_.channels}, first, &first_row);
      const auto sums = [&](const RowBlock& block, int64_t row, float* a, float* b) {
        const float* values = blocks_.Read(x, block, row * extents_.channels + first, &buffer);
        simd_.moments(blocks_.Of(block), values, around, a, b);
      };
      SumBlocks(extents_, count, sums, sum, square);
      for (int64_t j = 0; j < count; ++j) {
        const double offset = sum[j] / n;
        const double m = static_cast<double>(around[j]) + offset;
        const double var = std::max(0.0, square[j] / n - offset * offset);
        const double inv = 1 / std::sqrt(var + eps_);
        const double a = static_cast<double>(in(1)[first + j]) * inv;
        mean[first + j] = static_cast<float>(m);
        inverse[first + j] = static_cast<float>(inv);
        variance[first + j] = static_cast<float>(var * n / (n - 1));
        scale[first + j] = static_cast<float>(a);
        shift[first + j] = static_cast<float>(static_cast<double>(in(2)[first + j]) - m * a);
      }
    });
    Values residual;
    if (operands_.inputs.size() == 4) residual = {context, operands_.inputs[3], residual_type_};
    const Values y(context, operands_.outputs[0], y_type_);
    ForRows(extents_, blocks_.copies(), context.pool,
            [&](const RowBlock& block, int64_t at, int64_t j) {
              Blocks::Buffer of_x, of_residual;  // y is made in x's
              const float* values = blocks_.Read(x, block, at, &of_x);
              simd_.normalise(blocks_.Of(block), values, scale + j, shift + j,
                              blocks_.Read(residual, block, at, &of_residual), relu_,
                              blocks_.Place(y, at, &of_x));
              blocks_.Put(of_x, block, at, y);
            });
  }

 private:
  const ImageSimd& simd_;
  const Blocks blocks_;
  const DType x_type_, residual_type_, y_type_;
  const Extents extents_;
  const double eps_;
  const bool relu_;
  const KernelOperands operands_;
};

class BackwardKernel : public CpuKernel {
 public:
  BackwardKernel(const Graph& graph, const Node& node, const KernelOperands& operands,
                 const CpuTarget& target)
      : simd_(ImageSimdFor(target.isa)),
        blocks_(HasHalfOperand(graph, node), HalfKernelsFor(target.isa)),
        dy_type_(graph.type(node.inputs[0]).dtype),
        x_type_(graph.type(node.inputs[1]).dtype),
        mask_type_(node.inputs.size() == 6 ? graph.type(node.inputs[5]).dtype : DType::kF32),
        dx_type_(node.outputs[0].dtype),
        extents_(ExtentsOf(node.outputs[0])),
        operands_(operands) {}

  // With d = x - mean, r = 1 / deviation and sums over the n rows:
  //   dweight = r sum(dy d), dbias = sum(dy),
  //   dx = w r (dy - sum(dy) / n - d r^2 sum(dy d) / n).
  void Run(const RunContext& context) const override {
    const auto in = [&](size_t i) { return context.At<float>(operands_.inputs[i]); };
    const Values dy(context, operands_.inputs[0], dy_type_);
    const Values x(context, operands_.inputs[1], x_type_);
    Values mask;
    if (operands_.inputs.size() == 6) mask = {context, operands_.inputs[5], mask_type_};
    const float* mean = in(3);
    float* a = context.At<float>(operands_.scratch);
    float* b = a + extents_.channels;
    float* c = b + extents_.channels;
    const double n = static_cast<double>(extents_.rows);
    ForGroups(extents_, context.pool, [&](int64_t first, int64_t count) {
      double sum[kGroup], product[kGroup];
      Blocks::Buffer of_dy, of_x, of_mask;
      const auto sums = [&](const RowBlock& block, int64_t row, float* s, float* p) {
        const int64_t at = row * extents_.channels + first;
        simd_.gradient_sums(blocks_.Of(block), blocks_.Read(dy, block, at, &of_dy),
                            blocks_.Read(mask, block, at, &of_mask),
                            blocks_.Read(x, block, at, &of_x), mean + first, s, p);
      };
      SumBlocks(extents_, count, sums, sum, product);
      for (int64_t j = 0; j < count; ++j) {
        const double r = static_cast<double>(in(4)[first + j]);
        const double w = static_cast<double>(in(2)[first + j]) * r;
        Put(context, 1, first + j, r * product[j]);
        Put(context, 2, first + j, sum[j]);
        a[first + j] = static_cast<float>(w);
        b[first + j] = static_cast<float>(-w * r * r * product[j] / n);
        c[first + j] = static_cast<float>(-w * sum[j] / n);
      }
    });
    const Values dx(context, operands_.outputs[0], dx_type_);
    ForRows(extents_, blocks_.copies(), context.pool,
            [&](const RowBlock& block, int64_t at, int64_t j) {
              Blocks::Buffer of_dy, of_x, of_mask;  // dx is made in dy's
              const float* gradient = blocks_.Read(dy, block, at, &of_dy);
              simd_.gradient(blocks_.Of(block), gradient, blocks_.Read(mask, block, at, &of_mask),
                             blocks_.Read(x, block, at, &of_x), mean + j, a + j, b + j, c + j,
                             blocks_.Place(dx, at, &of_dy));
              blocks_.Put(of_dy, block, at, dx);
            });
  }

 private:
  void Put(const RunContext& context, size_t output, int64_t at, double value) const {
    const Storage& storage = operands_.outputs[output];
    float* to = context.At<float>(storage) + at;
    *to = context.Adds(storage) ? *to + static_cast<float>(value) : static_cast<float>(value);
  }

  const ImageSimd& simd_;
  const Blocks blocks_;
  const DType dy_type_, x_type_, mask_type_, dx_type_;
  const Extents extents_;
  const KernelOperands operands_;
};

class InferenceKernel : public CpuKernel {
 public:
  InferenceKernel(const Graph& graph, const Node& node, const KernelOperands& operands,
                  const CpuTarget& target)
      : simd_(ImageSimdFor(target.isa)),
        extents_(ExtentsOf(node.outputs[0])),
        eps_(node.attrs.Double("eps", 1e-5)),
        relu_(node.attrs.String("activation") == "relu"),
        operands_(operands) {}

  void Run(const RunContext& context) const override {
    const auto in = [&](size_t i) { return context.At<float>(operands_.inputs[i]); };
    float* scale = context.At<float>(operands_.scratch);
    float* shift = scale + extents_.channels;
    for (int64_t j = 0; j < extents_.channels; ++j) {
      const double a =
          static_cast<double>(in(1)[j]) / std::sqrt(static_cast<double>(in(4)[j]) + eps_);
      scale[j] = static_cast<float>(a);
      shift[j] =
          static_cast<float>(static_cast<double>(in(2)[j]) - static_cast<double>(in(3)[j]) * a);
    }
    float* y = context.At<float>(operands_.outputs[0]);
    ForRows(extents_, false, context.pool, [&](const RowBlock& block, int64_t at, int64_t /*j*/) {
      simd_.normalise(block, in(0) + at, scale, shift, nullptr, relu_, y + at);
    });
  }

 private:
  const ImageSimd& simd_;
  const Extents extents_;
  const double eps_;
  const bool relu_;
  const KernelOperands operands_;
};

// Filters and bias of a convolution that normalises too.
class FoldKernel : public CpuKernel {
 public:
  FoldKernel(const Graph& graph, const Node& node, const KernelOperands& operands,
             const CpuTarget& target)
      : filters_(node.outputs[1].elements()),
        each_(node.outputs[0].elements() / filters_),
        eps_(node.attrs.Double("eps", 1e-5)),
        operands_(operands) {}

  void Run(const RunContext& context) const override {
    const auto in = [&](size_t i) { return context.At<float>(operands_.inputs[i]); };
    const float* bias = operands_.inputs.size() == 6 ? in(5) : nullptr;
    for (int64_t o = 0; o < filters_; ++o) {
      const double scale =
          static_cast<double>(in(1)[o]) / std::sqrt(static_cast<double>(in(4)[o]) + eps_);
      const float* from = in(0) + o * each_;
      float* to = context.At<float>(operands_.outputs[0]) + o * each_;
      for (int64_t i = 0; i < each_; ++i) {
        to[i] = static_cast<float>(static_cast<double>(from[i]) * scale);
      }
      const double before = bias == nullptr ? 0 : static_cast<double>(bias[o]);
      context.At<float>(operands_.outputs[1])[o] = static_cast<float>(
          static_cast<double>(in(2)[o]) + (before - static_cast<double>(in(3)[o])) * scale);
    }
  }

 private:
  const int64_t filters_;
  const int64_t each_;
  const double eps_;
  const KernelOperands operands_;
};

template <typename Kernel>
std::unique_ptr<CpuKernel> Prepare(const Graph& graph, const Node& node,
                                   const KernelOperands& operands, const CpuTarget& target) {
  return std::make_unique<Kernel>(graph, node, operands, target);
}

template <size_t kFactors>
size_t Scratch(const Graph& graph, const Node& node, const CpuTarget& target) {
  return kFactors * static_cast<size_t>(node.outputs[0].shape.back()) * sizeof(float);
}

// Returns whether bf16 is taken: what there is one of for each channel is fp32 but in the pure
// precisions.
bool TakesHalf(const Graph& graph, const Node& node, const CpuTarget& /*target*/) {
  return std::none_of(node.inputs.begin(), node.inputs.end(), [&](const Value& input) {
    const TensorType& type = graph.type(input);
    return type.shape.size() == 1 && IsHalf(type.dtype);
  });
}

}  // namespace

const CpuKernelDef kBatchNorm = {.scratch_bytes = Scratch<2>,
                                 .prepare = Prepare<BatchNormKernel>,
                                 .takes_half = TakesHalf,
                                 .op_class = OpClass::kImages};
const CpuKernelDef kBatchNormBackward = {.scratch_bytes = Scratch<3>,
                                         .prepare = Prepare<BackwardKernel>,
                                         .takes_half = TakesHalf,
                                         .op_class = OpClass::kImages};
const CpuKernelDef kBatchNormInference = {
    .scratch_bytes = Scratch<2>, .prepare = Prepare<InferenceKernel>, .op_class = OpClass::kImages};
const CpuKernelDef kFoldBatchNorm = {.prepare = Prepare<FoldKernel>, .op_class = OpClass::kImages};

}  // namespace lockstep::engine::cpu
