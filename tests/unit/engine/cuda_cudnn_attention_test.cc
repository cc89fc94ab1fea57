// SPDX-License-Identifier: Apache-2.0
// Attention by cuDNN, on the emulated GPU and its clock with a fake library that does a graph's
// operations one by one (tests/emulation/fake_cudnn_graph.h): when it is taken, and that the graphs
// compute what our own kernels do.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <ostream>

#include "engine/cuda/attention_cudnn.h"
#include "engine/cuda/doctor.h"
#include "engine/ops/ops.h"
#include "tests/unit/engine/cudnn_fixture.h"
#include "tests/unit/engine/step_job.h"

namespace lockstep::engine {
namespace {

using cuda::AttentionDisagreement;
using cuda::CudnnAlgorithm;
using cuda::LogSumDisagreement;
using cuda::Type;
using testing::HasSubstr;

// Attention in 16 bits.
struct Attention {
  const char* name;
  int64_t batch, heads, length, depth;
  bool packed = true, causal = true;
  DType type = DType::kBF16;
  double rate = 0;
  int masked = 0;  // 1: by key, 2: by length
  int64_t queries = 0;
};
std::ostream& operator<<(std::ostream& out, const Attention& a) { return out << a.name; }

std::vector<Attention> Attentions() {
  return {{"packed_causal", 2, 3, 21, 16},
          {"packed", 1, 2, 33, 8, true, false},
          {"apart_causal", 2, 2, 17, 24, false, true, DType::kF16},
          {"apart", 1, 1, 40, 128, false, false, DType::kF16},
          {"one", 3, 1, 1, 8}};
}

OneNode NodeOf(const Attention& a, bool backward) {
  const int64_t width = a.heads * a.depth, rows = a.batch * a.length;
  const int64_t queries = a.queries != 0 ? a.queries : a.length;
  const TensorType y{a.type, {a.batch * queries, width}};
  std::vector<TensorType> inputs;
  if (backward) inputs = {y, y, {DType::kF32, {a.batch, a.heads, queries}}};
  if (a.packed) {
    inputs.push_back({a.type, {rows, 3 * width}});
  } else {
    inputs.insert(inputs.end(), {y, {a.type, {rows, width}}, {a.type, {rows, width}}});
  }
  if (a.masked == 1) inputs.push_back({DType::kI32, {a.batch, a.length}});
  if (a.masked == 2) inputs.push_back({DType::kI32, {a.batch}});
  if (a.rate > 0) inputs.push_back({DType::kI32, {ops::kAddressWords}});
  Attrs attrs = {{"heads", a.heads},
                 {"length", a.length},
                 {"causal", int64_t{a.causal}},
                 {"masked", int64_t{a.masked > 0}},
                 {"rate", a.rate},
                 {"key", int64_t{1}}};
  if (a.queries != 0) attrs.Set("queries", a.queries);
  if (IsHalf(a.type)) attrs.Set(kDTypeAttr, std::string(Name(a.type)));
  return OneNode(backward ? ops::kAttentionBackward : ops::kAttention, inputs, attrs);
}

class AttentionTest : public CudnnTest {
 protected:
  // Our own kernels take 3 ms.
  template <auto kKernel, typename Args>
  static cuda::Code Slow(const Args& args, cuda::Stream stream) {
    emulation::Do(static_cast<cudaStream_t>(stream), [] { emulation::Spend(3); });
    return (cuda::EmulatedTables()->kernels->*kKernel)(args, stream);
  }
  const cuda::Tables* tables() const override {
    static cuda::Kernels kernels;
    static cuda::Tables tables;
    kernels = *cuda::EmulatedTables()->kernels;
    kernels.attention = Slow<&cuda::Kernels::attention, cuda::AttentionArgs>;
    kernels.attention_backward =
        Slow<&cuda::Kernels::attention_backward, cuda::AttentionBackwardArgs>;
    tables = *cuda::EmulatedTables();
    tables.kernels = &kernels;
    return &tables;
  }
  int Chosen(const Attention& attention, bool backward) {
    return ChosenFor(NodeOf(attention, backward));
  }

