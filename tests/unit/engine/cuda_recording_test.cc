// SPDX-License-Identifier: Apache-2.0
// What is recorded of a step on a GPU, on the emulated one: once, in as few launches as may be, and
// with the same bits whatever comes between.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "engine/exec/plan.h"
#include "tests/emulation/emulation.h"
#include "tests/unit/engine/on_gpu.h"
#include "tests/unit/engine/step_job.h"
#include "tests/unit/engine/update_job.h"

namespace lockstep::engine {
namespace {

class CudaRecordingTest : public testing::Test {
 protected:
  ~CudaRecordingTest() override { emulation::SetStreams(emulation::Streams::kEager); }
};

// Micro-batches of a job's only shard, whose gradients stay on the device, and the update.
StepResult StayingStep(Job* job, int64_t step) {
  const TrainSpec& spec = job->plan->spec();
  std::vector<float> gradients(static_cast<size_t>(job->plan->gradient_count()));
  Executor::Hooks hooks;
  hooks.before_gradients = [] { return absl::OkStatus(); };
  for (int micro = 0; micro < spec.accumulate; ++micro) {
    const AnyBatch batch(spec, step, 0, micro, spec.micro_batch);
    LS_CHECK(job->executor->RunShard(step, 0, micro, batch.fields(), gradients.data(), hooks).ok());
  }
  return UpdateWith(job, step, gradients);
}

// Learning rate and loss scale change, steps are skipped: nothing is recorded again, and the host
// waits once in a step.
TEST_F(CudaRecordingTest, StepsAreRecordedOnceAndWaitedForOnce) {
  TrainSpec spec = OnGpu(TinyGpt());
  std::get<GptSpec>(spec.model).layers = 1;
  spec.shards = 1;
  spec.precision = "fp16";
  spec.loss_scale = {.init = 0x1p120, .growth = 2, .backoff = 0x1p-40, .interval = 2};
  spec.schedule.kind = ScheduleSpec::Kind::kCosine;
  spec.schedule.total_updates = 30;
  constexpr int64_t kWarm = 7, kAll = 14;
  std::vector<char> states[2];
  for (const bool whole : {false, true}) {
    spec.passes.step_graph = whole;
    spec.passes.bucket_elements = 1024;
    emulation::SetStreams(whole ? emulation::Streams::kLazy : emulation::Streams::kEager);
    Job job(spec);
    int64_t captures = 0;
    int skipped = 0;
    std::set<double> scales;
    for (int64_t step = 1; step <= kAll; ++step) {
      if (step == kWarm) captures = emulation::Captures();
      const int64_t waits = emulation::Waits();
      const StepResult result = StayingStep(&job, step);
      skipped += result.skipped ? 1 : 0;
      scales.insert(result.loss_scale);
      if (whole) {
        EXPECT_LE(emulation::Waits() - waits, 1) << "step " << step;
      }
    }
    EXPECT_EQ(emulation::Captures(), captures);
    EXPECT_GE(skipped, 2);
    EXPECT_GE(scales.size(), 4u);
    ASSERT_TRUE(job.executor->PublishState().ok());
    states[whole ? 1 : 0] = job.StateBytes();
  }
  EXPECT_EQ(states[0], states[1]);
}

// The state after steps of a job with one shard, with an evaluation and an observed step between.
struct RunOfSteps {
  std::vector<char> state;
  int64_t captures = 0;        // in all
  int64_t late_captures = 0;   // after the warm-up
  int64_t graph_launches = 0;  // of a warm step
  int64_t submissions = 0;
  int64_t waits = 0;
  int skipped = 0;
};

RunOfSteps RunSteps(const TrainSpec& spec, bool disturbed) {
  constexpr int64_t kWarm = 10, kAll = 16;
  Job job(spec);
  RunOfSteps run;
  const int64_t before = emulation::Captures();
  for (int64_t step = 1; step <= kAll; ++step) {
    const int64_t captures = emulation::Captures(), waits = emulation::Waits();
    const int64_t graphs = emulation::GraphLaunches(), given = emulation::Submissions();
    run.skipped += StayingStep(&job, step).skipped ? 1 : 0;
    if (step > kWarm) run.late_captures += emulation::Captures() - captures;
    run.graph_launches = emulation::GraphLaunches() - graphs;
    run.submissions = emulation::Submissions() - given;
    run.waits = std::max(run.waits, step > kWarm ? emulation::Waits() - waits : 0);
    if (disturbed && step % 3 == 0) {
      const AnyBatch batch(spec, step, 0, 0, spec.eval_block);
      EvalSums sums;
      LS_CHECK(job.executor->Evaluate(batch.fields(), spec.eval_block, &sums).ok());
      LS_CHECK(job.executor->PublishState().ok());
    }
  }
  run.captures = emulation::Captures() - before;
  LS_CHECK(job.executor->PublishState().ok());
  run.state = job.StateBytes();
  return run;
}

// Forward, backward and update as one recording: the same bits, and four launches less in a step.
TEST_F(CudaRecordingTest, AWholeStepIsOneRecording) {
  for (const auto& [name, optimizer] : AllOptimizers()) {
    for (const int accumulate : {1, 3}) {
      if (accumulate > 1 && name != "adamw") continue;
      SCOPED_TRACE(name + ", " + std::to_string(accumulate));
      TrainSpec spec = OnGpu(Controlled(optimizer));
      spec.model = MlpSpec{{37, 21}};
      spec.shards = 1;
      spec.accumulate = accumulate;
      spec.precision = "fp16";
      spec.loss_scale = {.init = 0x1p120, .growth = 2, .backoff = 0x1p-40, .interval = 2};
      spec.schedule.kind = ScheduleSpec::Kind::kCosine;
      spec.schedule.total_updates = 30;
      emulation::SetStreams(emulation::Streams::kEager);
      const RunOfSteps apart = RunSteps(spec, false);
      EXPECT_EQ(apart.graph_launches, accumulate + 1);
      EXPECT_GE(apart.skipped, 2);
      spec.passes.whole_step_graph = true;
      for (const auto streams : {emulation::Streams::kEager, emulation::Streams::kLazy}) {
        emulation::SetStreams(streams);
        const RunOfSteps whole = RunSteps(spec, false);
        EXPECT_EQ(whole.state, apart.state);
        EXPECT_EQ(whole.late_captures, 0);
        EXPECT_EQ(whole.graph_launches, accumulate);
        EXPECT_EQ(whole.submissions, apart.submissions - 4);
        // For the decision; and a third batch for the first one's place.
        EXPECT_LE(whole.waits, streams == emulation::Streams::kEager ? 0 : accumulate == 1 ? 1 : 2);
        // One for each place that batches come to.
        EXPECT_EQ(whole.captures, accumulate == 1 ? 2 : apart.captures - 1 + 2);
        EXPECT_EQ(RunSteps(spec, true).state, apart.state);
      }
    }
  }
}

// A micro-batch that is left to the update is made before whatever comes instead.
TEST_F(CudaRecordingTest, WhatComesBetweenAMicroBatchAndItsUpdateChangesNothing) {
  TrainSpec spec = OnGpu(SmallMlp());
  spec.shards = 1;
  const RunOfSteps apart = RunSteps(spec, false);
  spec.passes.whole_step_graph = true;
  emulation::SetStreams(emulation::Streams::kLazy);
  Job job(spec);
  std::vector<float> gradients(static_cast<size_t>(job.plan->gradient_count()));
  Executor::Hooks hooks;
  hooks.before_gradients = [] { return absl::OkStatus(); };
  for (int64_t step = 1; step <= 16; ++step) {
    const AnyBatch batch(spec, step, 0, 0, spec.micro_batch);
    const auto run = [&] {
      return job.executor->RunShard(step, 0, 0, batch.fields(), gradients.data(), hooks);
    };
    ASSERT_TRUE(run().ok());
    if (step % 4 == 1) {  // the step is done again
      ASSERT_TRUE(run().ok());
    }
    if (step % 4 == 2) {
      const AnyBatch other(spec, step + 100, 0, 0, spec.eval_block);
      EvalSums sums;
      ASSERT_TRUE(job.executor->Evaluate(other.fields(), spec.eval_block, &sums).ok());
    }
    if (step % 4 == 3) {  // the state comes from elsewhere, so its gradients are made anew
      ASSERT_TRUE(job.executor->PublishState().ok());
      job.executor->BeginLoad();
      job.executor->EndLoad();
      ASSERT_TRUE(run().ok());
    }
    UpdateWith(&job, step, gradients);
  }
  ASSERT_TRUE(job.executor->PublishState().ok());
  EXPECT_EQ(job.StateBytes(), apart.state);
}

// Gradients that a fault left unmade are not taken for those of the step.
TEST_F(CudaRecordingTest, AFaultBetweenAMicroBatchAndItsUpdateLeavesNoGradients) {
  TrainSpec spec = OnGpu(SmallMlp());
  spec.shards = 1;
  const auto gradients = GradientsOf(spec, 1);
  const GradientSlice given{0, static_cast<int64_t>(gradients[0].size()), gradients[0].data()};
  Job apart(spec);
  ASSERT_TRUE(apart.executor->Update(1, {given}).ok());
  ASSERT_TRUE(apart.executor->PublishState().ok());
  spec.passes.whole_step_graph = true;
  Job job(spec);
  std::vector<float> out(gradients[0].size());
  Executor::Hooks hooks;
  hooks.before_gradients = [] { return absl::OkStatus(); };
  const AnyBatch batch(spec, 1, 0, 0, spec.micro_batch);
  ASSERT_TRUE(job.executor->RunShard(1, 0, 0, batch.fields(), out.data(), hooks).ok());
  emulation::FailAfter(1);
  const AnyBatch other(spec, 2, 0, 0, spec.eval_block);
  EvalSums sums;
  EXPECT_FALSE(job.executor->Evaluate(other.fields(), spec.eval_block, &sums).ok());
  emulation::Repair();
  ASSERT_TRUE(job.executor->Update(1, {given}).ok());
  ASSERT_TRUE(job.executor->PublishState().ok());
  EXPECT_EQ(job.StateBytes(), apart.StateBytes());
}

// Moments that come from the host chunk by chunk are no part of a recording.
TEST_F(CudaRecordingTest, AStepWithMomentsOnTheHostIsNoWholeRecording) {
  TrainSpec spec = OnGpu(Controlled(AdamSpec{.lr = 1e-2}));
  spec.shards = 1;
  const RunOfSteps apart = RunSteps(spec, false);
  spec.offload_moments = true;
  spec.passes.whole_step_graph = true;
  const RunOfSteps whole = RunSteps(spec, false);
  EXPECT_EQ(whole.state, apart.state);
  EXPECT_EQ(whole.graph_launches, 1);  // forward and backward
}

}  // namespace
}  // namespace lockstep::engine
