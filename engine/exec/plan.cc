// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/plan.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/round_up.h"
#include "common/status.h"
#include "engine/exec/back_ends.h"
#include "engine/exec/kernel_choice.h"
#include "engine/graph/op.h"
#include "engine/ops/counts.h"
#include "engine/ops/ops.h"
#include "engine/optim/cuda_scratch.h"
#include "engine/passes/image_fusion.h"
#include "engine/passes/rounded_biases.h"

namespace lockstep::engine {
namespace {

constexpr size_t kStateAlign = 64;
constexpr const char* kRandomAddress = "random_address";
// No model has more (engine/graph/graph.cc).
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

bool IsPowerOfTwo(double value) {
  int exponent = 0;
  return std::isfinite(value) && value > 0 && std::frexp(value, &exponent) == 0.5;
}

absl::Status CheckPrecision(const TrainSpec& spec) {
  LS_ASSIGN_OR_RETURN(const Precision precision, Precision::Parse(spec.precision));
  if (precision.pure && spec.ema_decay > 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "ema averages fp32 weights, which precision ", spec.precision, " does not have: use ",
        Name(precision.type) == std::string("bf16") ? "bf16" : "fp16"));
  }
  if (spec.fp8 && (precision.type != DType::kBF16 || precision.pure)) {
    return absl::InvalidArgumentError(
        absl::StrCat("fp8 goes with precision bf16, not with ", spec.precision));
  }
  const LossScaleSpec& scale = spec.loss_scale;
  for (const auto& [name, value] :
       {std::pair("loss_scale.init", scale.init), std::pair("loss_scale.growth", scale.growth),
        std::pair("loss_scale.backoff", scale.backoff)}) {
    if (IsPowerOfTwo(value)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(name, " is ", value, ": it must be a power of two"));
  }
  if (scale.growth < 1 || scale.backoff > 1) {
    return absl::InvalidArgumentError(
        "loss_scale.growth must be at least 1 and loss_scale.backoff at most 1");
  }
  return CheckRange("loss_scale.interval", scale.interval, 1, int64_t{1} << 40);
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
  LS_RETURN_IF_ERROR(CheckPrecision(spec));
  LS_RETURN_IF_ERROR(CheckSetting("clip_norm", spec.clip_norm, false));
  LS_RETURN_IF_ERROR(CheckSetting("ema.decay", spec.ema_decay, true));
  return CheckSchedule(spec.schedule);
}

}  // namespace

absl::StatusOr<std::shared_ptr<const Plan>> Plan::Compile(const TrainSpec& spec) {
  return CompiledPlan::Make(spec);
}

absl::StatusOr<std::shared_ptr<const CompiledPlan>> CompiledPlan::Make(const TrainSpec& spec) {
  LS_RETURN_IF_ERROR(CheckSpec(spec));
  std::shared_ptr<CompiledPlan> plan(new CompiledPlan(spec));
  LS_ASSIGN_OR_RETURN(plan->precision_, Precision::Parse(spec.precision));
  LS_RETURN_IF_ERROR(plan->ChooseTargets());
  plan->backend_ = BackendOf(spec.device, plan->targets_);
  LS_ASSIGN_OR_RETURN(plan->model_, MakeModel(spec.model, spec.input));
  LS_ASSIGN_OR_RETURN(plan->optimizer_, MakeOptimizer(spec.optimizer, plan->target().isa));
  LS_ASSIGN_OR_RETURN(plan->settings_,
                      ResolveGroups(spec, *plan->optimizer_, plan->model_->parameters()));
  if (spec.shard_moments) LS_RETURN_IF_ERROR(plan->CheckShardedMoments());
  if (spec.offload_moments) LS_RETURN_IF_ERROR(plan->CheckOffload());
  plan->MakeStateTable();
  LS_RETURN_IF_ERROR(plan->CompileEvaluation());
  if (!spec.inference) LS_RETURN_IF_ERROR(plan->CompileTraining());
  if (spec.decode) LS_RETURN_IF_ERROR(plan->CompileDecode());
  plan->SizeArena();
  plan->hash_ = plan->MakeHash(spec.schedule);
  if (plan->math_hash_.empty()) plan->KeepMathHash();
  return std::shared_ptr<const CompiledPlan>(std::move(plan));
}

