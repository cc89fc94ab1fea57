// SPDX-License-Identifier: Apache-2.0
// Nodes whose kernels work on single elements or move them.
#include <string_view>

#include "common/check.h"
#include "engine/cuda/kernels.h"
#include "engine/ops/ops.h"

namespace lockstep::engine::cuda {
namespace {

// By the op's name.
Function FunctionOf(const Node& node) {
  const std::string_view op = node.op->name;
  const bool tanh = node.attrs.String("approximate", "none") == "tanh";
  if (op == "cast" || op == "deposit") return Function::kCopy;
  if (op == "scale") return Function::kScale;
  if (op == "add") return Function::kAdd;
  if (op == "relu") return Function::kRelu;
  if (op == "relu_backward") return Function::kReluBackward;
  if (op == "gelu") return tanh ? Function::kGeluTanh : Function::kGeluErf;
  if (op == "gelu_backward") {
    return tanh ? Function::kGeluTanhBackward : Function::kGeluErfBackward;
  }
  if (op == "silu") return Function::kSilu;
  if (op == "silu_backward") return Function::kSiluBackward;
  if (op == "tanh") return Function::kTanh;
  if (op == "tanh_backward") return Function::kTanhBackward;
  if (op == "sigmoid") return Function::kSigmoid;
  LS_CHECK(op == "sigmoid_backward") << op;
  return Function::kSigmoidBackward;
}

absl::StatusOr<CudaKernel> PreparePointwise(const Graph& graph, const Node& node,
                                            const KernelOperands& operands,
                                            const CudaTarget& target) {
  const Operands o(graph, node, operands, target);
  PointwiseArgs args;
  args.function = FunctionOf(node);
  args.count = node.outputs[0].elements();
  args.factor = static_cast<float>(node.attrs.Double("factor", 1));
  return [o, args](const CudaContext& context) {
    PointwiseArgs own = args;
    own.a = o.In(context, 0);
    own.b = o.In(context, 1);
    own.out = o.Out(context);
    own.adds = o.Adds(context);
    return o.kernels().pointwise(own, context.stream);
  };
}

size_t QuantizeScratch(const Graph& /*graph*/, const Node& /*node*/) {
  return kQuantizeParts * sizeof(float);
}

absl::StatusOr<CudaKernel> PrepareQuantize(const Graph& graph, const Node& node,
                                           const KernelOperands& operands,
                                           const CudaTarget& target) {
  const Operands o(graph, node, operands, target);
  QuantizeArgs args;
  args.count = node.outputs[0].elements();
  args.format = ops::Float8FormatOf(node.attrs);
  return [o, args](const CudaContext& context) {
    QuantizeArgs own = args;
    own.x = o.In(context, 0);
    own.out = o.Out(context);
    own.partial = o.Scratch<float>(context);
    return o.kernels().quantize(own, context.stream);
  };
}

absl::StatusOr<CudaKernel> PrepareDropout(const Graph& graph, const Node& node,
                                          const KernelOperands& operands,
                                          const CudaTarget& target) {
  const Operands o(graph, node, operands, target);
  DropoutArgs args;
  args.count = node.outputs[0].elements();
  args.drop = DropOf(node.attrs);
  return [o, args](const CudaContext& context) {
    DropoutArgs own = args;
    own.x = o.In(context, 0);
    own.drop.address = o.InData<int32_t>(context, 1);
    own.residual = o.In(context, 2);
    own.out = o.Out(context);
    return o.kernels().dropout(own, context.stream);
  };
}

template <bool kBackward>
absl::StatusOr<CudaKernel> PrepareTakeRows(const Graph& graph, const Node& node,
                                           const KernelOperands& operands,
                                           const CudaTarget& target) {
  const Operands o(graph, node, operands, target);
  TakeRowsArgs args;
  args.stride = node.attrs.Int("stride");
  args.columns = node.outputs[0].shape[1];
  args.rows = kBackward ? o.input(0).shape[0] : node.outputs[0].shape[0];
  args.backward = kBackward;
  return [o, args](const CudaContext& context) {
    TakeRowsArgs own = args;
    own.in = o.In(context, 0);
    own.out = o.Out(context);
    return o.kernels().take_rows(own, context.stream);
  };
}

template <bool kLast>
absl::StatusOr<CudaKernel> PrepareChannels(const Graph& graph, const Node& node,
                                           const KernelOperands& operands,
                                           const CudaTarget& target) {
  const Operands o(graph, node, operands, target);
  const Shape& x = o.input(0).shape;
  TransposeArgs args;
  args.images = x[0];
  args.rows = kLast ? x[1] : x[1] * x[2];
  args.columns = kLast ? x[2] * x[3] : x[3];
  return [o, args](const CudaContext& context) {
    TransposeArgs own = args;
    own.in = o.In(context, 0);
    own.out = o.Out(context);
    return o.kernels().transpose(own, context.stream);
  };
}

}  // namespace

const CudaKernelDef kAdd = {nullptr, PreparePointwise};
const CudaKernelDef kCast = kAdd;
const CudaKernelDef kDeposit = kAdd;
const CudaKernelDef kScale = kAdd;
const CudaKernelDef kRelu = kAdd;
const CudaKernelDef kReluBackward = kAdd;
const CudaKernelDef kGelu = kAdd;
const CudaKernelDef kGeluBackward = kAdd;
const CudaKernelDef kSilu = kAdd;
const CudaKernelDef kSiluBackward = kAdd;
const CudaKernelDef kTanh = kAdd;
const CudaKernelDef kTanhBackward = kAdd;
const CudaKernelDef kSigmoid = kAdd;
const CudaKernelDef kSigmoidBackward = kAdd;
const CudaKernelDef kQuantizeFp8 = {QuantizeScratch, PrepareQuantize};
const CudaKernelDef kDropout = {nullptr, PrepareDropout};
const CudaKernelDef kTakeRows = {nullptr, PrepareTakeRows<false>};
const CudaKernelDef kTakeRowsBackward = {nullptr, PrepareTakeRows<true>};
const CudaKernelDef kChannelsLast = {nullptr, PrepareChannels<true>};
const CudaKernelDef kChannelsFirst = {nullptr, PrepareChannels<false>};

}  // namespace lockstep::engine::cuda
