// SPDX-License-Identifier: Apache-2.0
#include "engine/device/gpu_roofline.h"

#include <algorithm>
#include <map>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/exec/plan.h"
#include "engine/ops/op.h"

namespace lockstep::engine {
namespace {

// SXM modules, from NVIDIA's data sheets (dense: without sparsity).
constexpr GpuFigures kGpus[] = {
    {"a100", "sm_80", 312e12, 156e12, 19.5e12, 2.039e12},
    {"h100", "sm_90", 989.5e12, 494.7e12, 67e12, 3.35e12},
    {"h200", "sm_90", 989.5e12, 494.7e12, 67e12, 4.8e12},
    {"b200", "sm_100", 2250e12, 1125e12, 75e12, 8e12},
};

// Bytes of inputs that a node's kernels read a second time.
double ReadAgain(const Graph& graph, const Node& node) {
  const std::string_view op = node.op->name;
  const auto bytes = [&](size_t i) {
    return i < node.inputs.size() ? static_cast<double>(graph.type(node.inputs[i]).bytes()) : 0;
  };
  // Sums over the batch come before what is made with them.
  if (op == "batch_norm") return bytes(0);
  if (op == "batch_norm_backward") {
    double large = 0;  // x, dy and a mask, but no vectors
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      if (graph.type(node.inputs[i]).shape.size() > 1) large += bytes(i);
    }
    return large;
  }
  // The sum of a row's powers comes before its gradient.
  if (op == "softmax_cross_entropy_with_gradient" || op == "softmax_cross_entropy_backward") {
    return bytes(0);
  }
  if (op == "softmax" || op == "softmax_backward") return 2 * bytes(0);
  return 0;
}

bool UsesTensorCores(std::string_view op) {
  return op.starts_with("linear") || op.starts_with("conv2d") || op.starts_with("attention");
}

double PeakOf(const Graph& graph, const Node& node, const GpuFigures& gpu, bool tf32) {
  if (!UsesTensorCores(node.op->name)) return gpu.float_flops;
  if (IsHalf(graph.type(node.inputs[0]).dtype)) return gpu.half_flops;
  return tf32 ? gpu.tf32_flops : gpu.float_flops;
}

void AddTo(RooflineRow* row, double flops, double least_bytes, double moved_bytes, double peak,
           const GpuFigures& gpu) {
  ++row->nodes;
  row->flops += flops;
  row->least_bytes += least_bytes;
  row->moved_bytes += moved_bytes;
  row->least_seconds += std::max(flops / peak, least_bytes / gpu.bytes);
  row->seconds +=
      std::max(flops / (peak * kProductShare), moved_bytes / (gpu.bytes * kMemoryShare));
}

// Gradients are read for their norm and again for the update; the state is read and written.
void AddUpdate(const CompiledPlan& plan, const GpuFigures& gpu, RooflineRow* row) {
  double state = 0;
  for (const StateEntry& entry : plan.state()) {
    if (entry.role != StateEntry::Role::kStatistic) state += static_cast<double>(entry.bytes);
  }
  const double gradients = 4.0 * static_cast<double>(plan.gradient_count());
  AddTo(row, 0, gradients + 2 * state, 2 * gradients + 2 * state, gpu.float_flops, gpu);
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
  const Graph& graph = (inference ? compiled.evaluate() : compiled.train()).graph;
  const bool tf32 = plan.spec().precision == "tf32";
  std::map<std::string, RooflineRow> rows;
  for (const Node& node : graph.nodes()) {
    if (node.op->leaf || node.op->view || node.inputs.empty()) continue;
    const Cost cost = CostOf(graph, node);
    AddTo(&rows[node.op->name], cost.flops, cost.bytes, cost.bytes + ReadAgain(graph, node),
          PeakOf(graph, node, gpu, tf32), gpu);
  }
  if (!inference) AddUpdate(compiled, gpu, &rows["update"]);
  Roofline roofline;
  for (auto& [op, row] : rows) {
    row.op = op;
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
      "%% "
      "for bytes.\n%-40s%6s%12s%12s%12s%12s%12s\n",
      gpu.name, gpu.architecture, gpu.half_flops * 1e-12, gpu.bytes * 1e-12, kProductShare * 100,
      kMemoryShare * 100, "OP", "NODES", "GFLOP", "LEAST MB", "MOVED MB", "LEAST ms",
      "EXPECTED ms");
  for (const RooflineRow& row : roofline.rows) {
    absl::StrAppendFormat(&text, "%-40s%6d%12.1f%12.1f%12.1f%12.3f%12.3f\n", row.op, row.nodes,
                          row.flops * 1e-9, row.least_bytes * 1e-6, row.moved_bytes * 1e-6,
                          row.least_seconds * 1e3, row.seconds * 1e3);
  }
  absl::StrAppendFormat(&text, "%-82s%12.3f%12.3f\n", "all", roofline.least_seconds * 1e3,
                        roofline.seconds * 1e3);
  return text;
}

}  // namespace lockstep::engine
