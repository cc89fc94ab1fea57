// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/plan.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/check.h"
#include "common/philox.h"
#include "common/status.h"
#include "engine/ops/counts.h"
#include "engine/ops/op.h"
#include "engine/passes/autodiff.h"
#include "engine/passes/fusion.h"

namespace lockstep::engine {
namespace {

constexpr size_t kStateAlign = 64;
constexpr const char* kLossSeed = "loss_seed";
// Keeps every offset and product of extents far inside 64 bits.
constexpr int64_t kMaxElements = int64_t{1} << 40;

absl::Status CheckRange(const char* name, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, " is ", value, ": it must be from ", low, " to ", high));
}

absl::Status CheckFields(const std::vector<FieldSpec>& fields) {
  LS_RETURN_IF_ERROR(
      CheckRange("the number of fields", static_cast<int64_t>(fields.size()), 2, kMaxFields));
  bool labels = false;
  for (const FieldSpec& field : fields) {
    int64_t elements = 1;
    for (const int64_t extent : field.shape) {
      LS_RETURN_IF_ERROR(CheckRange("an extent of the sample's shape", extent, 1, 1 << 24));
      elements *= extent;
      LS_RETURN_IF_ERROR(CheckRange("the number of elements of a sample", elements, 1, 1 << 28));
    }
    labels |= field.name == kLabelsField && field.type == FieldSpec::Type::kInt32;
  }
  return labels ? absl::OkStatus() : absl::InvalidArgumentError("the samples have no labels");
}

absl::Status CheckSpec(const TrainSpec& spec) {
  LS_RETURN_IF_ERROR(CheckFields(spec.input.fields));
  LS_RETURN_IF_ERROR(CheckRange("classes", spec.input.classes, 1, 1 << 24));
  LS_RETURN_IF_ERROR(CheckRange("micro_batch", spec.micro_batch, 1, 1 << 24));
  LS_RETURN_IF_ERROR(CheckRange("eval_block", spec.eval_block, 1, 1 << 24));
  LS_RETURN_IF_ERROR(CheckRange("accumulate", spec.accumulate, 1, kMaxCountSplits));
  LS_RETURN_IF_ERROR(CheckRange("shards", spec.shards, 1, kMaxCountSplits));
  LS_RETURN_IF_ERROR(CheckRange("shards x accumulate", int64_t{spec.shards} * spec.accumulate, 1,
                                kMaxCountSplits));
  LS_RETURN_IF_ERROR(CheckRange("threads", spec.threads, 1, 1024));
  LS_RETURN_IF_ERROR(
      CheckRange("passes.bucket_elements", spec.passes.bucket_elements, 16, kMaxElements));
  if (spec.precision != "fp32") {
    return absl::InvalidArgumentError(
        absl::StrCat("precision ", spec.precision, " is not known: use fp32"));
  }
  return CheckSchedule(spec.schedule);
}

}  // namespace

absl::StatusOr<std::shared_ptr<const Plan>> Plan::Compile(const TrainSpec& spec) {
  return CompiledPlan::Make(spec);
}

absl::StatusOr<std::shared_ptr<const CompiledPlan>> CompiledPlan::Make(const TrainSpec& spec) {
  LS_RETURN_IF_ERROR(CheckSpec(spec));
  std::shared_ptr<CompiledPlan> plan(new CompiledPlan(spec));
  LS_ASSIGN_OR_RETURN(const Isa isa, ChooseIsa(spec.passes.isa));
  plan->target_ = {isa, spec.threads};
  LS_ASSIGN_OR_RETURN(plan->model_, MakeModel(spec.model, spec.input));
  LS_ASSIGN_OR_RETURN(plan->optimizer_, MakeOptimizer(spec.optimizer, plan->target_.isa));
  plan->MakeStateTable();
  if (!spec.inference) LS_RETURN_IF_ERROR(plan->CompileTraining());
  LS_RETURN_IF_ERROR(plan->CompileEvaluation());
  plan->arena_bytes_ =
      std::max(plan->train_.memory.arena_bytes, plan->evaluate_.memory.arena_bytes);
  plan->hash_ = plan->MakeHash();
  return std::shared_ptr<const CompiledPlan>(std::move(plan));
}