  const Attention plain_ = Attentions()[0];
};

// ---- what it computes ----

class AttentionParityTest : public AttentionTest,
                            public testing::WithParamInterface<std::tuple<Attention, bool>> {};

TEST_P(AttentionParityTest, TheQuickerLibraryGivesWhatOurKernelsDo) {
  const auto& [attention, backward] = GetParam();
  const OneNode node = NodeOf(attention, backward);
  const size_t outputs = node.operands.outputs.size();
  Run(node, Own(node));
  std::vector<std::vector<float>> expected;
  for (size_t i = 0; i < outputs; ++i) expected.push_back(Output(node, i));
  const Chooser chooser = Open();
  const CudaKernel kernel = Prepare(node, chooser.target).value();
  for (const fake_cudnn::Call& call : fake_->calls) {
    EXPECT_TRUE(call.algorithm == 1 || call.algorithm == 2) << call.algorithm;
  }
  fake_->calls.clear();
  Run(node, kernel);
  const Type type = attention.type == DType::kBF16 ? Type::kBF16 : Type::kF16;
  for (size_t i = 0; i < outputs; ++i) {
    const std::vector<float> made = Output(node, i);
    EXPECT_EQ(!backward && i == 1 ? LogSumDisagreement(made, expected[i])
                                  : AttentionDisagreement(made, expected[i], type, attention.depth),
              "")
        << i;
  }
  ASSERT_EQ(fake_->calls.size(), 1u);
  EXPECT_EQ(fake_->calls[0].algorithm, 1);
  EXPECT_EQ(fake_->calls[0].products, backward ? 5 : 2);
}

std::string NameOf(const testing::TestParamInfo<std::tuple<Attention, bool>>& info) {
  return absl::StrCat(std::get<0>(info.param).name,
                      std::get<1>(info.param) ? "_backward" : "_forward");
}
INSTANTIATE_TEST_SUITE_P(All, AttentionParityTest,
                         testing::Combine(testing::ValuesIn(Attentions()), testing::Bool()),
                         NameOf);

// A grid's third extent is a sample's.
TEST_F(AttentionTest, MoreSamplesThanAGridHasAreRefused) {
  CudaTarget target;
  target.tables = &device_->tables();
  for (const DType type : {DType::kBF16, DType::kF32}) {
    for (const bool backward : {false, true}) {
      const Attention most = {"most", 65535, 1, 1, 8, true, true, type};
      EXPECT_TRUE(Prepare(NodeOf(most, backward), target).ok());
      const Attention more = {"more", 65536, 1, 1, 8, true, true, type};
      const absl::Status status = Prepare(NodeOf(more, backward), target).status();
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
      EXPECT_THAT(std::string(status.message()), HasSubstr("1 heads of 65536 samples at once"));
    }
  }
}

// ---- what is taken ----

TEST_F(AttentionTest, WhatDoesNotSuitStaysOurs) {
  for (const bool backward : {false, true}) {
    const auto ours = [&](Attention attention) {
      EXPECT_EQ(Chosen(attention, backward), CudnnAlgorithm::kOwn) << backward;
    };
    Attention changed = plain_;
    changed.rate = 0.1;
    ours(changed);
    changed = plain_;
    changed.masked = 1;
    ours(changed);
    changed.masked = 2;
    ours(changed);
    changed = plain_;
    changed.depth = 12;
    ours(changed);
    changed.depth = 136;
    ours(changed);
    changed = plain_;
    changed.type = DType::kF32;
    ours(changed);
    changed = plain_;
    changed.packed = false;
    changed.queries = 1;
    ours(changed);
  }
  EXPECT_TRUE(fake_->calls.empty());
}

TEST_F(AttentionTest, AnOlderLibraryIsNotAsked) {
  fake_->version = 91701;
  EXPECT_EQ(Chosen(plain_, false), CudnnAlgorithm::kOwn);
  fake_->version = 91800;
  EXPECT_EQ(Chosen(plain_, false), 1);
}

TEST_F(AttentionTest, WhatIsSlowerIsPassedOver) {
  fake_->milliseconds = 5;
  EXPECT_EQ(Chosen(plain_, true), CudnnAlgorithm::kOwn);
}

TEST_F(AttentionTest, WhatIsWrongFailsOrChangesIsPassedOver) {
  for (const bool backward : {false, true}) {
    EXPECT_EQ(Chosen(plain_, backward), 1);
    fake_->leaves_one_out = true;
    EXPECT_EQ(Chosen(plain_, backward), 2);
    fake_->leaves_one_out = false;
    fake_->drifts = true;
    EXPECT_EQ(Chosen(plain_, backward), 2);
    fake_->drifts = false;
    fake_->run_status = 5000;
    EXPECT_EQ(Chosen(plain_, backward), 2);
    fake_->run_status = 0;
  }
}

// As without NVRTC, which may be there in the next run: nothing was compared, so nothing is kept
// for others.
TEST_F(AttentionTest, ALibraryThatRefusesIsSaidOnceAndKeptForTheRunAlone) {
  const OneNode node = NodeOf(plain_, false), backward = NodeOf(plain_, true);
  const auto check = [&](const char* why) {
    std::remove(RunFile().c_str());
    testing::internal::CaptureStderr();
    {
      Chooser chooser = Open();
      for (int i = 0; i < 2; ++i) {
        EXPECT_EQ(AlgorithmOf(node, Prepare(node, chooser.target).value()), CudnnAlgorithm::kOwn);
      }
      EXPECT_EQ(AlgorithmOf(backward, Prepare(backward, chooser.target).value()),
                CudnnAlgorithm::kOwn);
      EXPECT_EQ(chooser.cudnn->measured(), 0);
      chooser.products->Finish();
    }
    const std::string log = testing::internal::GetCapturedStderr();
    const std::string said = "cuDNN 9.19.0 offers nothing for ";
    const size_t first = log.find(said + "attention (attention:2x3x21x16:144:bf16:causal): ");
    EXPECT_NE(first, std::string::npos) << log;
    EXPECT_THAT(log, HasSubstr(why));
    EXPECT_THAT(log, HasSubstr(said + "attention-backward (attention-backward:2x3x21x16"));
    EXPECT_EQ(log.find(said + "attention (", first + 1), std::string::npos) << log;
    EXPECT_EQ(TextOfFile().find("attention"), std::string::npos);
    EXPECT_THAT(TextOf(RunFile()), HasSubstr("attention:2x3x21x16:144:bf16:causal\trefused\n"));
  };
  fake_->proposes_none = true;
  check("it proposes no engine; our own kernels do it");
  fake_->proposes_none = false;
  fake_->heuristics_status = 3007;
  check("it proposes no engine: status 3007; ");
  fake_->heuristics_status = 0;
  fake_->graph_status = 2003;
  check("cuDNN refuses the graph with status 2003");
  // A worker of this run that comes later computes the same, whatever the library has by then.
  fake_->graph_status = 0;
  testing::internal::CaptureStderr();
  {
    const Chooser later = Open();
    EXPECT_EQ(AlgorithmOf(node, Prepare(node, later.target).value()), CudnnAlgorithm::kOwn);
    EXPECT_EQ(later.cudnn->chosen().at("attention by mma.sync"), 1);
    later.products->Finish();
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr().find("offers nothing"), std::string::npos);
  EXPECT_EQ(TextOfFile().find("attention"), std::string::npos);
  // Another run asks again.
  std::remove(RunFile().c_str());
  EXPECT_EQ(Chosen(plain_, false), 1);
}

// Its answer is that none suits, whatever a later question gives.
TEST_F(AttentionTest, EnginesThatAreAllLeftOutAreNoRefusal) {
  fake_->proposes_unsteady = true;
  fake_->fallback_status = 3007;
  const OneNode node = NodeOf(plain_, false);
  testing::internal::CaptureStderr();
  const Chooser chooser = Open();
  EXPECT_EQ(AlgorithmOf(node, Prepare(node, chooser.target).value()), CudnnAlgorithm::kOwn);
  chooser.products->Finish();
  EXPECT_EQ(testing::internal::GetCapturedStderr().find("offers nothing"), std::string::npos);
  EXPECT_THAT(TextOfFile(), HasSubstr("attention:2x3x21x16:144:bf16:causal\town\n"));
}

TEST_F(AttentionTest, TheDoctorSaysThatTheLibraryPreparesNone) {
  const auto finding = [] {
    for (GpuFinding& one : ExamineGpus()) {
      if (one.part == "cuDNN") return std::move(one);
    }
    return GpuFinding{};
  };
  device_.reset();
  EXPECT_EQ(finding().state, GpuFinding::State::kGood);
  fake_->proposes_none = true;
  const GpuFinding refused = finding();
  EXPECT_EQ(refused.state, GpuFinding::State::kDoubtful);
  EXPECT_THAT(refused.text, HasSubstr("prepares no attention: it proposes no engine; our own"));
}

TEST_F(AttentionTest, RanksTakeTheSameFromOneFileWithItsKnobs) {
  const OneNode node = NodeOf(plain_, true);
  Chooser first = Open();
  EXPECT_EQ(AlgorithmOf(node, Prepare(node, first.target).value()), 1);
  EXPECT_EQ(first.cudnn->measured(), 1);
  first.products->Finish();
  EXPECT_THAT(TextOfFile(), HasSubstr("cuDNN 9.19.0\tattention-backward:2x3x21x16:144:bf16:causal\t"
                                      "cudnn.1.40.24=6\n"));
  fake_->milliseconds = 50;
  fake_->calls.clear();
  const Chooser second = Open();
  const CudaKernel kernel = Prepare(node, second.target).value();
  EXPECT_TRUE(fake_->calls.empty());
  EXPECT_EQ(second.cudnn->measured(), 0);
  EXPECT_EQ(AlgorithmOf(node, kernel), 1);
}

TEST_F(AttentionTest, AnEngineOfTheFileThatIsGoneIsAnError) {
  const OneNode node = NodeOf(plain_, false);
  Chooser first = Open();
  ASSERT_TRUE(Prepare(node, first.target).ok());
  first.products->Finish();
  fake_->missing = 1;
  const Chooser second = Open();
  const absl::Status status = Prepare(node, second.target).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()), HasSubstr("no algorithm 1 for attention:2x3x21x16"));
  EXPECT_THAT(std::string(status.message()), HasSubstr(file_));
}

