// SPDX-License-Identifier: Apache-2.0
#include "engine/passes/buckets.h"

#include <algorithm>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/strip.h"
#include "common/check.h"
#include "common/round_up.h"
#include "engine/graph/op.h"
#include "engine/ops/ops.h"
#include "engine/passes/rewriter.h"

namespace lockstep::engine {
namespace {

constexpr int64_t kAlign = 16;  // elements: one cache line

// Copies the graph with a deposit after each output that cannot be born in the vector.
Graph AddDeposits(const Graph& graph) {
  const auto readers = graph.Readers();
  std::map<int, std::vector<size_t>> outputs_of;  // node -> outputs of the graph
  for (size_t i = 0; i < graph.outputs().size(); ++i) {
    outputs_of[graph.outputs()[i].second.node].push_back(i);
  }
  Rewriter rewriter(&graph);
  std::vector<Value> placed(graph.outputs().size());
  for (int id = 0; id < static_cast<int>(graph.nodes().size()); ++id) {
    rewriter.Copy(id);
    for (const size_t i : outputs_of[id]) {
      const Value value = graph.outputs()[i].second;
      const auto& of = readers[static_cast<size_t>(value.node)][static_cast<size_t>(value.output)];
      const bool born = graph.node(id).op->accumulates && of.size() == 1;
      placed[i] = rewriter.Map(value);
      if (born) continue;
      placed[i] = rewriter.to().Add(ops::kDeposit, {placed[i]});
      rewriter.to().SetOrigin(placed[i], graph.Origin(value));
    }
  }
  Graph made = std::move(rewriter.to());
  for (size_t i = 0; i < placed.size(); ++i) made.AddOutput(graph.outputs()[i].first, placed[i]);
  return made;
}

// A gradient that may be written over one of its operands shares its place with it, if that one
// can be born there: the head's gradient of a tied weight, to which the embedding's rows are added.
void ShareBases(const Graph& graph, GradientLayout* layout) {
  const auto readers = graph.Readers();
  const std::map<Value, Storage> placed = layout->storage;
  for (const auto& [value, storage] : placed) {
    const Node& node = graph.node(value.node);
    for (const auto& [input, output] : node.op->in_place) {
      if (output != value.output || input >= static_cast<int>(node.inputs.size())) continue;
      const Value base = node.inputs[static_cast<size_t>(input)];
      const auto& of = readers[static_cast<size_t>(base.node)][static_cast<size_t>(base.output)];
      if (graph.node(base.node).op->accumulates && of.size() == 1) layout->storage[base] = storage;
    }
  }
}

}  // namespace

PlacedGraph PlaceGradients(const Graph& graph, int64_t bucket_elements) {
  PlacedGraph result{AddDeposits(graph), {}};
  GradientLayout& layout = result.layout;
  const auto place = [&](Value value, int64_t element) {
    layout.storage[value] = {Region::kGradients, static_cast<size_t>(element) * sizeof(float)};
  };
  std::vector<std::pair<Value, std::string>> gradients;
  for (const auto& [name, value] : result.graph.outputs()) {
    if (absl::StartsWith(name, kGradientPrefix)) {
      gradients.emplace_back(value, std::string(absl::StripPrefix(name, kGradientPrefix)));
    }
  }
  std::sort(gradients.begin(), gradients.end());
  int64_t at = 0;
  Bucket bucket;
  const auto close = [&](int node) {
    bucket.end = at;
    layout.buckets.push_back(bucket);
    layout.bucket_node.push_back(node);
    bucket.begin = at;
  };
  for (size_t i = 0; i < gradients.size(); ++i) {
    const auto& [value, parameter] = gradients[i];
    const int64_t elements = result.graph.type(value).elements();
    layout.slots.push_back({parameter, at, elements, value.node});
    place(value, at);
    at += RoundUp(elements, kAlign);
    if (at - bucket.begin >= bucket_elements && i + 1 < gradients.size()) close(value.node);
  }
  ShareBases(result.graph, &layout);
  int last = gradients.empty() ? 0 : gradients.back().first.node;
  for (const auto& [name, value] : result.graph.outputs()) {
    if (!absl::StartsWith(name, kStatisticPrefix)) continue;
    const int64_t elements = result.graph.type(value).elements();
    layout.statistics.push_back(
        {std::string(absl::StripPrefix(name, kStatisticPrefix)), at, elements, value.node});
    place(value, at);
    at += RoundUp(elements, kAlign);
  }
  layout.loss = at;
  layout.target_count = at + 1;
  for (const auto& [name, value] : result.graph.outputs()) {
    if (name == kLossOutput) place(value, layout.loss);
    if (name == kCountOutput) place(value, layout.target_count);
    last = std::max(last, value.node);
  }
  at += kGradientTail;
  layout.count = at;
  close(last);
  return result;
}

}  // namespace lockstep::engine
