// SPDX-License-Identifier: Apache-2.0
#include "engine/graph/op.h"

#include "absl/strings/str_cat.h"
#include "common/status.h"

namespace lockstep::engine {

absl::StatusOr<std::vector<TensorType>> InferOutputs(const OpDef& op,
                                                     std::vector<TensorType> inputs,
                                                     const Attrs& attrs) {
  if (op.infers_types) return op.infer(inputs, attrs);
  for (TensorType& input : inputs) {
    if (IsHalf(input.dtype)) input.dtype = DType::kF32;
  }
  LS_ASSIGN_OR_RETURN(std::vector<TensorType> outputs, op.infer(inputs, attrs));
  const DType type = DTypeOf(attrs.String(kDTypeAttr, Name(DType::kF32)));
  for (size_t o = 0; o < outputs.size(); ++o) {
    if ((op.half.activations >> o & 1) != 0 && outputs[o].dtype == DType::kF32) {
      outputs[o].dtype = type;
    }
  }
  return outputs;
}

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
