// SPDX-License-Identifier: Apache-2.0
// Nodes that are one launch, on the emulated GPU: the bits of one after another.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "engine/exec/plan.h"
#include "engine/graph/op.h"
#include "engine/passes/launch_groups.h"
#include "tests/emulation/emulation.h"
#include "tests/unit/engine/on_gpu.h"
#include "tests/unit/engine/step_job.h"

namespace lockstep::engine {
namespace {

// Returns whether the node may write its output `o` over `value`, which it reads itself.
bool WritesOver(const Node& node, Value value, int o) {
  return std::any_of(node.op->in_place.begin(), node.op->in_place.end(), [&](const auto& pair) {
    return pair.second == o && static_cast<size_t>(pair.first) < node.inputs.size() &&
           node.inputs[static_cast<size_t>(pair.first)] == value;
  });
}

void ExpectNothingReadIsWrittenOver(const Program& program) {
  const std::vector<int> last = LaunchGroups(program.graph);
  const auto check = [&](int reader, int writer) {
    const Node& read = program.graph.node(reader);
    const Node& written = program.graph.node(writer);
    const KernelOperands& reads = program.memory.operands[static_cast<size_t>(reader)];
    const KernelOperands& writes = program.memory.operands[static_cast<size_t>(writer)];
    for (size_t i = 0; i < read.inputs.size(); ++i) {
      const size_t bytes = program.graph.type(read.inputs[i]).bytes();
      for (size_t o = 0; o < written.outputs.size(); ++o) {
        if (reads.inputs[i].region != writes.outputs[o].region) continue;
        const size_t a = reads.inputs[i].offset, b = writes.outputs[o].offset;
        if (a == b && WritesOver(written, read.inputs[i], static_cast<int>(o))) continue;
        EXPECT_TRUE(a + bytes <= b || b + written.outputs[o].bytes() <= a)
            << "%" << reader << " input " << i << " under output " << o << " of %" << writer;
      }
    }
  };
  for (int id = 0; id < static_cast<int>(last.size()); ++id) {
    for (int writer = id + 1; writer <= last[static_cast<size_t>(id)]; ++writer) {
      for (int reader = id; reader < writer; ++reader) check(reader, writer);
    }
  }
}

// What a node of a group writes lies nowhere over what the nodes before it read, but for what it
// may write over itself, element by element.
TEST(CudaGroupsTest, GroupsWriteOverNothingThatTheyRead) {
  for (TrainSpec spec : {TinyGpt(), TinyBert()}) {
    spec = OnGpu(spec);
    spec.precision = "bf16";
    ExpectNothingReadIsWrittenOver(CompiledPlan::Make(spec).value()->train());
    spec.precision = "fp32";
    ExpectNothingReadIsWrittenOver(CompiledPlan::Make(spec).value()->train());
  }
}

// A residual and the layer normalisation of it are one launch, as are a sum of gradients and the
// gradient of relu of it, a normalisation or its gradient and what rounds or drops of it, and the
// gradients of a normalisation; the bits are those of two.
TEST(CudaGroupsTest, GroupsAreOneLaunchWithTheSameBits) {
  if (TakesRealGpu()) GTEST_SKIP() << "counts the emulated GPU's launches";
  struct Silent : NodeObserver {
    bool reads_outputs() const override { return false; }
    void BeforeNode(ProgramKind, int) override {}
    absl::Status AfterNode(ProgramKind, int, absl::Span<const TensorView>) override {
      return absl::OkStatus();
    }
  } observer;
  struct Case {
    TrainSpec spec;
    const char* precision;
    // TinyGpt: two in each block, but for the sum before the first. TinyResnet: where two gradients
    // meet behind a relu, at all blocks but the last. TinyBert: the same two; in bf16 also most
    // normalisations and what rounds them, and their gradients and a dropout.
    int64_t least;
  };
  TrainSpec odd_bert = TinyBert();
  std::get<BertSpec>(odd_bert.model).width = 26;  // rows that lie at odd places are a block's
  for (const auto& [model, precision, least] :
       {Case{TinyGpt(), "fp32", 2}, Case{TinyGpt(), "bf16", 2}, Case{TinyGpt(), "pure_bf16", 2},
        Case{TinyResnet(), "bf16", 7}, Case{TinyBert(), "fp32", 4}, Case{TinyBert(), "bf16", 20},
        Case{TinyBert(), "pure_bf16", 4}, Case{odd_bert, "bf16", 14}}) {
    TrainSpec spec = OnGpu(model);
    spec.precision = precision;
    Job grouped(spec), single(spec);
    single.executor->Observe(&observer);
    const auto plan = std::dynamic_pointer_cast<const CompiledPlan>(grouped.plan);
    const std::vector<int> last = LaunchGroups(plan->train().graph);
    int64_t groups = 0;
    for (size_t id = 0; id < last.size(); ++id) groups += last[id] == static_cast<int>(id) ? 0 : 1;
    EXPECT_GE(groups, least) << precision;
    int64_t before = emulation::Launches();
    const std::vector<float> a = PoisonedGradients(&grouped, 1, 0);
    const int64_t few = emulation::Launches() - before;
    before = emulation::Launches();
    const std::vector<float> b = PoisonedGradients(&single, 1, 0);
    EXPECT_EQ(emulation::Launches() - before - few, groups * spec.accumulate) << precision;
    EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)), 0) << precision;
  }
}

}  // namespace
}  // namespace lockstep::engine
