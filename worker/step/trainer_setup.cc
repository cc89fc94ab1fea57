// SPDX-License-Identifier: Apache-2.0
// What a trainer is made of: its memory reserved, its parts put together.
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <utility>

#include "common/available_cpus.h"
#include "common/log.h"
#include "common/round_up.h"
#include "common/status.h"
#include "worker/checkpoint/checkpoint_layout.h"
#include "worker/setup/job_plan.h"
#include "worker/setup/memory_need.h"
#include "worker/setup/tuning_files.h"
#include "worker/state/replicated_state.h"
#include "worker/state/sharded_state.h"
#include "worker/step/trainer.h"

namespace lockstep::worker {
namespace {

// Room for alignment of each allocation in the transport's arena.
constexpr size_t kPage = 4096;

// Null without memory. Rows of activations are a page or more apart, so that products read more
// pages at a time than the processor keeps addresses of, unless pages are large.
void* AllocateArena(size_t bytes) {
  constexpr size_t kLargePage = size_t{2} << 20;
  const size_t page = bytes < kLargePage ? kPage : kLargePage;
  const size_t whole = std::max(RoundUp(bytes, page), page);
  void* const memory = std::aligned_alloc(page, whole);
  if (memory != nullptr && page == kLargePage) {
    ::madvise(memory, whole, MADV_HUGEPAGE);  // a wish: not every kernel has it
  }
  return memory;
}

}  // namespace

Trainer::Trainer(const CompiledJob& compiled, const Parts& parts)
    : compiled_(compiled),
      data_(parts.data),
      board_(parts.board),
      link_(parts.link),
      clock_(parts.clock),
      watch_(parts.board),
      arena_(nullptr, std::free) {}

absl::StatusOr<std::unique_ptr<Trainer>> Trainer::Create(const CompiledJob& compiled,
                                                         const Parts& parts) {
  std::unique_ptr<Trainer> trainer(new Trainer(compiled, parts));
  LS_RETURN_IF_ERROR(trainer->Reserve(parts.transport));
  trainer->executor_->InitState();
  parts.board->total_steps = compiled.total_steps;
  parts.board->total_epochs = compiled.sampler->EpochsAfter(compiled.total_steps);
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
  memory.moves = &board_->moves;
  if (plan.spec().device == engine::DeviceKind::kCuda) {
    LS_ASSIGN_OR_RETURN(memory.gpu_limit, PlanLimit(compiled_.job, compiled_.need.gpu));
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
  LS_RETURN_IF_ERROR(MakePolicy(transport, buffers[0]));
  if (CompressesGradients(compiled_.job)) rounded_ = plan.TailBegin();
  sums_ = std::make_unique<PartialSums>(shards, vector_->count(), std::move(buffers),
                                        vector_->memory(), rounded_);
  parts_ = ReductionParts(plan.buckets());
  data::Loader::Options options;
  // A thread of its own pays only where a core is left for it. It changes no number.
  const Resources& resources = compiled_.job.resources();
  const int cores = std::max(1, resources.nproc_per_node()) * plan.spec().threads;
  options.threads = cores < AvailableCpus() ? 1 : 0;
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
  locked_batches_.emplace(executor_.get(), loader_->memory().data(), loader_->memory().size());
  if (data_->test != nullptr) {
    LS_ASSIGN_OR_RETURN(
        evaluator_, Evaluator::Create(data_->test.get(), executor_.get(), plan.spec().eval_block,
                                      board_, clock_, plan.spec().ema_decay > 0));
  }
  return absl::OkStatus();
}

absl::Status Trainer::ReserveState(Transport* transport) {
  const engine::Plan& plan = *compiled_.plan;
  constexpr const char* kWhat = "the training state";
  if (!plan.spec().shard_moments) {
    LS_ASSIGN_OR_RETURN(state_, transport->Allocate(RoundUp(plan.state_bytes(), kPage), kWhat));
    return absl::OkStatus();
  }
  LS_ASSIGN_OR_RETURN(state_, transport->ReservePages(RoundUp(plan.state_bytes(), kPage), kWhat));
  return ShardedState::HoldShared(plan, transport, static_cast<char*>(state_));
}

absl::Status Trainer::MakePolicy(Transport* transport, float* gradients) {
  if (!compiled_.plan->spec().shard_moments) {
    policy_ = std::make_unique<ReplicatedState>(compiled_.plan.get(), executor_.get(),
                                                static_cast<char*>(state_));
    return absl::OkStatus();
  }
  ShardedState::Parts parts;
  parts.plan = compiled_.plan.get();
  parts.executor = executor_.get();
  parts.halves = executor_.get();
  parts.transport = transport;
  parts.state = static_cast<char*>(state_);
  parts.gradients = gradients;
  parts.vector_count = compiled_.vector_count;
  if (transport->spans_hosts()) {
    parts.apart = true;
    parts.spread = executor_->spread_update();
    parts.copies = [this](int world) {
      return checkpointer_ == nullptr ? std::vector<std::vector<engine::StateRange>>()
                                      : CheckpointLayout::Copies(*compiled_.plan, world);
    };
  } else if (vector_->memory()->on_host()) {
    LS_ASSIGN_OR_RETURN(
        void* spill,
        transport->ReservePages(ShardedState::SpillBytes(compiled_.vector_count), "new weights"));
    parts.spill = static_cast<float*>(spill);
  } else {
    LS_ASSIGN_OR_RETURN(void* sums,
                        transport->Allocate(compiled_.plan->SumBlocks().size() * sizeof(double),
                                            "the gradients' sums"));
    parts.sums = static_cast<double*>(sums);
    parts.spread = executor_->spread_update();
  }
  parts.shards = OptimizerShards(MostWorkers(compiled_.job));
  policy_ = std::make_unique<ShardedState>(parts);
  return absl::OkStatus();
}

absl::Status Trainer::MakeObservers() {
  const Profile& profile = compiled_.job.profile();
  const Debug& debug = compiled_.job.debug();
  if (!profile.steps().empty()) {
    LS_ASSIGN_OR_RETURN(const StepRange range, StepRange::Parse(profile.steps()));
    profiler_ = std::make_unique<StepProfiler>(compiled_.plan.get(), range);
    watch_.SetProfiler(profiler_.get());
  }
  if (debug.interpret() || !debug.dump_tensors().empty()) {
    LS_ASSIGN_OR_RETURN(const StepRange range,
                        StepRange::Parse(debug.steps().empty() ? "1:1" : debug.steps()));
    interpreter_ = std::make_unique<Interpreter>(compiled_.plan.get(), debug.dump_tensors(), range);
    for (const engine::StateEntry& entry : compiled_.plan->state()) {
      if (entry.name != "loss_scale") continue;
      loss_scale_ = reinterpret_cast<const double*>(static_cast<char*>(state_) + entry.offset);
    }
  }
  return absl::OkStatus();
}

}  // namespace lockstep::worker
