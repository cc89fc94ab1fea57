// SPDX-License-Identifier: Apache-2.0
// The decode program of a plan, and running it: one position of a text after those before, whose
// keys and values lie at the end of the arena. And the prefill program, which makes the keys and
// values of many positions at once.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/round_up.h"
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
// Positions that a prefill program takes at once: as many rows share the reading and the packing of
// the weights.
constexpr int64_t kPrefillRows = 64, kLongPrefillRows = 256;
// Fewer tokens than these are decoded one by one: a block takes the time of several, and more where
// the weights that are packed for single tokens give way to it and are packed again.
constexpr size_t kFewestPrefilled = 8, kFewestWhilePacked = 24;

size_t KeptBytes(const Shape& shape) {
  return RoundUp(static_cast<size_t>(Elements(shape)) * sizeof(float), kAlign);
}

// The field that a decoded text is made of.
const FieldSpec& TokensOf(const TrainSpec& spec) {
  const FieldSpec* tokens = FindField(spec.input, "tokens");
  LS_CHECK(tokens != nullptr) << "a model that generates takes tokens";
  return *tokens;
}

}  // namespace

int64_t CompiledPlan::prefill_rows(ProgramKind kind) const {
  return std::min(kind == ProgramKind::kPrefill ? kPrefillRows : kLongPrefillRows,
                  model_->decode_positions());
}

absl::StatusOr<Graph> CompiledPlan::BuildDecode(int64_t rows, bool logits) const {
  Graph graph;
  ModelInputs inputs;
  inputs.training = false;
  AddParameterLeaves(&graph, /*training=*/false, &inputs);
  DecodeInputs decode;
  decode.logits = logits;
  decode.token =
      graph.AddLeaf(ops::kInput, {DType::kI32, {rows}}, logits ? kDecodeToken : kPrefillTokens);
  decode.position = graph.AddLeaf(ops::kInput, {DType::kI32, {rows}},
                                  logits ? kDecodePosition : kPrefillPositions);
  const std::vector<Shape> kept = model_->kept();
  for (size_t i = 0; i < kept.size(); ++i) {
    decode.kept.push_back(
        graph.AddLeaf(ops::kParameter, {DType::kF32, kept[i]}, absl::StrCat(kKept, i)));
  }
  const DecodeOutputs outputs = model_->BuildDecode(&graph, inputs, decode);
  LS_RETURN_IF_ERROR(graph.status());
  if (logits) graph.AddOutput(kLogitsOutput, outputs.logits);
  for (size_t i = 0; i < kept.size(); ++i) {
    graph.AddOutput(absl::StrCat(kKept, i), outputs.kept[i]);
  }
  LS_RETURN_IF_ERROR(graph.Verify());
  if (spec_.passes.fuse) graph = Fuse(graph, FusionFor(/*training=*/false));
  // Weights that memory has in 16 bits are read as they are; else this program is fp32's.
  const bool half = spec_.device == DeviceKind::kCpu && (DecodesInBf16() || precision_.pure);
  if (half) graph = ApplyPrecision(graph, precision_, HalfWeights());
  LS_RETURN_IF_ERROR(graph.Verify());
  return graph;
}

absl::Status CompiledPlan::CompileDecode() {
  if (!spec_.inference || model_->decode_positions() == 0) {
    return absl::InvalidArgumentError(
        "the model does not generate: a gpt that was trained on text or tokens does");
  }
  for (const Shape& kept : model_->kept()) kept_bytes_ += KeptBytes(kept);
  LS_ASSIGN_OR_RETURN(decode_.graph, BuildDecode(1, /*logits=*/true));
  // On a CPU most of a token's time is the reading of its weights, which is one stream when they
  // are packed. A GPU's program is captured as a whole.
  const bool cpu = spec_.device == DeviceKind::kCpu;
  decode_.memory = PlanMemory(decode_.graph, PlaceKept(decode_.graph), *backend_,
                              MemoryOptionsFor(cpu && spec_.passes.keep_constants));
  if (!cpu) return absl::OkStatus();
  int64_t rows = 0;
  for (const ProgramKind kind : {ProgramKind::kPrefill, ProgramKind::kLongPrefill}) {
    if (prefill_rows(kind) == std::exchange(rows, prefill_rows(kind))) break;
    Program& program = kind == ProgramKind::kPrefill ? prefill_ : long_prefill_;
    LS_ASSIGN_OR_RETURN(program.graph, BuildDecode(rows, /*logits=*/false));
    program.memory = PlanMemory(program.graph, PlaceKept(program.graph), *backend_,
                                MemoryOptionsFor(/*keep_constants=*/false));
  }
  return absl::OkStatus();
}