void CompiledPlan::MakeStateTable() {
  const auto add = [&](const std::string& name, StateEntry::Role role, StateEntry::Type type,
                       const Shape& shape) {
    StateEntry entry{name, role, type, shape, state_bytes_, 0};
    entry.bytes = static_cast<size_t>(Elements(shape)) *
                  (type == StateEntry::Type::kFloat32 ? sizeof(float) : sizeof(int64_t));
    state_bytes_ += (entry.bytes + kStateAlign - 1) / kStateAlign * kStateAlign;
    state_.push_back(std::move(entry));
  };
  using Role = StateEntry::Role;
  using Type = StateEntry::Type;
  for (const ParameterSpec& parameter : model_->parameters()) {
    add(parameter.name, Role::kParameter, Type::kFloat32, parameter.shape);
  }
  for (const ParameterSpec& parameter : model_->parameters()) {
    for (const std::string& moment : optimizer_->moments()) {
      add(absl::StrCat(parameter.name, ".", moment), Role::kMoment, Type::kFloat32,
          parameter.shape);
    }
  }
  add("step", Role::kScalar, Type::kInt64, {});
  add("update_count", Role::kScalar, Type::kInt64, {});
  add("loss_scale", Role::kScalar, Type::kFloat64, {});
  add("growth_count", Role::kScalar, Type::kInt64, {});
}

const StateEntry& CompiledPlan::Entry(const std::string& name) const {
  const auto it = std::find_if(state_.begin(), state_.end(),
                               [&](const StateEntry& entry) { return entry.name == name; });
  LS_CHECK(it != state_.end()) << name;
  return *it;
}

int64_t CompiledPlan::targets_per_sample() const {
  for (const FieldSpec& field : spec_.input.fields) {
    if (field.name == kLabelsField) return field.elements();
  }
  return 1;
}

int64_t CompiledPlan::nominal_targets() const {
  return spec_.micro_batch * targets_per_sample() * spec_.accumulate * spec_.shards;
}

int64_t CompiledPlan::parameter_count() const {
  int64_t count = 0;
  for (const ParameterSpec& parameter : model_->parameters()) count += Elements(parameter.shape);
  return count;
}

CompiledPlan::Forward CompiledPlan::BuildForward(Graph* graph, int64_t batch, bool training) const {
  Forward forward;
  ModelInputs inputs;
  inputs.training = training;
  for (const FieldSpec& field : spec_.input.fields) {
    const DType type = field.type == FieldSpec::Type::kFloat32 ? DType::kF32 : DType::kI32;
    if (field.name == kLabelsField) {
      const Shape rows = {batch * field.elements()};
      forward.labels = graph->AddLeaf("input", {type, rows}, field.name);
      continue;
    }
    Shape shape = field.shape;
    shape.insert(shape.begin(), batch);
    inputs.fields[field.name] = graph->AddLeaf("input", {type, shape}, field.name);
  }
  for (const ParameterSpec& parameter : model_->parameters()) {
    inputs.parameters[parameter.name] =
        graph->AddLeaf("parameter", {DType::kF32, parameter.shape}, parameter.name);
  }
  forward.logits = model_->Build(graph, inputs);
  forward.parameters = std::move(inputs.parameters);
  return forward;
}

std::map<Value, Storage> CompiledPlan::BindLeaves(const Graph& graph) const {
  std::map<Value, Storage> bound;
  for (int id = 0; id < static_cast<int>(graph.nodes().size()); ++id) {
    const Node& node = graph.node(id);
    if (!node.op->leaf) continue;
    if (std::string(node.op->name) == "parameter") {
      bound[{id, 0}] = {Region::kState, Entry(node.name).offset};
    } else if (node.name == kLossSeed) {
      bound[{id, 0}] = {Region::kScalars, offsetof(Scalars, loss_seed)};
    } else {
      const std::vector<FieldSpec>& fields = spec_.input.fields;
      const auto field = std::find_if(fields.begin(), fields.end(),
                                      [&](const FieldSpec& f) { return f.name == node.name; });
      LS_CHECK(field != fields.end()) << node.name;
      bound[{id, 0}] = {FieldRegion(static_cast<size_t>(field - fields.begin())), 0};
    }
  }
  return bound;
}

