// SPDX-License-Identifier: Apache-2.0
#include "engine/cuda/gpu_roofline.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/cuda/attention_engine.h"
#include "engine/cuda/conv_plan.h"
#include "engine/cuda/gemm.h"
#include "engine/exec/plan.h"
#include "engine/graph/op.h"
#include "engine/ops/ops.h"
#include "engine/passes/launch_groups.h"

namespace lockstep::engine {
namespace {

// Of each node's outputs (Graph::Readers).
using Readers = std::vector<std::vector<std::vector<int>>>;

// SXM modules, from NVIDIA's data sheets (dense: without sparsity).
constexpr GpuFigures kGpus[] = {
    {"a100", "sm_80", 312e12, 156e12, 19.5e12, 2.039e12, 164 * 1024},
    {"h100", "sm_90", 989.5e12, 494.7e12, 67e12, 3.35e12, 228 * 1024},
    {"h200", "sm_90", 989.5e12, 494.7e12, 67e12, 4.8e12, 228 * 1024},
    {"b200", "sm_100", 2250e12, 1125e12, 75e12, 8e12, 228 * 1024},
};

// Bytes of patches that are written and read where tensor cores cannot do without them.
double PatchBytes(const Graph& graph, const Node& node) {
  const std::pair<const OpDef*, cuda::ConvPart> parts[] = {
      {&ops::kConv2d, cuda::ConvPart::kForward},
      {&ops::kConv2dBackwardInput, cuda::ConvPart::kInput},
      {&ops::kConv2dBackwardWeight, cuda::ConvPart::kWeight}};
  for (const auto& [op, part] : parts) {
    if (node.op != op) continue;
    const cuda::ConvPlan plan(graph, node, part);
    if (plan.direct || plan.implicit) return 0;
    const size_t element = part == cuda::ConvPart::kInput ? 4 : cuda::BytesOf(plan.factors);
    return 2.0 * static_cast<double>(plan.g.images * plan.pixels() * plan.g.groups * plan.pitch()) *
           static_cast<double>(element);
  }
  return 0;
}

// Bytes that a node's kernels move beyond each operand once.
double MovedBesides(const Graph& graph, const Node& node, const GpuFigures& gpu) {
  const auto bytes = [&](size_t i) {
    return i < node.inputs.size() ? static_cast<double>(graph.type(node.inputs[i]).bytes()) : 0;
  };
  // Sums over the batch come before what is made with them.
  if (node.op == &ops::kBatchNorm) return bytes(0);
  if (node.op == &ops::kBatchNormBackward) {
    double large = 0;  // x, dy and a mask, but no vectors
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      if (graph.type(node.inputs[i]).shape.size() > 1) large += bytes(i);
    }
    return large;
  }
  // The sum of a row's powers comes before its gradient, for which large rows are read again.
  if (node.op == &ops::kSoftmaxCrossEntropyWithGradient ||
      node.op == &ops::kSoftmaxCrossEntropyBackward) {
    const TensorType& logits = graph.type(node.inputs[0]);
    const auto row = static_cast<int64_t>(logits.bytes()) / logits.shape[0];
    return logits.shape[1] % 8 == 0 && cuda::KeepsLogits(row, gpu.shared_bytes) ? 0 : bytes(0);
  }
  // Rows that a block's shared memory does not hold are read again.
  const auto floats = [&] { return 4 * graph.type(node.inputs[0]).shape[1]; };
  if (node.op == &ops::kSoftmax && floats() > cuda::kKeptRowBytes) return 2 * bytes(0);
  if (node.op == &ops::kSoftmaxBackward && 2 * floats() > cuda::kKeptRowBytes) return 2 * bytes(0);
  // The sums of parts of the rows are written, and read to be added.
  if (node.op == &ops::kLayerNormBackwardWeight) {
    const Shape& shape = graph.type(node.inputs[0]).shape;
    return 2.0 * sizeof(float) *
           static_cast<double>(cuda::LayerNormPartialFloats(shape[0], shape[1]));
  }
  // cuDNN writes the gradients of the scores, those that are seen, and reads them.
  if (node.op == &ops::kAttentionBackward) {
    const double scores = static_cast<double>(cuda::CudnnBackwardBytes(graph, node));
    return scores * (node.attrs.Int("causal") != 0 ? 1 : 2);
  }
  return PatchBytes(graph, node);
}

bool IsAttention(const Node& node) {
  return node.op == &ops::kAttention || node.op == &ops::kAttentionBackward;
}

// Returns whether the GPU has the instructions of sm_90a.
bool HasWarpgroups(const GpuFigures& gpu) { return std::string_view(gpu.architecture) == "sm_90"; }

bool UsesTensorCores(std::string_view op) {
  return op.starts_with("linear") || op.starts_with("conv2d") || op.starts_with("attention");
}

double PeakOf(const Graph& graph, const Node& node, const GpuFigures& gpu, bool tf32) {
  if (!UsesTensorCores(node.op->name)) return gpu.float_flops;
  if (IsAttention(node) && cuda::AttentionEngineOf(graph, node) == cuda::AttentionEngine::kFloats) {
    return gpu.float_flops;
  }
  if (IsHalf(graph.type(node.inputs[0]).dtype)) return gpu.half_flops;
  return tf32 ? gpu.tf32_flops : gpu.float_flops;
}

// What of the peak is expected of a node's arithmetic.
double ShareOf(const Graph& graph, const Node& node, const GpuFigures& gpu) {
  if (!IsAttention(node) ||
      cuda::AttentionEngineOf(graph, node) != cuda::AttentionEngine::kTensorCores) {
    return kProductShare;
  }
  const auto shape = cuda::AttentionShapeOf(graph, node);
  return kProductShare *
         cuda::InstructionShare(*shape, node.op == &ops::kAttentionBackward, HasWarpgroups(gpu));
}

// Bytes of operands that are left alone: rows of a table that no token names, and bits of dropout
// where other kernels do attention.
double NeverMoved(const Graph& graph, const Node& node, const GpuFigures& gpu) {
  if (IsAttention(node)) {
    const auto shape = cuda::AttentionShapeOf(graph, node);
    const bool never = shape.ok() && shape->keeps_dropout && !HasWarpgroups(gpu);
    return never ? static_cast<double>(shape->KeptType().bytes()) : 0;
  }
  if (node.op != &ops::kEmbedding) return 0;
  const double table = static_cast<double>(graph.type(node.inputs[1]).bytes());
  return std::max(0.0, table - static_cast<double>(node.outputs[0].bytes()));
}

// What one launch needs: arithmetic, of whose `peak` that share is expected, and bytes.
void Count(double flops, double peak, double share, double least_bytes, double moved_bytes,
           const GpuFigures& gpu, RooflineRow* row) {
  row->launches = 1;
  row->flops = flops;
  row->least_bytes = least_bytes;
  row->moved_bytes = moved_bytes;
  row->least_seconds = std::max(flops / peak, least_bytes / gpu.bytes);
  row->seconds = std::max(flops / (peak * share), moved_bytes / (gpu.bytes * kMemoryShare));
}

void AddTo(const RooflineRow& launch, RooflineRow* row) {
  row->op = launch.op;
  row->launches += launch.launches;
  row->flops += launch.flops;
  row->least_bytes += launch.least_bytes;
  row->moved_bytes += launch.moved_bytes;
  row->least_seconds += launch.least_seconds;
  row->seconds += launch.seconds;
}

// The nodes [first, last] of a graph, which one launch does; without an op where they are leaves
// and views.
class LaunchCost {
 public:
  LaunchCost(const Graph& graph, const Readers& readers, int first, int last)
      : graph_(graph), readers_(readers), first_(first), last_(last) {}

