// SPDX-License-Identifier: Apache-2.0
// Nodes on images that are no convolutions: batch normalisation and pooling.
#include <string>

#include "common/check.h"
#include "engine/cuda/kernels.h"
#include "engine/cuda/window.h"

namespace lockstep::engine::cuda {
namespace {

// The scratch of batch normalisation: sums of parts, then factors.
struct NormScratch {
  explicit NormScratch(const TensorType& x) {
    const auto channels = static_cast<size_t>(x.shape.back());
    partial = AlignedBytes(2 * static_cast<size_t>(kNormParts) * channels * sizeof(double));
    total = partial + AlignedBytes(3 * channels * sizeof(float));
  }
  size_t partial;
  size_t total;
};
size_t NormBytes(const Graph&, const Node& node) { return NormScratch(node.outputs[0]).total; }

template <bool kInference>
absl::StatusOr<CudaKernel> PrepareBatchNorm(const Graph& graph, const Node& node,
                                            const KernelOperands& operands,
                                            const CudaTarget& target) {
  const Operands o(graph, node, operands, target);
  const NormScratch scratch(node.outputs[0]);
  BatchNormArgs args;
  args.channels = node.outputs[0].shape.back();
  args.rows = node.outputs[0].elements() / args.channels;
  args.eps = node.attrs.Double("eps", 1e-5);
  args.relu = node.attrs.String("activation") == "relu";
  return [o, scratch, args](const CudaContext& context) {
    BatchNormArgs own = args;
    own.x = o.In(context, 0);
    own.weight = o.In(context, 1);
    own.bias = o.In(context, 2);
    own.y = o.Out(context);
    own.partial = o.Scratch<double>(context);
    own.factors = o.Scratch<float>(context, scratch.partial);
    if (kInference) {
      own.running_mean = o.In(context, 3);
      own.running_variance = o.In(context, 4);
    } else {
      own.residual = o.In(context, 3);
      own.mean = o.OutData<float>(context, 1);
      own.inverse = o.OutData<float>(context, 2);
      own.variance = o.OutData<float>(context, 3);
    }
    return o.kernels().batch_norm(own, context.stream);
  };
}

absl::StatusOr<CudaKernel> PrepareBatchNormBackward(const Graph& graph, const Node& node,
                                                    const KernelOperands& operands,
                                                    const CudaTarget& target) {
  const Operands o(graph, node, operands, target);
  const NormScratch scratch(node.outputs[0]);
  BatchNormBackwardArgs args;
  args.channels = node.outputs[0].shape.back();
  args.rows = node.outputs[0].elements() / args.channels;
  return [o, scratch, args](const CudaContext& context) {
    BatchNormBackwardArgs own = args;
    own.dy = o.In(context, 0);
    own.x = o.In(context, 1);
    own.weight = o.In(context, 2);
    own.mean = o.In(context, 3);
    own.inverse = o.In(context, 4);
    own.mask = o.In(context, 5);
    own.dx = o.Out(context);
    own.dweight = o.OutData<float>(context, 1);
    own.dbias = o.OutData<float>(context, 2);
    own.adds_weight = o.Adds(context, 1);
    own.adds_bias = o.Adds(context, 2);
    own.partial = o.Scratch<double>(context);
    own.factors = o.Scratch<float>(context, scratch.partial);
    return o.kernels().batch_norm_backward(own, context.stream);
  };
}

absl::StatusOr<CudaKernel> PrepareFold(const Graph& graph, const Node& node,
                                       const KernelOperands& operands, const CudaTarget& target) {
  const Operands o(graph, node, operands, target);
  FoldArgs args;
  args.count = node.outputs[1].elements();
  args.each = node.outputs[0].elements() / args.count;
  args.eps = node.attrs.Double("eps", 1e-5);
  return [o, args](const CudaContext& context) {
    FoldArgs own = args;
    own.filters = o.In(context, 0);
    own.weight = o.In(context, 1);
    own.bias = o.In(context, 2);
    own.mean = o.In(context, 3);
    own.variance = o.In(context, 4);
    own.filter_bias = o.In(context, 5);
    own.out = o.Out(context);
    own.out_bias = o.OutData<float>(context, 1);
    return o.kernels().fold(own, context.stream);
  };
}

template <Pool kPool>
absl::StatusOr<CudaKernel> PreparePool(const Graph& graph, const Node& node,
                                       const KernelOperands& operands, const CudaTarget& target) {
  constexpr bool kBackward = kPool == Pool::kMaxBackward || kPool == Pool::kAverageBackward;
  const Operands o(graph, node, operands, target);
  const TensorType& images = kBackward ? node.outputs[0] : o.input(0);
  const TensorType& places = kBackward ? o.input(0) : node.outputs[0];
  const absl::StatusOr<Window> window = WindowOf(node.attrs);
  LS_CHECK(window.ok()) << window.status();
  PoolArgs args;
  args.pool = kPool;
  args.window = WindowArgsOf(*window, images.shape, places.shape);
  args.count_padding = node.attrs.Int("count_padding", 1) != 0;
  args.relu = node.attrs.Int("relu") != 0;
  return [o, args](const CudaContext& context) {
    PoolArgs own = args;
    if (kBackward) {
      own.dy = o.In(context, 0);
      own.x = o.In(context, 1);
    } else {
      own.x = o.In(context, 0);
    }
    own.out = o.Out(context);
    return o.kernels().pool(own, context.stream);
  };
}

template <bool kBackward>
absl::StatusOr<CudaKernel> PrepareGlobal(const Graph& graph, const Node& node,
                                         const KernelOperands& operands, const CudaTarget& target) {
  const Operands o(graph, node, operands, target);
  const Shape& image = kBackward ? node.outputs[0].shape : o.input(0).shape;
  GlobalPoolArgs args;
  args.images = image[0];
  args.pixels = image[1] * image[2];
  args.channels = image[3];
  args.backward = kBackward;
  return [o, args](const CudaContext& context) {
    GlobalPoolArgs own = args;
    own.in = o.In(context, 0);
    own.out = o.Out(context);
    return o.kernels().global_pool(own, context.stream);
  };
}

}  // namespace

WindowArgs WindowArgsOf(const Window& window, const Shape& images, const Shape& places) {
  WindowArgs args;
  args.images = images[0];
  args.height = images[1];
  args.width = images[2];
  args.channels = images[3];
  args.rows = places[1];
  args.columns = places[2];
  for (int axis = 0; axis < 2; ++axis) {
    args.kernel[axis] = window.kernel[axis];
    args.stride[axis] = window.stride[axis];
    args.padding[axis] = window.padding[axis];
    args.dilation[axis] = window.dilation[axis];
  }
  return args;
}

const CudaKernelDef kBatchNorm = {NormBytes, PrepareBatchNorm<false>};
const CudaKernelDef kBatchNormBackward = {NormBytes, PrepareBatchNormBackward};
const CudaKernelDef kBatchNormInference = {NormBytes, PrepareBatchNorm<true>};
const CudaKernelDef kFoldBatchNorm = {nullptr, PrepareFold};
const CudaKernelDef kMaxPool2d = {nullptr, PreparePool<Pool::kMax>};
const CudaKernelDef kMaxPool2dBackward = {nullptr, PreparePool<Pool::kMaxBackward>};
const CudaKernelDef kAvgPool2d = {nullptr, PreparePool<Pool::kAverage>};
const CudaKernelDef kAvgPool2dBackward = {nullptr, PreparePool<Pool::kAverageBackward>};
const CudaKernelDef kGlobalAveragePool = {nullptr, PrepareGlobal<false>};
const CudaKernelDef kGlobalAveragePoolBackward = {nullptr, PrepareGlobal<true>};

}  // namespace lockstep::engine::cuda
