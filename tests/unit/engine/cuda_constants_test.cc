// SPDX-License-Identifier: Apache-2.0
// What depends on the weights alone, on the emulated GPU: written by the update with the weights,
// or made once for all micro-batches of a step, and again whenever the weights or the arena are
// others.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/exec/plan.h"
#include "engine/graph/op.h"
#include "engine/ops/ops.h"
#include "tests/emulation/emulation.h"
#include "tests/unit/engine/on_gpu.h"
#include "tests/unit/engine/step_job.h"
#include "tests/unit/engine/update_job.h"

namespace lockstep::engine {
namespace {

class CudaConstantsTest : public testing::Test {
 protected:
  ~CudaConstantsTest() override { emulation::SetStreams(emulation::Streams::kEager); }
};

TrainSpec OneBlock(const std::string& precision) {
  TrainSpec spec = OnGpu(TinyGpt());
  std::get<GptSpec>(spec.model).layers = 1;
  spec.fp8 = precision == "fp8";
  spec.precision = spec.fp8 ? "bf16" : precision;
  spec.accumulate = 3;
  return spec;
}

// The weights that a training program rounds, as often as it does.
std::vector<int> RoundedWeights(const TrainSpec& spec) {
  const auto plan = Plan::Compile(spec).value();
  const Graph& graph = static_cast<const CompiledPlan&>(*plan).train().graph;
  std::vector<int> weights;
  for (const Node& node : graph.nodes()) {
    if (node.op != &ops::kCast && node.op != &ops::kQuantizeFp8) continue;
    const int from = node.inputs[0].node;
    if (graph.node(from).op == &ops::kParameter) weights.push_back(from);
  }
  return weights;
}

// As many of them are biases.
int64_t RoundedBiases(const TrainSpec& spec) {
  const auto plan = Plan::Compile(spec).value();
  const Graph& graph = static_cast<const CompiledPlan&>(*plan).train().graph;
  int64_t biases = 0;
  for (const int id : RoundedWeights(spec)) {
    if (graph.node(id).outputs[0].shape.size() == 1) ++biases;
  }
  return biases;
}

// A job whose worker has all shards.
class Steps {
 public:
  // What comes before the second micro-batch of a step. True: the step is done again.
  using Between = std::function<bool(Job*, int64_t step)>;

  explicit Steps(const TrainSpec& spec) : job_(spec) {
    hooks_.before_gradients = [] { return absl::OkStatus(); };
  }

  void Step(int64_t step, const Between& between = {}) {
    const int shards = job_.plan->spec().shards;
    std::vector<std::vector<float>> sums;
    for (int shard = 0; shard < shards; ++shard) sums.push_back(Shard(step, shard, between));
    if (between != nullptr && step % 4 == 3) between(&job_, 1);  // before the update, too
    while (sums.size() > 1) {
      sums[sums.size() - 2] = SumOf(sums[sums.size() - 2], sums.back());
      sums.pop_back();
    }
    if (!job_.plan->spec().shard_moments) {
      UpdateWith(&job_, step, sums[0]);
      return;
    }
    const GradientSlice whole{0, job_.plan->gradient_count(), sums[0].data()};
    if (job_.executor->BeginUpdate(step, {whole}).value().skipped) return;
    const GradientSlice weights{0, whole.end, held_->floats()};
    LS_CHECK(job_.executor->FinishUpdate(step, {weights}).ok());
  }

  // Holds all moments of a job that deals them out.
  void HoldAll() {
    const int64_t count = job_.plan->gradient_count();
    held_ = std::make_unique<Pages>(static_cast<size_t>(count) * sizeof(float));
    LS_CHECK(job_.executor->HoldMoments({{0, count, held_->floats()}}).ok());
    job_.executor->InitState();
  }

  std::vector<char> State() {
    LS_CHECK(job_.executor->PublishState().ok());
    return job_.StateBytes();
  }

 private:
  std::vector<float> Shard(int64_t step, int shard, const Between& between) {
    const TrainSpec& spec = job_.plan->spec();
    std::vector<float> gradients(static_cast<size_t>(job_.plan->gradient_count()));
    // With one micro-batch every other step comes as the update has left it.
    bool disturbed = spec.accumulate == 1 && step % 2 == 1;
    // Before the last one, which a whole step's recording holds, in every other step.
    const int last = spec.accumulate - 1;
    const int disturbed_before = step % 2 == 0 ? last : std::min(1, last);
    for (int micro = 0; micro < spec.accumulate; ++micro) {
      if (micro == disturbed_before && between != nullptr && !std::exchange(disturbed, true) &&
          between(&job_, step)) {
        micro = 0;
      }
      const AnyBatch batch(spec, step, shard, micro, spec.micro_batch);
      const absl::Status ran =
          job_.executor->RunShard(step, shard, micro, batch.fields(), gradients.data(), hooks_);
      LS_CHECK(ran.ok()) << ran;
    }
    return gradients;
  }

