// SPDX-License-Identifier: Apache-2.0
// Attention, forward, backward and for one new position.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "engine/cuda/attention_cudnn.h"
#include "engine/cuda/attention_engine.h"
#include "engine/cuda/kernels.h"
#include "engine/ops/ops.h"

namespace lockstep::engine::cuda {
namespace {

absl::StatusOr<AttentionArgs> ArgsOf(const ops::AttentionShape& shape, const Attrs& attrs,
                                     const CudaTarget& target) {
  AttentionArgs args;
  args.warpgroups = target.warpgroups;
  args.batch = shape.batch;
  args.heads = shape.heads;
  args.length = shape.length;
  args.queries = shape.queries;
  args.width = shape.width;
  args.depth = shape.width / shape.heads;
  args.stride = shape.packed ? 3 * shape.width : shape.width;
  args.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(args.depth)));
  args.causal = shape.causal;
  if (shape.rate > 0) args.drop = DropOf(attrs);
  args.round_keys = RoundKeys(args.drop.key);
  if (args.depth > kMaxHeadDepth) {
    return absl::InvalidArgumentError(absl::StrCat("attention heads of ", args.depth,
                                                   " columns: CUDA's have at most ", kMaxHeadDepth,
                                                   "; use more heads, or device: cpu"));
  }
  constexpr int64_t kMost = 65535;  // of a grid's second and third extent
  if (args.heads > kMost || args.batch > kMost) {
    return absl::InvalidArgumentError(
        absl::StrCat("attention with ", args.heads, " heads of ", args.batch,
                     " samples at once: CUDA's has at most ", kMost,
                     " of either; use a smaller micro-batch, or device: cpu"));
  }
  return args;
}

// `view` from `elements` on.
View Shifted(const View& view, int64_t elements) {
  const int64_t bytes = elements * (view.type == Type::kF32 ? 4 : 2);
  return {static_cast<std::byte*>(view.data) + bytes, view.type};
}

// Dropout's bits are left and read by a GPU that has warpgroups alone: what a node and its gradient
// are prepared for is the same.
bool KeepsDropout(const ops::AttentionShape& shape, const CudaTarget& target) {
  return shape.keeps_dropout && target.warpgroups;
}

// Counts a node that cuDNN is not asked about.
void CountOwn(const char* kind, const std::string& engine, const CudaTarget& target) {
  if (target.engines != nullptr) ++(*target.engines)[absl::StrCat(kind, " by ", engine)];
}

// Binds q, k, v from input `first` on, and what follows them.
void Bind(const Operands& o, const ops::AttentionShape& shape, size_t first,
          const CudaContext& context, AttentionArgs* args) {
  args->q = o.In(context, first);
  args->k = shape.packed ? Shifted(args->q, shape.width) : o.In(context, first + 1);
  args->v = shape.packed ? Shifted(args->q, 2 * shape.width) : o.In(context, first + 2);
  if (shape.masked) {
    const int32_t* keys = o.InData<int32_t>(context, shape.keys);
    (shape.lengths ? args->by_length : args->by_key) = keys;
  }
  if (shape.rate > 0) args->drop.address = o.InData<int32_t>(context, shape.address);
}

// The same for cuDNN.
void Bind(const Operands& o, const ops::AttentionShape& shape, size_t first,
          const CudaContext& context, CudnnAttention::Operands* operands) {
  AttentionArgs args;
  Bind(o, shape, first, context, &args);
  operands->q = args.q.data;
  operands->k = args.k.data;
  operands->v = args.v.data;
}

absl::StatusOr<CudaKernel> PrepareForward(const Graph& graph, const Node& node,
                                          const KernelOperands& operands,
                                          const CudaTarget& target) {
  const Operands o(graph, node, operands, target);
  LS_ASSIGN_OR_RETURN(const ops::AttentionShape shape, AttentionShapeOf(graph, node));
  LS_ASSIGN_OR_RETURN(const AttentionArgs args, ArgsOf(shape, node.attrs, target));
  const bool keeps = KeepsDropout(shape, target);
  const CudaKernel own = [o, shape, args, keeps](const CudaContext& context) {
    AttentionArgs own = args;
    Bind(o, shape, 0, context, &own);
    if (keeps) own.kept = o.OutData<uint16_t>(context, 2);
    own.y = o.Out(context);
    own.log_sums = o.Out(context, 1);
    return o.kernels().attention(own, context.stream);
  };
  const Type type = TypeOf(o.input(0).dtype);
  const std::string engine = OwnAttentionEngine(shape, type, target.warpgroups);
  if (target.cudnn == nullptr || !SuitsCudnn(shape, type)) {
    CountOwn("attention", engine, target);
    return own;
  }
  AttentionNode attention{CudnnShapeOf(shape, type, false), 2, engine};
  attention.bind = [o, shape](const CudaContext& context) {
    CudnnAttention::Operands made;
    Bind(o, shape, 0, context, &made);
    made.y = o.Out(context).data;
    made.log_sums = o.Out(context, 1).data;
    return made;
  };
  return ChooseAttention(target.cudnn, o, attention, own);
}

// Of the backward pass: a float for each query and head; then what one kernel of warpgroups leaves
// for the next, or cuDNN's workspace.
struct BackwardPlan {
  size_t delta_bytes = 0;
  size_t rows_bytes = 0;
  size_t kept_bytes = 0;
  size_t workspace_bytes = 0;
};

