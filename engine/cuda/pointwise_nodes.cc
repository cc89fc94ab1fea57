// SPDX-License-Identifier: Apache-2.0
// Nodes whose kernels work on single elements or move them.
#include <string>
#include <string_view>

#include "common/check.h"
#include "engine/cuda/kernels.h"
#include "engine/ops/ops.h"

namespace lockstep::engine::cuda {
namespace {

struct NamedFunction {
  std::string_view key;
  Function function;
};
constexpr NamedFunction kFunctions[] = {
    {"deposit", Function::kCopy},
#define LOCKSTEP_FUNCTION(Name, key, value) {key, Function::k##Name},
#include "engine/cuda/kernels/functions.inc"
};

Function FunctionOf(const Node& node) {
  std::string key = node.op->name;
  if (node.attrs.String("approximate", "none") == "tanh") key += ":tanh";
  for (const NamedFunction& each : kFunctions) {
    if (each.key == key) return each.function;
  }
  LS_CHECK(false) << "no function of kernels/functions.inc is " << key;
  __builtin_unreachable();
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

#define LOCKSTEP_OP(Name)
#define LOCKSTEP_POINTWISE(Name) const CudaKernelDef k##Name = {nullptr, PreparePointwise};
#define LOCKSTEP_CPU_OP(Name)
#define LOCKSTEP_PLAIN_OP(Name)
#include "engine/ops/op_list.inc"
const CudaKernelDef kQuantizeFp8 = {QuantizeScratch, PrepareQuantize};
const CudaKernelDef kDropout = {nullptr, PrepareDropout};
const CudaKernelDef kTakeRows = {nullptr, PrepareTakeRows<false>};
const CudaKernelDef kTakeRowsBackward = {nullptr, PrepareTakeRows<true>};
const CudaKernelDef kChannelsLast = {nullptr, PrepareChannels<true>};
const CudaKernelDef kChannelsFirst = {nullptr, PrepareChannels<false>};

}  // namespace lockstep::engine::cuda
