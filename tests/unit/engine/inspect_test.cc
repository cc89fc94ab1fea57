// SPDX-License-Identifier: Apache-2.0
// What tools see: nodes, origins, the arena that is really used, plans for inference.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "tests/unit/engine/step_job.h"

namespace lockstep::engine {
namespace {

using ::testing::HasSubstr;

// Keeps the values of every node.
class Keeper : public NodeObserver {
 public:
  void BeforeNode(ProgramKind, int) override { ++begun; }
  absl::Status AfterNode(ProgramKind kind, int node,
                         absl::Span<const TensorView> outputs) override {
    programs.insert(kind);
    std::vector<std::vector<float>>& kept = values[node];
    kept.clear();
    for (const TensorView& view : outputs) {
      const auto count = static_cast<size_t>(view.elements());
      if (view.is_float64 || view.type != FieldSpec::Type::kFloat32) {
        kept.emplace_back(count, 0.0f);
        continue;
      }
      const auto* data = static_cast<const float*>(view.data);
      kept.emplace_back(data, data + count);
    }
    return node == fail_at ? absl::InternalError("stop here") : absl::OkStatus();
  }
  int begun = 0;
  int fail_at = -1;
  std::set<ProgramKind> programs;
  std::map<int, std::vector<std::vector<float>>> values;
};

// The plan says the arena's size exactly: all of it is used and nothing behind it.
TEST(Inspect, TheArenaThatIsUsedIsTheOneThatIsPlanned) {
  for (const bool fuse : {true, false}) {
    size_t shared = 0;  // the arena whose memory is used again
    for (const bool reuse : {true, false}) {
      TrainSpec spec = SmallMlp();
      spec.passes.fuse = fuse;
      spec.passes.reuse_memory = reuse;
      Job job(spec);
      const size_t arena = job.plan->arena_bytes();
      const auto fill = [&](unsigned char byte) {
        std::memset(job.arena.data(), byte, arena + 4096);
      };
      Pages gradients(static_cast<size_t>(job.plan->gradient_count()) * 4);
      std::set<size_t> touched;
      // A byte may be written with what was there: two fillings find every write.
      for (const int byte : {0xA5, 0x5A}) {
        fill(static_cast<unsigned char>(byte));
        ASSERT_TRUE(job.RunShard(1, 0, gradients.floats()).ok());
        const TestBatch batch = MakeBatch(spec, 9, 0, 0, spec.eval_block);
        EvalSums sums;
        ASSERT_TRUE(job.executor->Evaluate(batch.fields(), spec.eval_block, &sums).ok());
        const auto* bytes = static_cast<const unsigned char*>(job.arena.data());
        for (size_t i = 0; i < arena + 4096; ++i) {
          if (bytes[i] != byte) touched.insert(i);
        }
      }
      ASSERT_FALSE(touched.empty());
      EXPECT_LT(*touched.rbegin(), arena);
      EXPECT_GE(*touched.rbegin() + 64, arena);  // the plan rounds up to 64 bytes
      size_t fullest = 0;
      for (const auto kind : {ProgramKind::kTraining, ProgramKind::kEvaluation}) {
        for (const NodeInfo& node : job.plan->Nodes(kind)) {
          fullest = std::max(fullest, node.live_bytes);
          EXPECT_LE(node.scratch_bytes, node.live_bytes);
        }
      }
      EXPECT_LE(fullest, arena);
      if (reuse) {
        EXPECT_GT(fullest, arena / 2);
        shared = arena;
      } else {
        EXPECT_GT(arena, shared);
      }
    }
  }
}

TEST(Inspect, AnObservedRunSeesEveryNodeAndHasTheSameBits) {
  const TrainSpec spec = SmallMlp();
  Job plain(spec), watched(spec);
  Keeper keeper;
  watched.executor->Observe(&keeper);
  const auto bytes = static_cast<size_t>(plain.plan->gradient_count()) * 4;
  Pages a(bytes), b(bytes);
  ASSERT_TRUE(plain.RunShard(1, 0, a.floats()).ok());
  ASSERT_TRUE(watched.RunShard(1, 0, b.floats()).ok());
  EXPECT_EQ(std::memcmp(a.data(), b.data(), bytes), 0);
  size_t runs = 0;
  for (const NodeInfo& node : plain.plan->Nodes(ProgramKind::kTraining)) {
    runs += node.runs;
    EXPECT_EQ(keeper.values.contains(node.id), node.runs) << node.text;
    EXPECT_EQ(node.shapes.size(), node.origins.size());
  }
  EXPECT_EQ(keeper.values.size(), runs);
  EXPECT_EQ(static_cast<size_t>(keeper.begun), runs);
  keeper.fail_at = keeper.values.rbegin()->first;
  EXPECT_THAT(std::string(watched.RunShard(1, 0, b.floats()).message()), HasSubstr("stop here"));
  watched.executor->Observe(nullptr);
  EXPECT_TRUE(watched.RunShard(1, 0, b.floats()).ok());
}

// "[64,256]" of "f32[64,256]".
std::string ExtentsOf(const std::string& shape) { return shape.substr(shape.find('[')); }

// Whatever passes a plan went through: an origin is a value of the graph before them, of the same
// extents, or is said to be none.
TEST(Inspect, OriginsAreOfTheGraphBeforeAllPasses) {
  for (const ModelCase& model : kModelCases) {
    TrainSpec plain = model.spec();
    plain.passes.fuse = false;
    const auto before = Plan::Compile(plain).value();
    for (const auto kind : {ProgramKind::kTraining, ProgramKind::kEvaluation}) {
      std::map<std::pair<int, int>, std::string> extents;
      for (const NodeInfo& node : before->Nodes(kind)) {
        for (size_t o = 0; o < node.origins.size(); ++o) {
          ASSERT_GE(node.origins[o].first, 0) << node.text;
          const std::string own = ExtentsOf(node.shapes[o]);
          ASSERT_EQ(extents.emplace(node.origins[o], own).first->second, own) << node.text;
        }
      }
      for (const char* precision : {"fp32", "bf16"}) {
        for (const auto mode : {RecomputeSpec::Mode::kNone, RecomputeSpec::Mode::kBlocks}) {
          TrainSpec spec = model.spec();
          spec.precision = precision;
          spec.recompute.mode = mode;
          for (const NodeInfo& node : Plan::Compile(spec).value()->Nodes(kind)) {
            for (size_t o = 0; o < node.origins.size(); ++o) {
              if (node.origins[o].first < 0) continue;
              ASSERT_TRUE(extents.contains(node.origins[o])) << model.name << ": " << node.text;
              ASSERT_EQ(extents.at(node.origins[o]), ExtentsOf(node.shapes[o]))
                  << model.name << ": " << node.text;
            }
          }
        }
      }
    }
  }
}

TEST(Inspect, ValuesOfOneOriginAreTheSameWithAndWithoutFusion) {
  TrainSpec unfused_spec = SmallMlp();
  unfused_spec.passes.fuse = false;
  Job fused(SmallMlp()), unfused(unfused_spec);
  Keeper a, b;
  fused.executor->Observe(&a);
  unfused.executor->Observe(&b);
  Pages gradients(static_cast<size_t>(fused.plan->gradient_count()) * 4);
  ASSERT_TRUE(fused.RunShard(1, 0, gradients.floats()).ok());
  ASSERT_TRUE(unfused.RunShard(1, 0, gradients.floats()).ok());
  std::map<std::pair<int, int>, std::vector<float>> by_origin;
  for (const NodeInfo& node : unfused.plan->Nodes(ProgramKind::kTraining)) {
    for (size_t o = 0; o < node.origins.size() && node.runs; ++o) {
      by_origin[node.origins[o]] = b.values[node.id][o];
    }
  }
  int matched = 0, nodes = 0;
  for (const NodeInfo& node : fused.plan->Nodes(ProgramKind::kTraining)) {
    for (size_t o = 0; o < node.origins.size() && node.runs; ++o) {
      ++nodes;
      const auto other = by_origin.find(node.origins[o]);
      if (other == by_origin.end()) continue;
      ++matched;
      const std::vector<float>& mine = a.values[node.id][o];
      ASSERT_EQ(mine.size(), other->second.size()) << node.text;
      for (size_t i = 0; i < mine.size(); ++i) {
        EXPECT_NEAR(mine[i], other->second[i], 1e-5 * (1 + std::fabs(mine[i]))) << node.text;
      }
    }
  }
  EXPECT_EQ(matched, nodes);  // whatever the fused plan computes, the unfused one computes too
  EXPECT_LT(fused.plan->Nodes(ProgramKind::kTraining).size(),
            unfused.plan->Nodes(ProgramKind::kTraining).size());
}

TEST(Inspect, AnInferencePlanHasWeightsAloneAndTheSameAnswers) {
  const TrainSpec spec = SmallMlp();
  Job job(spec);
  const auto plan = Plan::CompileInference(spec);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ((*plan)->gradient_count(), 0);
  EXPECT_TRUE((*plan)->Nodes(ProgramKind::kTraining).empty());
  EXPECT_LT((*plan)->state_bytes(), job.plan->state_bytes());
  for (const StateEntry& entry : (*plan)->state()) {
    EXPECT_NE(entry.role, StateEntry::Role::kMoment) << entry.name;
  }
  Pages state((*plan)->state_bytes()), arena((*plan)->arena_bytes());
  const auto executor = Executor::Create(*plan, {state.data(), arena.data()});
  ASSERT_TRUE(executor.ok()) << executor.status();
  (*executor)->InitState();  // the same initial weights
  const TestBatch batch = MakeBatch(spec, 5, 0, 0, spec.eval_block);
  EvalSums trained, served;
  ASSERT_TRUE(job.executor->Evaluate(batch.fields(), 17, &trained).ok());
  ASSERT_TRUE((*executor)->Evaluate(batch.fields(), 17, &served).ok());
  EXPECT_EQ(trained.loss, served.loss);
  EXPECT_EQ(trained.correct, served.correct);
  const auto logits = (*executor)->Predict(batch.fields(), 17);
  ASSERT_TRUE(logits.ok()) << logits.status();
  ASSERT_EQ(logits->size(), static_cast<size_t>(spec.eval_block * 10));
  int64_t correct = 0;
  for (size_t i = 0; i < 17; ++i) {
    const auto row = logits->subspan(i * 10, 10);
    correct += std::max_element(row.begin(), row.end()) - row.begin() == batch.labels[i];
  }
  EXPECT_EQ(correct, served.correct);
  EXPECT_FALSE(job.executor->Predict(batch.fields(), 17).ok());
}

TEST(Inspect, AnInstructionSetCanBeChosen) {
  TrainSpec spec = SmallMlp();
  spec.passes.isa = "portable";
  EXPECT_TRUE(Plan::Compile(spec).ok());
  spec.passes.isa = "mmx";
  EXPECT_THAT(std::string(Plan::Compile(spec).status().message()), HasSubstr("'mmx'"));
}

}  // namespace
}  // namespace lockstep::engine
