// SPDX-License-Identifier: Apache-2.0
// The decode program of a plan, and running it: one position of a text after those before, whose
// keys and values lie at the end of the arena.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status.h"
#include "engine/exec/executor.h"
#include "engine/exec/plan.h"
#include "engine/models/transformer.h"
#include "engine/ops/ops.h"
#include "engine/passes/fusion.h"
#include "engine/passes/precision.h"

namespace lockstep::engine {
namespace {

constexpr size_t kAlign = 64;
// Leaves of the graph, numbered.
constexpr const char* kKept = "kept.";

// The field that a decoded text is made of.
const FieldSpec& TokensOf(const TrainSpec& spec) {
  const FieldSpec* tokens = FindField(spec.input, "tokens");
  LS_CHECK(tokens != nullptr) << "a model that generates takes tokens";
  return *tokens;
}

}  // namespace

absl::Status CompiledPlan::CompileDecode() {
  if (!spec_.inference || model_->decode_positions() == 0) {
    return absl::InvalidArgumentError(
        "the model does not generate: a gpt that was trained on text or tokens does");
  }
  Graph graph;
  ModelInputs inputs;
  inputs.training = false;
  AddParameterLeaves(&graph, /*training=*/false, &inputs);
  DecodeInputs decode;
  decode.token = graph.AddLeaf(ops::kInput, {DType::kI32, {1}}, kDecodeToken);
  decode.position = graph.AddLeaf(ops::kInput, {DType::kI32, {1}}, kDecodePosition);
  const std::vector<Shape> kept = model_->kept();
  for (size_t i = 0; i < kept.size(); ++i) {
    decode.kept.push_back(
        graph.AddLeaf(ops::kParameter, {DType::kF32, kept[i]}, absl::StrCat(kKept, i)));
  }
  const DecodeOutputs outputs = model_->BuildDecode(&graph, inputs, decode);
  LS_RETURN_IF_ERROR(graph.status());
  graph.AddOutput(kLogitsOutput, outputs.logits);
  for (size_t i = 0; i < kept.size(); ++i) {
    graph.AddOutput(absl::StrCat(kKept, i), outputs.kept[i]);
  }
  LS_RETURN_IF_ERROR(graph.Verify());
  if (spec_.passes.fuse) graph = Fuse(graph, FusionFor(/*training=*/false));
  // Weights that memory has in 16 bits are read as they are; else this program is fp32's.
  const bool half = spec_.device == DeviceKind::kCpu && (DecodesInBf16() || precision_.pure);
  decode_.graph = half ? ApplyPrecision(graph, precision_, HalfWeights()) : std::move(graph);
  LS_RETURN_IF_ERROR(decode_.graph.Verify());
  PlaceKept(kept);
  return absl::OkStatus();
}

// Places what is kept: it is read and written in one place, the new position's row alone changes.
void CompiledPlan::PlaceKept(const std::vector<Shape>& kept) {
  std::map<Value, Storage> fixed;
  for (size_t i = 0; i < kept.size(); ++i) {
    const std::string name = absl::StrCat(kKept, i);
    const Storage storage{Region::kKept, kept_bytes_};
    kept_bytes_ +=
        (static_cast<size_t>(Elements(kept[i])) * sizeof(float) + kAlign - 1) / kAlign * kAlign;
    fixed[{decode_.graph.Find(name), 0}] = storage;
    const auto& outputs = decode_.graph.outputs();
    const auto output = std::find_if(outputs.begin(), outputs.end(),
                                     [&](const auto& entry) { return entry.first == name; });
    LS_CHECK(output != outputs.end()) << name;
    fixed[output->second] = storage;
  }
  const std::map<Value, Storage> leaves = BindLeaves(decode_.graph, fixed);
  // On a CPU most of a token's time is the reading of its weights, which is one stream when they
  // are packed. A GPU's program is captured as a whole.
  const bool keep = spec_.device == DeviceKind::kCpu && spec_.passes.keep_constants;
  decode_.memory = PlanMemory(decode_.graph, leaves, *backend_, MemoryOptionsFor(keep));
}

void CompiledPlan::SizeArena() {
  const size_t evaluation = spec_.evaluates ? evaluate_.memory.arena_bytes : 0;
  kept_offset_ = std::max({train_.memory.arena_bytes, evaluation, decode_.memory.arena_bytes,
                           optimizer_scratch_bytes()});
  kept_offset_ = (kept_offset_ + kAlign - 1) / kAlign * kAlign;
  arena_bytes_ = kept_offset_ + kept_bytes_;
}

absl::Status CheckDecode(const CompiledPlan& plan, int32_t token, int64_t position,
                         int64_t decoded) {
  const TrainSpec& spec = plan.spec();
  if (!spec.decode) return absl::InvalidArgumentError("only a plan with a decode program decodes");
  const int64_t limit = TokensOf(spec).limit;
  if (token < 0 || token >= limit) {
    return absl::InvalidArgumentError(
        absl::StrCat("token ", token, ": the model knows those from 0 to ", limit - 1));
  }
  if (position < 0 || position > decoded || position >= plan.decode_positions()) {
    return absl::InvalidArgumentError(absl::StrCat("position ", position, " after ", decoded,
                                                   " of at most ", plan.decode_positions()));
  }
  return absl::OkStatus();
}

absl::StatusOr<absl::Span<const float>> PlanExecutor::Decode(int32_t token, int64_t position) {
  LS_RETURN_IF_ERROR(CheckDecode(*plan_, token, position, decoded_));
  scalars_.token = token;
  scalars_.position = static_cast<int32_t>(position);
  RunContext context;
  context.base[static_cast<int>(Region::kArena)] = arena_;
  context.base[static_cast<int>(Region::kKept)] = arena_ + plan_->kept_offset();
  context.base[static_cast<int>(Region::kState)] = state_.base();
  context.base[static_cast<int>(Region::kParameters)] = state_.base();
  context.base[static_cast<int>(Region::kScalars)] = reinterpret_cast<std::byte*>(&scalars_);
  context.pool = &pool_;
  LS_RETURN_IF_ERROR(RunOnce(ProgramKind::kDecode, Weights::kCurrent, context));
  for (size_t id = 0; id < decode_.size(); ++id) {
    if (plan_->decode().memory.RunsOnce(static_cast<int>(id))) continue;
    LS_RETURN_IF_ERROR(RunStep(ProgramKind::kDecode, decode_[id], id, context));
  }
  decoded_ = position + 1;
  return LogitsOf(ProgramKind::kDecode, context);
}

}  // namespace lockstep::engine