TEST(AlgorithmTable, KeepsKnobs) {
  cuda::AlgorithmTable table;
  const CudnnAlgorithm algorithm{6, 4096, {{14, 2}, {24, 26}}};
  table.Set("a GPU", "attention", algorithm);
  EXPECT_EQ(table.ToText(/*refused=*/true), "a GPU\tattention\tcudnn.6.1000.14=2.24=26\n");
  cuda::AlgorithmTable read;
  read.Add("a GPU\tattention\tcudnn.6.1000.24\na GPU\tattention\tcudnn.6.1000.24=x\n");
  EXPECT_EQ(read.FindCudnn("a GPU", "attention"), nullptr);
  read.Add(table.ToText(/*refused=*/true));
  ASSERT_NE(read.FindCudnn("a GPU", "attention"), nullptr);
  EXPECT_EQ(*read.FindCudnn("a GPU", "attention"), algorithm);
}

TEST(AttentionWorkspace, HoldsTheGradientsOfScoresInTiles) {
  cuda::CudnnAttentionShape shape;
  shape.batch = 2;
  shape.heads = 3;
  shape.length = 129;
  constexpr size_t kBytes = 2u * 3 * 256 * 256 * 2 + 4096;
  EXPECT_EQ(cuda::AttentionWorkspaceBytes(shape, kBytes), kBytes);
  EXPECT_EQ(cuda::AttentionWorkspaceBytes(shape, kBytes - 1), 0u);
}

