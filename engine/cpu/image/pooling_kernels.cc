// SPDX-License-Identifier: Apache-2.0
// Pooling and the change of an image's order. Threads cut images, so that windows that overlap are
// added by one thread in one order.
#include <algorithm>
#include <memory>

#include "common/check.h"
#include "engine/cpu/image/image_simd.h"
#include "engine/cpu/kernels.h"
#include "engine/cpu/simd/simd.h"
#include "engine/ops/conv_geometry.h"

namespace lockstep::engine::cpu {
namespace {

// The pixels of image `x` below one place of the window.
struct Place {
  const float** x;
  float** dx;
  int64_t count = 0;
};

// Moves a window over images.
class Pool {
 public:
  Pool(const TensorType& x, const TensorType& y, const Attrs& attrs)
      : images_(x.shape[0]),
        height_(x.shape[1]),
        width_(x.shape[2]),
        channels_(x.shape[3]),
        rows_(y.shape[1]),
        columns_(y.shape[2]),
        count_padding_(attrs.Int("count_padding", 1) != 0) {
    const absl::StatusOr<Window> window = WindowOf(attrs);
    LS_CHECK(window.ok()) << window.status();
    window_ = *window;
  }

  int64_t images() const { return images_; }
  int64_t channels() const { return channels_; }
  int64_t image_floats() const { return height_ * width_ * channels_; }
  // Windows do not overlap, and together they cover the image: with padding its end lies in none.
  bool covers() const {
    return window_.padding[0] == 0 && window_.padding[1] == 0 &&
           window_.kernel[0] == window_.stride[0] && window_.kernel[1] == window_.stride[1] &&
           rows_ * window_.kernel[0] == height_ && columns_ * window_.kernel[1] == width_;
  }
  float Factor(const Place& place) const {
    const int64_t count = count_padding_ ? window_.kernel[0] * window_.kernel[1] : place.count;
    return 1.0f / static_cast<float>(count);
  }
  // Bytes of one thread's scratch, in which it notes where the pixels of a window are.
  size_t PlaceBytes() const {
    return (2 * static_cast<size_t>(MostPixels()) * sizeof(float*) + 63) / 64 * 64;
  }
  // body(place, offset of the place in y) for the windows of `image`; x and dx may be null.
  template <typename Body>
  void ForPlaces(int64_t image, const float* x, float* dx, void* scratch, const Body& body) const {
    Place place{static_cast<const float**>(scratch), static_cast<float**>(scratch) + MostPixels()};
    for (int64_t r = 0; r < rows_; ++r) {
      for (int64_t c = 0; c < columns_; ++c) {
        place.count = 0;
        for (int64_t i = 0; i < window_.kernel[0]; ++i) {
          const int64_t h = r * window_.stride[0] - window_.padding[0] + i;
          if (h < 0 || h >= height_) continue;
          for (int64_t j = 0; j < window_.kernel[1]; ++j) {
            const int64_t w = c * window_.stride[1] - window_.padding[1] + j;
            if (w < 0 || w >= width_) continue;
            const int64_t at = ((image * height_ + h) * width_ + w) * channels_;
            if (x != nullptr) place.x[place.count] = x + at;
            if (dx != nullptr) place.dx[place.count] = dx + at;
            ++place.count;
          }
        }
        body(place, ((image * rows_ + r) * columns_ + c) * channels_);
      }
    }
  }

 private:
  // Of one window.
  int64_t MostPixels() const {
    return std::min(window_.kernel[0], height_) * std::min(window_.kernel[1], width_);
  }

  const int64_t images_, height_, width_, channels_, rows_, columns_;
  const bool count_padding_;
  Window window_;
};

// What the pooling kernels share; kBody works on one image.
struct PoolNode {
  Pool pool;
  const SimdKernels& simd;
  const ImageSimd& image;
  KernelOperands operands;
  bool relu;
};

// `scratch`: the thread's.
template <void (*kBody)(const PoolNode&, const RunContext&, int64_t image, void* scratch)>
class PoolKernel : public CpuKernel {
 public:
  explicit PoolKernel(PoolNode node) : node_(std::move(node)) {}