namespace {

size_t SizeOf(StateEntry::Type type) {
  switch (type) {
    case StateEntry::Type::kBFloat16:
    case StateEntry::Type::kFloat16:
      return 2;
    case StateEntry::Type::kFloat32:
      return 4;
    case StateEntry::Type::kInt64:
    case StateEntry::Type::kFloat64:
      break;
  }
  return 8;
}

StateEntry::Type TypeOf(DType type) {
  if (type == DType::kBF16) return StateEntry::Type::kBFloat16;
  return type == DType::kF16 ? StateEntry::Type::kFloat16 : StateEntry::Type::kFloat32;
}

}  // namespace

absl::Status CompiledPlan::ChooseTargets() {
  if (spec_.device == DeviceKind::kCuda) {  // what is left to the CPU is not worth a measurement
    LS_ASSIGN_OR_RETURN(const Isa isa, ChooseIsa(spec_.passes.isa));
    targets_ = CpuTarget{isa, spec_.threads, false};
    return absl::OkStatus();
  }
  LS_ASSIGN_OR_RETURN(const KernelChoices choices, ChooseKernels(spec_.passes.isa));
  targets_ = choices.Targets(spec_.threads, spec_.passes.bf16_pairs);
  return absl::OkStatus();
}

std::string CompiledPlan::kernels() const {
  const bool forced = spec_.passes.isa.empty() && !ForcedIsa().empty();
  return absl::StrCat(DescribeTargets(targets_), forced ? " (" : "", forced ? kIsaVariable : "",
                      forced ? ")" : "");
}

void CompiledPlan::MakeStateTable() {
  const auto add = [&](const std::string& name, StateEntry::Role role, StateEntry::Type type,
                       const Shape& shape) {
    StateEntry entry{name, role, type, shape, state_bytes_, 0};
    entry.bytes = static_cast<size_t>(Elements(shape)) * SizeOf(type);
    state_bytes_ += RoundUp(entry.bytes, kStateAlign);
    entry_of_.emplace(name, state_.size());
    state_.push_back(std::move(entry));
  };
  using Role = StateEntry::Role;
  using Type = StateEntry::Type;
  for (const ParameterSpec& parameter : model_->parameters()) {
    add(parameter.name, Role::kParameter, TypeOf(WeightType(parameter)), parameter.shape);
  }
  for (const StatisticSpec& statistic : model_->statistics()) {
    add(statistic.name + ".running_mean", Role::kStatistic, Type::kFloat32, {statistic.channels});
    add(statistic.name + ".running_var", Role::kStatistic, Type::kFloat32, {statistic.channels});
    add(statistic.name + ".num_batches_tracked", Role::kStatistic, Type::kInt64, {});
  }
  for (const ParameterSpec& parameter : model_->parameters()) {
    for (const std::string& moment : optimizer_->moments(parameter)) {
      add(absl::StrCat(parameter.name, ".", moment), Role::kMoment, Type::kFloat32,
          parameter.shape);
    }
  }
  if (spec_.ema_decay > 0) {
    average_distance_ = state_bytes_;
    for (const ParameterSpec& parameter : model_->parameters()) {
      add(parameter.name + kAverageSuffix, Role::kAverage, Type::kFloat32, parameter.shape);
      LS_CHECK_EQ(state_.back().offset, Entry(parameter.name).offset + average_distance_);
    }
  }
  add("step", Role::kScalar, Type::kInt64, {});
  add("update_count", Role::kScalar, Type::kInt64, {});
  add("loss_scale", Role::kScalar, Type::kFloat64, {});
  add("growth_count", Role::kScalar, Type::kInt64, {});
  add("skip_count", Role::kScalar, Type::kInt64, {});
  add("tracking", Role::kScalar, Type::kInt64, {sizeof(Tracking) / sizeof(int64_t)});
}

size_t CompiledPlan::optimizer_scratch_bytes() const {
  size_t most = 0;
  for (const ParameterSpec& parameter : model_->parameters()) {
    most = std::max(most, UpdateScratchBytes(parameter));
  }
  return most;
}

size_t CompiledPlan::UpdateScratchBytes(const ParameterSpec& parameter) const {
  if (spec_.device == DeviceKind::kCuda) return CudaUpdateScratch(*optimizer_, parameter).bytes;
  const size_t own = optimizer_->scratch_bytes(parameter, targets_[OpClass::kProducts]);
  if (!precision_.pure || optimizer_->method(parameter) != Optimizer::Method::kMatrix) return own;
  // The matrix in fp32, behind the optimizer's own.
  return own + RoundUp(static_cast<size_t>(Elements(parameter.shape)) * sizeof(float), kStateAlign);
}

