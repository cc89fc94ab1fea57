// SPDX-License-Identifier: Apache-2.0
#include "engine/cuda/executor.h"

#include <algorithm>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/check.h"
#include "common/log.h"
#include "common/status.h"
#include "engine/cuda/cudnn.h"
#include "engine/cuda/cudnn_attention.h"
#include "engine/cuda/device_bytes.h"
#include "engine/cuda/module.h"
#include "engine/cuda/tuning.h"
#include "engine/cuda/warpgroup_check.h"
#include "engine/exec/batches.h"
#include "engine/graph/op.h"
#include "engine/ops/ops.h"

namespace lockstep::engine {
namespace {

// What the driver itself takes of a device that is used.
constexpr size_t kReserve = size_t{256} << 20;

std::string Mebibytes(size_t bytes) { return absl::StrCat((bytes + (1 << 20) - 1) >> 20, " MiB"); }

// What lessens the need of a plan: what it does not do yet.
std::vector<std::string> AdviceFor(const CompiledPlan& plan) {
  const TrainSpec& spec = plan.spec();
  std::vector<std::string> advice;
  const size_t evaluation = plan.program(ProgramKind::kEvaluation).memory.arena_bytes;
  if (spec.inference) {
    if (spec.eval_block > 1) {
      advice.push_back("lower eval_block in the model's config.json, which is the samples at once");
    }
    advice.push_back("take a GPU with more memory");
    return advice;
  }
  if (spec.evaluates && spec.eval_block > 1 &&
      evaluation > plan.program(ProgramKind::kTraining).memory.arena_bytes) {
    advice.push_back(absl::StrCat("lower train.eval.block from ", spec.eval_block,
                                  " (an evaluation takes ", Mebibytes(evaluation), ")"));
  }
  if (spec.micro_batch > 1) {
    advice.insert(advice.end(), {"lower train.global_batch", "raise train.accumulate"});
  }
  if (spec.recompute.mode == RecomputeSpec::Mode::kNone ||
      spec.recompute.mode == RecomputeSpec::Mode::kSelective) {
    advice.push_back("set train.recompute to blocks");
  }
  if (spec.precision == "fp32" || spec.precision == "tf32") {
    advice.push_back("set train.precision bf16");
  }
  const bool moments =
      std::any_of(plan.state().begin(), plan.state().end(),
                  [](const StateEntry& entry) { return entry.role == StateEntry::Role::kMoment; });
  if (moments && !spec.offload_moments && !std::holds_alternative<MuonSpec>(spec.optimizer)) {
    advice.push_back("set resources.offload_optimizer: true");
  }
  if (plan.keeps_constants()) advice.push_back("set train.passes.keep_constants: false");
  const std::vector<Node>& nodes = plan.train().graph.nodes();
  const bool leaves_bits = std::any_of(nodes.begin(), nodes.end(), [](const Node& node) {
    return node.attrs.Int(ops::kKeepsDropoutAttr) != 0;
  });
  if (leaves_bits) advice.push_back("set train.passes.keep_dropout: false");
  if (advice.empty()) advice.push_back("take a smaller model, or a GPU with more memory");
  return advice;
}

}  // namespace

absl::StatusOr<std::string> DescribeGpu(int index) {
  LS_ASSIGN_OR_RETURN(const std::unique_ptr<cuda::Device> device, cuda::Device::Open(index));
  return cuda::DescribeProperties(device->tables(), device->properties());
}

absl::StatusOr<std::unique_ptr<Executor>> CudaExecutor::Create(
    std::shared_ptr<const CompiledPlan> plan, const Memory& memory) {
  if (memory.state == nullptr || reinterpret_cast<uintptr_t>(memory.state) % 64 != 0) {
    return absl::InvalidArgumentError("the executor's state must be 64-byte aligned memory");
  }
  LS_ASSIGN_OR_RETURN(std::unique_ptr<cuda::Device> device, cuda::Device::Open(memory.gpu));
  std::unique_ptr<CudaExecutor> executor(
      new CudaExecutor(std::move(plan), memory, std::move(device)));
  LS_RETURN_IF_ERROR(executor->CheckRoom(memory.gpu_limit));
  LS_RETURN_IF_ERROR(executor->AllocateAll());
  LS_RETURN_IF_ERROR(executor->Prepare(memory));
  for (float* buffer : memory.gradient_buffers) {
    executor->device_->Pin(buffer,
                           static_cast<size_t>(executor->plan_->gradient_count()) * sizeof(float));
  }
  return executor;
}

CudaExecutor::CudaExecutor(std::shared_ptr<const CompiledPlan> plan, const Memory& memory,
                           std::unique_ptr<cuda::Device> device)
    : plan_(std::move(plan)),
      moment_bytes_(memory.moment_bytes),
      device_(std::move(device)),
      state_(memory.state, plan_->state_bytes()),
      host_updater_(plan_.get(), &state_, nullptr) {
  device_state_.moments = CudaMoments::RangeOf(*plan_);
  // Floats are the device's; counters stay with the host. Moments go their own way.
  for (const StateEntry& entry : plan_->state()) {
    const bool counter =
        entry.type == StateEntry::Type::kInt64 || entry.type == StateEntry::Type::kFloat64;
    if (counter || entry.role == StateEntry::Role::kMoment) continue;
    const size_t end = entry.offset + entry.bytes;
    if (!device_owned_.empty() && entry.offset - device_owned_.back().second < 64) {
      device_owned_.back().second = end;
    } else {
      device_owned_.emplace_back(entry.offset, end);
    }
  }
}

CudaExecutor::~CudaExecutor() {
  // Nothing of the host's memory is read or written any more.
  device_->Wait(device_->compute()).IgnoreError();
  device_->Wait(device_->copies()).IgnoreError();
}

absl::Status CudaExecutor::CheckRoom(size_t limit) const {
  size_t free_bytes = 0, total_bytes = 0;
  LS_RETURN_IF_ERROR(
      device_->Check(device_->runtime().memory(&free_bytes, &total_bytes), "the GPU's memory"));
  const size_t usable = free_bytes > kReserve ? free_bytes - kReserve : 0;
  const bool capped = limit > 0 && limit < usable;
  const size_t room = capped ? limit : usable;
  if (plan_->device_bytes(moment_bytes_) <= room) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "the plan needs ", Mebibytes(plan_->device_bytes(moment_bytes_)),
      " of the GPU's memory (state ", Mebibytes(DeviceStateBytes(*plan_, moment_bytes_)),
      ", activations ", Mebibytes(plan_->arena_bytes()), "), but ", Mebibytes(room),
      capped ? absl::StrCat(" are allowed by resources.gpu_memory")
             : absl::StrCat(" of ", Mebibytes(total_bytes), " are free"),
      "; what would help: ", absl::StrJoin(AdviceFor(*plan_), "; ")));
}

