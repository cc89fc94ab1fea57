// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/executor.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status.h"
#include "engine/cpu/converting_kernel.h"
#include "engine/exec/batches.h"
#include "engine/graph/op.h"

namespace lockstep::engine {
namespace {

bool Aligned(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 64 == 0; }

}  // namespace

absl::StatusOr<std::unique_ptr<Executor>> PlanExecutor::Create(
    std::shared_ptr<const CompiledPlan> plan, const Memory& memory) {
  if (memory.state == nullptr || memory.arena == nullptr || !Aligned(memory.state) ||
      !Aligned(memory.arena)) {
    return absl::InvalidArgumentError("the executor's regions must be 64-byte aligned memory");
  }
  return std::make_unique<PlanExecutor>(std::move(plan), memory);
}

PlanExecutor::PlanExecutor(std::shared_ptr<const CompiledPlan> plan, const Memory& memory)
    : plan_(std::move(plan)),
      arena_(static_cast<std::byte*>(memory.arena)),
      state_(memory.state, plan_->state_bytes()),
      updater_(plan_.get(), &state_, arena_),
      pool_(plan_->target().threads),
      train_(Prepare(plan_->train(), plan_->targets())),
      evaluate_(Prepare(plan_->evaluate(), plan_->targets())),
      decode_(Prepare(plan_->decode(), plan_->targets())),
      prefill_(Prepare(plan_->program(ProgramKind::kPrefill), plan_->targets())),
      long_prefill_(Prepare(plan_->program(ProgramKind::kLongPrefill), plan_->targets())) {
  pool_.CountIn(memory.moves);
  if (!plan_->spec().inference) MarkGradients();
  const Value sums = plan_->evaluate().graph.outputs()[0].second;
  eval_sums_ =
      plan_->evaluate().memory.operands[static_cast<size_t>(sums.node)].outputs[static_cast<size_t>(
          sums.output)];
}

std::vector<PlanExecutor::Step> PlanExecutor::Prepare(const Program& program,
                                                      const CpuTargets& targets) {
  std::vector<Step> steps(program.graph.nodes().size());
  for (size_t i = 0; i < steps.size(); ++i) {
    const Node& node = program.graph.nodes()[i];
    if (node.op->leaf || node.op->view) continue;
    steps[i].kernel = PrepareKernel(program.graph, node, program.memory.operands[i], targets);
  }
  return steps;
}

void PlanExecutor::MarkGradients() {
  const GradientLayout& layout = plan_->layout();
  const std::vector<KernelOperands>& operands = plan_->train().memory.operands;
  const auto first = std::find_if(operands.begin(), operands.end(), [](const KernelOperands& node) {
    return std::any_of(node.outputs.begin(), node.outputs.end(),
                       [](const Storage& s) { return s.region == Region::kGradients; });
  });
  LS_CHECK(first != operands.end());
  train_[static_cast<size_t>(first - operands.begin())].writes_gradients = true;
  for (size_t i = 0; i < layout.buckets.size(); ++i) {
    train_[static_cast<size_t>(layout.bucket_node[i])].buckets.push_back(static_cast<int>(i));
  }
  gaps_ = GapsOf(layout);
}

void PlanExecutor::ZeroGaps(float* gradients) const {
  for (const auto& [begin, end] : gaps_) std::fill(gradients + begin, gradients + end, 0.0f);
}

void PlanExecutor::InitState() {
  constants_.reset();
  updater_.InitState();
}

// One that comes later sees everything too.
void PlanExecutor::Observe(NodeObserver* observer) {
  constants_.reset();
  observer_ = observer;
}

void* PlanExecutor::BeginLoad() {
  constants_.reset();
  state_.Open();
  return state_.base();
}

void PlanExecutor::BindFields(Fields fields, RunContext* context) {
  for (size_t f = 0; f < fields.size(); ++f) {
    context->base[static_cast<int>(FieldRegion(f))] =
        const_cast<std::byte*>(static_cast<const std::byte*>(fields[f]));
  }
}

absl::Status PlanExecutor::RunSteps(const RunContext& context, int micro, const Hooks& hooks) {
  const bool last = micro + 1 == plan_->spec().accumulate;
  for (const Step& step : train_) {
    if (hooks.cancelled && hooks.cancelled()) {
      return absl::AbortedError("the micro-batch was cancelled");
    }
    if (step.writes_gradients) {
      if (hooks.before_gradients) LS_RETURN_IF_ERROR(hooks.before_gradients());
      if (micro == 0) {
        ZeroGaps(reinterpret_cast<float*>(context.base[static_cast<int>(Region::kGradients)]));
      }
    }
    LS_RETURN_IF_ERROR(
        RunStep(ProgramKind::kTraining, step, static_cast<size_t>(&step - train_.data()), context));
    if (!last || !hooks.bucket_ready) continue;
    for (const int bucket : step.buckets) LS_RETURN_IF_ERROR(hooks.bucket_ready(bucket));
  }
  return absl::OkStatus();
}

absl::Status PlanExecutor::RunShard(int64_t step, int shard, int micro, Fields fields,
                                    float* gradients, const Hooks& hooks) {
  const TrainSpec& spec = plan_->spec();
  LS_CHECK(!spec.inference) << "an inference plan has no training step";
  LS_CHECK(shard >= 0 && shard < spec.shards) << shard;
  LS_CHECK(micro >= 0 && micro < spec.accumulate) << micro;
  LS_RETURN_IF_ERROR(CheckIntegers(spec, fields, spec.micro_batch));
  scalars_.loss_seed =
      static_cast<float>(updater_.loss_scale() / static_cast<double>(plan_->nominal_targets()));
  scalars_.address[0] = static_cast<int32_t>(step);
  scalars_.address[1] = static_cast<int32_t>(step >> 32);
  scalars_.address[2] = shard;
  scalars_.address[3] = micro;
  RunContext context;
  const auto bind = [&](Region region, const void* base) {
    context.base[static_cast<int>(region)] =
        const_cast<std::byte*>(static_cast<const std::byte*>(base));
  };
  bind(Region::kArena, arena_);
  bind(Region::kState, state_.base());
  bind(Region::kParameters, state_.base());
  BindFields(fields, &context);
  bind(Region::kGradients, gradients);
  bind(Region::kScalars, &scalars_);
  context.accumulate = micro > 0;
  context.pool = &pool_;
  return RunSteps(context, micro, hooks);
}

absl::Status PlanExecutor::RunOnce(ProgramKind kind, Weights weights, const RunContext& context) {
  const std::pair<ProgramKind, Weights> wanted{kind, weights};
  if (constants_ == wanted) return absl::OkStatus();
  constants_.reset();
  const MemoryPlan& memory = plan_->program(kind).memory;
  if (memory.once.empty()) return absl::OkStatus();
  const std::vector<Step>& steps = kind == ProgramKind::kDecode ? decode_ : evaluate_;
  for (size_t id = 0; id < steps.size(); ++id) {
    const Step& step = steps[id];
    if (step.kernel == nullptr) continue;
    if (memory.Packs(static_cast<int>(id))) {
      step.kernel->Pack(context);
    } else if (memory.RunsOnce(static_cast<int>(id))) {
      LS_RETURN_IF_ERROR(RunStep(kind, step, id, context));
    }
  }
  constants_ = wanted;
  return absl::OkStatus();
}

absl::Status PlanExecutor::RunBlock(Fields fields, int64_t valid, Weights weights,
                                    const std::function<bool()>& cancelled, RunContext* context) {
  LS_CHECK(plan_->spec().evaluates) << "the plan has no room for evaluations";
  if (valid < 0 || valid > plan_->spec().eval_block) {
    return absl::InvalidArgumentError(
        absl::StrCat(valid, " valid samples in a block of ", plan_->spec().eval_block));
  }
  LS_RETURN_IF_ERROR(CheckIntegers(plan_->spec(), fields, valid));
  context->base[static_cast<int>(Region::kArena)] = arena_;
  context->base[static_cast<int>(Region::kState)] = state_.base();
  const bool average = weights == Weights::kAverage;
  LS_CHECK(!average || plan_->spec().ema_decay > 0) << "there are no averaged weights";
  context->base[static_cast<int>(Region::kParameters)] =
      state_.base() + (average ? plan_->average_distance() : 0);
  BindFields(fields, context);
  context->valid_rows = valid * plan_->targets_per_sample();
  context->pool = &pool_;
  LS_RETURN_IF_ERROR(RunOnce(ProgramKind::kEvaluation, weights, *context));
  for (size_t id = 0; id < evaluate_.size(); ++id) {
    if (plan_->evaluate().memory.RunsOnce(static_cast<int>(id))) continue;
    if (cancelled && cancelled()) return absl::AbortedError("the evaluation was cancelled");
    LS_RETURN_IF_ERROR(RunStep(ProgramKind::kEvaluation, evaluate_[id], id, *context));
  }
  return absl::OkStatus();
}

absl::Status PlanExecutor::Evaluate(Fields fields, int64_t valid, EvalSums* sums, Weights weights,
                                    const BlockHooks& hooks) {
  RunContext context;
  LS_RETURN_IF_ERROR(RunBlock(fields, valid, weights, hooks.cancelled, &context));
  const double* out = context.At<double>(eval_sums_);
  *sums = {out[0], static_cast<int64_t>(out[1]), static_cast<int64_t>(out[2]),
           static_cast<int64_t>(out[3])};
  return absl::OkStatus();
}

absl::StatusOr<std::string> PlanExecutor::DeviceHash(float* gradients) {
  LS_CHECK_EQ(committed_step(), 0) << "the weights are not the initial ones";
  LS_ASSIGN_OR_RETURN(const MadeBatch batch, MadeBatch::Make(plan_->spec()));
  std::fill(std::begin(scalars_.address), std::end(scalars_.address), 0);
  const double scale = plan_->scales_loss() ? plan_->spec().loss_scale.init : 1;
  scalars_.loss_seed = static_cast<float>(scale / static_cast<double>(plan_->nominal_targets()));
  RunContext context;
  context.base[static_cast<int>(Region::kArena)] = arena_;
  context.base[static_cast<int>(Region::kState)] = state_.base();
  context.base[static_cast<int>(Region::kParameters)] = state_.base();
  BindFields(batch.fields(), &context);
  context.base[static_cast<int>(Region::kGradients)] = reinterpret_cast<std::byte*>(gradients);
  context.base[static_cast<int>(Region::kScalars)] = reinterpret_cast<std::byte*>(&scalars_);
  context.pool = &pool_;
  LS_RETURN_IF_ERROR(RunSteps(context, 0, {}));
  return HashOfGradients(gradients, plan_->gradient_count());
}

}  // namespace lockstep::engine
