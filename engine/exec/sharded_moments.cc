// SPDX-License-Identifier: Apache-2.0
// What a plan says of moments that are there in part: TrainSpec::shard_moments.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "engine/exec/batches.h"
#include "engine/exec/parameter_table.h"
#include "engine/exec/plan.h"

namespace lockstep::engine {

absl::Status CompiledPlan::CheckShardedMoments() const {
  if (precision_.pure) {
    return absl::InvalidArgumentError(absl::StrCat(
        "zero_stage 1 needs weights in fp32, which precision ", spec_.precision,
        " does not have: use ", Name(precision_.type) == std::string("bf16") ? "bf16" : "fp16"));
  }
  for (const ParameterSpec& parameter : model_->parameters()) {
    if (optimizer_->method(parameter) == Optimizer::Method::kElementwise) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "zero_stage 1 updates parts of tensors, and this optimizer needs the whole of '",
        parameter.name, "': use sgd, adam or adamw, or leave it out"));
  }
  return absl::OkStatus();
}

absl::Status CompiledPlan::CheckOffload() const {
  if (spec_.device == DeviceKind::kCpu) {
    return absl::InvalidArgumentError("moments are offloaded from a GPU, and this is a CPU's plan");
  }
  if (spec_.passes.moment_blocks < 1) {
    return absl::InvalidArgumentError("passes.moment_blocks must be at least 1");
  }
  for (const ParameterSpec& parameter : model_->parameters()) {
    if (optimizer_->method(parameter) != Optimizer::Method::kMatrix) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("offload_optimizer brings the optimizer's state to the GPU in pieces, and "
                     "muon needs the whole of '",
                     parameter.name, "': use another optimizer, or leave it out"));
  }
  return absl::OkStatus();
}

std::vector<StateRange> CompiledPlan::MomentsOf(int64_t begin, int64_t end) const {
  std::vector<StateRange> ranges;
  for (const ParameterSpec& parameter : model_->parameters()) {
    const auto slot =
        std::find_if(layout_.slots.begin(), layout_.slots.end(),
                     [&](const GradientSlot& s) { return s.parameter == parameter.name; });
    if (slot == layout_.slots.end()) continue;
    const int64_t first = std::max(begin, slot->begin) - slot->begin;
    const int64_t last = std::min(end, slot->begin + slot->count) - slot->begin;
    if (first >= last) continue;
    for (const std::string& moment : optimizer_->moments(parameter)) {
      const size_t offset = Entry(absl::StrCat(parameter.name, ".", moment)).offset;
      ranges.push_back({offset + static_cast<size_t>(first) * sizeof(float),
                        offset + static_cast<size_t>(last) * sizeof(float)});
    }
  }
  return ranges;
}

std::vector<GradientRange> CompiledPlan::SumBlocks() const {
  std::vector<GradientRange> blocks;
  const auto add = [&](int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end; at += ParameterTable::kBlock) {
      blocks.push_back({at, std::min(at + ParameterTable::kBlock, end)});
    }
  };
  for (const ParameterSpec& parameter : model_->parameters()) {
    const auto slot =
        std::find_if(layout_.slots.begin(), layout_.slots.end(),
                     [&](const GradientSlot& s) { return s.parameter == parameter.name; });
    if (slot != layout_.slots.end()) add(slot->begin, slot->begin + slot->count);
  }
  for (const auto& [begin, end] : GapsOf(layout_)) add(begin, end);
  return blocks;
}

int64_t CompiledPlan::TailBegin() const { return GapsOf(layout_).back().first; }

}  // namespace lockstep::engine
