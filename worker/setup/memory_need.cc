// SPDX-License-Identifier: Apache-2.0
#include "worker/setup/memory_need.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
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
// Batches that the loader holds besides those that are prepared.
constexpr int kHeldBatches = 2;

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

// Returns what a worker saves that has the largest share of the moments which it may come to have.
size_t MomentsLeftOut(const JobSpec& job, const engine::Plan& plan, int64_t vector_count,
                      GradientPlace place) {
  const int least = LeastWorkers(job);
  if (least < 3) return 0;
  size_t moments = 0;
  for (const engine::StateEntry& entry : plan.state()) {
    if (entry.role == engine::StateEntry::Role::kMoment) moments += entry.bytes;
  }
  const auto shards = static_cast<size_t>(OptimizerShards(MostWorkers(job)));
  const size_t held = moments / shards * static_cast<size_t>(MostHeldParts(job));
  const size_t spill = place == GradientPlace::kHost ? ShardedState::SpillBytes(vector_count) : 0;
  return moments > held + spill ? moments - held - spill : 0;
}

absl::Status CheckGpuMemory(const JobSpec& job, const engine::Plan& plan, const GpuNeed& need) {
  if (FitsGpu(job, need)) return absl::OkStatus();
  const auto text = [](size_t bytes) { return BytesText(static_cast<double>(bytes)); };
  return absl::ResourceExhaustedError(absl::StrCat(
      "each worker needs ", text(need.total()), " of its GPU's memory (the plan ", text(need.plan),
      ", gradients that NCCL reduces ", text(need.vectors), "), but resources.gpu_memory allows ",
      text(static_cast<size_t>(job.resources().gpu_memory())),
      "; what would help: lower train.global_batch, raise train.accumulate, use train.recompute, "
      "train.precision bf16, or resources.offload_optimizer",
      plan.keeps_constants() ? "; or set train.passes.keep_constants: false" : "",
      job.train().passes().keep_dropout() ? "; or leave out train.passes.keep_dropout" : ""));
}

// Returns whether statistics of micro-batches take part in the training: those of batch
// normalisations.
bool HasBatchStatistics(const engine::Plan& plan) {
  return std::any_of(plan.state().begin(), plan.state().end(), [](const auto& entry) {
    return entry.role == engine::StateEntry::Role::kStatistic;
  });
}

}  // namespace

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
  // Besides the vectors there is the result of their reduction.
  if (place == GradientPlace::kGpu) need.gpu.vectors = (vectors + 1) * vector_bytes;
  const int prefetch =
      train.data().loader().prefetch() > 0 ? train.data().loader().prefetch() : kDefaultPrefetch;
  const size_t batches = static_cast<size_t>(std::max(2, prefetch) + kHeldBatches);
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

absl::Status CheckMemory(const JobSpec& job, const engine::Plan& plan, const MemoryNeed& need) {
  if (absl::Status gpu = CheckGpuMemory(job, plan, need.gpu); !gpu.ok()) return gpu;
  const auto limit = static_cast<size_t>(std::max<int64_t>(0, job.resources().memory()));
  if (limit == 0 || need.total() <= limit) return absl::OkStatus();
  const Train& train = job.train();
  const size_t fixed = need.weights + need.gradients + need.optimizer + need.checkpoint;
  std::vector<std::string> advice;
  const int64_t of_shard = train.shards() > 0 ? train.global_batch() / train.shards() : 0;
  const int64_t accumulate = std::max(1, train.accumulate());
  if (need.activations + need.workspace > need.total() / 8 && of_shard / accumulate > 1) {
    int64_t more = accumulate + 1;
    while (more < of_shard && of_shard % more != 0) ++more;
    advice.push_back(absl::StrCat(
        "raise train.accumulate from ", accumulate, " to ", more, " or more (smaller micro-batches",
        HasBatchStatistics(plan)
            ? "; batch normalisation's statistics are of a micro-batch, so it is another training)"
            : ", the same math up to rounding)"));
    advice.push_back("lower train.global_batch");
  }
  if (need.activations > need.total() / 8) {
    if (train.recompute().empty() || train.recompute() == "none") {
      advice.push_back("set train.recompute to auto (the same bits in less memory)");
    }
    if (train.precision().empty() || train.precision() == "fp32") {
      advice.push_back("set train.precision to bf16 (activations in 16 bits)");
    }
  }
  if (need.data - need.read > need.total() / 8) {
    advice.push_back("lower train.data.loader.prefetch or train.eval.block");
  }
  if (need.read > need.total() / 8) {
    advice.push_back(absl::StrCat(
        "give the data as files that are mapped, which take no memory of a worker's own (",
        BytesText(static_cast<double>(need.read)),
        " were read): a table as .npy files, text in fewer files"));
  }
  if (fixed > limit) {
    advice.push_back(absl::StrCat("weights, gradients and optimizer state alone take ",
                                  BytesText(static_cast<double>(fixed)),
                                  ": take a smaller model or raise resources.memory"));
  } else {
    advice.push_back("raise resources.memory");
  }
  return absl::ResourceExhaustedError(absl::StrCat(
      "each worker needs ", BytesText(static_cast<double>(need.total())), " (weights ",
      BytesText(static_cast<double>(need.weights)), ", gradients ",
      BytesText(static_cast<double>(need.gradients)), ", optimizer ",
      BytesText(static_cast<double>(need.optimizer)), ", activations ",
      BytesText(static_cast<double>(need.activations)), ", workspace ",
      BytesText(static_cast<double>(need.workspace)), ", data ",
      BytesText(static_cast<double>(need.data)), ", checkpoint copy ",
      BytesText(static_cast<double>(need.checkpoint)), "), but resources.memory allows ",
      BytesText(static_cast<double>(limit)), "; what would help: ", absl::StrJoin(advice, "; ")));
}

}  // namespace lockstep::worker
