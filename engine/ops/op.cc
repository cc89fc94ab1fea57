// SPDX-License-Identifier: Apache-2.0
#include "engine/ops/op.h"

#include "absl/strings/str_cat.h"

namespace lockstep::engine {

Cost CostOf(const Graph& graph, const Node& node) {
  Cost cost;
  std::vector<TensorType> inputs;
  for (const Value& input : node.inputs) {
    inputs.push_back(graph.type(input));
    cost.bytes += static_cast<double>(inputs.back().bytes());
  }
  for (const TensorType& output : node.outputs) cost.bytes += static_cast<double>(output.bytes());
  if (node.op->flops != nullptr) cost.flops = node.op->flops(inputs, node.outputs);
  return cost;
}

absl::Status ShapeError(const std::string& what, const TensorType& is, const std::string& needed) {
  return absl::InvalidArgumentError(
      absl::StrCat(what, " is ", ToString(is), ", but ", needed, " is needed"));
}

absl::Status CheckMatrix(const std::string& what, const TensorType& type, size_t rank) {
  if (type.dtype != DType::kF32 || type.shape.size() != rank) {
    return ShapeError(what, type, absl::StrCat("f32 with ", rank, " extents"));
  }
  return absl::OkStatus();
}

}  // namespace lockstep::engine
