// SPDX-License-Identifier: Apache-2.0
// How batches and blocks come to a GPU: before they are needed, and from where they lie.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "absl/status/status.h"
#include "engine/exec/plan.h"
#include "tests/emulation/emulation.h"
#include "tests/unit/engine/gradient_slots.h"
#include "tests/unit/engine/on_gpu.h"
#include "tests/unit/engine/step_job.h"

namespace lockstep::engine {
namespace {

// A batch that was brought while the one before was computed is not read again; what is asked for
// instead of it finds its own.
TEST(CudaStagingTest, ABatchIsBroughtWhileTheOneBeforeIsComputed) {
  TrainSpec spec = OnGpu(DeepMlp());
  spec.shards = 2;
  spec.accumulate = 1;
  const AnyBatch other(spec, 77, 0, 0, std::max(spec.micro_batch, spec.eval_block));
  const auto batch = [&](int64_t step) { return AnyBatch(spec, step, 0, 0, spec.micro_batch); };
  for (const emulation::Streams streams : {emulation::Streams::kEager, emulation::Streams::kLazy}) {
    emulation::SetStreams(streams);
    Job plain(spec), ahead(spec);
    EXPECT_TRUE(ahead.executor->stages_ahead());
    std::vector<float> a(static_cast<size_t>(plain.plan->gradient_count())), b = a;
    for (int64_t step = 1; step <= 4; ++step) {
      ASSERT_TRUE(plain.executor->RunShard(step, 0, 0, batch(step).fields(), a.data(), {}).ok());
      Executor::Hooks hooks;
      hooks.before_gradients = [&] {
        return ahead.executor->StageAhead(step + 1, 0, 0, batch(step + 1).fields());
      };
      // After the first step the right batch is there, and `other` is not looked at.
      const int64_t before = emulation::Submissions();
      ASSERT_TRUE(ahead.executor
                      ->RunShard(step, 0, 0, step == 1 ? batch(1).fields() : other.fields(),
                                 b.data(), hooks)
                      .ok());
      if (!TakesRealGpu()) {
        EXPECT_GT(emulation::Submissions(), before);
      }
      EXPECT_TRUE(EqualBits(a, b)) << step;
    }
    // Step 5 is there. An evaluation comes first, and has its own batch.
    EvalSums first, second;
    ASSERT_TRUE(plain.executor->Evaluate(other.fields(), spec.eval_block, &first).ok());
    ASSERT_TRUE(ahead.executor->Evaluate(other.fields(), spec.eval_block, &second).ok());
    EXPECT_EQ(first.loss, second.loss);
    ASSERT_TRUE(ahead.executor->StageAhead(5, 0, 0, other.fields()).ok());
    ASSERT_TRUE(plain.executor->RunShard(6, 0, 0, batch(6).fields(), a.data(), {}).ok());
    ASSERT_TRUE(ahead.executor->RunShard(6, 0, 0, batch(6).fields(), b.data(), {}).ok());
    EXPECT_TRUE(EqualBits(a, b));
  }
  emulation::SetStreams(emulation::Streams::kEager);
}

// Where passes and update are one recording the next batch waits for its launch: the device, which
// has nothing to do until then, is given the recording first. Nothing is copied that is there.
TEST(CudaStagingTest, ABatchIsStagedBehindAWholeStep) {
  if (TakesRealGpu()) GTEST_SKIP() << "sees when the emulated GPU's streams do their work";
  TrainSpec spec = OnGpu(SmallMlp());
  spec.shards = 1;
  for (const emulation::Streams streams : {emulation::Streams::kEager, emulation::Streams::kLazy}) {
    emulation::SetStreams(streams);
    spec.passes.whole_step_graph = false;
    Job plain(spec);
    spec.passes.whole_step_graph = true;
    Job ahead(spec), late(spec);
    std::vector<float> gradients(static_cast<size_t>(plain.plan->gradient_count()));
    const TestBatch other = MakeBatch(spec, 99, 0, 0);
    for (int64_t step = 1; step <= 12; ++step) {
      const TestBatch batch = MakeBatch(spec, step, 0, 0);
      const TestBatch next = MakeBatch(spec, step + 1, 0, 0);
      Executor::Hooks hooks;
      hooks.before_gradients = [] { return absl::OkStatus(); };
      ASSERT_TRUE(
          plain.executor->RunShard(step, 0, 0, batch.fields(), gradients.data(), hooks).ok());
      UpdateWith(&plain, step, gradients);
      int64_t before = emulation::Submissions();
      ASSERT_TRUE(
          late.executor->RunShard(step, 0, 0, batch.fields(), gradients.data(), hooks).ok());
      const int64_t brought = emulation::Submissions() - before;
      before = emulation::Submissions();
      UpdateWith(&late, step, gradients);
      const int64_t updated = emulation::Submissions() - before;
      hooks.before_gradients = [&] {
        const int64_t given = emulation::Submissions();
        const absl::Status staged = ahead.executor->StageAhead(step + 1, 0, 0, next.fields());
        EXPECT_EQ(emulation::Submissions(), given) << step;
        return staged;
      };
      before = emulation::Submissions();
      ASSERT_TRUE(ahead.executor
                      ->RunShard(step, 0, 0, step == 1 ? batch.fields() : other.fields(),
                                 gradients.data(), hooks)
                      .ok());
      const int64_t fields = static_cast<int64_t>(spec.input.fields.size());
      EXPECT_EQ(emulation::Submissions() - before, brought - (step == 1 ? 0 : fields)) << step;
      before = emulation::Submissions();
      UpdateWith(&ahead, step, gradients);
      EXPECT_EQ(emulation::Submissions() - before, updated + fields) << step;
    }
    // What comes instead finds its own.
    Executor::Hooks hooks;
    hooks.before_gradients = [&] { return ahead.executor->StageAhead(14, 0, 0, other.fields()); };
    const TestBatch batch = MakeBatch(spec, 13, 0, 0);
    ASSERT_TRUE(ahead.executor->RunShard(13, 0, 0, batch.fields(), gradients.data(), hooks).ok());
    EvalSums sums;
    const TestBatch block = MakeBatch(spec, 7, 0, 0, spec.eval_block);
    ASSERT_TRUE(ahead.executor->Evaluate(block.fields(), spec.eval_block, &sums).ok());
    UpdateWith(&ahead, 13, gradients);
    hooks.before_gradients = [] { return absl::OkStatus(); };
    ASSERT_TRUE(plain.executor->RunShard(13, 0, 0, batch.fields(), gradients.data(), hooks).ok());
    UpdateWith(&plain, 13, gradients);
    for (Job* job : {&plain, &ahead, &late}) ASSERT_TRUE(job->executor->PublishState().ok());
    EXPECT_EQ(ahead.StateBytes(), plain.StateBytes());
  }
  emulation::SetStreams(emulation::Streams::kEager);
}

// Fields that are locked go to the device from where they lie, and may change as soon as the call
// that used them has returned.
TEST(CudaStagingTest, LockedFieldsAreCopiedFromWhereTheyLie) {
  if (TakesRealGpu()) GTEST_SKIP() << "sees when the emulated GPU's streams do their work";
  TrainSpec spec = OnGpu(SmallMlp());
  spec.shards = 1;
  spec.accumulate = 2;
  for (const emulation::Streams streams : {emulation::Streams::kEager, emulation::Streams::kLazy}) {
    emulation::SetStreams(streams);
    Job plain(spec), locked(spec);
    const size_t bytes = static_cast<size_t>(spec.micro_batch) * 31 * sizeof(float);
    Pages inputs(bytes), labels(4096);
    const LockedFields first(locked.executor.get(), inputs.data(), bytes);
    const LockedFields second(locked.executor.get(), labels.data(), 4096);
    EXPECT_EQ(emulation::LockedBytes(reinterpret_cast<uintptr_t>(inputs.data()), bytes), bytes);
    const std::array<const void*, 2> fields = {inputs.data(), labels.data()};
    std::vector<float> a(static_cast<size_t>(plain.plan->gradient_count())), b = a;
    for (int micro = 0; micro < 2; ++micro) {
      const TestBatch batch = MakeBatch(spec, 1, 0, micro);
      ASSERT_TRUE(plain.executor->RunShard(1, 0, micro, batch.fields(), a.data(), {}).ok());
      std::memcpy(inputs.data(), batch.inputs.data(), bytes);
      std::memcpy(labels.data(), batch.labels.data(), batch.labels.size() * sizeof(int32_t));
      ASSERT_TRUE(locked.executor->RunShard(1, 0, micro, fields, b.data(), {}).ok());
      inputs.FillWithNan();
    }
    EXPECT_TRUE(EqualBits(a, b));
  }
  emulation::SetStreams(emulation::Streams::kEager);
}

// The next block is read and brought while one is computed.
TEST(CudaStagingTest, ABlockIsStagedWhileAnotherIsComputed) {
  if (TakesRealGpu()) GTEST_SKIP() << "sees when the emulated GPU's streams do their work";
  const TrainSpec spec = OnGpu(SmallMlp());
  const auto batch = [&](int64_t number) { return MakeBatch(spec, number, 0, 0, spec.eval_block); };
  const TestBatch other = batch(9);
  for (const emulation::Streams streams : {emulation::Streams::kEager, emulation::Streams::kLazy}) {
    emulation::SetStreams(streams);
    Job plain(spec), ahead(spec);
    EXPECT_TRUE(ahead.executor->stages_blocks());
    const TestBatch batches[] = {batch(1), batch(2), batch(3), batch(4)};
    for (int64_t number = 0; number < 4; ++number) {
      EvalSums a, b;
      ASSERT_TRUE(plain.executor->Evaluate(batches[number].fields(), spec.eval_block, &a).ok());
      Executor::BlockHooks hooks;
      hooks.staged = number > 0;
      const int64_t waits = emulation::Waits();
      bool asked = false;
      hooks.meanwhile = [&] {
        asked = true;
        EXPECT_EQ(emulation::Waits(), waits);  // for nothing of this block
        return number == 3 ? absl::OkStatus()
                           : ahead.executor->StageBlock(batches[number + 1].fields());
      };
      // From the second on the right block is there, and `other` is not looked at.
      ASSERT_TRUE(ahead.executor
                      ->Evaluate(number == 0 ? batches[0].fields() : other.fields(),
                                 spec.eval_block, &b, Weights::kCurrent, hooks)
                      .ok());
      EXPECT_TRUE(asked);
      EXPECT_EQ(a.loss, b.loss) << number;
    }
    // What was not staged, or was written over, is brought.
    ASSERT_TRUE(ahead.executor->StageBlock(batches[1].fields()).ok());
    ASSERT_TRUE(ahead.executor->StageAhead(1, 0, 0, other.fields()).ok());
    EvalSums a, b;
    ASSERT_TRUE(plain.executor->Evaluate(other.fields(), spec.eval_block, &a).ok());
    ASSERT_TRUE(
        ahead.executor
            ->Evaluate(other.fields(), spec.eval_block, &b, Weights::kCurrent, {.staged = true})
            .ok());
    EXPECT_EQ(a.loss, b.loss);
    const absl::Status failed =
        ahead.executor->Evaluate(other.fields(), spec.eval_block, &b, Weights::kCurrent,
                                 {.meanwhile = [] { return absl::DataLossError("no block"); }});
    EXPECT_EQ(failed.message(), "no block");
  }
  emulation::SetStreams(emulation::Streams::kEager);
}

}  // namespace
}  // namespace lockstep::engine
