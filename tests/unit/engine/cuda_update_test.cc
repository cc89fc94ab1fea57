// SPDX-License-Identifier: Apache-2.0
// Updates on a GPU whose moments are there in part or not at all, on the emulated GPU: the bits of
// one that has them all, whenever the streams get to their work; and what a fault leaves behind.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/exec/plan.h"
#include "tests/emulation/emulation.h"
#include "tests/unit/engine/on_gpu.h"
#include "tests/unit/engine/step_job.h"
#include "tests/unit/engine/update_job.h"

namespace lockstep::engine {
namespace {

using ::testing::HasSubstr;

constexpr int kSteps = 4;

// The state after all of `gradients`.
std::vector<char> Whole(const TrainSpec& spec, const std::vector<std::vector<float>>& gradients) {
  Job job(spec);
  for (int step = 1; step <= kSteps; ++step) {
    const auto& own = gradients[static_cast<size_t>(step) - 1];
    const Dealt dealt(own.data(), static_cast<int64_t>(own.size()), 2);
    EXPECT_EQ(job.executor->Update(step, dealt.slices).value().skipped, step == 3);
  }
  EXPECT_TRUE(job.executor->PublishState().ok());
  return job.StateBytes();
}

class CudaUpdateTest : public testing::Test {
 protected:
  ~CudaUpdateTest() override { emulation::SetStreams(emulation::Streams::kEager); }
};

TEST_F(CudaUpdateTest, HalvesOnShardedMomentsGiveTheSameBits) {
  constexpr int kWorld = 3, kShards = 7;
  for (const auto& [name, optimizer] : AllOptimizers()) {
    if (name == "lamb" || name == "muon") continue;
    TrainSpec spec = OnGpu(Controlled(optimizer));
    const auto gradients = GradientsOf(spec, kSteps);
    const std::vector<char> wanted = Whole(spec, gradients);
    spec.shard_moments = true;
    spec.passes.moment_blocks = 1;
    for (const bool offload : {false, true}) {
      SCOPED_TRACE(name + (offload ? " offloaded" : ""));
      spec.offload_moments = offload;
      emulation::SetStreams(offload ? emulation::Streams::kLazy : emulation::Streams::kEager);
      std::vector<std::unique_ptr<ShardedRank>> ranks;
      for (int rank = 0; rank < kWorld; ++rank) {
        ranks.push_back(std::make_unique<ShardedRank>(spec, rank, kWorld, kShards));
      }
      for (int step = 1; step <= kSteps; ++step) {
        const auto& own = gradients[static_cast<size_t>(step) - 1];
        const Dealt dealt(own.data(), static_cast<int64_t>(own.size()), kWorld);
        for (const auto& rank : ranks) {
          Executor& executor = *rank->job.executor;
          EXPECT_EQ(executor.BeginUpdate(step, dealt.slices).value().skipped, step == 3);
          EXPECT_EQ(executor.begun_step(), step);
          EXPECT_EQ(executor.committed_step(), step == 3 ? step : step - 1);
        }
        for (const auto& rank : ranks) {
          if (step == 3) continue;
          ASSERT_TRUE(rank->job.executor->FinishUpdate(step, Gathered(ranks)).ok());
          EXPECT_EQ(rank->job.executor->committed_step(), step);
        }
      }
      for (const auto& rank : ranks) ExpectPart(rank.get(), wanted);
    }
  }
}

// Returns what a rank needs of the reduced gradients: what it holds, the blocks that it sums, and
// the tail.
std::vector<GradientSlice> Needed(const ShardedRank& rank, const std::vector<int>& blocks,
                                  const std::vector<float>& gradients) {
  const std::vector<GradientRange> all = rank.job.plan->SumBlocks();
  std::vector<GradientRange> ranges = {
      {rank.job.plan->TailBegin(), rank.job.plan->gradient_count()}};
  for (const GradientSlice& held : rank.ranges) ranges.push_back({held.begin, held.end});
  for (const int block : blocks) ranges.push_back(all[static_cast<size_t>(block)]);
  std::sort(ranges.begin(), ranges.end(),
            [](const GradientRange& a, const GradientRange& b) { return a.begin < b.begin; });
  std::vector<GradientSlice> slices;
  for (const GradientRange& range : ranges) {
    const int64_t begin = std::max(range.begin, slices.empty() ? 0 : slices.back().end);
    if (begin < range.end) slices.push_back({begin, range.end, gradients.data() + begin});
  }
  return slices;
}

// Nobody has all reduced gradients: each rank sums some blocks, and all decide by the sums of all.
void StepsWithPartsOfTheGradients(TrainSpec spec) {
  constexpr int kWorld = 4, kShards = 12;
  const auto gradients = GradientsOf(spec, kSteps);
  const std::vector<char> wanted = Whole(spec, gradients);
  spec.shard_moments = true;
  for (const auto streams : {emulation::Streams::kEager, emulation::Streams::kLazy}) {
    emulation::SetStreams(streams);
    std::vector<std::unique_ptr<ShardedRank>> ranks;
    std::vector<std::vector<int>> blocks(kWorld);
    for (int rank = 0; rank < kWorld; ++rank) {
      ranks.push_back(std::make_unique<ShardedRank>(spec, rank, kWorld, kShards));
    }
    const size_t block_count = ranks[0]->job.plan->SumBlocks().size();
    // One rank sums nothing.
    for (size_t b = 0; b < block_count; ++b) blocks[b % 3].push_back(static_cast<int>(b));
    for (int rank = 0; rank < kWorld; ++rank) {
      ASSERT_TRUE(ranks[rank]->job.executor->spread_update()->HoldSums(blocks[rank]).ok());
    }
    for (int step = 1; step <= kSteps; ++step) {
      const auto& own = gradients[static_cast<size_t>(step) - 1];
      std::vector<double> sums(block_count, std::numeric_limits<double>::quiet_NaN());
      for (int rank = 0; rank < kWorld; ++rank) {
        const auto slices = Needed(*ranks[rank], blocks[rank], own);
        EXPECT_LT(slices.back().begin, static_cast<int64_t>(own.size()));
        for (int again = 0; again < 2; ++again) {
          ASSERT_TRUE(ranks[rank]
                          ->job.executor->spread_update()
                          ->SumSquares(step, slices, absl::MakeSpan(sums))
                          .ok());
        }
      }
      for (const auto& rank : ranks) {
        const StepResult result =
            rank->job.executor->spread_update()->BeginUpdateWith(step, sums).value();
        EXPECT_EQ(result.skipped, step == 3);
        EXPECT_EQ(std::string(result.nonfinite).empty(), step != 3);
      }
      for (const auto& rank : ranks) {
        if (step != 3) {
          ASSERT_TRUE(rank->job.executor->FinishUpdate(step, Gathered(ranks)).ok());
        }
        EXPECT_EQ(rank->job.executor->committed_step(), step);
      }
    }
    for (const auto& rank : ranks) ExpectPart(rank.get(), wanted);
  }
}

TEST_F(CudaUpdateTest, RanksWithPartsOfTheGradientsDecideByTheSumsOfAll) {
  StepsWithPartsOfTheGradients(OnGpu(Controlled(AdamSpec{.lr = 1e-2})));
}

// Statistics that fill more than one block of 64 Ki elements reach every rank.
TEST_F(CudaUpdateTest, RanksWithPartsOfTheGradientsHaveAllStatistics) {
  TrainSpec spec = OnGpu(Controlled(AdamSpec{.lr = 1e-2}));
  spec.model = CnnSpec{.channels = {33000}, .kernel = 1, .batch_norm = true, .hidden = {}};
  spec.input = ClassificationInput({1, 2, 2}, 10);
  StepsWithPartsOfTheGradients(spec);
}

// Who is dealt more takes what it lacks from the state region, and keeps the rest.
TEST_F(CudaUpdateTest, ADealMovesMoments) {
  TrainSpec spec = OnGpu(Controlled(AdamSpec{.lr = 1e-2}));
  const auto gradients = GradientsOf(spec, kSteps);
  const std::vector<char> wanted = Whole(spec, gradients);
  spec.shard_moments = true;
  ShardedRank all(spec, 0, 1, 2), part(spec, 0, 3, 3);
  const auto update = [&](int step) {
    const auto& own = gradients[static_cast<size_t>(step) - 1];
    const Dealt dealt(own.data(), static_cast<int64_t>(own.size()), 2);
    ASSERT_TRUE(all.job.executor->BeginUpdate(step, dealt.slices).ok());
    const StepResult result = part.job.executor->BeginUpdate(step, dealt.slices).value();
    if (result.skipped) return;
    for (ShardedRank* rank : {&all, &part}) {
      ASSERT_TRUE(rank->job.executor->FinishUpdate(step, all.ranges).ok());
    }
  };
  for (int step = 1; step <= kSteps; ++step) {
    update(step);
    if (step != 2) continue;
    // The second half of the vector is the part's now, with moments that the other one publishes.
    for (ShardedRank* rank : {&all, &part}) ASSERT_TRUE(rank->job.executor->PublishState().ok());
    const auto count = static_cast<int64_t>(gradients[0].size());
    const int64_t half = count / 32 * 16;
    auto* to = static_cast<char*>(part.job.executor->BeginLoad());
    const std::vector<char> from = all.job.StateBytes();
    for (const StateRange& range : part.job.plan->MomentsOf(half, count)) {
      std::memcpy(to + range.begin, &from[range.begin], range.end - range.begin);
    }
    part.job.executor->EndLoad();
    float* const beside = part.weights->floats() + half;
    ASSERT_TRUE(part.job.executor->HoldMoments({{half, count, beside}}).ok());
    part.ranges = {{half, count, beside}};
  }
  for (ShardedRank* rank : {&all, &part}) ExpectPart(rank, wanted);
}

// Moments of others, which lie in the region for a checkpoint, are none of the device's: nothing is
// copied there, and the steps after it are as they were.
TEST_F(CudaUpdateTest, WhatIsBorrowedStaysOnTheHost) {
  TrainSpec spec = OnGpu(Controlled(AdamSpec{.lr = 1e-2}));
  const auto gradients = GradientsOf(spec, kSteps);
  const std::vector<char> wanted = Whole(spec, gradients);
  spec.shard_moments = true;
  ShardedRank all(spec, 0, 1, 2), part(spec, 0, 3, 3);
  for (int step = 1; step <= kSteps; ++step) {
    const auto& own = gradients[static_cast<size_t>(step) - 1];
    const Dealt dealt(own.data(), static_cast<int64_t>(own.size()), 2);
    bool skipped = false;
    for (ShardedRank* rank : {&all, &part}) {
      skipped = rank->job.executor->BeginUpdate(step, dealt.slices).value().skipped;
    }
    for (ShardedRank* rank : {&all, &part}) {
      if (skipped) break;
      ASSERT_TRUE(rank->job.executor->FinishUpdate(step, all.ranges).ok());
    }
    ASSERT_TRUE(part.job.executor->PublishState().ok());
    const int64_t before = emulation::Submissions();
    auto* to = static_cast<char*>(part.job.executor->BeginLoad());
    const int64_t count = part.job.plan->gradient_count();
    for (const StateRange& range : part.job.plan->MomentsOf(0, count)) {
      bool own_range = false;
      for (const GradientSlice& held : part.ranges) {
        for (const StateRange& mine : part.job.plan->MomentsOf(held.begin, held.end)) {
          own_range |= range.begin < mine.end && mine.begin < range.end;
        }
      }
      if (!own_range) std::memset(to + range.begin, 7, range.end - range.begin);
    }
    part.job.executor->EndBorrow();
    EXPECT_EQ(emulation::Submissions(), before);
  }
  for (ShardedRank* rank : {&all, &part}) ExpectPart(rank, wanted);
}

TEST_F(CudaUpdateTest, MomentsOnTheHostGiveTheSameBits) {
  for (const auto& [name, optimizer] : AllOptimizers()) {
    if (name == "muon") continue;
    for (const bool pure : {false, true}) {
      SCOPED_TRACE(name + (pure ? " in 16 bits" : ""));
      TrainSpec spec = OnGpu(Controlled(optimizer));
      if (pure) {
        spec.precision = "pure_bf16";
        spec.ema_decay = 0;
      }
      const auto gradients = GradientsOf(spec, kSteps);
      emulation::SetStreams(emulation::Streams::kEager);
      const std::vector<char> wanted = Whole(spec, gradients);
      spec.offload_moments = true;
      spec.passes.moment_blocks = 1;
      for (const auto streams : {emulation::Streams::kEager, emulation::Streams::kLazy}) {
        emulation::SetStreams(streams);
        EXPECT_EQ(Whole(spec, gradients), wanted);
      }
    }
  }
}

// Weights at 0 whose updates are a 512th of fp16's smallest step: now and then one moves, the same
// ones as on a CPU.
TEST_F(CudaUpdateTest, UpdatesFarBelowFp16MoveTheWeightsThatMoveOnACpu) {
  TrainSpec spec = SmallMlp();
  spec.optimizer = SgdSpec{.lr = 1};
  spec.precision = "pure_fp16";
  spec.loss_scale.init = 1;
  const auto weights = [](const TrainSpec& own) {
    Job job(own);
    auto* const state = static_cast<char*>(job.executor->BeginLoad());
    for (const StateEntry& entry : job.plan->state()) {
      if (entry.type != StateEntry::Type::kFloat16) continue;
      std::memset(state + entry.offset, 0, entry.bytes);
    }
    job.executor->EndLoad();
    std::vector<float> gradients(static_cast<size_t>(job.plan->gradient_count()), -0x1p-33f);
    std::fill(gradients.end() - 16, gradients.end(), 0.0f);
    gradients[gradients.size() - 16 + 2] = 64;  // targets, as many as D
    for (int64_t step = 1; step <= 4; ++step) {
      EXPECT_FALSE(UpdateWith(&job, step, gradients).skipped);
    }
    EXPECT_TRUE(job.executor->PublishState().ok());
    const std::vector<char> all = job.StateBytes();
    std::vector<char> made;
    for (const StateEntry& entry : job.plan->state()) {
      if (entry.type != StateEntry::Type::kFloat16) continue;
      const auto begin = all.begin() + static_cast<ptrdiff_t>(entry.offset);
      made.insert(made.end(), begin, begin + static_cast<ptrdiff_t>(entry.bytes));
    }
    return made;
  };
  const std::vector<char> cpu = weights(spec);
  EXPECT_EQ(weights(OnGpu(spec)), cpu);
  EXPECT_NE(cpu, std::vector<char>(cpu.size(), 0));
}

// The driver copies no memory that is page-locked in part: the pages of moments that are kept on
// the host have weights before them and averages behind them, which are copied too.
TEST_F(CudaUpdateTest, PageLocksAllThatIsCopied) {
  TrainSpec spec = OnGpu(Controlled(AdamSpec{.lr = 1e-2}));
  spec.offload_moments = true;
  Job job(spec);
  const auto at = reinterpret_cast<uintptr_t>(job.state.data());
  const size_t bytes = job.plan->state_bytes();
  EXPECT_EQ(emulation::LockedBytes(at, bytes), bytes);
  ASSERT_FALSE(UpdateWith(&job, 1, GradientsOf(spec, 1)[0]).skipped);
  EXPECT_TRUE(job.executor->PublishState().ok());
}

// Device memory is that of two chunks instead of the moments', or of what is held.
TEST_F(CudaUpdateTest, TakesLessMemory) {
  TrainSpec spec = OnGpu(Controlled(AdamSpec{.lr = 1e-2}));
  spec.passes.moment_blocks = 1;
  const auto bytes = [](const TrainSpec& own, size_t moment_bytes) {
    const auto plan = Plan::Compile(own).value();
    Pages state(plan->state_bytes());
    const size_t before = emulation::AllocatedBytes();
    const auto made = Executor::Create(plan, {.state = state.data(), .moment_bytes = moment_bytes});
    LS_CHECK(made.ok()) << made.status();
    return static_cast<int64_t>(emulation::AllocatedBytes() - before);
  };
  const int64_t whole = bytes(spec, 0);
  const auto plan = Plan::Compile(spec).value();
  int64_t moments = 0;
  for (const StateRange& range : plan->MomentsOf(0, plan->gradient_count())) {
    moments += static_cast<int64_t>(range.end - range.begin);
  }
  constexpr int64_t kSlack = 1 << 20;  // tables
  spec.offload_moments = true;
  EXPECT_LT(bytes(spec, 0), whole - moments + 2 * 2 * 65536 * 4 + 4096);
  spec.offload_moments = false;
  spec.shard_moments = true;
  EXPECT_LT(bytes(spec, static_cast<size_t>(moments / 3)), whole - moments / 3 * 2 + kSlack);
}

TEST_F(CudaUpdateTest, SaysWhatCannotBeOffloaded) {
  TrainSpec spec = OnGpu(Controlled(MuonSpec{}));
  spec.offload_moments = true;
  EXPECT_THAT(std::string(Plan::Compile(spec).status().message()), HasSubstr("muon"));
  spec = Controlled(AdamSpec{});
  spec.offload_moments = true;
  EXPECT_THAT(std::string(Plan::Compile(spec).status().message()), HasSubstr("CPU"));
}

// Wherever the device fails in an update, it is an error that names it, for good.
TEST_F(CudaUpdateTest, AFaultIsAnErrorThatNamesTheGpu) {
  TrainSpec spec = OnGpu(SmallMlp());
  const auto gradients = GradientsOf(spec, 1);
  const Dealt dealt(gradients[0].data(), static_cast<int64_t>(gradients[0].size()), 2);
  bool whole = false;
  for (int64_t at = 1; !whole; ++at) {
    ASSERT_LT(at, 100);
    Job job(spec);
    emulation::FailAfter(at);
    const auto result = job.executor->Update(1, dealt.slices);
    whole = result.ok();
    if (!whole) {
      EXPECT_EQ(result.status().code(), absl::StatusCode::kInternal);
      EXPECT_THAT(std::string(result.status().message()), HasSubstr("an emulated GPU"));
      EXPECT_THAT(std::string(result.status().message()), HasSubstr("the update of step 1"));
      emulation::Repair();
      EXPECT_EQ(job.executor->PublishState(), result.status());
      EXPECT_EQ(job.executor->Update(1, dealt.slices).status(), result.status());
      EXPECT_EQ(job.executor->committed_step(), 0);
    }
    emulation::Repair();
  }
}

}  // namespace
}  // namespace lockstep::engine
