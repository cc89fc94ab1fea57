// SPDX-License-Identifier: Apache-2.0
// Nodes on rows: softmax, losses, sums of columns, embeddings.
#include "common/check.h"
#include "engine/cuda/kernels.h"
#include "engine/graph/op.h"

namespace lockstep::engine::cuda {
namespace {

size_t ColumnBytes(int64_t columns) {
  return AlignedBytes(static_cast<size_t>(kColumnSumParts * columns) * sizeof(float));
}
size_t BiasScratch(const Graph& graph, const Node& node) {
  return ColumnBytes(graph.type(node.inputs[0]).shape[1]);
}

absl::StatusOr<CudaKernel> PrepareBiasBackward(const Graph& graph, const Node& node,
                                               const KernelOperands& operands,
                                               const CudaTarget& target) {
  const Operands o(graph, node, operands, target);
  ColumnSumArgs args;
  args.rows = o.input(0).shape[0];
  args.columns = o.input(0).shape[1];
  return [o, args](const CudaContext& context) {
    ColumnSumArgs own = args;
    own.x = o.In(context, 0);
    own.out = o.OutData<float>(context);
    own.partial = o.Scratch<float>(context);
    own.adds = o.Adds(context);
    return o.kernels().column_sum(own, context.stream);
  };
}

template <bool kBackward>
absl::StatusOr<CudaKernel> PrepareSoftmax(const Graph& graph, const Node& node,
                                          const KernelOperands& operands,
                                          const CudaTarget& target) {
  const Operands o(graph, node, operands, target);
  SoftmaxArgs args;
  args.rows = o.input(0).shape[0];
  args.columns = o.input(0).shape[1];
  return [o, args](const CudaContext& context) {
    SoftmaxArgs own = args;
    own.x = o.In(context, kBackward ? 1 : 0);
    if (kBackward) own.dy = o.In(context, 0);
    own.y = o.Out(context);
    return o.kernels().softmax(own, context.stream);
  };
}

// Which of its results a loss node has.
enum class Loss { kLoss, kGradient, kBoth, kEvaluation };

size_t LossScratch(const Graph& graph, const Node& node) {
  return AlignedBytes(static_cast<size_t>(graph.type(node.inputs[0]).shape[0]) * 4 *
                      sizeof(double));
}

template <Loss kLoss>
absl::StatusOr<CudaKernel> PrepareLoss(const Graph& graph, const Node& node,
                                       const KernelOperands& operands, const CudaTarget& target) {
  const Operands o(graph, node, operands, target);
  LS_CHECK_EQ(node.attrs.Int("bias"), 0) << "plans for GPUs sum over rows by bias_backward";
  CrossEntropyArgs args;
  args.rows = o.input(0).shape[0];
  args.columns = o.input(0).shape[1];
  args.classes = node.attrs.Int("classes") > 0 ? node.attrs.Int("classes") : args.columns;
  args.smoothing = node.attrs.Double("label_smoothing");
  return [o, args](const CudaContext& context) {
    CrossEntropyArgs own = args;
    own.logits = o.In(context, 0);
    own.labels = o.InData<int32_t>(context, 1);
    if constexpr (kLoss == Loss::kGradient || kLoss == Loss::kBoth) {
      own.seed = o.In(context, 2);
      own.gradient = o.Out(context, kLoss == Loss::kBoth ? 2 : 0);
    }
    if constexpr (kLoss != Loss::kGradient) own.row_sums = o.Scratch<double>(context);
    if constexpr (kLoss == Loss::kEvaluation) {
      own.evaluation = o.OutData<double>(context);
      own.valid_rows = context.valid_rows;
    } else if constexpr (kLoss != Loss::kGradient) {
      own.loss = o.OutData<float>(context);
      own.count = o.OutData<float>(context, 1);
      own.adds = o.Adds(context);
    }
    return o.kernels().cross_entropy(own, context.stream);
  };
}

absl::StatusOr<CudaKernel> PrepareEmbedding(const Graph& graph, const Node& node,
                                            const KernelOperands& operands,
                                            const CudaTarget& target) {
  const Operands o(graph, node, operands, target);
  EmbeddingArgs args;
  args.positions = o.input(0).elements();
  args.rows = o.input(1).shape[0];
  args.columns = o.input(1).shape[1];
  return [o, args](const CudaContext& context) {
    EmbeddingArgs own = args;
    own.tokens = o.InData<int32_t>(context, 0);
    own.table = o.In(context, 1);
    own.out = o.Out(context);
    return o.kernels().embedding(own, context.stream);
  };
}

// The sums of pieces come first.
size_t EmbeddingPartialBytes(int64_t positions, int64_t columns) {
  return AlignedBytes(static_cast<size_t>(EmbeddingPartialFloats(positions, columns)) *
                      sizeof(float));
}
size_t EmbeddingScratch(const Graph& graph, const Node& node) {
  const int64_t rows = node.outputs[0].shape[0], columns = node.outputs[0].shape[1];
  const int64_t positions = graph.type(node.inputs[0]).elements();
  return EmbeddingPartialBytes(positions, columns) +
         AlignedBytes(static_cast<size_t>(2 * rows + 1 + 2 * positions) * sizeof(int32_t));
}

absl::StatusOr<CudaKernel> PrepareEmbeddingBackward(const Graph& graph, const Node& node,
                                                    const KernelOperands& operands,
                                                    const CudaTarget& target) {
  const Operands o(graph, node, operands, target);
  EmbeddingBackwardArgs args;
  args.positions = o.input(0).elements();
  args.rows = node.outputs[0].shape[0];
  args.columns = node.outputs[0].shape[1];
  const size_t partial_bytes = EmbeddingPartialBytes(args.positions, args.columns);
  return [o, args, partial_bytes](const CudaContext& context) {
    EmbeddingBackwardArgs own = args;
    own.tokens = o.InData<int32_t>(context, 0);
    own.dy = o.In(context, 1);
    own.base = o.In(context, 2);
    own.out = o.OutData<float>(context);
    own.partial = o.Scratch<float>(context);
    own.starts = o.Scratch<int32_t>(context, partial_bytes);
    own.cursors = own.starts + args.rows + 1;
    own.found = own.cursors + args.rows;
    own.order = own.found + args.positions;
    own.adds = o.Adds(context);
    return o.kernels().embedding_backward(own, context.stream);
  };
}

template <bool kBackward>
absl::StatusOr<CudaKernel> PreparePositions(const Graph& graph, const Node& node,
                                            const KernelOperands& operands,
                                            const CudaTarget& target) {
  const Operands o(graph, node, operands, target);
  PositionsArgs args;
  args.rows = o.input(0).shape[0];
  args.columns = o.input(0).shape[1];
  args.length = node.attrs.Int("length");
  args.table_rows = kBackward ? node.outputs[0].shape[0] : o.input(1).shape[0];
  return [o, args](const CudaContext& context) {
    PositionsArgs own = args;
    own.x = o.In(context, 0);
    own.table = o.In(context, 1);
    own.out = o.Out(context);
    own.adds = o.Adds(context);
    return kBackward ? o.kernels().positions_backward(own, context.stream)
                     : o.kernels().positions(own, context.stream);
  };
}

}  // namespace

const CudaKernelDef kBiasBackward = {BiasScratch, PrepareBiasBackward};
const CudaKernelDef kSoftmax = {nullptr, PrepareSoftmax<false>};
const CudaKernelDef kSoftmaxBackward = {nullptr, PrepareSoftmax<true>};
const CudaKernelDef kSoftmaxCrossEntropy = {LossScratch, PrepareLoss<Loss::kLoss>};
const CudaKernelDef kSoftmaxCrossEntropyBackward = {nullptr, PrepareLoss<Loss::kGradient>};
const CudaKernelDef kSoftmaxCrossEntropyWithGradient = {LossScratch, PrepareLoss<Loss::kBoth>};
const CudaKernelDef kClassificationSums = {LossScratch, PrepareLoss<Loss::kEvaluation>};
const CudaKernelDef kEmbedding = {nullptr, PrepareEmbedding};
const CudaKernelDef kEmbeddingBackward = {EmbeddingScratch, PrepareEmbeddingBackward};
const CudaKernelDef kAddPositions = {nullptr, PreparePositions<false>};
const CudaKernelDef kAddPositionsBackward = {nullptr, PreparePositions<true>};

}  // namespace lockstep::engine::cuda