  RooflineRow At(const GpuFigures& gpu, bool tf32) const {
    RooflineRow row;
    double flops = 0, bytes = -KeptInside() - ReadBefore(), besides = 0, peak = 0;
    double share = kProductShare;
    for (int id = first_; id <= last_; ++id) {
      const Node& node = graph_.node(id);
      if (node.op->leaf || node.op->view || node.inputs.empty()) continue;
      absl::StrAppend(&row.op, row.op.empty() ? "" : " + ", node.op->name);
      if (!node.name.empty()) row.name = node.name;
      const Cost cost = CostOf(graph_, node);
      flops += cost.flops;
      bytes += cost.bytes - NeverMoved(graph_, node, gpu);
      besides += MovedBesides(graph_, node, gpu);
      peak = std::max(peak, PeakOf(graph_, node, gpu, tf32));
      share = std::min(share, ShareOf(graph_, node, gpu));
    }
    if (!row.op.empty()) Count(flops, peak, share, bytes, bytes + besides, gpu, &row);
    return row;
  }

 private:
  // Bytes of values that they make: read by them, and written where nobody else reads them.
  double KeptInside() const {
    double kept = 0;
    for (int id = first_; id <= last_; ++id) {
      for (const Value& input : graph_.node(id).inputs) {
        if (input.node < first_ || input.node >= id) continue;
        const auto& all =
            readers_[static_cast<size_t>(input.node)][static_cast<size_t>(input.output)];
        kept += static_cast<double>(graph_.type(input).bytes()) * (all.size() == 1 ? 2 : 1);
      }
    }
    return kept;
  }

