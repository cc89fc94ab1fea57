// SPDX-License-Identifier: Apache-2.0
// Jobs for tests of updates: every optimizer, reduced gradients in slices, ranks that hold parts of
// the moments.
#ifndef LOCKSTEP_TESTS_UNIT_ENGINE_UPDATE_JOB_H_
#define LOCKSTEP_TESTS_UNIT_ENGINE_UPDATE_JOB_H_

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/engine/mlp_job.h"

namespace lockstep::engine {

// More than a block of 64 Ki elements, and widths that leave rests.
inline TrainSpec Controlled(const OptimizerSpec& optimizer) {
  TrainSpec spec = SmallMlp();
  spec.model = MlpSpec{{301, 257}};
  spec.optimizer = optimizer;
  spec.micro_batch = 4;
  spec.spare_norms_and_biases = true;
  spec.groups = {{"*.bias", 2, std::nullopt}};
  spec.clip_norm = 0.1;
  spec.ema_decay = 0.9;
  spec.label_smoothing = 0.1;
  return spec;
}

inline std::vector<std::pair<std::string, OptimizerSpec>> AllOptimizers() {
  MuonSpec muon;
  muon.lr = 0.02;
  return {{"sgd", SgdSpec{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01}},
          {"adam", AdamSpec{.lr = 1e-2, .weight_decay = 0.01}},
          {"adamw", AdamSpec{.lr = 1e-2, .weight_decay = 0.1, .decoupled = true}},
          {"lamb", LambSpec{.lr = 1e-2}},
          {"muon", muon}};
}

// Gradients of `steps` steps, made on the CPU: a GPU's lie alike. The third is not finite.
inline std::vector<std::vector<float>> GradientsOf(TrainSpec spec, int steps) {
  spec.device = DeviceKind::kCpu;
  spec.shard_moments = spec.offload_moments = false;
  Job job(spec);
  const auto count = static_cast<size_t>(job.plan->gradient_count());
  std::vector<std::vector<float>> made;
  for (int step = 1; step <= steps; ++step) {
    Pages sum(count * 4);
    job.SumShards(step, 0, spec.shards, sum.floats());
    if (step == 3) sum.floats()[100] = std::numeric_limits<float>::infinity();
    made.emplace_back(sum.floats(), sum.floats() + count);
  }
  return made;
}

// The reduced gradients as `workers` slices that are cut as worker.cc cuts them: anywhere at
// multiples of 16, each in memory of its own.
struct Dealt {
  Dealt(const float* sum, int64_t count, int workers) {
    for (int w = 0; w < workers; ++w) {
      const int64_t begin = count / 16 * w / workers * 16;
      const int64_t end = w + 1 == workers ? count : count / 16 * (w + 1) / workers * 16;
      memory.emplace_back(sum + begin, sum + end);
      slices.push_back({begin, end, memory.back().data()});
    }
  }
  std::vector<std::vector<float>> memory;
  std::vector<GradientSlice> slices;
};

// A rank of a job whose moments are on two ranks each.
struct ShardedRank {
  ShardedRank(const TrainSpec& spec, int rank, int world, int shards) : job(spec) {
    const int64_t count = job.plan->gradient_count();
    weights = std::make_unique<Pages>(static_cast<size_t>(count) * 4);
    weights->FillWithNan();
    // What is not held is never read. Written without an executor, which protects its state.
    job.executor.reset();
    for (const StateRange& range : job.plan->MomentsOf(0, count)) {
      std::memset(static_cast<char*>(job.state.data()) + range.begin, 0xff,
                  range.end - range.begin);
    }
    std::vector<HeldRange> held;
    for (int shard = 0; shard < shards; ++shard) {
      if (shard % world != rank && (shard + 1) % world != rank) continue;
      const int64_t begin = count / 16 * shard / shards * 16;
      const int64_t end = shard + 1 == shards ? count : count / 16 * (shard + 1) / shards * 16;
      held.push_back({begin, end, weights->floats() + begin});
      ranges.push_back({begin, end, weights->floats() + begin});
    }
    job.executor = Executor::Create(job.plan, {job.state.data(), job.arena.data()}).value();
    EXPECT_TRUE(job.executor->HoldMoments(held).ok());
    job.executor->InitState();
  }
  Job job;
  std::unique_ptr<Pages> weights;
  std::vector<GradientSlice> ranges;
};

// Expects that what a rank has of the state is what the whole job has there.
inline void ExpectPart(ShardedRank* rank, const std::vector<char>& wanted) {
  ASSERT_TRUE(rank->job.executor->PublishState().ok());
  const std::vector<char> state = rank->job.StateBytes();
  const Plan& plan = *rank->job.plan;
  for (const StateEntry& entry : plan.state()) {
    if (entry.role == StateEntry::Role::kMoment) continue;
    EXPECT_EQ(std::memcmp(&state[entry.offset], &wanted[entry.offset], entry.bytes), 0)
        << entry.name;
  }
  for (const GradientSlice& range : rank->ranges) {
    for (const StateRange& moments : plan.MomentsOf(range.begin, range.end)) {
      const size_t bytes = moments.end - moments.begin;
      EXPECT_EQ(std::memcmp(&state[moments.begin], &wanted[moments.begin], bytes), 0);
    }
  }
}

// One executor that holds everything, with its gradients where the new weights go, and all sums.
struct WholeInHalves {
  explicit WholeInHalves(const TrainSpec& spec)
      : job(spec),
        vector(static_cast<size_t>(job.plan->gradient_count()) * 4),
        sums(job.plan->SumBlocks().size()) {
    const int64_t count = job.plan->gradient_count();
    std::vector<int> blocks(sums.size());
    std::iota(blocks.begin(), blocks.end(), 0);
    EXPECT_TRUE(job.executor->HoldMoments({{0, count, vector.floats()}}).ok());
    EXPECT_TRUE(job.executor->spread_update()->HoldSums(blocks).ok());
  }
  GradientSlice all() { return {0, job.plan->gradient_count(), vector.floats()}; }
  // The first half of a step with the gradients of `vector`.
  StepResult Begin(int64_t step) {
    SpreadUpdate* const spread = job.executor->spread_update();
    EXPECT_TRUE(spread->SumSquares(step, {all()}, absl::MakeSpan(sums)).ok());
    return spread->BeginUpdateWith(step, sums).value();
  }
  Job job;
  Pages vector;
  std::vector<double> sums;
};

// The new weights of all, each range from the last rank that holds it.
inline std::vector<GradientSlice> Gathered(const std::vector<std::unique_ptr<ShardedRank>>& ranks) {
  std::map<int64_t, GradientSlice> by_begin;
  for (const auto& rank : ranks) {
    for (const GradientSlice& range : rank->ranges) by_begin[range.begin] = range;
  }
  std::vector<GradientSlice> all;
  for (const auto& [begin, range] : by_begin) all.push_back(range);
  return all;
}

}  // namespace lockstep::engine

#endif  // LOCKSTEP_TESTS_UNIT_ENGINE_UPDATE_JOB_H_
