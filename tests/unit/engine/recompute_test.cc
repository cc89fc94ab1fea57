// SPDX-License-Identifier: Apache-2.0
// Recomputation: the same bits for less memory, at every level, for every kind of model.
#include "engine/passes/recompute.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/exec/plan.h"
#include "engine/graph/op.h"
#include "tests/unit/engine/step_job.h"

namespace lockstep::engine {
namespace {

using Mode = RecomputeSpec::Mode;

class RecomputeTest : public EveryModelTest {};
INSTANTIATE_TEST_SUITE_P(Models, RecomputeTest,
                         testing::Combine(testing::ValuesIn(kModelCases),
                                          testing::Values("fp32", "bf16")),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(Fp8, RecomputeTest,
                         testing::Combine(testing::ValuesIn(kFp8ModelCases),
                                          testing::Values("fp8")),
                         NameOf);

// Dropout is addressed and batch norm sees the same values: nothing may differ.
TEST_P(RecomputeTest, GivesTheSameBits) {
  TrainSpec spec = Spec();
  Job kept(spec);
  spec.recompute.mode = Mode::kSelective;
  Job selective(spec);
  spec.recompute.mode = Mode::kBlocks;
  Job blocks(spec);
  EXPECT_GT(blocks.plan->flops(), kept.plan->flops());
  EXPECT_NE(blocks.plan->hash(), kept.plan->hash());
  for (int64_t step = 1; step <= 2; ++step) {
    const StepResult result = WholeStep(&kept, step);
    EXPECT_FALSE(result.skipped);
    WholeStep(&selective, step);
    WholeStep(&blocks, step);
    ASSERT_EQ(kept.StateBytes(), selective.StateBytes()) << step;
    ASSERT_EQ(kept.StateBytes(), blocks.StateBytes()) << step;
  }
}

TEST_P(RecomputeTest, FusionOffAndMemoryUnplannedStillHold) {
  TrainSpec spec = Spec();
  spec.passes.fuse = false;
  Job kept(spec);
  spec.recompute.mode = Mode::kBlocks;
  Job blocks(spec);
  spec.passes.reuse_memory = spec.passes.in_place = false;
  Job unplanned(spec);
  const std::vector<float> a = PoisonedGradients(&kept, 1, 2);
  EXPECT_TRUE(EqualBits(a, PoisonedGradients(&blocks, 1, 2)));
  EXPECT_TRUE(EqualBits(a, PoisonedGradients(&unplanned, 1, 2)));
}

// A rounding of a weight for the backward pass alone stands behind the forward pass: it is made
// where it stands, once.
TEST(RecomputeGraphTest, MakesNothingThatNobodyReads) {
  for (const ModelCase& model : kModelCases) {
    for (const std::string precision : {"fp32", "bf16", "fp16", "pure_bf16", "fp8"}) {
      if (precision == "fp8" && std::string(model.name) == "resnet") continue;  // has no such layer
      for (const Mode mode : {Mode::kNone, Mode::kSelective, Mode::kBlocks}) {
        TrainSpec spec = model.spec();
        spec.fp8 = precision == "fp8";
        spec.precision = spec.fp8 ? "bf16" : precision;
        spec.recompute.mode = mode;
        const auto plan = CompiledPlan::Make(spec).value();
        const Graph& graph = plan->train().graph;
        const auto readers = graph.Readers();
        for (size_t id = 0; id < readers.size(); ++id) {
          if (graph.nodes()[id].op->leaf) continue;
          bool any = false;
          for (const std::vector<int>& of : readers[id]) any |= !of.empty();
          EXPECT_TRUE(any) << model.name << " " << precision << ", mode " << static_cast<int>(mode)
                           << ": %" << id << " " << graph.nodes()[id].op->name;
        }
      }
    }
  }
}

// Nothing is worth making again of it but what costs little: the weights are most of what is read.
TrainSpec WideMlp() {
  TrainSpec spec = SmallMlp();
  spec.model = MlpSpec{{1024, 1024, 1024}};
  spec.micro_batch = 64;
  spec.eval_block = 8;
  return spec;
}

TEST(RecomputeMemoryTest, SelectiveTakesNoMoreOfAWideMlp) {
  for (const char* precision : {"fp32", "bf16", "fp16", "pure_fp16"}) {
    TrainSpec spec = WideMlp();
    spec.precision = precision;
    const auto none = Plan::Compile(spec).value();
    spec.recompute.mode = Mode::kSelective;
    const auto selective = Plan::Compile(spec).value();
    EXPECT_LE(selective->arena_bytes(), none->arena_bytes()) << precision;
    EXPECT_LT(selective->flops(), 1.01 * none->flops()) << precision;
  }
}

// A model whose kept activations outweigh one block's.
TrainSpec DeepGpt() {
  TrainSpec spec = TinyGpt();
  GptSpec& gpt = std::get<GptSpec>(spec.model);
  gpt.layers = 8;
  gpt.width = 64;
  gpt.vocab = 0;
  spec.micro_batch = 8;
  for (FieldSpec& field : spec.input.fields) field.shape = {64};
  return spec;
}

TEST(RecomputeMemoryTest, EachModeTakesLess) {
  TrainSpec spec = DeepGpt();
  const auto bytes = [&](Mode mode) {
    spec.recompute.mode = mode;
    return static_cast<double>(Plan::Compile(spec).value()->arena_bytes());
  };
  const double none = bytes(Mode::kNone);
  EXPECT_LT(bytes(Mode::kSelective), 0.85 * none);
  EXPECT_LT(bytes(Mode::kBlocks), 0.45 * none);
}

TEST(RecomputeMemoryTest, SelectiveComputesLittleAgain) {
  TrainSpec spec = DeepGpt();
  const double none = Plan::Compile(spec).value()->flops();
  spec.recompute.mode = Mode::kSelective;
  const double selective = Plan::Compile(spec).value()->flops();
  spec.recompute.mode = Mode::kBlocks;
  const double blocks = Plan::Compile(spec).value()->flops();
  EXPECT_GT(selective, none);
  EXPECT_LT(selective, none * 1.02);
  EXPECT_GT(blocks, none * 1.2);
  EXPECT_LT(blocks, none * 1.34);  // one more forward pass, less what ends a block
}

TEST(PlanHashTest, ALongerRunOfTheSameRatesComputesTheSame) {
  TrainSpec spec = DeepGpt();
  const auto compile = [&](ScheduleSpec::Kind kind, int64_t total) {
    spec.schedule.kind = kind;
    spec.schedule.total_updates = total;
    return Plan::Compile(spec).value();
  };
  const auto brief = compile(ScheduleSpec::Kind::kConstant, 10);
  const auto longer = compile(ScheduleSpec::Kind::kConstant, 20);
  EXPECT_EQ(brief->math_hash(), longer->math_hash());
  EXPECT_NE(brief->older_math_hash(), longer->older_math_hash());
  EXPECT_EQ(brief->older_math_hash(), brief->hash());
  EXPECT_NE(compile(ScheduleSpec::Kind::kCosine, 10)->math_hash(),
            compile(ScheduleSpec::Kind::kCosine, 20)->math_hash());
}

TEST(RecomputeMemoryTest, AutoTakesTheLeastThatFits) {
  TrainSpec spec = DeepGpt();
  const auto compile = [&](Mode mode, size_t bytes = 0) {
    spec.recompute = {mode, bytes};
    return Plan::Compile(spec).value();
  };
  const auto none = compile(Mode::kNone), selective = compile(Mode::kSelective);
  const auto blocks = compile(Mode::kBlocks);
  EXPECT_EQ(compile(Mode::kAuto, none->arena_bytes())->hash(), none->hash());
  EXPECT_EQ(compile(Mode::kAuto, selective->arena_bytes())->hash(), selective->hash());
  const auto least = compile(Mode::kAuto, blocks->arena_bytes());
  EXPECT_LE(least->arena_bytes(), blocks->arena_bytes());
  EXPECT_GT(least->recompute_level(), 1);
  EXPECT_NE(least->hash(), none->hash());
  EXPECT_EQ(least->math_hash(), none->math_hash());
  EXPECT_NE(blocks->math_hash(), none->math_hash());  // the job says it
  const size_t between = (selective->arena_bytes() + blocks->arena_bytes()) / 2;
  const auto chosen = compile(Mode::kAuto, between);
  EXPECT_LE(chosen->arena_bytes(), between);
  EXPECT_GT(chosen->recompute_level(), 1);
  EXPECT_LT(chosen->recompute_level(), least->recompute_level());
  // Too little: the most that can be done, and whoever counts the memory refuses.
  EXPECT_EQ(compile(Mode::kAuto, 1)->hash(), blocks->hash());
}

TEST(RecomputeMemoryTest, AutoTakesWhatFitsOfAnyModel) {
  for (const char* precision : {"fp32", "bf16"}) {
    TrainSpec spec = WideMlp();
    spec.precision = precision;
    const auto compile = [&](Mode mode, size_t bytes) {
      spec.recompute = {mode, bytes};
      return Plan::Compile(spec).value();
    };
    const auto none = compile(Mode::kNone, 0), selective = compile(Mode::kSelective, 0);
    const auto blocks = compile(Mode::kBlocks, 0);
    EXPECT_EQ(compile(Mode::kAuto, none->arena_bytes())->recompute_level(), 0) << precision;
    for (const auto& plan : {selective, blocks}) {
      EXPECT_LE(compile(Mode::kAuto, plan->arena_bytes())->arena_bytes(), plan->arena_bytes())
          << precision;
    }
    const size_t least = compile(Mode::kAuto, 1)->arena_bytes();
    for (const auto& plan : {none, selective, blocks}) EXPECT_LE(least, plan->arena_bytes());
  }
}

// All of the last block is read at once: its values are there together, made again or kept.
TEST(RecomputeMemoryTest, BlocksTakeTheLeastOfAllLevels) {
  TrainSpec spec = DeepGpt();
  GptSpec& gpt = std::get<GptSpec>(spec.model);
  gpt.layers = 6;
  gpt.width = 96;
  gpt.vocab = 512;
  spec.input.classes = 512;
  for (FieldSpec& field : spec.input.fields) field.limit = 512;
  // In bf16 the head's fp32 copies are what is there with a block that is made again.
  for (const auto& [precision, level] : {std::pair("fp32", 6), std::pair("bf16", 7)}) {
    spec.precision = precision;
    spec.recompute = {Mode::kBlocks, 0};
    const auto blocks = Plan::Compile(spec).value();
    spec.recompute = {Mode::kAuto, 1};
    const auto least = Plan::Compile(spec).value();
    EXPECT_EQ(blocks->arena_bytes(), least->arena_bytes()) << precision;
    EXPECT_EQ(blocks->recompute_level(), level) << precision;  // of six blocks five, or all
  }
}

}  // namespace
}  // namespace lockstep::engine