absl::Status CudaExecutor::AllocateAll() {
  const size_t state_bytes = plan_->state_bytes() - device_state_.Gone(plan_->state_bytes());
  LS_ASSIGN_OR_RETURN(device_state_.base, device_->Allocate(state_bytes, "the state"));
  LS_ASSIGN_OR_RETURN(arena_, device_->Allocate(plan_->arena_bytes(), "activations"));
  const size_t gradient_bytes = static_cast<size_t>(plan_->gradient_count()) * sizeof(float);
  LS_ASSIGN_OR_RETURN(std::byte * gradients, device_->Allocate(gradient_bytes, "gradients"));
  gradients_ = reinterpret_cast<float*>(gradients);
  LS_ASSIGN_OR_RETURN(workspace_, device_->Allocate(kCudaWorkspaceBytes, "matrix products"));
  for (Slot& slot : slots_) {
    const size_t bytes = StagedBatchBytes(*plan_);
    const size_t all = bytes + StagedBytes(sizeof(DeviceScalars));
    LS_ASSIGN_OR_RETURN(slot.host, device_->AllocatePinned(all, "batches"));
    LS_ASSIGN_OR_RETURN(slot.device, device_->Allocate(all, "batches"));
    slot.host_scalars = reinterpret_cast<DeviceScalars*>(slot.host + bytes);
    slot.scalars = reinterpret_cast<DeviceScalars*>(slot.device + bytes);
    LS_ASSIGN_OR_RETURN(slot.copied, device_->MakeEvent());
    LS_ASSIGN_OR_RETURN(slot.used, device_->MakeEvent());
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<cuda::CudnnTuning>> CudaExecutor::OpenCudnnTuning(
    CudnnUse use, cuda::ProductTuning* tuning) {
  const auto has = [this](const OpDef& op) {
    const auto within = [&op](const Program& program) {
      const std::vector<Node>& nodes = program.graph.nodes();
      return std::any_of(nodes.begin(), nodes.end(),
                         [&op](const Node& node) { return node.op == &op; });
    };
    return within(plan_->program(ProgramKind::kTraining)) ||
           (plan_->spec().evaluates && within(plan_->program(ProgramKind::kEvaluation)));
  };
  const bool attends = has(ops::kAttention);
  if (use == CudnnUse::kNever || (!attends && !has(ops::kConv2d))) return nullptr;
  absl::StatusOr<std::shared_ptr<const cuda::Cudnn>> cudnn =
      tuning == nullptr ? absl::FailedPreconditionError(
                              "nothing is measured without resources.matmul: measured, "
                              "which auto is on one node")
                        : cuda::Cudnn::Open(*device_);
  if (!cudnn.ok()) {
    if (use == CudnnUse::kAlways) return Annotate(cudnn.status(), "resources.cudnn is always");
    LS_LOG_INFO << "convolutions and attention are done without cuDNN: "
                << cudnn.status().message();
    return nullptr;
  }
  if (attends && (*cudnn)->version() < cuda::kCudnnForAttention) {
    LS_LOG_INFO << "attention is done without cuDNN: " << (*cudnn)->name() << " is older than 9.18";
  }
  return cuda::CudnnTuning::Open(device_.get(), *std::move(cudnn), tuning,
                                 ContextFor(slots_[0], Weights::kCurrent));
}

absl::Status CudaExecutor::Prepare(const Memory& memory) {
  const TrainSpec& spec = plan_->spec();
  CudaTarget target{&device_->tables(), spec.precision == "tf32"};
  const cuda::DeviceProperties& gpu = device_->properties();
  target.fp8 = 10 * gpu.compute_major + gpu.compute_minor >= 89;
  LS_ASSIGN_OR_RETURN(warpgroups_, cuda::UsesWarpgroups(*plan_, device_.get(), workspace_));
  target.warpgroups = warpgroups_;
  target.engines = &engines_;
  std::unique_ptr<cuda::ProductTuning> tuning;
  if (!memory.tuning_files.empty()) {
    LS_ASSIGN_OR_RETURN(tuning,
                        cuda::ProductTuning::Open(device_.get(), memory.tuning_files,
                                                  {arena_, plan_->arena_bytes(), workspace_,
                                                   ContextFor(slots_[0], Weights::kCurrent)}));
    target.tuning = tuning.get();
  }
  size_t free_bytes = 0, total_bytes = 0;
  LS_RETURN_IF_ERROR(
      device_->Check(device_->runtime().memory(&free_bytes, &total_bytes), "the GPU's memory"));
  LS_ASSIGN_OR_RETURN(const std::unique_ptr<cuda::CudnnTuning> cudnn,
                      OpenCudnnTuning(memory.cudnn, tuning.get()));
  target.cudnn = cudnn.get();
  const GradientLayout& layout = plan_->layout();
  std::vector<int> ends;
  if (!spec.inference) gaps_ = GapsOf(layout);
  // Nobody waits for the buckets of a job's only shard.
  if (!spec.inference && !(spec.shards == 1 && spec.passes.step_graph)) {
    ends.assign(layout.bucket_node.begin(), layout.bucket_node.end());
    std::sort(ends.begin(), ends.end());
  }
  for (const ProgramKind kind :
       {ProgramKind::kTraining, ProgramKind::kEvaluation, ProgramKind::kDecode}) {
    CudaTarget own = target;
    if (kind == ProgramKind::kEvaluation && !spec.evaluates) {
      // It is never run, and there is no memory to measure its kernels on.
      own.tuning = nullptr;
      own.cudnn = nullptr;
      own.engines = nullptr;
    }
    LS_ASSIGN_OR_RETURN(
        CudaProgramRunner made,
        CudaProgramRunner::Make(&plan_->program(kind), own, device_.get(),
                                kind == ProgramKind::kTraining ? ends : std::vector<int>{}));
    runners_.push_back(std::move(made));
  }
  const auto count = [&](const std::map<std::string, int>& chosen) {
    for (const auto& entry : chosen) engines_[entry.first] += entry.second;
  };
  if (tuning != nullptr) {
    tuning->Finish();
    count(tuning->chosen());
  }
  if (cudnn != nullptr) {
    count(cudnn->chosen());
    size_t left = 0;
    LS_RETURN_IF_ERROR(
        device_->Check(device_->runtime().memory(&left, &total_bytes), "the GPU's memory"));
    LS_LOG_INFO << "cuDNN and the kernels that were loaded meanwhile take "
                << Mebibytes(free_bytes > left ? free_bytes - left : 0) << " of the GPU's memory";
  }
  ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
  segment_buckets_.resize(static_cast<size_t>(runner(ProgramKind::kTraining).segments()));
  for (size_t b = 0; b < layout.buckets.size(); ++b) {
    const auto at = std::lower_bound(ends.begin(), ends.end(), layout.bucket_node[b]);
    segment_buckets_[static_cast<size_t>(at - ends.begin())].push_back(static_cast<int>(b));
  }
  bucket_made_.resize(segment_buckets_.size());
  bucket_brought_.resize(layout.buckets.size());
  for (std::vector<cuda::Event>* events : {&bucket_made_, &bucket_brought_}) {
    for (cuda::Event& event : *events) {
      LS_ASSIGN_OR_RETURN(event, device_->MakeEvent());
    }
  }
  LS_RETURN_IF_ERROR(clock_.Start(device_.get()));
  CudaUpdater::Places places{device_state_, gradients_, arena_, workspace_};
  LS_ASSIGN_OR_RETURN(updater_, CudaUpdater::Make(plan_.get(), &state_, device_.get(), places,
                                                  moment_bytes_, &clock_));
  const Value sums = plan_->evaluate().graph.outputs()[0].second;
  eval_sums_ =
      plan_->evaluate().memory.operands[static_cast<size_t>(sums.node)].outputs[static_cast<size_t>(
          sums.output)];
  return absl::OkStatus();
}

// ---- running ----

CudaExecutor::DeviceScalars CudaExecutor::ScalarsAt(int64_t step, int shard, int micro,
                                                    double loss_scale) const {
  DeviceScalars made;
  made.scalars.loss_seed =
      static_cast<float>(loss_scale / static_cast<double>(plan_->nominal_targets()));
  made.scalars.address[0] = static_cast<int32_t>(step);
  made.scalars.address[1] = static_cast<int32_t>(step >> 32);
  made.scalars.address[2] = shard;
  made.scalars.address[3] = micro;
  return made;
}

CudaContext CudaExecutor::ContextFor(const Slot& slot, Weights weights) const {
  CudaContext context;
  const auto bind = [&](Region region, const void* base) {
    context.base[static_cast<int>(region)] =
        const_cast<std::byte*>(static_cast<const std::byte*>(base));
  };
  bind(Region::kArena, arena_);
  bind(Region::kKept, arena_ + plan_->kept_offset());
  // Parameters and statistics lie before the moments, averages behind them.
  bind(Region::kState, device_state_.base);
  const size_t distance = weights == Weights::kAverage ? plan_->average_distance() : 0;
  bind(Region::kParameters, device_state_.base + (distance - device_state_.Gone(distance)));
  bind(Region::kGradients, gradients_);
  bind(Region::kScalars, slot.scalars);
  const TrainSpec& spec = plan_->spec();
  const int64_t room = spec.most_samples();
  size_t at = 0;
  for (size_t f = 0; f < spec.input.fields.size(); ++f) {
    bind(FieldRegion(f), slot.device + at);
    at +=
        StagedBytes(static_cast<size_t>(room) * static_cast<size_t>(spec.input.fields[f].bytes()));
  }
  context.stream = device_->compute();
  context.workspace = workspace_;
  return context;
}

absl::Status CudaExecutor::Launch(ProgramKind kind, int slot, int variant,
                                  const CudaContext& context) {
  const auto constants = std::exchange(constants_, std::nullopt);  // not there after an error
  if (observer_ != nullptr) {
    LS_RETURN_IF_ERROR(RunObserved(kind, context));
  } else {
    CudaProgramRunner& own = runner(kind);
    for (int segment = 0; segment < own.segments(); ++segment) {
      // What is done once comes before a program's first segment.
      const int once = segment == 0 && context.once ? 2 : 0;
      LS_RETURN_IF_ERROR(own.RunSegment(segment, 4 * variant + once + slot, context));
      if (kind != ProgramKind::kTraining) continue;
      LS_RETURN_IF_ERROR(
          device_->Check(device_->runtime().record_event(bucket_made_[static_cast<size_t>(segment)],
                                                         device_->compute()),
                         "a bucket"));
    }
  }
  constants_ = constants;
  return device_->Check(device_->runtime().record_event(slots_[slot].used, device_->compute()),
                        "a batch");
}

absl::Status CudaExecutor::LaunchTraining(int micro, Fields fields, int64_t step, int shard,
                                          double loss_scale, bool joins) {
  LS_ASSIGN_OR_RETURN(const int slot,
                      Stage(fields, plan_->spec().micro_batch,
                            ScalarsAt(step, shard, micro, loss_scale), Ahead{step, shard, micro}));
  CudaContext context = ContextFor(slots_[slot], Weights::kCurrent);
  context.accumulate = micro > 0;
  if (step != timed_step_) clock_.Pass(StepClock::kProgramsBegin);
  timed_step_ = step;
  resident_step_ = -1;
  if (micro == 0) {
    for (const auto& [begin, end] : gaps_) {
      LS_RETURN_IF_ERROR(
          device_->Check(device_->runtime().clear(gradients_ + begin,
                                                  static_cast<size_t>(end - begin) * sizeof(float),
                                                  device_->compute()),
                         "the gradients' gaps"));
    }
  }
  context.once = MakesOnce(ProgramKind::kTraining, Weights::kCurrent);
  pending_ = Pending{step, micro, slot, context};
  return joins && !context.once ? absl::OkStatus() : LaunchPending();
}

absl::Status CudaExecutor::LaunchPending() {
  if (!pending_.has_value()) return absl::OkStatus();
  const Pending next = *std::exchange(pending_, std::nullopt);
  later_.reset();  // who asks for it brings it
  absl::Status launched =
      Launch(ProgramKind::kTraining, next.slot, next.micro > 0 ? 1 : 0, next.context);
  clock_.Pass(StepClock::kProgramsEnd);
  if (!launched.ok()) resident_step_ = -1;
  return launched;
}

bool CudaExecutor::JoinsUpdate(const Hooks& hooks) const {
  const TrainSpec& spec = plan_->spec();
  return spec.shards == 1 && spec.passes.step_graph && spec.passes.whole_step_graph &&
         !spec.offload_moments && observer_ == nullptr && hooks.before_gradients != nullptr &&
         !hooks.bucket_ready;
}

absl::Status CudaExecutor::RunShard(int64_t step, int shard, int micro, Fields fields,
                                    float* gradients, const Hooks& hooks) {
  LS_RETURN_IF_ERROR(failed_);
  const TrainSpec& spec = plan_->spec();
  LS_CHECK(!spec.inference) << "an inference plan has no training step";
  LS_CHECK(shard >= 0 && shard < spec.shards) << shard;
  LS_CHECK(micro >= 0 && micro < spec.accumulate) << micro;
  LS_RETURN_IF_ERROR(CheckIntegers(spec, fields, spec.micro_batch));
  if (hooks.cancelled && hooks.cancelled()) {
    return absl::AbortedError("the micro-batch was cancelled");
  }
  const bool last = micro + 1 == spec.accumulate;
  const Slot& slot = slots_[next_slot_];
  LS_RETURN_IF_ERROR(LaunchTraining(micro, fields, step, shard, updater_->loss_scale(),
                                    last && JoinsUpdate(hooks)));
  if (!last) return EndStage(slot);
  // The host's gradients are written from here on; the device goes on meanwhile.
  absl::Status status;
  if (hooks.before_gradients) status = hooks.before_gradients();
  if (status.ok()) status = BringGradients(gradients, hooks);
  status.Update(EndStage(slot));
  if (status.ok() && spec.shards == 1) resident_step_ = step;
  return status;
}

absl::Status CudaExecutor::BringGradients(float* gradients, const Hooks& hooks) {
  const bool stays = plan_->spec().shards == 1 && hooks.before_gradients != nullptr;
  if (stays && !hooks.bucket_ready) return absl::OkStatus();
  const std::vector<Bucket>& buckets = plan_->buckets();
  const cuda::Runtime& runtime = device_->runtime();
  absl::Status status;
  for (size_t segment = 0; segment < segment_buckets_.size() && status.ok(); ++segment) {
    if (stays || segment_buckets_[segment].empty()) continue;
    status =
        device_->Check(runtime.stream_waits(device_->copies(), bucket_made_[segment]), "a bucket");
    for (const int number : segment_buckets_[segment]) {
      const Bucket& bucket = buckets[static_cast<size_t>(number)];
      if (status.ok()) {
        status = device_->Copy(gradients + bucket.begin, gradients_ + bucket.begin,
                               static_cast<size_t>(bucket.end - bucket.begin) * sizeof(float),
                               device_->copies());
      }
      if (status.ok()) {
        status = device_->Check(
            runtime.record_event(bucket_brought_[static_cast<size_t>(number)], device_->copies()),
            "a bucket");
      }
    }
  }
  for (size_t segment = 0; segment < segment_buckets_.size() && status.ok(); ++segment) {
    for (const int number : segment_buckets_[segment]) {
      const cuda::Event ready =
          stays ? bucket_made_[segment] : bucket_brought_[static_cast<size_t>(number)];
      status = device_->WaitFor(ready, hooks.cancelled);
      if (status.ok() && hooks.bucket_ready) status = hooks.bucket_ready(number);
      if (!status.ok()) break;
    }
  }
  // No copy writes the host's memory after this call.
  if (!status.ok()) status.Update(device_->Wait(device_->copies()));
  return status;
}

}  // namespace lockstep::engine