BackwardPlan PlanBackward(const Graph& graph, const Node& node) {
  BackwardPlan plan;
  plan.delta_bytes =
      AlignedBytes(static_cast<size_t>(graph.type(node.inputs[2]).elements()) * sizeof(float));
  plan.workspace_bytes = AlignedBytes(CudnnBackwardBytes(graph, node));
  const auto shape = AttentionShapeOf(graph, node);
  if (shape.ok() && SuitsWarpgroups(*shape, TypeOf(graph.type(node.inputs[3]).dtype))) {
    const int64_t padded = PaddedAttentionLength(shape->length);
    const auto rows = static_cast<size_t>(shape->batch * shape->heads * padded);
    plan.rows_bytes = AlignedBytes(rows * 2 * sizeof(float));
    if (shape->rate > 0) plan.kept_bytes = AlignedBytes(rows * static_cast<size_t>(padded) / 8);
    if (shape->keeps_dropout) plan.kept_bytes = 0;
  }
  return plan;
}

size_t BackwardScratch(const Graph& graph, const Node& node) {
  const BackwardPlan plan = PlanBackward(graph, node);
  const size_t workspace = plan.workspace_bytes > kCudaWorkspaceBytes ? plan.workspace_bytes : 0;
  return plan.delta_bytes + std::max(plan.rows_bytes + plan.kept_bytes, workspace);
}

absl::StatusOr<CudaKernel> PrepareBackward(const Graph& graph, const Node& node,
                                           const KernelOperands& operands,
                                           const CudaTarget& target) {
  const Operands o(graph, node, operands, target);
  LS_ASSIGN_OR_RETURN(const ops::AttentionShape shape, AttentionShapeOf(graph, node));
  LS_ASSIGN_OR_RETURN(const AttentionArgs args, ArgsOf(shape, node.attrs, target));
  const BackwardPlan plan = PlanBackward(graph, node);
  const bool keeps = KeepsDropout(shape, target);
  const CudaKernel own = [o, shape, args, plan, keeps](const CudaContext& context) {
    AttentionBackwardArgs own;
    own.forward = args;
    Bind(o, shape, 3, context, &own.forward);
    if (keeps) own.forward.kept = o.InData<uint16_t>(context, shape.kept);
    own.dy = o.In(context, 0);
    own.forward.y = o.In(context, 1);
    own.forward.log_sums = o.In(context, 2);
    own.dq = o.Out(context);
    own.dk = shape.packed ? Shifted(own.dq, shape.width) : o.Out(context, 1);
    own.dv = shape.packed ? Shifted(own.dq, 2 * shape.width) : o.Out(context, 2);
    own.delta = o.Scratch<float>(context);
    if (plan.rows_bytes > 0) own.rows = o.Scratch<float>(context, plan.delta_bytes);
    if (plan.kept_bytes > 0) {
      own.kept = o.Scratch<uint16_t>(context, plan.delta_bytes + plan.rows_bytes);
    }
    return o.kernels().attention_backward(own, context.stream);
  };
  const Type type = TypeOf(o.input(3).dtype);
  const std::string engine = OwnAttentionEngine(shape, type, target.warpgroups);
  if (target.cudnn == nullptr || !SuitsCudnn(shape, type)) {
    CountOwn("attention-backward", engine, target);
    return own;
  }
  AttentionNode attention{CudnnShapeOf(shape, type, true), shape.packed ? size_t{1} : size_t{3},
                          engine};
  attention.workspace_at = plan.delta_bytes;
  attention.workspace_bytes = plan.workspace_bytes;
  attention.bind = [o, shape](const CudaContext& context) {
    CudnnAttention::Operands made;
    Bind(o, shape, 3, context, &made);
    made.dy = o.In(context, 0).data;
    made.y = o.In(context, 1).data;
    made.log_sums = o.In(context, 2).data;
    const View dq = o.Out(context);
    made.dq = dq.data;
    made.dk = shape.packed ? Shifted(dq, shape.width).data : o.Out(context, 1).data;
    made.dv = shape.packed ? Shifted(dq, 2 * shape.width).data : o.Out(context, 2).data;
    made.delta = o.Scratch<float>(context);
    return made;
  };
  return ChooseAttention(target.cudnn, o, attention, own);
}

size_t StepScratch(const Graph& graph, const Node& node) {
  const int64_t positions = graph.type(node.inputs[1]).shape[1];
  return AlignedBytes(static_cast<size_t>(node.attrs.Int("heads") * positions) * sizeof(float));
}

absl::StatusOr<CudaKernel> PrepareStep(const Graph& graph, const Node& node,
                                       const KernelOperands& operands, const CudaTarget& target) {
  const Operands o(graph, node, operands, target);
  AttentionStepArgs args;
  args.rows = o.input(0).shape[0];
  args.heads = node.attrs.Int("heads");
  args.positions = o.input(1).shape[1];
  args.width = o.input(1).shape[2];
  args.scale = static_cast<float>(
      1 / std::sqrt(static_cast<double>(args.width) / static_cast<double>(args.heads)));
  return [o, args](const CudaContext& context) {
    AttentionStepArgs own = args;
    own.qkv = o.In(context, 0);
    own.before = o.In(context, 1);
    own.position = o.InData<int32_t>(context, 2);
    own.y = o.Out(context);
    own.kept = o.OutData<float>(context, 1);
    own.scores = o.Scratch<float>(context);
    return o.kernels().attention_step(own, context.stream);
  };
}

}  // namespace

const CudaKernelDef kAttention = {nullptr, PrepareForward};
const CudaKernelDef kAttentionBackward = {BackwardScratch, PrepareBackward};
const CudaKernelDef kAttentionStep = {StepScratch, PrepareStep};

}  // namespace lockstep::engine::cuda