std::map<Value, Storage> CompiledPlan::PlaceKept(const Graph& graph) const {
  std::map<Value, Storage> fixed;
  Storage storage{Region::kKept, 0};
  const std::vector<Shape> kept = model_->kept();
  for (size_t i = 0; i < kept.size(); ++i) {
    const std::string name = absl::StrCat(kKept, i);
    fixed[{graph.Find(name), 0}] = storage;
    const auto& outputs = graph.outputs();
    const auto output = std::find_if(outputs.begin(), outputs.end(),
                                     [&](const auto& entry) { return entry.first == name; });
    LS_CHECK(output != outputs.end()) << name;
    fixed[output->second] = storage;
    storage.offset += KeptBytes(kept[i]);
  }
  return BindLeaves(graph, std::move(fixed));
}

void CompiledPlan::SizeArena() {
  const size_t evaluation = spec_.evaluates ? evaluate_.memory.arena_bytes : 0;
  kept_offset_ = std::max({train_.memory.arena_bytes, evaluation, decode_.memory.arena_bytes,
                           prefill_.memory.arena_bytes, long_prefill_.memory.arena_bytes,
                           optimizer_scratch_bytes()});
  kept_offset_ = RoundUp(kept_offset_, kAlign);
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

absl::Status Decoding::Prefill(absl::Span<const int32_t> tokens, int64_t position) {
  for (const int32_t token : tokens) LS_RETURN_IF_ERROR(Decode(token, position++).status());
  return absl::OkStatus();
}

RunContext PlanExecutor::DecodeContext() {
  RunContext context;
  context.base[static_cast<int>(Region::kArena)] = arena_;
  context.base[static_cast<int>(Region::kKept)] = arena_ + plan_->kept_offset();
  context.base[static_cast<int>(Region::kState)] = state_.base();
  context.base[static_cast<int>(Region::kParameters)] = state_.base();
  context.base[static_cast<int>(Region::kScalars)] = reinterpret_cast<std::byte*>(&scalars_);
  context.pool = &pool_;
  return context;
}

absl::StatusOr<absl::Span<const float>> PlanExecutor::Decode(int32_t token, int64_t position) {
  LS_RETURN_IF_ERROR(CheckDecode(*plan_, token, position, decoded_));
  scalars_.token = token;
  scalars_.position = static_cast<int32_t>(position);
  const RunContext context = DecodeContext();
  LS_RETURN_IF_ERROR(RunOnce(ProgramKind::kDecode, Weights::kCurrent, context));
  for (size_t id = 0; id < decode_.size(); ++id) {
    if (plan_->decode().memory.RunsOnce(static_cast<int>(id))) continue;
    LS_RETURN_IF_ERROR(RunStep(ProgramKind::kDecode, decode_[id], id, context));
  }
  decoded_ = position + 1;
  return LogitsOf(ProgramKind::kDecode, context);
}

absl::Status PlanExecutor::Prefill(absl::Span<const int32_t> tokens, int64_t position) {
  int64_t decoded = decoded_;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const int64_t at = position + static_cast<int64_t>(i);
    LS_RETURN_IF_ERROR(CheckDecode(*plan_, tokens[i], at, decoded));
    decoded = at + 1;
  }
  const auto few = static_cast<size_t>(plan_->prefill_rows(ProgramKind::kPrefill));
  const auto many = static_cast<size_t>(plan_->prefill_rows(ProgramKind::kLongPrefill));
  std::vector<int32_t> block(many), positions(many);
  const void* const fields[] = {block.data(), positions.data()};
  RunContext context = DecodeContext();
  BindFields(fields, &context);
  while (tokens.size() >= (constants_.has_value() ? kFewestWhilePacked : kFewestPrefilled)) {
    // The long block where short ones would do as many rows.
    const bool fits = (tokens.size() + few - 1) / few * few < many;
    const ProgramKind kind =
        fits || many == few ? ProgramKind::kPrefill : ProgramKind::kLongPrefill;
    const size_t rows = kind == ProgramKind::kPrefill ? few : many;
    const size_t count = std::min(tokens.size(), rows);
    for (size_t row = 0; row < rows; ++row) {
      const size_t of = std::min(row, count - 1);  // rows left over do the last one again
      block[row] = tokens[of];
      positions[row] = static_cast<int32_t>(position + static_cast<int64_t>(of));
    }
    constants_.reset();  // the arena's
    const std::vector<Step>& steps = kind == ProgramKind::kPrefill ? prefill_ : long_prefill_;
    for (size_t id = 0; id < steps.size(); ++id) {
      LS_RETURN_IF_ERROR(RunStep(kind, steps[id], id, context));
    }
    tokens.remove_prefix(count);
    position += static_cast<int64_t>(count);
    decoded_ = position;
  }
  return Decoding::Prefill(tokens, position);
}

}  // namespace lockstep::engine
