// SPDX-License-Identifier: Apache-2.0
// Batch normalisation. Sums over rows are fp32 within blocks of rows and fp64 over the blocks, in
// block order; threads cut channels for sums and rows for the rest.
#include <algorithm>
#include <cmath>
#include <memory>

#include "engine/cpu/image/image_simd.h"
#include "engine/cpu/kernels.h"

namespace lockstep::engine::cpu {
namespace {

constexpr int64_t kBlockRows = 128;
constexpr int64_t kGroup = 64;  // channels that a thread sums at a time

struct Extents {
  int64_t rows;
  int64_t channels;
};
Extents ExtentsOf(const TensorType& x) { return {x.elements() / x.shape.back(), x.shape.back()}; }

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

template <typename Body>
void ForRows(const Extents& x, ThreadPool* pool, const Body& body) {
  pool->Run([&](int index) {
    const auto [begin, end] = PartOf(x.rows, index, pool->threads());
    if (begin < end) body(RowBlock{end - begin, x.channels, x.channels}, begin * x.channels);
  });
}

class BatchNormKernel : public CpuKernel {
 public:
  BatchNormKernel(const Graph& graph, const Node& node, const KernelOperands& operands,
                  const CpuTarget& target)
      : simd_(ImageSimdFor(target.isa)),
        extents_(ExtentsOf(node.outputs[0])),
        eps_(node.attrs.Double("eps", 1e-5)),
        relu_(node.attrs.String("activation") == "relu"),
        operands_(operands) {}

  void Run(const RunContext& context) const override {
    const auto in = [&](size_t i) { return context.At<float>(operands_.inputs[i]); };
    const float* x = in(0);
    float* mean = context.At<float>(operands_.outputs[1]);
    float* inverse = context.At<float>(operands_.outputs[2]);
    float* variance = context.At<float>(operands_.outputs[3]);
    float* scale = context.At<float>(operands_.scratch);
    float* shift = scale + extents_.channels;
    const double n = static_cast<double>(extents_.rows);
    ForGroups(extents_, context.pool, [&](int64_t first, int64_t count) {
      double sum[kGroup], square[kGroup];
      // Around the first row: the square of a large mean would swallow the variance.
      const auto sums = [&](const RowBlock& block, int64_t row, float* a, float* b) {
        simd_.moments(block, x + row * extents_.channels + first, x + first, a, b);
      };
      SumBlocks(extents_, count, sums, sum, square);
      for (int64_t j = 0; j < count; ++j) {
        const double offset = sum[j] / n;
        const double m = static_cast<double>(x[first + j]) + offset;
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
    const float* residual = operands_.inputs.size() == 4 ? in(3) : nullptr;
    float* y = context.At<float>(operands_.outputs[0]);
    ForRows(extents_, context.pool, [&](const RowBlock& block, int64_t at) {
      simd_.normalise(block, x + at, scale, shift, residual == nullptr ? nullptr : residual + at,
                      relu_, y + at);
    });
  }

 private:
  const ImageSimd& simd_;
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
        extents_(ExtentsOf(node.outputs[0])),
        operands_(operands) {}

  // With d = x - mean, r = 1 / deviation and sums over the n rows:
  //   dweight = r sum(dy d), dbias = sum(dy),
  //   dx = w r (dy - sum(dy) / n - d r^2 sum(dy d) / n).
  void Run(const RunContext& context) const override {
    const auto in = [&](size_t i) { return context.At<float>(operands_.inputs[i]); };
    const float *dy = in(0), *x = in(1), *mean = in(3);
    const float* mask = operands_.inputs.size() == 6 ? in(5) : nullptr;
    float* a = context.At<float>(operands_.scratch);
    float* b = a + extents_.channels;
    float* c = b + extents_.channels;
    const double n = static_cast<double>(extents_.rows);
    ForGroups(extents_, context.pool, [&](int64_t first, int64_t count) {
      double sum[kGroup], product[kGroup];
      const auto sums = [&](const RowBlock& block, int64_t row, float* s, float* p) {
        const int64_t at = row * extents_.channels + first;
        simd_.gradient_sums(block, dy + at, mask == nullptr ? nullptr : mask + at, x + at,
                            mean + first, s, p);
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
    float* dx = context.At<float>(operands_.outputs[0]);
    ForRows(extents_, context.pool, [&](const RowBlock& block, int64_t at) {
      simd_.gradient(block, dy + at, mask == nullptr ? nullptr : mask + at, x + at, mean, a, b, c,
                     dx + at);
    });
  }

 private:
  void Put(const RunContext& context, size_t output, int64_t at, double value) const {
    const Storage& storage = operands_.outputs[output];
    float* to = context.At<float>(storage) + at;
    *to = context.Adds(storage) ? *to + static_cast<float>(value) : static_cast<float>(value);
  }

  const ImageSimd& simd_;
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
    ForRows(extents_, context.pool, [&](const RowBlock& block, int64_t at) {
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

}  // namespace

const CpuKernelDef kBatchNorm = {Scratch<2>, Prepare<BatchNormKernel>};
const CpuKernelDef kBatchNormBackward = {Scratch<3>, Prepare<BackwardKernel>};
const CpuKernelDef kBatchNormInference = {Scratch<2>, Prepare<InferenceKernel>};
const CpuKernelDef kFoldBatchNorm = {nullptr, Prepare<FoldKernel>};

}  // namespace lockstep::engine::cpu