// GPT-2 of 124M with 64 sequences of 1024 wants 1.5 GiB, which is little beside its activations.
TEST(AttentionWorkspace, GrowsWithTheProgram) {
  Graph graph;
  EXPECT_EQ(cuda::MostAttentionWorkspace(graph), size_t{256} << 20);
  const Value x = graph.AddLeaf(ops::kInput, {DType::kF32, {1 << 20, 1 << 12}}, "x");  // 16 GiB
  EXPECT_EQ(cuda::MostAttentionWorkspace(graph), size_t{256} << 20);
  const Value y = graph.Add(ops::kRelu, {x});
  EXPECT_EQ(cuda::MostAttentionWorkspace(graph), size_t{2} << 30);
  graph.Add(ops::kRelu, {graph.Add(ops::kRelu, {y})});
  EXPECT_EQ(cuda::MostAttentionWorkspace(graph), size_t{4} << 30);
  cuda::CudnnAttentionShape shape;
  shape.batch = 64;
  shape.heads = 12;
  shape.length = 1024;
  EXPECT_GT(cuda::AttentionWorkspaceBytes(shape, size_t{2} << 30), size_t{1536} << 20);
}

// ---- what counts as the same ----

TEST(AttentionDisagreement, RoundingIsNone) {
  const std::vector<float> expected = {1, -2, 0.5f, 3};
  EXPECT_EQ(AttentionDisagreement({1.01f, -2.03f, 0.45f, 3.02f}, expected, Type::kBF16, 4), "");
  EXPECT_NE(AttentionDisagreement({1.01f, -2, 0.5f, 3}, expected, Type::kF16, 4), "");
  // Each row has a size of its own.
  EXPECT_NE(AttentionDisagreement({1, -2, 0.5f, 3, 0.01f, 0.05f}, {1, -2, 0.5f, 3, 0.01f, 0.04f},
                                  Type::kBF16, 2),
            "");
}

