// SPDX-License-Identifier: Apache-2.0
#include "bench/node_times.h"

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "bench/timing.h"
#include "engine/cpu/converting_kernel.h"
#include "engine/cpu/machine_peak.h"
#include "engine/graph/op.h"

namespace lockstep::bench {
namespace {

using engine::Graph;
using engine::Node;
using engine::Region;

std::string NameOf(const Graph& graph, const Node& node) {
  std::string name = node.op->name;
  for (const engine::Value& input : node.inputs) {
    name += " " + engine::ToString(graph.type(input).shape);
    if (name.size() > 60) break;
  }
  return name +
         (node.attrs.String("activation").empty() ? "" : " " + node.attrs.String("activation"));
}

struct Row {
  int calls = 0;
  double seconds = 0;
  double flops = 0;
  double bytes = 0;
};

void PrintRow(const std::string& name, const Row& row, double all, double peak) {
  std::printf("%9.3f ms %5.1f %% %4d x %7.1f GFLOP/s %5.1f %% of peak %7.1f GB/s  %s\n",
              row.seconds * 1e3, row.seconds / all * 100, row.calls, row.flops / row.seconds * 1e-9,
              row.flops / row.seconds / peak * 100, row.bytes / row.seconds * 1e-9, name.c_str());
}

}  // namespace

void PrintNodeTimes(const engine::CompiledPlan& plan, void* state, void* arena,
                    engine::Fields fields, int runs, double peak, bool each) {
  const engine::Program& program = plan.spec().inference ? plan.evaluate() : plan.train();
  const std::vector<Node>& nodes = program.graph.nodes();
  std::vector<std::unique_ptr<engine::CpuKernel>> kernels(nodes.size());
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (nodes[i].op->leaf || nodes[i].op->view) continue;
    kernels[i] =
        engine::PrepareKernel(program.graph, nodes[i], program.memory.operands[i], plan.targets());
  }
  const auto gradients = Allocate<float>(static_cast<size_t>(plan.gradient_count()));
  engine::Scalars scalars;
  scalars.loss_seed = static_cast<float>(1.0 / static_cast<double>(plan.nominal_targets()));
  engine::ThreadPool pool(plan.target().threads);
  engine::RunContext context;
  const auto bind = [&](Region region, const void* at) {
    context.base[static_cast<int>(region)] =
        const_cast<std::byte*>(static_cast<const std::byte*>(at));
  };
  bind(Region::kArena, arena);
  bind(Region::kState, state);
  bind(Region::kParameters, state);
  bind(Region::kGradients, gradients.get());
  bind(Region::kScalars, &scalars);
  for (size_t f = 0; f < fields.size(); ++f) bind(engine::FieldRegion(f), fields[f]);
  context.pool = &pool;
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (kernels[i] == nullptr) continue;
    if (program.memory.Packs(static_cast<int>(i))) kernels[i]->Pack(context);
    if (program.memory.RunsOnce(static_cast<int>(i))) kernels[i]->Run(context);
  }
  std::vector<std::vector<double>> times(nodes.size());
  for (int run = 0; run <= runs; ++run) {
    for (size_t i = 0; i < nodes.size(); ++i) {
      if (kernels[i] == nullptr || program.memory.RunsOnce(static_cast<int>(i))) continue;
      const double start = Now();
      kernels[i]->Run(context);
      if (run > 0) times[i].push_back(Now() - start);
    }
  }
  std::map<std::string, Row> rows;
  double all = 0, limit = 0;
  const double bandwidth = engine::MeasureMemoryBandwidth();
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (times[i].empty()) continue;
    const engine::Cost cost = engine::CostOf(program.graph, nodes[i]);
    const Row row{1, Median(times[i]), cost.flops, cost.bytes};
    all += row.seconds;
    limit += std::max(row.flops / peak, row.bytes / bandwidth);
    const std::string name = NameOf(program.graph, nodes[i]);
    if (each) PrintRow("%" + std::to_string(i) + " " + name, row, 1, peak);
    Row& sum = rows[name];
    sum.calls += row.calls;
    sum.seconds += row.seconds;
    sum.flops += row.flops;
    sum.bytes += row.bytes;
  }
  if (each) return;
  std::vector<std::pair<std::string, Row>> sorted(rows.begin(), rows.end());
  std::sort(sorted.begin(), sorted.end(),
            [](const auto& a, const auto& b) { return a.second.seconds > b.second.seconds; });
  double flops = 0;
  for (const auto& [name, row] : sorted) {
    PrintRow(name, row, all, peak);
    flops += row.flops;
  }
  if (plan.target().threads > 1) return;  // the bandwidth is one thread's
  std::printf(
      "%9.3f ms together, %.1f %% of the peak; %.3f ms and %.1f %% with each node at the peak or "
      "at %.1f GB/s\n",
      all * 1e3, flops / all / peak * 100, limit * 1e3, flops / limit / peak * 100,
      bandwidth * 1e-9);
}

}  // namespace lockstep::bench