  // Bytes of values from elsewhere that an earlier one of them has read.
  double ReadBefore() const {
    std::set<Value> read;
    double again = 0;
    for (int id = first_; id <= last_; ++id) {
      const Node& node = graph_.node(id);
      const std::set<Value> inputs(node.inputs.begin(), node.inputs.end());
      for (const Value& input : inputs) {
        if (input.node >= first_) continue;
        if (read.contains(input)) again += static_cast<double>(graph_.type(input).bytes());
      }
      read.insert(inputs.begin(), inputs.end());
    }
    return again;
  }

  const Graph& graph_;
  const Readers& readers_;
  const int first_;
  const int last_;
};

// Gradients are read for their norm and again for the update; the state is read and written, and
// copies of weights are written.
RooflineRow UpdateOf(const CompiledPlan& plan, const GpuFigures& gpu) {
  double state = 0;
  for (const StateEntry& entry : plan.state()) {
    if (entry.role != StateEntry::Role::kStatistic) state += static_cast<double>(entry.bytes);
  }
  double copies = 0;
  for (const auto& [name, copy] : plan.weight_copies()) copies += static_cast<double>(copy.bytes);
  const double gradients = 4.0 * static_cast<double>(plan.gradient_count());
  const double written = 2 * state + copies;
  RooflineRow row;
  row.op = "update";
  Count(0, gpu.float_flops, kProductShare, gradients + written, 2 * gradients + written, gpu, &row);
  return row;
}

}  // namespace

absl::StatusOr<GpuFigures> GpuFiguresOf(std::string_view name) {
  std::string names;
  for (const GpuFigures& gpu : kGpus) {
    if (name == gpu.name || name == gpu.architecture) return gpu;
    absl::StrAppend(&names, names.empty() ? "" : ", ", gpu.name, " (", gpu.architecture, ")");
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "there are no figures of a GPU named ", std::string(name), ": there are those of ", names));
}

Roofline RooflineOf(const Plan& plan, const GpuFigures& gpu) {
  const auto& compiled = static_cast<const CompiledPlan&>(plan);
  const bool inference = plan.spec().inference;
  const Program& program = inference ? compiled.evaluate() : compiled.train();
  const Graph& graph = program.graph;
  const bool tf32 = plan.spec().precision == "tf32";
  const std::vector<int> last = LaunchGroups(graph);
  const Readers readers = graph.Readers();
  // The update makes them of the weights as it writes these.
  const bool copied = !inference && !compiled.weight_copies().empty();
  Roofline roofline;
  for (int first = 0; first < static_cast<int>(last.size());) {
    const int begin = std::exchange(first, last[static_cast<size_t>(first)] + 1);
    if (copied && program.memory.RunsOnce(begin)) continue;
    RooflineRow launch = LaunchCost(graph, readers, begin, first - 1).At(gpu, tf32);
    launch.once = program.memory.RunsOnce(begin);
    if (launch.once) roofline.once_seconds += launch.seconds;
    if (!launch.op.empty()) roofline.launches.push_back(std::move(launch));
  }
  std::map<std::string, RooflineRow> rows;
  for (const RooflineRow& launch : roofline.launches) AddTo(launch, &rows[launch.op]);
  if (!inference) {
    roofline.update = UpdateOf(compiled, gpu);
    AddTo(roofline.update, &rows["update"]);
  }
  for (auto& [op, row] : rows) {
    roofline.least_seconds += row.least_seconds;
    roofline.seconds += row.seconds;
    roofline.rows.push_back(row);
  }
  std::stable_sort(
      roofline.rows.begin(), roofline.rows.end(),
      [](const RooflineRow& a, const RooflineRow& b) { return a.seconds > b.seconds; });
  return roofline;
}

std::string RooflineText(const Roofline& roofline, const GpuFigures& gpu) {
  std::string text = absl::StrFormat(
      "On paper: %s (%s), %.0f TFLOP/s in 16 bits, %.2f TB/s; %.0f %% of these for products, %.0f "
      "%% for bytes.\n%-40s%8s%10s%12s%12s%12s%12s\n",
      gpu.name, gpu.architecture, gpu.half_flops * 1e-12, gpu.bytes * 1e-12, kProductShare * 100,
      kMemoryShare * 100, "OP", "LAUNCHES", "GFLOP", "LEAST MB", "MOVED MB", "LEAST ms",
      "EXPECTED ms");
  for (const RooflineRow& row : roofline.rows) {
    absl::StrAppendFormat(&text, "%-40s%8d%10.1f%12.1f%12.1f%12.3f%12.3f\n", row.op, row.launches,
                          row.flops * 1e-9, row.least_bytes * 1e-6, row.moved_bytes * 1e-6,
                          row.least_seconds * 1e3, row.seconds * 1e3);
  }
  absl::StrAppendFormat(&text, "%-82s%12.3f%12.3f\n", "all", roofline.least_seconds * 1e3,
                        roofline.seconds * 1e3);
  return text;
}

}  // namespace lockstep::engine
