// SPDX-License-Identifier: Apache-2.0
// Observed runs on a GPU: node by node, each result brought to the host.
#include <cstring>

#include "common/half.h"
#include "common/status.h"
#include "engine/cuda/executor.h"
#include "engine/graph/op.h"

namespace lockstep::engine {

// One that comes later sees everything too.
void CudaExecutor::Observe(NodeObserver* observer) {
  constants_.reset();
  observer_ = observer;
}

absl::Status CudaExecutor::RunObserved(ProgramKind kind, const CudaContext& context) {
  CudaProgramRunner& own = runner(kind);
  const MemoryPlan& memory = plan_->program(kind).memory;
  // What is done once lies where the others write later.
  for (const bool once : {true, false}) {
    if (once && !context.once) continue;
    for (int id = 0; id < own.node_count(); ++id) {
      if (!own.Runs(id) || memory.RunsOnce(id) != once) continue;
      LS_RETURN_IF_ERROR(Observed(kind, id, context));
    }
  }
  if (kind != ProgramKind::kTraining) return absl::OkStatus();
  for (const cuda::Event event : bucket_made_) {
    LS_RETURN_IF_ERROR(
        device_->Check(device_->runtime().record_event(event, device_->compute()), "a bucket"));
  }
  return absl::OkStatus();
}

absl::Status CudaExecutor::Observed(ProgramKind kind, int id, const CudaContext& context) {
  observer_->BeforeNode(kind, id);
  LS_RETURN_IF_ERROR(runner(kind).RunNode(id, context));
  if (!observer_->reads_outputs()) {
    LS_RETURN_IF_ERROR(device_->Wait(device_->compute()));
    return observer_->AfterNode(kind, id, {});
  }
  const Program& program = plan_->program(kind);
  const Node& node = program.graph.node(id);
  const KernelOperands& operands = program.memory.operands[static_cast<size_t>(id)];
  std::vector<TensorView> outputs;
  std::vector<std::vector<std::byte>> memory(node.outputs.size());
  std::vector<std::vector<float>> widened(node.outputs.size());
  for (size_t o = 0; o < node.outputs.size(); ++o) {
    const TensorType& type = node.outputs[o];
    memory[o].resize(type.bytes());
    LS_RETURN_IF_ERROR(device_->Copy(memory[o].data(), context.At<std::byte>(operands.outputs[o]),
                                     type.bytes(), device_->compute()));
    LS_RETURN_IF_ERROR(device_->Wait(device_->compute()));
    TensorView view;
    view.type = type.dtype == DType::kI32 ? FieldSpec::Type::kInt32 : FieldSpec::Type::kFloat32;
    view.is_float64 = type.dtype == DType::kF64;
    view.shape = type.shape;
    view.data = memory[o].data();
    if (IsHalf(type.dtype)) {  // seen as fp32
      widened[o].resize(static_cast<size_t>(type.elements()));
      for (size_t i = 0; i < widened[o].size(); ++i) {
        uint16_t bits;
        std::memcpy(&bits, memory[o].data() + 2 * i, 2);
        widened[o][i] =
            type.dtype == DType::kBF16 ? BFloat16{bits}.ToFloat() : Float16{bits}.ToFloat();
      }
      view.data = widened[o].data();
    }
    outputs.push_back(view);
  }
  return observer_->AfterNode(kind, id, outputs);
}

}  // namespace lockstep::engine