MemoryOptions CompiledPlan::MemoryOptionsFor(bool keep_constants) const {
  return {spec_.passes.reuse_memory, spec_.passes.in_place, keep_constants};
}

bool CompiledPlan::DecodesInBf16() const {
  return spec_.decode && spec_.device == DeviceKind::kCpu && precision_.type == DType::kBF16;
}

// Each token reads all matrices once, and does little else.
DType CompiledPlan::WeightType(const ParameterSpec& parameter) const {
  const bool matrix = parameter.shape.size() > 1;
  return precision_.pure || (DecodesInBf16() && matrix) ? precision_.type : DType::kF32;
}

std::set<std::string> CompiledPlan::HalfWeights() const {
  std::set<std::string> names;
  for (const ParameterSpec& parameter : model_->parameters()) {
    if (IsHalf(WeightType(parameter))) names.insert(parameter.name);
  }
  return names;
}

const StateEntry& CompiledPlan::Entry(const std::string& name) const {
  const auto it = entry_of_.find(name);
  LS_CHECK(it != entry_of_.end()) << name;
  return state_[it->second];
}

int64_t CompiledPlan::targets_per_sample() const {
  for (const FieldSpec& field : spec_.input.fields) {
    if (field.name == kLabelsField) return field.elements();
  }
  return 1;
}

int64_t CompiledPlan::parameter_count() const {
  int64_t count = 0;
  for (const ParameterSpec& parameter : model_->parameters()) count += Elements(parameter.shape);
  return count;
}

void CompiledPlan::AddParameterLeaves(Graph* graph, bool training, ModelInputs* inputs) const {
  for (const ParameterSpec& parameter : model_->parameters()) {
    inputs->parameters[parameter.name] =
        graph->AddLeaf(ops::kParameter, {DType::kF32, parameter.shape}, parameter.name);
  }
  for (const StatisticSpec& statistic : model_->statistics()) {
    if (training) break;
    for (const char* what : {".running_mean", ".running_var"}) {
      const std::string name = statistic.name + what;
      inputs->parameters[name] =
          graph->AddLeaf(ops::kParameter, {DType::kF32, {statistic.channels}}, name);
    }
  }
}

CompiledPlan::Forward CompiledPlan::BuildForward(Graph* graph, int64_t batch, bool training) const {
  Forward forward;
  ModelInputs inputs;
  inputs.training = training;
  for (const FieldSpec& field : spec_.input.fields) {
    const DType type = field.type == FieldSpec::Type::kFloat32 ? DType::kF32 : DType::kI32;
    if (field.name == kLabelsField) {
      const Shape rows = {batch * field.elements()};
      forward.labels = graph->AddLeaf(ops::kInput, {type, rows}, field.name);
      continue;
    }
    Shape shape = field.shape;
    shape.insert(shape.begin(), batch);
    inputs.fields[field.name] = graph->AddLeaf(ops::kInput, {type, shape}, field.name);
  }
  AddParameterLeaves(graph, training, &inputs);
  inputs.seed = spec_.seed;
  if (training && model_->random()) {
    inputs.address =
        graph->AddLeaf(ops::kInput, {DType::kI32, {ops::kAddressWords}}, kRandomAddress);
  }
  forward.logits = model_->Build(graph, inputs);
  forward.parameters = std::move(inputs.parameters);
  return forward;
}