  void Run(const RunContext& context) const override {
    context.pool->Run([&](int index) {
      const auto [begin, end] = PartOf(node_.pool.images(), index, context.pool->threads());
      void* const scratch = context.At<std::byte>(node_.operands.scratch) +
                            static_cast<size_t>(index) * node_.pool.PlaceBytes();
      for (int64_t image = begin; image < end; ++image) {
        kBody(node_, context, image, scratch);
        context.pool->Moved();
      }
    });
  }

 private:
  const PoolNode node_;
};

void MaxBody(const PoolNode& node, const RunContext& context, int64_t image, void* scratch) {
  float* y = context.At<float>(node.operands.outputs[0]);
  node.pool.ForPlaces(image, context.At<float>(node.operands.inputs[0]), nullptr, scratch,
                      [&](const Place& place, int64_t at) {
                        node.image.largest(place.x, place.count, node.pool.channels(), y + at);
                      });
}

void MaxBackwardBody(const PoolNode& node, const RunContext& context, int64_t image,
                     void* scratch) {
  const float* dy = context.At<float>(node.operands.inputs[0]);
  float* dx = context.At<float>(node.operands.outputs[0]);
  const bool store = node.pool.covers();
  if (!store) std::fill_n(dx + image * node.pool.image_floats(), node.pool.image_floats(), 0.0f);
  node.pool.ForPlaces(image, context.At<float>(node.operands.inputs[1]), dx, scratch,
                      [&](const Place& place, int64_t at) {
                        node.image.largest_gradient(place.x, place.dx, place.count, dy + at,
                                                    node.pool.channels(), node.relu, store);
                      });
}

void AverageBody(const PoolNode& node, const RunContext& context, int64_t image, void* scratch) {
  float* y = context.At<float>(node.operands.outputs[0]);
  node.pool.ForPlaces(image, context.At<float>(node.operands.inputs[0]), nullptr, scratch,
                      [&](const Place& place, int64_t at) {
                        node.image.average(place.x, place.count, node.pool.Factor(place),
                                           node.pool.channels(), y + at);
                      });
}

void AverageBackwardBody(const PoolNode& node, const RunContext& context, int64_t image,
                         void* scratch) {
  const float* dy = context.At<float>(node.operands.inputs[0]);
  float* dx = context.At<float>(node.operands.outputs[0]);
  const bool store = node.pool.covers();
  if (!store) std::fill_n(dx + image * node.pool.image_floats(), node.pool.image_floats(), 0.0f);
  node.pool.ForPlaces(image, nullptr, dx, scratch, [&](const Place& place, int64_t at) {
    for (int64_t i = 0; i < place.count; ++i) {
      node.simd.scale(dy + at, node.pool.Factor(place), node.pool.channels(), !store, place.dx[i]);
    }
  });
}

template <bool kBackward>
Pool PoolOf(const Graph& graph, const Node& node) {
  const TensorType& in = graph.type(node.inputs[0]);
  const TensorType& out = node.outputs[0];
  return Pool(kBackward ? out : in, kBackward ? in : out, node.attrs);
}

template <bool kBackward>
size_t PoolScratch(const Graph& graph, const Node& node, const CpuTarget& target) {
  return PoolOf<kBackward>(graph, node).PlaceBytes() * static_cast<size_t>(target.threads);
}

template <void (*kBody)(const PoolNode&, const RunContext&, int64_t, void*), bool kBackward>
std::unique_ptr<CpuKernel> PreparePool(const Graph& graph, const Node& node,
                                       const KernelOperands& operands, const CpuTarget& target) {
  PoolNode made{PoolOf<kBackward>(graph, node), SimdFor(target.isa), ImageSimdFor(target.isa),
                operands, node.attrs.Int("relu") != 0};
  return std::make_unique<PoolKernel<kBody>>(std::move(made));
}

// Kernels on matrices of one image each.
struct ImageNode {
  int64_t images;
  int64_t rows;  // of the image's matrix
  int64_t columns;
  const SimdKernels& simd;
  KernelOperands operands;
};

template <void (*kBody)(const ImageNode&, const float* in, float* out, int64_t image)>
class ImageKernel : public CpuKernel {
 public:
  explicit ImageKernel(ImageNode node) : node_(std::move(node)) {}