  Job job_;
  Executor::Hooks hooks_;
  std::unique_ptr<Pages> held_;
};

// Kernels of a step when all is recorded.
int64_t LaunchesOf(const TrainSpec& spec) {
  Steps steps(spec);
  for (int64_t step = 1; step <= 8; ++step) steps.Step(step);
  const int64_t before = emulation::Launches();
  steps.Step(9);
  return emulation::Launches() - before;
}

// Adam's update writes the copies; Muon's, whose scratch lies over them, has them made again.
TEST_F(CudaConstantsTest, WeightsAreRoundedByTheUpdateOrOnceAStep) {
  if (TakesRealGpu()) GTEST_SKIP() << "counts the emulated GPU's launches";
  for (const auto& [shards, accumulate, step_graph, whole, muon] :
       {std::tuple(1, 3, true, false, false), std::tuple(1, 3, false, false, false),
        std::tuple(1, 3, true, true, false), std::tuple(2, 3, true, false, false),
        std::tuple(1, 1, true, false, false), std::tuple(1, 1, true, true, false),
        std::tuple(1, 3, true, false, true), std::tuple(1, 3, true, true, true),
        std::tuple(1, 1, true, true, true)}) {
    TrainSpec spec = OneBlock("bf16");
    spec.shards = shards;
    spec.accumulate = accumulate;
    spec.passes.step_graph = step_graph;
    spec.passes.whole_step_graph = whole;
    if (muon) spec.optimizer = MuonSpec{};
    const std::vector<int> once = RoundedWeights(spec);
    const int64_t biases = RoundedBiases(spec);
    ASSERT_GE(biases, muon && accumulate == 1 ? 0 : 3);
    const bool kept = !muon || accumulate > 1;
    ASSERT_EQ(std::set<int>(once.begin(), once.end()).size() == once.size(), kept);
    ASSERT_GE(once.size(), 5u);
    const int64_t few = LaunchesOf(spec);
    spec.passes.keep_constants = false;
    ASSERT_EQ(RoundedBiases(spec), 0) << "their products round them";
    const auto always =
        (static_cast<int64_t>(RoundedWeights(spec).size()) + biases) * shards * accumulate;
    const auto made = static_cast<int64_t>(once.size());
    EXPECT_EQ(LaunchesOf(spec) - few, always - (muon ? made : 0))
        << shards << " shards, " << accumulate << ", " << step_graph << ", " << whole << ", "
        << muon;
  }
}

// Recomputation saves that memory. With one micro-batch only what the update writes is kept, and
// nothing where nothing is rounded.
TEST_F(CudaConstantsTest, NothingIsKeptWhereItSparesNothingOrMemoryIsWanted) {
  const auto keeps = [](const TrainSpec& spec) {
    return Plan::Compile(spec).value()->keeps_constants();
  };
  TrainSpec spec = OneBlock("fp32");
  EXPECT_FALSE(keeps(spec));
  spec = OneBlock("bf16");
  EXPECT_TRUE(keeps(spec));
  spec.recompute.mode = RecomputeSpec::Mode::kSelective;
  EXPECT_FALSE(keeps(spec));
  spec.recompute = {};
  spec.accumulate = 1;
  EXPECT_TRUE(keeps(spec));
  spec.optimizer = MuonSpec{};
  EXPECT_FALSE(keeps(spec));
  spec = OneBlock("fp8");
  spec.accumulate = 1;
  EXPECT_FALSE(keeps(spec));
  for (const char* precision : {"fp32", "pure_bf16"}) {
    spec = OneBlock(precision);
    spec.accumulate = 1;
    EXPECT_FALSE(keeps(spec)) << precision;
  }
}

// A run goes on from what it saved with the other setting, or before updates wrote copies.
TEST_F(CudaConstantsTest, WhatIsKeptIsNoOtherMath) {
  for (const char* precision : {"bf16", "fp16", "fp8", "fp32"}) {
    for (const int accumulate : {1, 3}) {
      TrainSpec spec = OneBlock(precision);
      spec.accumulate = accumulate;
      const auto kept = Plan::Compile(spec).value();
      spec.passes.keep_constants = false;
      const auto made = Plan::Compile(spec).value();
      EXPECT_EQ(kept->math_hash(), made->math_hash()) << precision << ", " << accumulate;
      EXPECT_EQ(made->older_math_hash(), made->hash()) << precision << ", " << accumulate;
    }
  }
}

// In FP8, too, a weight is rounded once for all that read it.
TEST_F(CudaConstantsTest, Fp8RoundsAWeightOnce) {
  TrainSpec spec = OneBlock("fp8");
  std::get<GptSpec>(spec.model).layers = 2;
  const std::vector<int> once = RoundedWeights(spec);
  EXPECT_EQ(std::set<int>(once.begin(), once.end()).size(), once.size());
  spec.passes.keep_constants = false;
  EXPECT_GT(RoundedWeights(spec).size(), once.size());
}

// What may come between two micro-batches.
bool Disturb(Job* job, int64_t step) {
  struct Silent : NodeObserver {
    void BeforeNode(ProgramKind, int) override {}
    absl::Status AfterNode(ProgramKind, int, absl::Span<const TensorView>) override {
      return absl::OkStatus();
    }
  };
  static Silent observer;
  const TrainSpec& spec = job->plan->spec();
  Executor& executor = *job->executor;
  const auto evaluate = [&](Weights weights) {
    const AnyBatch batch(spec, 100 + step, 0, 0, spec.eval_block);
    EvalSums sums;
    LS_CHECK(executor.Evaluate(batch.fields(), spec.eval_block, &sums, weights).ok());
  };
  switch (step % 5) {
    case 0:
      executor.Observe(&observer);
      return false;
    case 1:
      executor.Observe(nullptr);
      evaluate(Weights::kCurrent);
      return false;
    case 2:
      if (spec.ema_decay > 0) evaluate(Weights::kAverage);
      return true;
    case 3: {  // other weights come
      LS_CHECK(executor.PublishState().ok());
      auto* const state = static_cast<char*>(executor.BeginLoad());
      const StateEntry& entry = job->plan->state()[0];
      auto* const weights = reinterpret_cast<float*>(state + entry.offset);
      std::reverse(weights, weights + entry.bytes / sizeof(float));
      executor.EndLoad();
      return true;
    }
    default:
      LS_CHECK(executor.PublishState().ok());
      return false;
  }
}

TEST_F(CudaConstantsTest, TheBitsAreThoseOfRoundingAlways) {
  struct Case {
    const char* optimizer;
    const char* precision;
    int shards;
    int accumulate;
    bool whole;
    // The moments stay on the host, and a matrix is updated in two pieces.
    bool offload = false;
  };
  std::map<std::string, OptimizerSpec> optimizers;
  for (const auto& [name, optimizer] : AllOptimizers()) optimizers[name] = optimizer;
  for (const Case& c : {Case{"adamw", "bf16", 1, 3, false}, Case{"adamw", "bf16", 1, 3, true},
                        Case{"adamw", "bf16", 2, 3, false}, Case{"adamw", "bf16", 1, 1, false},
                        Case{"adamw", "bf16", 1, 1, true}, Case{"adamw", "bf16", 2, 1, false},
                        Case{"adamw", "fp16", 1, 3, true}, Case{"adamw", "fp16", 2, 1, false},
                        Case{"adamw", "bf16", 1, 1, false, true}, Case{"sgd", "bf16", 1, 1, false},
                        Case{"lamb", "bf16", 1, 1, true}, Case{"adamw", "fp8", 1, 3, true},
                        Case{"adamw", "fp8", 2, 3, false}, Case{"muon", "bf16", 1, 3, true},
                        Case{"muon", "bf16", 2, 3, false}}) {
    SCOPED_TRACE(std::string(c.optimizer) + " " + c.precision + ", " + std::to_string(c.shards) +
                 " x " + std::to_string(c.accumulate) + (c.whole ? " whole" : "") +
                 (c.offload ? " offload" : ""));
    TrainSpec spec = OneBlock(c.precision);
    spec.optimizer = optimizers.at(c.optimizer);
    spec.shards = c.shards;
    spec.accumulate = c.accumulate;
    spec.ema_decay = 0.9;
    spec.eval_block = 4 * spec.micro_batch;  // takes more memory than a micro-batch
    spec.passes.whole_step_graph = c.whole;
    if (c.offload) {
      spec.offload_moments = true;
      spec.passes.moment_blocks = 1;
      std::get<GptSpec>(spec.model).vocab = 4096;  // x 24: more than a block of 64 Ki elements
    }
    // Steps are skipped until the scale has come down.
    spec.loss_scale = {.init = 0x1p120, .growth = 2, .backoff = 0x1p-40, .interval = 2};
    emulation::SetStreams(c.whole ? emulation::Streams::kLazy : emulation::Streams::kEager);
    std::vector<char> states[2];
    for (const bool keep : {false, true}) {
      spec.passes.keep_constants = keep;
      Steps steps(spec);
      const int64_t count = c.accumulate == 1 ? 12 : 8;
      for (int64_t step = 1; step <= count; ++step) steps.Step(step, Disturb);
      states[keep ? 1 : 0] = steps.State();
    }
    EXPECT_EQ(states[0], states[1]);
  }
}

TEST_F(CudaConstantsTest, AnUpdateInHalvesBringsOtherWeights) {
  for (const int accumulate : {1, 3}) {
    TrainSpec spec = OneBlock("bf16");
    spec.accumulate = accumulate;
    spec.shard_moments = true;
    spec.shards = 2;
    std::vector<char> states[2];
    for (const bool keep : {false, true}) {
      spec.passes.keep_constants = keep;
      Steps steps(spec);
      steps.HoldAll();
      for (int64_t step = 1; step <= 6; ++step) steps.Step(step);
      states[keep ? 1 : 0] = steps.State();
    }
    EXPECT_EQ(states[0], states[1]) << accumulate;
  }
}

}  // namespace
}  // namespace lockstep::engine
