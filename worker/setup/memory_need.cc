// SPDX-License-Identifier: Apache-2.0
#include "worker/setup/memory_need.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "collectives/nccl/nccl_memory.h"
#include "collectives/shards.h"
#include "common/status.h"
#include "job/meaning/workers.h"
#include "worker/checkpoint/checkpointer.h"
#include "worker/setup/block_reader.h"
#include "worker/setup/job_plan.h"
#include "worker/state/host_deal.h"
#include "worker/state/sharded_state.h"
#include "worker/text/bytes_text.h"

namespace lockstep::worker {
namespace {

constexpr int kDefaultPrefetch = 4;
constexpr int kLeastPrefetch = 2;
// Batches that the loader holds besides those that are prepared.
constexpr int kHeldBatches = 2;

int PreparedBatches(const Train& train) {
  const int given = train.data().loader().prefetch();
  return std::max(kLeastPrefetch, given > 0 ? given : kDefaultPrefetch);
}

size_t SampleBytes(const engine::Plan& plan) {
  size_t bytes = 0;
  for (const FieldSpec& field : plan.spec().input.fields) bytes += field.bytes();
  return bytes;
}

// The part of the arena that is workspace, at the node where the arena is fullest.
size_t Workspace(const engine::Plan& plan) {
  size_t fullest = 0, workspace = 0;
  for (const auto kind : {engine::ProgramKind::kTraining, engine::ProgramKind::kEvaluation}) {
    if (kind == engine::ProgramKind::kEvaluation && !plan.spec().evaluates) continue;
    for (const engine::NodeInfo& node : plan.Nodes(kind)) {
      if (node.live_bytes <= fullest) continue;
      fullest = node.live_bytes;
      workspace = node.scratch_bytes;
    }
  }
  return std::min(workspace, plan.arena_bytes());
}

size_t MomentBytes(const engine::Plan& plan) {
  size_t bytes = 0;
  for (const engine::StateEntry& entry : plan.state()) {
    if (entry.role == engine::StateEntry::Role::kMoment) bytes += entry.bytes;
  }
  return bytes;
}

// Returns what a worker saves that has the largest share of the moments which it may come to have.
size_t MomentsLeftOut(const JobSpec& job, const engine::Plan& plan, int64_t vector_count,
                      GradientPlace place) {
  const int least = LeastWorkers(job);
  if (least < 3) return 0;
  const size_t moments = MomentBytes(plan);
  const auto shards = static_cast<size_t>(OptimizerShards(MostWorkers(job)));
  const size_t held = moments / shards * static_cast<size_t>(MostHeldParts(job));
  const size_t spill = place == GradientPlace::kHost ? ShardedState::SpillBytes(vector_count) : 0;
  return moments > held + spill ? moments - held - spill : 0;
}

// Returns whether statistics of micro-batches take part in the training: those of batch
// normalisations.
bool HasBatchStatistics(const engine::Plan& plan) {
  return std::any_of(plan.state().begin(), plan.state().end(), [](const auto& entry) {
    return entry.role == engine::StateEntry::Role::kStatistic;
  });
}

using Advice = std::vector<std::string>;

std::string Text(size_t bytes) { return BytesText(static_cast<double>(bytes)); }

// Bytes of one kind of memory: `all` that the job needs of it, `training` what it needs without
// evaluations, and what it may use.
struct Bounded {
  size_t all = 0;
  size_t training = 0;
  size_t limit = 0;
};

// Adds what lessens an evaluation's part, where the job fits without it or it is much of the need.
// Returns whether training too needs more than there is, or nothing was added.
bool AdviseEvaluation(const engine::Plan& plan, const Bounded& bytes, Advice* advice) {
  const engine::TrainSpec& spec = plan.spec();
  const size_t more = bytes.all - std::min(bytes.training, bytes.all);
  const bool training_fits = bytes.training <= bytes.limit;
  if (!spec.evaluates || spec.eval_block <= 1 || more == 0) return true;
  if (!training_fits && more <= bytes.all / 8) return true;
  advice->push_back(absl::StrCat("lower train.eval.block from ", spec.eval_block, " (evaluating ",
                                 spec.eval_block, " samples at once takes ", Text(more),
                                 " more than training, which takes ", spec.micro_batch,
                                 " at once)"));
  return !training_fits;
}

// Samples of a shard in a step, and how many micro-batches they are trained in.
int64_t OfShard(const Train& train) {
  return train.shards() > 0 ? train.global_batch() / train.shards() : 0;
}
int64_t AccumulateOf(const Train& train) { return std::max(1, train.accumulate()); }

void AdviseSmallerMicroBatches(const Train& train, const engine::Plan& plan, Advice* advice) {
  const int64_t of_shard = OfShard(train), accumulate = AccumulateOf(train);
  if (of_shard / accumulate <= 1) return;
  int64_t more = accumulate + 1;
  while (more < of_shard && of_shard % more != 0) ++more;
  advice->push_back(absl::StrCat(
      "raise train.accumulate from ", accumulate, " to ", more, " or more (smaller micro-batches",
      HasBatchStatistics(plan)
          ? "; batch normalisation's statistics are of a micro-batch, so it is another training)"
          : ", the same math up to rounding)"));
  advice->push_back("lower train.global_batch");
}

void AdviseFewerActivations(const Train& train, bool on_gpu, Advice* advice) {
  const std::string& recompute = train.recompute();
  if (recompute.empty() || recompute == "none" || recompute == "selective") {
    advice->push_back(absl::StrCat("set train.recompute to auto (",
                                   on_gpu ? "" : "the same bits in ", "less memory)"));
  }
  const std::string& precision = train.precision();
  if (precision.empty() || precision == "fp32" || precision == "tf32") {
    advice->push_back("set train.precision to bf16 (activations in 16 bits)");
  }
}

absl::Status CheckGpuMemory(const JobSpec& job, const engine::Plan& plan, const GpuNeed& need,
                            const GpuNeed& training) {
  if (FitsGpu(job, need)) return absl::OkStatus();
  const auto limit = static_cast<size_t>(job.resources().gpu_memory());
  Advice advice;
  if (AdviseEvaluation(plan, {need.total(), training.total(), limit}, &advice)) {
    AdviseSmallerMicroBatches(job.train(), plan, &advice);
    AdviseFewerActivations(job.train(), /*on_gpu=*/true, &advice);
    // An update needs some room for those that come to the GPU piece by piece.
    if (!plan.spec().offload_moments && !job.train().optimizer().has_muon() &&
        MomentBytes(plan) > training.total() / 8) {
      advice.push_back("set resources.offload_optimizer: true");
    }
    if (plan.keeps_constants()) advice.push_back("set train.passes.keep_constants: false");
    if (job.train().passes().keep_dropout()) {
      advice.push_back("leave out train.passes.keep_dropout");
    }
  }
  advice.push_back("raise resources.gpu_memory");
  return absl::ResourceExhaustedError(absl::StrCat(
      "each worker needs ", Text(need.total()), " of its GPU's memory (the plan ", Text(need.plan),
      ", gradients that NCCL reduces ", Text(need.vectors), "), but resources.gpu_memory allows ",
      Text(limit), "; what would help: ", absl::StrJoin(advice, "; ")));
}

}  // namespace

int64_t MostStaging(const JobSpec& job, int64_t vector_count) {
  if (job.nccl().order() == "fastest") return 0;
  const int shards = job.train().shards();
  int64_t most = 0;
  for (int world = std::max(1, LeastWorkers(job)); world <= std::min(MostWorkers(job), shards);
       ++world) {
    size_t summands = 0;
    for (int rank = 0; rank < world; ++rank) {
      summands += WholeNodes(shards, DealShards(shards, world, rank)).size();
    }
    most = std::max(most, StagingFloats(summands, world, vector_count, kNcclPiece));
  }
  return most;
}

int MostHeldParts(const JobSpec& job) {
  const int shards = OptimizerShards(MostWorkers(job)), least = LeastWorkers(job);
  const std::vector<int> hosts = job::RanksPerNode(job);
  if (hosts.size() < 2) return MostHeld(shards, least);
  // Of an elastic job one worker may be left alone on its host.
  return least < job::WantedWorkers(job) ? shards : MostHeldOverHosts(shards, hosts);
}

size_t MostHeldMoments(const JobSpec& job, const engine::Plan& plan) {
  const int least = LeastWorkers(job);
  if (least < 3) return 0;
  const int shards = OptimizerShards(MostWorkers(job));
  std::vector<size_t> bytes(static_cast<size_t>(shards), 0);
  for (int shard = 0; shard < shards; ++shard) {
    const ElementRange range = SliceOf(plan.gradient_count(), shards, shard);
    for (const engine::StateRange& moments : plan.MomentsOf(range.begin, range.end)) {
      bytes[static_cast<size_t>(shard)] += (moments.end - moments.begin + 63) / 64 * 64;
    }
  }
  std::sort(bytes.rbegin(), bytes.rend());
  size_t most = 0;
  for (int i = 0; i < MostHeldParts(job); ++i) most += bytes[static_cast<size_t>(i)];
  return most;
}

MemoryNeed MemoryNeedOf(const JobSpec& job, const engine::Plan& plan, int gradient_buffers,
                        int64_t vector_count, GradientPlace place, size_t read_bytes) {
  const Train& train = job.train();
  const engine::TrainSpec& spec = plan.spec();
  MemoryNeed need;
  for (const engine::StateEntry& entry : plan.state()) {
    if (entry.role == engine::StateEntry::Role::kParameter) need.weights += entry.bytes;
  }
  need.optimizer = plan.state_bytes() - need.weights;
  if (spec.shard_moments) need.optimizer -= MomentsLeftOut(job, plan, vector_count, place);
  const auto vectors = static_cast<size_t>(gradient_buffers);
  const size_t vector_bytes = static_cast<size_t>(vector_count) * sizeof(float);
  if (place == GradientPlace::kHost) need.gradients = vectors * vector_bytes;
  if (spec.device == engine::DeviceKind::kCpu) {
    need.workspace = Workspace(plan);
    need.activations = plan.arena_bytes() - need.workspace;
  }
  need.gpu.plan = plan.device_bytes(spec.shard_moments ? MostHeldMoments(job, plan) : 0);
  if (place == GradientPlace::kGpu) {
    need.gpu.vectors =
        NcclMemoryBytes(gradient_buffers, vector_count, MostStaging(job, vector_count));
  }
  const auto batches = static_cast<size_t>(PreparedBatches(train) + kHeldBatches);
  need.data = batches * static_cast<size_t>(spec.micro_batch * spec.accumulate) * SampleBytes(plan);
  const bool on_gpu = spec.device == engine::DeviceKind::kCuda;
  if (spec.evaluates) {
    need.data += static_cast<size_t>(BlockReader::Held(on_gpu)) *
                 static_cast<size_t>(spec.eval_block) * SampleBytes(plan);
  }
  // A batch and the next one where the GPU's copies begin.
  if (on_gpu) {
    need.data += 2 * static_cast<size_t>(spec.most_samples()) * SampleBytes(plan);
  }
  need.read = read_bytes;
  need.data += read_bytes;
  if (job.has_checkpoint()) {
    // Hosts that do not share the folder save all of it each (checkpoint/folder_copies.h).
    const bool whole = job.resources().nodes() > 1 && job.checkpoint().shared() != "always";
    need.checkpoint = Checkpointer::CopyBytes(plan, whole ? 1 : LeastWorkers(job));
  }
  return need;
}

bool FitsGpu(const JobSpec& job, const GpuNeed& need) {
  const int64_t limit = job.resources().gpu_memory();
  return limit <= 0 || need.total() <= static_cast<size_t>(limit);
}

absl::StatusOr<size_t> PlanLimit(const JobSpec& job, const GpuNeed& need) {
  const auto limit = static_cast<size_t>(std::max<int64_t>(0, job.resources().gpu_memory()));
  if (limit == 0) return limit;
  if (need.vectors < limit) return limit - need.vectors;
  return absl::ResourceExhaustedError(absl::StrCat("the gradients alone take ", need.vectors,
                                                   " bytes of the GPU's memory, but ", limit,
                                                   " are allowed by resources.gpu_memory"));
}

bool FitsMemory(const JobSpec& job, const MemoryNeed& need) {
  const int64_t limit = job.resources().memory();
  return limit <= 0 || need.total() <= static_cast<size_t>(limit);
}

absl::Status CheckMemory(const JobSpec& job, const engine::Plan& plan, const MemoryNeed& need,
                         const MemoryNeed& training) {
  LS_RETURN_IF_ERROR(CheckGpuMemory(job, plan, need.gpu, training.gpu));
  if (FitsMemory(job, need)) return absl::OkStatus();
  const auto limit = static_cast<size_t>(job.resources().memory());
  const size_t fixed = need.weights + need.gradients + need.optimizer + need.checkpoint;
  const size_t much = training.total() / 8;
  const Train& train = job.train();
  Advice advice;
  if (AdviseEvaluation(plan, {need.total(), training.total(), limit}, &advice)) {
    const bool much_data = training.data - training.read > much;
    if (training.activations + training.workspace > much) {
      AdviseSmallerMicroBatches(train, plan, &advice);
    } else if (much_data && OfShard(train) > AccumulateOf(train)) {
      advice.push_back("lower train.global_batch");
    }
    if (training.activations > much) {
      AdviseFewerActivations(train, /*on_gpu=*/false, &advice);
    }
    if (much_data && PreparedBatches(train) > kLeastPrefetch) {
      advice.push_back("lower train.data.loader.prefetch");
    }
    if (training.read > much) {
      advice.push_back(absl::StrCat(
          "give the data as files that are mapped, which take no memory of a worker's own (",
          Text(training.read), " were read): a table as .npy files, text in fewer files"));
    }
  }
  if (fixed > limit) {
    advice.push_back(absl::StrCat("weights, gradients and optimizer state alone take ", Text(fixed),
                                  ": take a smaller model or raise resources.memory"));
  } else {
    advice.push_back("raise resources.memory");
  }
  return absl::ResourceExhaustedError(absl::StrCat(
      "each worker needs ", Text(need.total()), " (weights ", Text(need.weights), ", gradients ",
      Text(need.gradients), ", optimizer ", Text(need.optimizer), ", activations ",
      Text(need.activations), ", workspace ", Text(need.workspace), ", data ", Text(need.data),
      ", checkpoint copy ", Text(need.checkpoint), "), but resources.memory allows ", Text(limit),
      "; what would help: ", absl::StrJoin(advice, "; ")));
}

}  // namespace lockstep::worker
