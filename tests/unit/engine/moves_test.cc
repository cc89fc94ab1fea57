// SPDX-License-Identifier: Apache-2.0
// A node that takes seconds is seen to get on while it runs (Memory::moves).
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <string>
#include <vector>

#include "tests/unit/engine/step_job.h"

namespace lockstep::engine {
namespace {

using Kind = LayerSpec::Kind;

// Convolutions by products with patches, of stride 2, by Winograd's algorithm, and those that pool
// as they go.
TrainSpec LargeCnn() {
  TrainSpec spec = SmallMlp();
  spec.input = ClassificationInput({3, 48, 48}, 10);
  spec.model =
      LayersSpec{{{.kind = Kind::kConv, .width = 48, .kernel = 5, .padding = 2},
                  {.kind = Kind::kRelu},
                  {.kind = Kind::kMaxPool, .kernel = 2},
                  {.kind = Kind::kConv, .width = 96, .kernel = 3, .padding = 1},
                  {.kind = Kind::kRelu},
                  {.kind = Kind::kConv, .width = 96, .kernel = 5, .stride = 2, .padding = 2},
                  {.kind = Kind::kBatchNorm},
                  {.kind = Kind::kRelu},
                  {.kind = Kind::kAvgPool, .kernel = 2},
                  {.kind = Kind::kLinear, .width = 512},
                  {.kind = Kind::kRelu},
                  {.kind = Kind::kLinear}}};
  spec.micro_batch = 16;
  spec.shards = 1;
  return spec;
}

TrainSpec LargeGpt() {
  TrainSpec spec = TinyGpt();
  GptSpec& gpt = std::get<GptSpec>(spec.model);
  gpt.layers = 1;
  gpt.heads = 4;
  gpt.width = 256;
  gpt.vocab = 4096;
  const auto type = FieldSpec::Type::kInt32;
  spec.input = {{{"tokens", type, {256}, 4096}, {"labels", type, {256}, 4096}}, 4096};
  spec.micro_batch = 4;
  spec.accumulate = spec.shards = 1;
  return spec;
}

// Counts while each node runs.
class CountMoves : public NodeObserver {
 public:
  CountMoves(const std::atomic<int64_t>* moves, size_t nodes) : moves_(moves), of_(nodes) {}
  bool reads_outputs() const override { return false; }
  void BeforeNode(ProgramKind /*program*/, int /*node*/) override { before_ = moves_->load(); }
  absl::Status AfterNode(ProgramKind /*program*/, int node,
                         absl::Span<const TensorView> /*outputs*/) override {
    of_[static_cast<size_t>(node)] += moves_->load() - before_;
    return absl::OkStatus();
  }
  int64_t of(int node) const { return of_[static_cast<size_t>(node)]; }

 private:
  const std::atomic<int64_t>* const moves_;
  int64_t before_ = 0;
  std::vector<int64_t> of_;
};

class MovesTest : public testing::TestWithParam<std::tuple<ModelCase, std::string>> {};

TEST_P(MovesTest, EachFewMultiplicationsOfANodeCount) {
  constexpr double kMostFlops = 3e8;  // between two of them: tenths of a second of a slow thread
  TrainSpec spec = std::get<0>(GetParam()).spec();
  spec.precision = std::get<1>(GetParam());
  spec.threads = 2;
  const std::shared_ptr<const Plan> plan = Plan::Compile(spec).value();
  Pages state(plan->state_bytes()), arena(plan->arena_bytes());
  std::atomic<int64_t> moves{0};
  Memory memory{state.data(), arena.data()};
  memory.moves = &moves;
  const auto executor = Executor::Create(plan, memory).value();
  executor->InitState();
  const std::vector<NodeInfo> nodes = plan->Nodes(ProgramKind::kTraining);
  CountMoves count(&moves, nodes.size());
  executor->Observe(&count);
  std::vector<float> gradients(static_cast<size_t>(plan->gradient_count()));
  const AnyBatch batch(spec, 1, 0, 0, spec.micro_batch);
  ASSERT_TRUE(executor->RunShard(1, 0, 0, batch.fields(), gradients.data(), {}).ok());
  double most = 0;
  for (const NodeInfo& node : nodes) {
    if (!node.runs) continue;
    most = std::max(most, node.flops);
    EXPECT_GE(count.of(node.id), std::floor(node.flops / kMostFlops)) << node.text;
  }
  EXPECT_GT(most, 2 * kMostFlops) << "no node is long";
}

INSTANTIATE_TEST_SUITE_P(All, MovesTest,
                         testing::Combine(testing::Values(ModelCase{"cnn", LargeCnn},
                                                          ModelCase{"gpt", LargeGpt}),
                                          testing::Values("fp32", "bf16")),
                         [](const auto& info) {
                           return std::get<0>(info.param).name + std::string("_") +
                                  std::get<1>(info.param);
                         });

}  // namespace
}  // namespace lockstep::engine
