// SPDX-License-Identifier: Apache-2.0
// The training step of a plan: its graph, what is made again of it, and where it lies in memory.
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "common/check.h"
#include "common/status.h"
#include "engine/exec/plan.h"
#include "engine/graph/op.h"
#include "engine/ops/ops.h"
#include "engine/passes/addend_fusion.h"
#include "engine/passes/autodiff.h"
#include "engine/passes/fp8.h"
#include "engine/passes/kept_dropout.h"
#include "engine/passes/recompute.h"
#include "engine/passes/remade_norms.h"
#include "engine/passes/rounded_biases.h"
#include "engine/passes/rounded_weights.h"
namespace lockstep::engine {

absl::StatusOr<Graph> CompiledPlan::BuildTraining(bool keeps_weights) const {
  Graph graph;
  const Value seed = graph.AddLeaf(ops::kInput, {DType::kF32, {1}}, kLossSeed);
  const Forward forward = BuildForward(&graph, spec_.micro_batch, /*training=*/true);
  LS_RETURN_IF_ERROR(graph.status());
  if (spec_.fp8) {
    LS_ASSIGN_OR_RETURN(graph, MarkFp8(graph, forward.logits));
  }
  Attrs attrs = LossAttrs(graph, forward.logits);
  if (spec_.label_smoothing != 0) attrs.Set("label_smoothing", spec_.label_smoothing);
  const Value loss =
      graph.Add(ops::kSoftmaxCrossEntropy, {forward.logits, forward.labels}, attrs, "loss");
  LS_RETURN_IF_ERROR(graph.status());

  std::vector<Value> wrt;
  for (const ParameterSpec& parameter : model_->parameters()) {
    wrt.push_back(forward.parameters.at(parameter.name));
  }
  LS_ASSIGN_OR_RETURN(const std::vector<Value> gradients,
                      Differentiate(&graph, {{loss, seed}}, wrt));
  for (size_t i = 0; i < gradients.size(); ++i) {
    const std::string& name = model_->parameters()[i].name;
    if (!gradients[i].valid()) {
      return absl::InvalidArgumentError("the loss does not depend on the parameter " + name);
    }
    graph.AddOutput(kGradientPrefix + name, gradients[i]);
  }
  // Last, so that the forward pass writes nothing into the gradient vector.
  for (const StatisticSpec& statistic : model_->statistics()) {
    const int node = graph.Find(statistic.name);
    LS_CHECK(node >= 0) << statistic.name;
    graph.AddOutput(absl::StrCat(kStatisticPrefix, statistic.name, ".running_mean"),
                    graph.Add(ops::kDeposit, {{node, 1}}));
    graph.AddOutput(absl::StrCat(kStatisticPrefix, statistic.name, ".running_var"),
                    graph.Add(ops::kDeposit, {{node, 3}}));
  }
  graph.AddOutput(kLossOutput, {loss.node, 0});
  graph.AddOutput(kCountOutput, {loss.node, 1});
  LS_RETURN_IF_ERROR(graph.Verify());

  if (spec_.passes.fuse) graph = Fuse(graph, FusionFor(/*training=*/true));
  graph = ApplyPrecision(graph, precision_, HalfWeights(), keeps_weights);
  if (spec_.fp8) graph = ApplyFp8(graph, keeps_weights);
  const bool addends = spec_.passes.fuse && spec_.passes.patterns.addends;
  if (addends && spec_.device == DeviceKind::kCuda) graph = FuseAddends(graph);
  if (keeps_weights) graph = RoundBiasesBefore(graph, *backend_);
  LS_RETURN_IF_ERROR(graph.Verify());
  return graph;
}

absl::Status CompiledPlan::CompileTraining() {
  LS_ASSIGN_OR_RETURN(const Graph graph, BuildTraining(KeepsWeights()));
  LS_ASSIGN_OR_RETURN(recompute_level_, ChooseRecompute(graph));
  // Which level that is changes no bit.
  if (spec_.recompute.mode == RecomputeSpec::Mode::kAuto && recompute_level_ > 0) {
    LS_RETURN_IF_ERROR(PlaceTraining(graph));
    KeepMathHash();
  } else if (const int most = MostRecompute(graph);
             spec_.recompute.mode == RecomputeSpec::Mode::kBlocks && recompute_level_ < most) {
    LS_RETURN_IF_ERROR(PlaceTraining(Recompute(graph, kLossSeed, most)));
    KeepMathHash();
  }
  if (KeepsWeights()) {  // which changes no bit
    LS_ASSIGN_OR_RETURN(const Graph rounded_by_each, BuildTraining(/*keeps_weights=*/false));
    LS_RETURN_IF_ERROR(PlaceTraining(rounded_by_each));
    KeepMathHash();
  }
  const Graph whole = Recompute(graph, kLossSeed, recompute_level_);
  if (math_hash_.empty() && KeepsDropout()) {  // nor does it
    LS_RETURN_IF_ERROR(PlaceTraining(whole));
    KeepMathHash();
  }
  return LayOutTraining(whole);
}

absl::StatusOr<int> CompiledPlan::ChooseRecompute(const Graph& graph) {
  using Mode = RecomputeSpec::Mode;
  const int most = MostRecompute(graph);
  if (spec_.recompute.mode == Mode::kNone) return 0;
  if (spec_.recompute.mode == Mode::kSelective) return kRecomputeSelective;
  const auto arena_of = [&](int level) -> absl::StatusOr<size_t> {
    LS_RETURN_IF_ERROR(LayOutTraining(Recompute(graph, kLossSeed, level)));
    return train_.memory.arena_bytes;
  };
  if (spec_.recompute.mode == Mode::kBlocks) {
    if (most == kRecomputeSelective) return most;  // no blocks
    // The last block is needed at once, so that making it again may free nothing.
    LS_ASSIGN_OR_RETURN(const size_t all, arena_of(most));
    LS_ASSIGN_OR_RETURN(const size_t all_but_last, arena_of(most - 1));
    return all_but_last <= all ? most - 1 : most;
  }
  const size_t room = spec_.recompute.arena_bytes;
  LS_ASSIGN_OR_RETURN(size_t arena, arena_of(0));
  if (arena <= room) return 0;
  // More is made again with each level, so less is kept, as a rule: by halving a level is found
  // that fits.
  int low = 1, high = most;
  while (low < high) {
    const int middle = (low + high) / 2;
    LS_ASSIGN_OR_RETURN(arena, arena_of(middle));
    if (arena <= room) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  LS_ASSIGN_OR_RETURN(arena, arena_of(low));
  if (arena <= room) return low;
  // There may be one where the rule does not hold; else what takes least is what is asked for.
  int best = 0;
  size_t least = std::numeric_limits<size_t>::max();
  for (int level = 0; level <= most; ++level) {
    LS_ASSIGN_OR_RETURN(arena, arena_of(level));
    if (arena < least) {
      best = level;
      least = arena;
    }
    if (arena <= room) break;
  }
  return best;
}

absl::Status CompiledPlan::PlaceTraining(const Graph& graph) {
  LS_RETURN_IF_ERROR(graph.Verify());
  const bool remakes =
      spec_.passes.fuse && spec_.passes.patterns.residuals && spec_.device == DeviceKind::kCuda;
  const bool rounds = spec_.passes.fuse && spec_.passes.patterns.weights;
  PlacedGraph placed = PlaceGradients(remakes  ? RemakeNorms(graph)
                                      : rounds ? RoundWeightsInProducts(graph, *backend_)
                                               : graph,
                                      spec_.passes.bucket_elements);
  LS_RETURN_IF_ERROR(placed.graph.Verify());
  layout_ = std::move(placed.layout);
  train_.graph = std::move(placed.graph);
  return absl::OkStatus();
}

absl::Status CompiledPlan::LayOutTraining(const Graph& graph) {
  LS_RETURN_IF_ERROR(PlaceTraining(KeepsDropout() ? KeepDropout(graph, *backend_) : graph));
  std::map<Value, Storage> fixed = BindLeaves(train_.graph);
  fixed.insert(layout_.storage.begin(), layout_.storage.end());
  const auto plan_memory = [&](bool keeps) {
    train_.memory = PlanMemory(train_.graph, fixed, *backend_, MemoryOptionsFor(keeps));
  };
  plan_memory(KeepsWeights());
  weight_copies_ = KeepsWeights() ? FindWeightCopies() : std::map<std::string, WeightCopy>();
  // Nothing is spared where it is made in each step, as all else is.
  if (KeepsWeights() && spec_.accumulate == 1 && weight_copies_.empty()) plan_memory(false);
  return absl::OkStatus();
}

std::map<std::string, WeightCopy> CompiledPlan::FindWeightCopies() const {
  std::map<std::string, WeightCopy> copies;
  if (!UpdateMayCopy()) return copies;
  for (int id = 0; id < static_cast<int>(train_.graph.nodes().size()); ++id) {
    if (!train_.memory.RunsOnce(id)) continue;
    const Node& node = train_.graph.node(id);
    const Node& from = train_.graph.node(node.inputs[0].node);
    const Storage& to = train_.memory.operands[static_cast<size_t>(id)].outputs[0];
    const TensorType& type = node.outputs[0];
    const bool copies_weight = node.op == &ops::kCast && from.op == &ops::kParameter &&
                               IsHalf(type.dtype) && to.region == Region::kArena;
    if (!copies_weight ||
        !copies.emplace(from.name, WeightCopy{type.dtype, to.offset, type.bytes()}).second) {
      return {};
    }
  }
  return copies;
}

}  // namespace lockstep::engine