// Of a token that sees itself alone the scores' gradient is 0, and what is made of it rounding.
TEST(AttentionDisagreement, ARowOfRoundingsAloneIsNone) {
  const std::vector<float> expected = {5e-7f, -1e-6f, 0.02f, -0.03f};
  EXPECT_EQ(AttentionDisagreement({-5e-7f, 5e-7f, 0.02f, -0.03f}, expected, Type::kF16, 2), "");
  EXPECT_NE(AttentionDisagreement({1e-4f, -1e-6f, 0.02f, -0.03f}, expected, Type::kF16, 2), "");
}

TEST(AttentionDisagreement, MoreIsSaidWithItsPlace) {
  EXPECT_THAT(AttentionDisagreement({1, NAN}, {1, 2}, Type::kBF16, 2),
              HasSubstr("value 1 of 2 is nan instead of 2"));
  EXPECT_EQ(LogSumDisagreement({6.00005f}, {6}), "");
  EXPECT_THAT(LogSumDisagreement({6.001f}, {6}), HasSubstr("value 0 of 1"));
}

// ---- whole steps ----

class AttentionStepTest : public AttentionTest {
 protected:
  static TrainSpec Spec() {
    TrainSpec spec = TinyGpt();
    auto& gpt = std::get<GptSpec>(spec.model);
    gpt.dropout = 0;
    gpt.heads = 3;
    spec.precision = "bf16";
    spec.device = DeviceKind::kCuda;
    spec.shards = 1;
    return spec;
  }
  std::unique_ptr<Executor> Create(CudnnUse use) {
    plan_ = Plan::Compile(Spec()).value();
    state_ = std::make_unique<Pages>(plan_->state_bytes());
    engine::Memory memory{state_->data(), nullptr};
    memory.tuning_files = {file_};
    memory.cudnn = use;
    return Executor::Create(plan_, memory).value();
  }
  std::vector<float> Step(Executor* executor) {
    const TrainSpec spec = Spec();
    std::vector<float> gradients(static_cast<size_t>(plan_->gradient_count()));
    for (int micro = 0; micro < 2; ++micro) {
      const AnyBatch batch(spec, 0, 0, micro, spec.micro_batch);
      const absl::Status status =
          executor->RunShard(0, 0, micro, batch.fields(), gradients.data(), {});
      EXPECT_TRUE(status.ok()) << status;
    }
    return gradients;
  }

  std::shared_ptr<const Plan> plan_;
  std::unique_ptr<Pages> state_;
};

TEST_F(AttentionStepTest, RecordedStepsUseItAndAllocateNothing) {
  std::unique_ptr<Executor> own = Create(CudnnUse::kNever);
  own->InitState();
  const std::vector<float> expected = Step(own.get());
  EXPECT_TRUE(fake_->calls.empty());
  own.reset();
  for (const auto streams : {emulation::Streams::kEager, emulation::Streams::kLazy}) {
    emulation::SetStreams(streams);
    std::unique_ptr<Executor> executor = Create(CudnnUse::kAuto);
    executor->InitState();
    const int64_t allocations = emulation::Allocations();
    for (int repeat = 0; repeat < 4; ++repeat) {
      fake_->calls.clear();
      const std::vector<float> made = Step(executor.get());
      // Three layers, forward and backward, in each of two micro-batches.
      EXPECT_EQ(fake_->calls.size(), 12u) << repeat;
      double most = 0, error = 0;
      for (size_t i = 0; i < made.size(); ++i) {
        most = std::max(most, static_cast<double>(std::fabs(expected[i])));
        error = std::max(error, static_cast<double>(std::fabs(made[i] - expected[i])));
      }
      EXPECT_LE(error, 0.02 * most) << repeat;
    }
    EXPECT_EQ(emulation::Allocations(), allocations);
    EXPECT_GT(emulation::Captures(), 0);
  }
}

}  // namespace
}  // namespace lockstep::engine
