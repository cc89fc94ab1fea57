// SPDX-License-Identifier: Apache-2.0
// conv2d_max_pool and its gradients: conv2d's kernels with the unpooled images in scratch.
#include <string>
#include <vector>

#include "common/check.h"
#include "common/status.h"
#include "engine/cuda/kernels.h"
#include "engine/graph/op.h"
#include "engine/ops/conv_geometry.h"
#include "engine/ops/ops.h"

namespace lockstep::engine::cuda {
namespace {

TensorType UnpooledOf(TensorType x, TensorType weight, const Attrs& attrs) {
  x.dtype = weight.dtype = DType::kF32;  // extents alone count
  const absl::StatusOr<ConvGeometry> g = ConvOf(x, weight, attrs);
  LS_CHECK(g.ok()) << g.status();
  return {DType::kF32, {g->images, g->out_height, g->out_width, g->filters}};
}

// A node of conv2d's family; its unpooled operand lies at the start of the scratch, its own scratch
// behind that.
struct Inner {
  Graph graph;
  size_t unpooled_bytes = 0;

  Inner(const OpDef& op, const std::vector<TensorType>& inputs, Attrs attrs,
        const TensorType& unpooled)
      : unpooled_bytes(AlignedBytes(unpooled.bytes())) {
    std::vector<Value> leaves;
    for (const TensorType& type : inputs) {
      leaves.push_back(graph.AddLeaf(ops::kInput, type, std::to_string(leaves.size())));
    }
    attrs.Set(kDTypeAttr, std::string(Name(DType::kF32)));
    graph.Add(op, leaves, attrs);
    LS_CHECK(graph.status().ok()) << graph.status();
  }
  const Node& node() const { return graph.nodes().back(); }
  size_t scratch_bytes(const CudaKernelDef& def) const {
    return unpooled_bytes + def.scratch_bytes(graph, node());
  }
  absl::StatusOr<CudaKernel> Prepare(const CudaKernelDef& def, KernelOperands operands,
                                     const CudaTarget& target) const {
    operands.scratch.offset += unpooled_bytes;
    return def.prepare(graph, node(), operands, target);
  }
};

Inner InnerForward(const Graph& graph, const Node& node) {
  std::vector<TensorType> types;
  for (const Value& input : node.inputs) types.push_back(graph.type(input));
  Attrs attrs = node.attrs;
  attrs.Set("activation", std::string("none"));
  return Inner(ops::kConv2d, types, attrs, UnpooledOf(types[0], types[1], attrs));
}
Inner InnerWeight(const Graph& graph, const Node& node) {
  const TensorType& x = graph.type(node.inputs[2]);
  const TensorType dy = UnpooledOf(x, node.outputs[0], node.attrs);
  return Inner(ops::kConv2dBackwardWeight, {dy, x}, node.attrs, dy);
}

UnpoolArgs ArgsOf(const Shape& unpooled) {
  UnpoolArgs args;
  args.images = unpooled[0];
  args.height = unpooled[1];
  args.width = unpooled[2];
  args.channels = unpooled[3];
  return args;
}

size_t ForwardScratch(const Graph& graph, const Node& node) {
  return InnerForward(graph, node).scratch_bytes(kConv2d);
}

absl::StatusOr<CudaKernel> PrepareForward(const Graph& graph, const Node& node,
                                          const KernelOperands& operands,
                                          const CudaTarget& target) {
  const Operands o(graph, node, operands, target);
  const Inner inner = InnerForward(graph, node);
  KernelOperands own = operands;
  own.outputs = {operands.scratch};
  LS_ASSIGN_OR_RETURN(const CudaKernel conv, inner.Prepare(kConv2d, own, target));
  PlacePoolArgs args;
  args.images = ArgsOf(inner.node().outputs[0].shape);
  args.relu = node.attrs.String("activation") == "relu";
  return [o, conv, args](const CudaContext& context) {
    const Code code = conv(context);
    if (code != 0) return code;
    PlacePoolArgs own = args;
    own.x = o.Scratch<float>(context);
    own.y = o.Out(context);
    own.places = o.OutData<int32_t>(context, 1);
    return o.kernels().place_pool(own, context.stream);
  };
}

absl::StatusOr<CudaKernel> PrepareUnpool(const Graph& graph, const Node& node,
                                         const KernelOperands& operands, const CudaTarget& target) {
  const Operands o(graph, node, operands, target);
  const UnpoolArgs args = ArgsOf(node.outputs[0].shape);
  return [o, args](const CudaContext& context) {
    UnpoolArgs own = args;
    own.dy = o.In(context, 0);
    own.places = o.InData<int32_t>(context, 1);
    own.dx = o.Out(context);
    return o.kernels().unpool(own, context.stream);
  };
}

size_t WeightScratch(const Graph& graph, const Node& node) {
  return InnerWeight(graph, node).scratch_bytes(kConv2dBackwardWeight);
}

absl::StatusOr<CudaKernel> PrepareWeight(const Graph& graph, const Node& node,
                                         const KernelOperands& operands, const CudaTarget& target) {
  const Operands o(graph, node, operands, target);
  const Inner inner = InnerWeight(graph, node);
  KernelOperands own = operands;
  own.inputs = {operands.scratch, operands.inputs[2]};
  LS_ASSIGN_OR_RETURN(const CudaKernel gradient, inner.Prepare(kConv2dBackwardWeight, own, target));
  const UnpoolArgs args = ArgsOf(inner.graph.node(0).outputs[0].shape);
  return [o, gradient, args](const CudaContext& context) {
    UnpoolArgs own = args;
    own.dy = o.In(context, 0);
    own.places = o.InData<int32_t>(context, 1);
    own.dx = {o.Scratch(context), Type::kF32};
    const Code code = o.kernels().unpool(own, context.stream);
    return code != 0 ? code : gradient(context);
  };
}

}  // namespace

const CudaKernelDef kConv2dMaxPool = {ForwardScratch, PrepareForward};
const CudaKernelDef kMaxUnpool2d = {nullptr, PrepareUnpool};
const CudaKernelDef kConv2dMaxPoolBackwardWeight = {WeightScratch, PrepareWeight};

}  // namespace lockstep::engine::cuda