absl::Status CompiledPlan::CompileTraining() {
  Graph graph;
  const Value seed = graph.AddLeaf("input", {DType::kF32, {1}}, kLossSeed);
  const Forward forward = BuildForward(&graph, spec_.micro_batch, /*training=*/true);
  LS_RETURN_IF_ERROR(graph.status());
  const Value loss =
      graph.Add("softmax_cross_entropy", {forward.logits, forward.labels}, {}, "loss");
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
  graph.AddOutput(kLossOutput, {loss.node, 0});
  graph.AddOutput(kCountOutput, {loss.node, 1});
  LS_RETURN_IF_ERROR(graph.Verify());

  if (spec_.passes.fuse) graph = Fuse(graph);
  PlacedGraph placed = PlaceGradients(graph, spec_.passes.bucket_elements);
  LS_RETURN_IF_ERROR(placed.graph.Verify());
  layout_ = std::move(placed.layout);
  train_.graph = std::move(placed.graph);
  std::map<Value, Storage> fixed = BindLeaves(train_.graph);
  fixed.insert(layout_.storage.begin(), layout_.storage.end());
  train_.memory =
      PlanMemory(train_.graph, fixed, target_, {spec_.passes.reuse_memory, spec_.passes.in_place});
  return absl::OkStatus();
}

absl::Status CompiledPlan::CompileEvaluation() {
  Graph graph;
  const Forward forward = BuildForward(&graph, spec_.eval_block, /*training=*/false);
  LS_RETURN_IF_ERROR(graph.status());
  graph.AddOutput("sums", graph.Add("classification_sums", {forward.logits, forward.labels}));
  if (spec_.inference) graph.AddOutput(kLogitsOutput, forward.logits);
  LS_RETURN_IF_ERROR(graph.Verify());
  evaluate_.graph = spec_.passes.fuse ? Fuse(graph) : std::move(graph);
  LS_RETURN_IF_ERROR(evaluate_.graph.Verify());
  evaluate_.memory = PlanMemory(evaluate_.graph, BindLeaves(evaluate_.graph), target_,
                                {spec_.passes.reuse_memory, spec_.passes.in_place});
  return absl::OkStatus();
}

std::string CompiledPlan::DumpText() const {
  std::string text = absl::StrCat("# train\n", train_.graph.ToText(), train_.memory.ToText());
  for (const GradientSlot& slot : layout_.slots) {
    absl::StrAppend(&text, "gradient[", slot.begin, ", ", slot.begin + slot.count, ") after %",
                    slot.node, ": ", slot.parameter, "\n");
  }
  for (size_t i = 0; i < layout_.buckets.size(); ++i) {
    absl::StrAppend(&text, "bucket ", i, ": [", layout_.buckets[i].begin, ", ",
                    layout_.buckets[i].end, ") after %", layout_.bucket_node[i], "\n");
  }
  absl::StrAppend(&text, "# evaluate\n", evaluate_.graph.ToText(), evaluate_.memory.ToText());
  return text;
}

// Over what is computed and what is exchanged, not over where this machine puts it.
std::string CompiledPlan::MakeHash() const {
  std::string text = absl::StrCat(train_.graph.ToText(), "\n", evaluate_.graph.ToText());
  for (const StateEntry& entry : state_) {
    absl::StrAppend(&text, entry.name, "@", entry.offset, "+", entry.bytes, "\n");
  }
  for (const GradientSlot& slot : layout_.slots) {
    absl::StrAppend(&text, slot.parameter, "@", slot.begin, "+", slot.count, "\n");
  }
  for (const Bucket& bucket : layout_.buckets) absl::StrAppend(&text, bucket.begin, "\n");
  const SgdSpec& sgd = std::get<SgdSpec>(spec_.optimizer);
  const ScheduleSpec& schedule = spec_.schedule;
  absl::StrAppend(&text, absl::StrFormat("sgd %a %a %a %a %d\n", sgd.lr, sgd.momentum,
                                         sgd.dampening, sgd.weight_decay, sgd.nesterov));
  absl::StrAppend(
      &text, absl::StrFormat("schedule %d %d %d %a\n", static_cast<int>(schedule.kind),
                             schedule.total_updates, schedule.warmup_updates, schedule.min_factor));
  absl::StrAppend(&text, spec_.precision, " ", spec_.seed, " ", spec_.accumulate, " ", spec_.shards,
                  "\n");
  return absl::StrFormat("%016x%016x", SiteKey(1, text), SiteKey(2, text));
}

}  // namespace lockstep::engine
