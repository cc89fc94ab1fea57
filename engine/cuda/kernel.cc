// SPDX-License-Identifier: Apache-2.0
#include "engine/cuda/kernel.h"

#include "common/check.h"
#include "engine/cpu/random_address.h"

namespace lockstep::engine::cuda {

Type TypeOf(DType dtype) {
  if (dtype == DType::kBF16) return Type::kBF16;
  if (dtype == DType::kF16) return Type::kF16;
  LS_CHECK(dtype == DType::kF32) << Name(dtype);
  return Type::kF32;
}

Operands::Operands(const Graph& graph, const Node& node, const KernelOperands& operands,
                   const CudaTarget& target)
    : tables_(target.tables),
      output_types_(node.outputs),
      inputs_(operands.inputs),
      outputs_(operands.outputs),
      scratch_(operands.scratch) {
  for (const Value& input : node.inputs) input_types_.push_back(graph.type(input));
}

View Operands::In(const CudaContext& context, size_t i) const {
  if (!has(i)) return {};
  return {context.At<void>(inputs_[i]), TypeOf(input_types_[i].dtype)};
}

View Operands::Out(const CudaContext& context, size_t i) const {
  return {context.At<void>(outputs_[i]), TypeOf(output_types_[i].dtype)};
}

int Operands::Alignment(const Storage& storage) {
  const size_t address = storage.offset | 64;
  return static_cast<int>(address & (~address + 1));
}

Drop DropOf(const Attrs& attrs) {
  const cpu::DropRule rule(attrs);
  return {rule.key, rule.threshold, rule.scale, nullptr};
}

}  // namespace lockstep::engine::cuda
