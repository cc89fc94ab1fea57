// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/engine/run_graph.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "common/check.h"
#include "engine/cpu/backend.h"
#include "engine/cpu/converting_kernel.h"
#include "engine/cpu/kernel.h"
#include "engine/graph/op.h"

namespace lockstep::engine {

std::map<Value, Storage> BindTensors(const Graph& graph, Tensors* leaves) {
  std::map<Value, Storage> fixed;
  for (int id = 0; id < static_cast<int>(graph.nodes().size()); ++id) {
    const Node& node = graph.node(id);
    if (!node.op->leaf) continue;
    std::vector<float>& data = leaves->at(node.name);
    LS_CHECK_EQ(data.size(), static_cast<size_t>(node.outputs[0].elements())) << node.name;
    fixed[{id, 0}] = {Region::kAbsolute, reinterpret_cast<uintptr_t>(data.data())};
  }
  return fixed;
}

Tensors RunGraph(const Graph& graph, Tensors leaves, const MemoryOptions& options) {
  const CpuTarget target;
  const MemoryPlan plan =
      PlanMemory(graph, BindTensors(graph, &leaves), CpuBackend(target), options);
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  std::vector<Line> arena(plan.arena_bytes / sizeof(Line) + 1);
  for (Line& line : arena) std::fill_n(line.bytes, sizeof(Line), std::byte{0xFF});  // NaN
  ThreadPool pool(target.threads);
  RunContext context;
  context.base[static_cast<int>(Region::kArena)] = arena[0].bytes;
  context.pool = &pool;
  // What is done once, and two runs: the second one needs all that the first one did.
  for (int part = plan.once.empty() ? 1 : 0; part < (plan.once.empty() ? 2 : 3); ++part) {
    for (int id = 0; id < static_cast<int>(graph.nodes().size()); ++id) {
      const Node& node = graph.node(id);
      if (node.op->leaf || node.op->view) continue;
      const auto kernel =
          PrepareKernel(graph, node, plan.operands[static_cast<size_t>(id)], target);
      if (part == 0 && plan.Packs(id)) kernel->Pack(context);
      if (plan.RunsOnce(id) == (part == 0)) kernel->Run(context);
    }
  }
  Tensors outputs;
  for (const auto& [name, value] : graph.outputs()) {
    const Storage& storage =
        plan.operands[static_cast<size_t>(value.node)].outputs[static_cast<size_t>(value.output)];
    const float* data = context.At<float>(storage);
    outputs[name].assign(data, data + graph.type(value).elements());
  }
  return outputs;
}

}  // namespace lockstep::engine
