// SPDX-License-Identifier: Apache-2.0
#include "engine/cuda/attention_engine.h"

#include <vector>

#include "common/check.h"
#include "engine/cuda/attention_cudnn.h"
#include "engine/graph/op.h"

namespace lockstep::engine::cuda {
namespace {

constexpr int64_t kBlockTokens = 128;  // of kernels/attention_warpgroup*.cu

bool IsBackward(const Node& node) { return node.op == &ops::kAttentionBackward; }

// As FitsTensorCores has it (kernels/attention_matrix.h) of memory that is aligned.
bool SuitsTensorCores(const ops::AttentionShape& shape, Type type) {
  const int64_t depth = shape.width / shape.heads;
  return type != Type::kF32 && shape.queries == shape.length && depth % 8 == 0 && depth <= 128;
}

}  // namespace

Type FactorType(const Graph& graph, const Node& node) {
  return TypeOf(graph.type(node.inputs[IsBackward(node) ? 3 : 0]).dtype);
}

absl::StatusOr<ops::AttentionShape> AttentionShapeOf(const Graph& graph, const Node& node) {
  std::vector<TensorType> types;
  for (const Value& input : node.inputs) {
    types.push_back(graph.type(input));
    // AttentionShape speaks of shapes alone.
    if (IsHalf(types.back().dtype)) types.back().dtype = DType::kF32;
  }
  return ops::AttentionShape::Of(types, node.attrs, IsBackward(node) ? 3 : 0);
}

size_t CudnnBackwardBytes(const Graph& graph, const Node& node) {
  const auto shape = AttentionShapeOf(graph, node);
  const Type type = FactorType(graph, node);
  if (!shape.ok() || !SuitsCudnn(*shape, type)) return 0;
  return AttentionWorkspaceBytes(CudnnShapeOf(*shape, type, true), MostAttentionWorkspace(graph));
}

bool SuitsWarpgroups(const ops::AttentionShape& shape, Type type) {
  const int64_t depth = shape.width / shape.heads;
  return type != Type::kF32 && shape.queries == shape.length && depth % 8 == 0 && depth > 32 &&
         depth <= 64;
}

bool SuitsWarpgroups(const Graph& graph, const Node& node) {
  if (node.op != &ops::kAttention && node.op != &ops::kAttentionBackward) return false;
  const auto shape = AttentionShapeOf(graph, node);
  return shape.ok() && SuitsWarpgroups(*shape, FactorType(graph, node));
}

int64_t PaddedAttentionLength(int64_t length) { return (length + 63) / 64 * 64; }

bool KeepsDropout(const Graph& graph, const Node& node) {
  if (!SuitsWarpgroups(graph, node)) return false;
  const auto shape = AttentionShapeOf(graph, node);
  const size_t factors = static_cast<size_t>(3 * shape->batch * shape->length * shape->width) * 2;
  return shape->rate > 0 && shape->length > kBlockTokens && shape->KeptType().bytes() <= factors &&
         AttentionEngineOf(graph, node) == AttentionEngine::kTensorCores;
}

AttentionEngine AttentionEngineOf(const Graph& graph, const Node& node) {
  const auto shape = AttentionShapeOf(graph, node);
  LS_CHECK(shape.ok()) << shape.status();
  const Type type = FactorType(graph, node);
  const bool room = !IsBackward(node) || CudnnBackwardBytes(graph, node) > 0;
  if (SuitsCudnn(*shape, type) && room) return AttentionEngine::kCudnn;
  return SuitsTensorCores(*shape, type) ? AttentionEngine::kTensorCores : AttentionEngine::kFloats;
}

const char* OwnAttentionEngine(const ops::AttentionShape& shape, Type type, bool warpgroups) {
  if (warpgroups && SuitsWarpgroups(shape, type)) return "wgmma";
  return SuitsTensorCores(shape, type) ? "mma.sync" : "fp32";
}

double InstructionShare(const ops::AttentionShape& shape, bool backward, bool warpgroups) {
  // From tools/attention_instructions.py for sm_90, by the depth that a head is padded to.
  struct Shares {
    int64_t depth;
    double forward, forward_drops, backward, backward_drops;
    double forward_keeps = 0, backward_keeps = 0;  // where the forward pass leaves dropout's bits
  };
  constexpr Shares kShares[] = {
      {32, 0.44, 0.26, 0.25, 0.20}, {64, 0.63, 0.47, 0.34, 0.33}, {128, 0.62, 0.52, 0.28, 0.28}};
  constexpr Shares kGroupShares = {64, 0.93, 0.54, 0.65, 0.50, 0.51, 0.57};
  const int64_t depth = shape.width / shape.heads;
  const Shares* found = kShares;
  while (found->depth < depth) ++found;
  if (warpgroups && SuitsWarpgroups(shape, Type::kBF16)) found = &kGroupShares;
  const bool drops = shape.rate > 0, keeps = shape.keeps_dropout && found == &kGroupShares;
  double share = backward ? (drops ? found->backward_drops : found->backward)
                          : (drops ? found->forward_drops : found->forward);
  if (keeps) share = backward ? found->backward_keeps : found->forward_keeps;
  return share * static_cast<double>(depth) / static_cast<double>(found->depth);
}

}  // namespace lockstep::engine::cuda
