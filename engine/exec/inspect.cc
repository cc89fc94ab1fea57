// SPDX-License-Identifier: Apache-2.0
// What tools see of a plan and of a running program: nodes with their cost and memory, observed
// runs, predictions.

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status.h"
#include "engine/cpu/simd/half_kernels.h"
#include "engine/exec/executor.h"
#include "engine/exec/logits.h"
#include "engine/exec/plan.h"
#include "engine/graph/op.h"
#include "engine/ops/ops.h"

namespace lockstep::engine {
namespace {

// "linear(f32[64,784], f32[256,784], f32[256]) activation=relu : f32[64,256]".
std::string NodeText(const Graph& graph, const Node& node) {
  std::vector<std::string> inputs, outputs;
  for (const Value& input : node.inputs) inputs.push_back(ToString(graph.type(input)));
  for (const TensorType& output : node.outputs) outputs.push_back(ToString(output));
  const std::string attrs = node.attrs.ToString();
  return absl::StrCat(node.op->name, "(", absl::StrJoin(inputs, ", "), ")",
                      attrs.empty() ? "" : " ", attrs, " : ", absl::StrJoin(outputs, ", "));
}

TensorView ViewOf(const TensorType& type, const void* data) {
  TensorView view;
  view.type = type.dtype == DType::kI32 ? FieldSpec::Type::kInt32 : FieldSpec::Type::kFloat32;
  view.is_float64 = type.dtype == DType::kF64;
  view.shape = type.shape;
  view.data = data;
  return view;
}

// Bytes of the arena that are in use at a time.
struct Live {
  size_t bytes = 0;
  size_t scratch = 0;  // of them
};

// Returns what is in use at each time of a plan (MemoryPlan::TimeOf).
std::vector<Live> LiveBytes(const MemoryPlan& memory) {
  // What begins and, in the wrapping arithmetic of size_t, what has ended.
  std::vector<Live> live(static_cast<size_t>(memory.runs_begin) + memory.operands.size() + 2);
  for (const ArenaBuffer& buffer : memory.buffers) {
    Live& first = live[static_cast<size_t>(buffer.first)];
    Live& behind = live[static_cast<size_t>(buffer.last) + 1];
    first.bytes += buffer.bytes;
    behind.bytes -= buffer.bytes;
    if (!buffer.what.ends_with(" scratch")) continue;
    first.scratch += buffer.bytes;
    behind.scratch -= buffer.bytes;
  }
  for (size_t time = 1; time < live.size(); ++time) {
    live[time].bytes += live[time - 1].bytes;
    live[time].scratch += live[time - 1].scratch;
  }
  return live;
}

}  // namespace

int64_t TensorView::elements() const { return Elements(shape); }

bool CompiledPlan::keeps_constants() const {
  const std::vector<Node>& nodes = train_.graph.nodes();
  for (int id = 0; id < static_cast<int>(nodes.size()); ++id) {
    // A view of a weight is where the weight is.
    if (!nodes[static_cast<size_t>(id)].op->view && train_.memory.RunsOnce(id)) return true;
  }
  return false;
}

std::vector<NodeInfo> CompiledPlan::Nodes(ProgramKind kind) const {
  const Program& program = this->program(kind);
  const std::vector<Live> live = LiveBytes(program.memory);
  std::vector<NodeInfo> infos;
  for (int id = 0; id < static_cast<int>(program.graph.nodes().size()); ++id) {
    const Node& node = program.graph.node(id);
    NodeInfo info;
    info.id = id;
    info.op = node.op->name;
    info.name = node.name;
    info.text = NodeText(program.graph, node);
    for (int o = 0; o < static_cast<int>(node.outputs.size()); ++o) {
      info.shapes.push_back(ToString(node.outputs[static_cast<size_t>(o)]));
      const Value origin = program.graph.Origin({id, o});
      info.origins.emplace_back(origin.node, origin.output);
    }
    if (node.op == &ops::kQuantizeFp8) info.format = node.attrs.String("format");
    info.runs = !node.op->leaf && !node.op->view;
    info.scaled = node.op->leaf && node.name == kLossSeed;
    for (const Value& input : node.inputs) {
      info.scaled |= infos[static_cast<size_t>(input.node)].scaled;
    }
    if (info.runs) {
      const Cost cost = CostOf(program.graph, node);
      info.flops = cost.flops;
      info.bytes = cost.bytes;
    }
    const Live& now = live[static_cast<size_t>(program.memory.TimeOf(id))];
    info.live_bytes = now.bytes;
    info.scratch_bytes = now.scratch;
    infos.push_back(std::move(info));
  }
  return infos;
}

absl::StatusOr<std::shared_ptr<const Plan>> Plan::CompileInference(const TrainSpec& spec) {
  TrainSpec inference = spec;
  inference.inference = true;
  inference.optimizer = SgdSpec{.lr = 1};  // no moments
  inference.schedule = {};
  inference.micro_batch = 1;
  inference.accumulate = 1;
  inference.shards = 1;
  return Plan::Compile(inference);
}

absl::Status PlanExecutor::RunObserved(ProgramKind kind, const Step& step, size_t id,
                                       const RunContext& context) {
  const Program& program = plan_->program(kind);
  observer_->BeforeNode(kind, static_cast<int>(id));
  step.kernel->Run(context);
  const Node& node = program.graph.node(static_cast<int>(id));
  const KernelOperands& operands = program.memory.operands[id];
  std::vector<TensorView> outputs;
  std::vector<std::vector<float>> widened(node.outputs.size());
  for (size_t o = 0; o < node.outputs.size(); ++o) {
    TensorType type = node.outputs[o];
    const void* data = context.At<std::byte>(operands.outputs[o]);
    if (IsHalf(type.dtype)) {  // seen as fp32
      widened[o].resize(static_cast<size_t>(type.elements()));
      HalfKernelsFor(plan_->target().isa)
          .Widen(type.dtype, static_cast<const uint16_t*>(data), type.elements(),
                 widened[o].data());
      type.dtype = DType::kF32;
      data = widened[o].data();
    }
    outputs.push_back(ViewOf(type, data));
  }
  return observer_->AfterNode(kind, static_cast<int>(id), outputs);
}

absl::StatusOr<absl::Span<const float>> PlanExecutor::Predict(Fields fields, int64_t valid,
                                                              const BlockHooks& hooks) {
  if (!plan_->spec().inference) {
    return absl::InvalidArgumentError("only a plan for inference predicts");
  }
  RunContext context;
  LS_RETURN_IF_ERROR(RunBlock(fields, valid, Weights::kCurrent, hooks.cancelled, &context));
  return LogitsOf(ProgramKind::kEvaluation, context);
}

absl::Span<const float> PlanExecutor::LogitsOf(ProgramKind kind, const RunContext& context) const {
  const Logits logits = engine::LogitsOf(plan_->program(kind));
  return absl::MakeConstSpan(context.At<float>(logits.storage),
                             static_cast<size_t>(logits.elements));
}

}  // namespace lockstep::engine