std::map<Value, Storage> CompiledPlan::BindLeaves(const Graph& graph,
                                                  std::map<Value, Storage> fixed) const {
  std::map<Value, Storage> bound = std::move(fixed);
  for (int id = 0; id < static_cast<int>(graph.nodes().size()); ++id) {
    const Node& node = graph.node(id);
    if (!node.op->leaf || bound.contains({id, 0})) continue;
    if (node.op == &ops::kParameter) {
      const StateEntry& entry = Entry(node.name);
      // Averaged weights are evaluated with the same running statistics.
      const bool statistic = entry.role == StateEntry::Role::kStatistic;
      bound[{id, 0}] = {statistic ? Region::kState : Region::kParameters, entry.offset};
    } else if (node.name == kLossSeed) {
      bound[{id, 0}] = {Region::kScalars, offsetof(Scalars, loss_seed)};
    } else if (node.name == kRandomAddress) {
      bound[{id, 0}] = {Region::kScalars, offsetof(Scalars, address)};
    } else if (node.name == kPrefillTokens) {
      bound[{id, 0}] = {FieldRegion(0), 0};
    } else if (node.name == kPrefillPositions) {
      bound[{id, 0}] = {FieldRegion(1), 0};
    } else if (node.name == kDecodeToken) {
      bound[{id, 0}] = {Region::kScalars, offsetof(Scalars, token)};
    } else if (node.name == kDecodePosition) {
      bound[{id, 0}] = {Region::kScalars, offsetof(Scalars, position)};
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

// Logits beyond the classes are padding.
Attrs CompiledPlan::LossAttrs(const Graph& graph, Value logits) const {
  const Shape& shape = graph.type(logits).shape;
  Attrs attrs;
  if (shape.back() > spec_.input.classes) attrs.Set("classes", spec_.input.classes);
  return attrs;
}

// Returns what the CPU's own kernels are for, and its precision. A training step keeps what an
// activation takes: recomputation needs it, and writing the slopes beside the values took longer
// than the activation and its gradient by themselves (docs/results/models_cpu.md).
FusionOptions CompiledPlan::FusionFor(bool training) const {
  FusionOptions options;
  const bool cpu = spec_.device == DeviceKind::kCpu;
  const bool fp32 = precision_.type == DType::kF32;
  const FusionPatterns& on = spec_.passes.patterns;
  options.activations = on.activations && cpu && fp32 && !training;
  options.addends = on.addends && cpu;
  const bool epilogues = !cpu && training && spec_.passes.epilogues;
  // Sums for bias gradients are of what is not rounded to FP8.
  options.epilogues = {epilogues && spec_.recompute.mode == RecomputeSpec::Mode::kNone,
                       epilogues && !spec_.fp8};
  // An inference plan keeps the filters in the product's order instead, but in bf16 products and
  // direct convolutions add in different orders, and a model gives the numbers of its training.
  const bool bf16 = precision_.type == DType::kBF16;
  options.pools = on.pools && cpu && (bf16 || (fp32 && !spec_.inference));
  options.direct_pools_only = spec_.inference;
  options.heads = on.heads && cpu && training;
  options.relu = on.relu;
  options.residuals = on.residuals;
  options.images = on.images;
  options.norms = on.norms;
  options.loss = on.loss;
  options.loss_bias = cpu && fp32;
  return options;
}

absl::Status CompiledPlan::CompileEvaluation() {
  Graph graph;
  const Forward forward = BuildForward(&graph, spec_.eval_block, /*training=*/false);
  LS_RETURN_IF_ERROR(graph.status());
  graph.AddOutput("sums", graph.Add(ops::kClassificationSums, {forward.logits, forward.labels},
                                    LossAttrs(graph, forward.logits)));
  if (spec_.inference) graph.AddOutput(kLogitsOutput, forward.logits);
  LS_RETURN_IF_ERROR(graph.Verify());
  if (spec_.passes.fuse) graph = Fuse(graph, FusionFor(/*training=*/false));
  // In fp32, where it changes no number, training's evaluation stays as the plans of earlier
  // checkpoints have it.
  const bool rounds = precision_.type != DType::kF32;
  if (spec_.passes.fuse && spec_.passes.patterns.images && (spec_.inference || rounds)) {
    graph = FuseResiduals(graph);
  }
  evaluate_.graph = ApplyPrecision(graph, precision_, HalfWeights());
  // A decode program writes over the arena, and training changes the parameters.
  const bool keep = spec_.inference && !spec_.decode && spec_.passes.keep_constants;
  if (keep) evaluate_.graph = RoundBiasesBefore(evaluate_.graph, *backend_);
  LS_RETURN_IF_ERROR(evaluate_.graph.Verify());
  evaluate_.memory =
      PlanMemory(evaluate_.graph, BindLeaves(evaluate_.graph), *backend_, MemoryOptionsFor(keep));
  return absl::OkStatus();
}

const Program& CompiledPlan::program(ProgramKind kind) const {
  if (kind == ProgramKind::kTraining) return train_;
  if (kind == ProgramKind::kEvaluation) return evaluate_;
  if (kind == ProgramKind::kDecode) return decode_;
  return kind == ProgramKind::kPrefill ? prefill_ : long_prefill_;
}

}  // namespace lockstep::engine