  void Run(const RunContext& context) const override {
    const float* in = context.At<float>(node_.operands.inputs[0]);
    float* out = context.At<float>(node_.operands.outputs[0]);
    context.pool->Run([&](int index) {
      const auto [begin, end] = PartOf(node_.images, index, context.pool->threads());
      for (int64_t image = begin; image < end; ++image) {
        kBody(node_, in, out, image);
        context.pool->Moved();
      }
    });
  }

 private:
  const ImageNode node_;
};

void TransposeBody(const ImageNode& node, const float* in, float* out, int64_t image) {
  const int64_t at = image * node.rows * node.columns;
  node.simd.transpose(in + at, node.columns, node.rows, node.columns, nullptr, false, out + at,
                      node.rows);
}

// rows: pixels, columns: channels.
void GlobalBody(const ImageNode& node, const float* in, float* out, int64_t image) {
  float* y = out + image * node.columns;
  node.simd.sum_rows(in + image * node.rows * node.columns, node.columns, node.rows, node.columns,
                     false, y);
  node.simd.scale(y, 1.0f / static_cast<float>(node.rows), node.columns, false, y);
}

void GlobalBackwardBody(const ImageNode& node, const float* in, float* out, int64_t image) {
  for (int64_t i = 0; i < node.rows; ++i) {
    node.simd.scale(in + image * node.columns, 1.0f / static_cast<float>(node.rows), node.columns,
                    false, out + (image * node.rows + i) * node.columns);
  }
}

std::unique_ptr<CpuKernel> PrepareLast(const Graph& graph, const Node& node,
                                       const KernelOperands& operands, const CpuTarget& target) {
  const Shape& x = graph.type(node.inputs[0]).shape;
  return std::make_unique<ImageKernel<TransposeBody>>(
      ImageNode{x[0], x[1], x[2] * x[3], SimdFor(target.isa), operands});
}
std::unique_ptr<CpuKernel> PrepareFirst(const Graph& graph, const Node& node,
                                        const KernelOperands& operands, const CpuTarget& target) {
  const Shape& x = graph.type(node.inputs[0]).shape;
  return std::make_unique<ImageKernel<TransposeBody>>(
      ImageNode{x[0], x[1] * x[2], x[3], SimdFor(target.isa), operands});
}
std::unique_ptr<CpuKernel> PrepareGlobal(const Graph& graph, const Node& node,
                                         const KernelOperands& operands, const CpuTarget& target) {
  const Shape& x = graph.type(node.inputs[0]).shape;
  return std::make_unique<ImageKernel<GlobalBody>>(
      ImageNode{x[0], x[1] * x[2], x[3], SimdFor(target.isa), operands});
}
std::unique_ptr<CpuKernel> PrepareGlobalBackward(const Graph& graph, const Node& node,
                                                 const KernelOperands& operands,
                                                 const CpuTarget& target) {
  const Shape& x = node.outputs[0].shape;
  return std::make_unique<ImageKernel<GlobalBackwardBody>>(
      ImageNode{x[0], x[1] * x[2], x[3], SimdFor(target.isa), operands});
}

}  // namespace

const CpuKernelDef kMaxPool2d = {.scratch_bytes = PoolScratch<false>,
                                 .prepare = PreparePool<MaxBody, false>,
                                 .op_class = OpClass::kImages};
const CpuKernelDef kMaxPool2dBackward = {.scratch_bytes = PoolScratch<true>,
                                         .prepare = PreparePool<MaxBackwardBody, true>,
                                         .op_class = OpClass::kImages};
const CpuKernelDef kAvgPool2d = {.scratch_bytes = PoolScratch<false>,
                                 .prepare = PreparePool<AverageBody, false>,
                                 .op_class = OpClass::kImages};
const CpuKernelDef kAvgPool2dBackward = {.scratch_bytes = PoolScratch<true>,
                                         .prepare = PreparePool<AverageBackwardBody, true>,
                                         .op_class = OpClass::kImages};
const CpuKernelDef kGlobalAveragePool = {.prepare = PrepareGlobal, .op_class = OpClass::kImages};
const CpuKernelDef kGlobalAveragePoolBackward = {.prepare = PrepareGlobalBackward,
                                                 .op_class = OpClass::kImages};
const CpuKernelDef kChannelsLast = {.prepare = PrepareLast, .op_class = OpClass::kImages};
const CpuKernelDef kChannelsFirst = {.prepare = PrepareFirst, .op_class = OpClass::kImages};

}  // namespace lockstep::engine::cpu
