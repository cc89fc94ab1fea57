// SPDX-License-Identifier: Apache-2.0
// What a trainer is made of: the job compiled, its memory reserved, its parts put together.
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <utility>

#include "collectives/shm/waiter.h"
#include "common/log.h"
#include "common/status.h"
#include "worker/trainer.h"
#include "worker/tuning_files.h"

namespace lockstep::worker {
namespace {

// Room for alignment of each allocation in the transport's arena.
constexpr size_t kPage = 4096;

size_t RoundUp(size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

// Null without memory. Rows of activations are a page or more apart, so that products read more
// pages at a time than the processor keeps addresses of, unless pages are large.
void* AllocateArena(size_t bytes) {
  constexpr size_t kLargePage = size_t{2} << 20;
  const size_t page = bytes < kLargePage ? kPage : kLargePage;
  const size_t whole = std::max((bytes + page - 1) / page * page, page);
  void* const memory = std::aligned_alloc(page, whole);
  if (memory != nullptr && page == kLargePage) {
    ::madvise(memory, whole, MADV_HUGEPAGE);  // a wish: not every kernel has it
  }
  return memory;
}

}  // namespace

absl::StatusOr<JobData> OpenJobData(const JobSpec& job) {
  JobData data;
  LS_ASSIGN_OR_RETURN(const data::Source source, DataSource(job.train()));
  LS_ASSIGN_OR_RETURN(data.train, data::Open(source, data::Split::kTrain, AugmentOf(job.train())));
  if (job.train().eval().every() != "never") {
    LS_ASSIGN_OR_RETURN(data.test, data::Open(source, data::Split::kTest));
  }
  return data;
}

absl::StatusOr<CompiledJob> CompileJob(const JobSpec& job, const data::Dataset& train,
                                       GradientPlace place) {
  CompiledJob compiled;
  compiled.job = job;
  LS_ASSIGN_OR_RETURN(compiled.sampler, MakeSampler(job.train(), train.size()));
  compiled.total_steps = TotalSteps(job.train(), *compiled.sampler);
  LS_ASSIGN_OR_RETURN(compiled.eval_every, job::EvalEvery(job));
  LS_ASSIGN_OR_RETURN(compiled.save_every, job::SaveEvery(job));
  LS_ASSIGN_OR_RETURN(compiled.verify_every, job::VerifyEvery(job));
  LS_ASSIGN_OR_RETURN(engine::TrainSpec spec, EngineSpec(job, train, compiled.total_steps));
  spec.shard_moments = ShardsMoments(job);
  const bool automatic = spec.recompute.mode == engine::RecomputeSpec::Mode::kAuto;
  if (automatic) spec.recompute.mode = engine::RecomputeSpec::Mode::kNone;
  LS_ASSIGN_OR_RETURN(compiled.plan, engine::Plan::Compile(spec));
  const int shards = job.train().shards();
  compiled.vector_count = compiled.plan->gradient_count() + StepHeader::Count(shards);
  compiled.gradient_buffers =
      PartialSums::BuffersForWorstDeal(shards, LeastWorkers(job), MostWorkers(job));
  compiled.arena_bytes = kPage;
  if (place == GradientPlace::kHost) {
    compiled.arena_bytes +=
        compiled.gradient_buffers * RoundUp(compiled.vector_count * sizeof(float));
  }
  (spec.shard_moments ? compiled.loose_bytes : compiled.arena_bytes) +=
      RoundUp(compiled.plan->state_bytes());
  if (spec.shard_moments && place == GradientPlace::kHost) {
    compiled.loose_bytes += RoundUp(ShardedState::SpillBytes(compiled.vector_count));
  } else if (spec.shard_moments) {
    compiled.arena_bytes += RoundUp(compiled.plan->SumBlocks().size() * sizeof(double));
  }
  compiled.need =
      MemoryNeedOf(job, *compiled.plan, compiled.gradient_buffers, compiled.vector_count, place);
  if (automatic) {
    // By the plan alone: what the arena may take is what the rest leaves of the limit.
    const size_t rest = compiled.need.total() - compiled.plan->arena_bytes();
    const auto limit = static_cast<size_t>(job.resources().memory());
    spec.recompute = {engine::RecomputeSpec::Mode::kAuto, limit > rest ? limit - rest : 0};
    LS_ASSIGN_OR_RETURN(compiled.plan, engine::Plan::Compile(spec));
    compiled.need =
        MemoryNeedOf(job, *compiled.plan, compiled.gradient_buffers, compiled.vector_count, place);
  }
  LS_RETURN_IF_ERROR(CheckMemory(job, compiled.need));
  return compiled;
}

Trainer::Trainer(const CompiledJob& compiled, const JobData* data, ProgressBoard* board,
                 ControlLink* link)
    : compiled_{compiled.job,
                std::make_unique<data::DistributedSampler>(*compiled.sampler),
                compiled.plan,
                compiled.total_steps,
                compiled.eval_every,
                compiled.save_every,
                compiled.verify_every,
                compiled.vector_count,
                compiled.gradient_buffers,
                compiled.arena_bytes,
                compiled.loose_bytes,
                compiled.need,
                compiled.tuning_files},
      data_(data),
      board_(board),
      link_(link),
      arena_(nullptr, std::free) {}

absl::StatusOr<std::unique_ptr<Trainer>> Trainer::Create(const CompiledJob& compiled,
                                                         const JobData* data, Transport* transport,
                                                         ProgressBoard* board, ControlLink* link) {
  std::unique_ptr<Trainer> trainer(new Trainer(compiled, data, board, link));
  LS_RETURN_IF_ERROR(trainer->Reserve(transport));
  trainer->executor_->InitState();
  board->total_steps = compiled.total_steps;
  board->total_epochs = compiled.sampler->EpochsAfter(compiled.total_steps);
  return trainer;
}

absl::Status Trainer::Reserve(Transport* transport) {
  const engine::Plan& plan = *compiled_.plan;
  micro_fields_.resize(plan.spec().input.fields.size());
  LS_RETURN_IF_ERROR(ReserveState(transport));
  const int shards = compiled_.job.train().shards();
  vector_ = std::make_unique<StepVector>(shards, plan.gradient_count(), &transport->vectors());
  LS_ASSIGN_OR_RETURN(std::vector<float*> buffers, vector_->Reserve(compiled_.gradient_buffers));
  engine::Memory memory{state_, nullptr};
  if (plan.spec().device == engine::DeviceKind::kCuda) {
    LS_ASSIGN_OR_RETURN(memory.gpu_limit, vector_->GpuLimit(compiled_.job.resources().gpu_memory(),
                                                            compiled_.gradient_buffers));
    if (plan.spec().shard_moments) memory.moment_bytes = MostHeldMoments(compiled_.job, plan);
    if (vector_->memory()->on_host()) memory.gradient_buffers = buffers;
    memory.tuning_files = compiled_.tuning_files;
    memory.cudnn = CudnnUseOf(compiled_.job);
  } else {
    arena_.reset(AllocateArena(plan.arena_bytes()));
    if (arena_ == nullptr) {
      return absl::ResourceExhaustedError("no memory for the plan's activations and workspace");
    }
    memory.arena = arena_.get();
  }
  LS_ASSIGN_OR_RETURN(executor_, engine::Executor::Create(compiled_.plan, memory));
  if (plan.spec().shard_moments) LS_RETURN_IF_ERROR(MakeSharded(transport, buffers[0]));
  sums_ = std::make_unique<PartialSums>(shards, vector_->count(), std::move(buffers),
                                        vector_->memory());
  parts_ = ReductionParts(plan.buckets());
  data::Loader::Options options;
  // A thread of its own pays only where a core is left for it. It changes no number.
  const Resources& resources = compiled_.job.resources();
  const int cores = std::max(1, resources.nproc_per_node()) * plan.spec().threads;
  options.threads = cores < AllowedCpus() ? 1 : 0;
  if (compiled_.job.train().data().loader().threads() > 0) {
    options.threads = compiled_.job.train().data().loader().threads();
  }
  if (compiled_.job.train().data().loader().prefetch() > 0) {
    options.prefetch = std::max(2, compiled_.job.train().data().loader().prefetch());
  }
  options.end_step = compiled_.total_steps;
  LS_RETURN_IF_ERROR(MakeObservers());
  if (profiler_ != nullptr) {
    options.on_made = [this](int thread, int64_t step, int64_t begin, int64_t end) {
      profiler_->RecordBatch(thread, step + 1, begin, end);
    };
  }
  LS_ASSIGN_OR_RETURN(loader_,
                      data::Loader::Create(data_->train.get(), compiled_.sampler.get(), options));
  if (data_->test != nullptr) {
    evaluator_ =
        std::make_unique<Evaluator>(data_->test.get(), executor_.get(), plan.spec().eval_block,
                                    board_, plan.spec().ema_decay > 0);
  }
  return absl::OkStatus();
}

absl::Status Trainer::ReserveState(Transport* transport) {
  const engine::Plan& plan = *compiled_.plan;
  constexpr const char* kWhat = "the training state";
  if (!plan.spec().shard_moments) {
    LS_ASSIGN_OR_RETURN(state_, transport->Allocate(RoundUp(plan.state_bytes()), kWhat));
    return absl::OkStatus();
  }
  LS_ASSIGN_OR_RETURN(state_, transport->AllocateLoose(RoundUp(plan.state_bytes()), kWhat));
  return ShardedState::HoldShared(plan, transport, static_cast<char*>(state_));
}

absl::Status Trainer::MakeSharded(Transport* transport, float* gradients) {
  ShardedState::Parts parts;
  parts.plan = compiled_.plan.get();
  parts.executor = executor_.get();
  parts.transport = transport;
  parts.state = static_cast<char*>(state_);
  parts.gradients = gradients;
  parts.vector_count = compiled_.vector_count;
  if (vector_->memory()->on_host()) {
    LS_ASSIGN_OR_RETURN(
        void* spill,
        transport->AllocateLoose(ShardedState::SpillBytes(compiled_.vector_count), "new weights"));
    parts.spill = static_cast<float*>(spill);
  } else {
    LS_ASSIGN_OR_RETURN(void* sums,
                        transport->Allocate(compiled_.plan->SumBlocks().size() * sizeof(double),
                                            "the gradients' sums"));
    parts.sums = static_cast<double*>(sums);
  }
  parts.shards = OptimizerShards(MostWorkers(compiled_.job));
  sharded_ = std::make_unique<ShardedState>(parts);
  return absl::OkStatus();
}

absl::Status Trainer::MakeObservers() {
  const Profile& profile = compiled_.job.profile();
  const Debug& debug = compiled_.job.debug();
  if (!profile.steps().empty()) {
    LS_ASSIGN_OR_RETURN(const StepRange range, StepRange::Parse(profile.steps()));
    profiler_ = std::make_unique<StepProfiler>(compiled_.plan.get(), range);
  }
  if (debug.interpret() || !debug.dump_tensors().empty()) {
    LS_ASSIGN_OR_RETURN(const StepRange range,
                        StepRange::Parse(debug.steps().empty() ? "1:1" : debug.steps()));
    interpreter_ = std::make_unique<Interpreter>(compiled_.plan.get(), debug.dump_tensors(), range);
    executor_->Observe(interpreter_.get());
  }
  return absl::OkStatus();
}

}  // namespace lockstep::worker
