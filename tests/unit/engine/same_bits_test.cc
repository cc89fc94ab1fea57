// SPDX-License-Identifier: Apache-2.0
// Small jobs, drawn, whose gradients and weights are the same bits on every instruction set, with
// pairs of bf16 and without, with any number of threads, and wherever values lie in memory.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "common/philox.h"
#include "engine/cpu/isa.h"
#include "tests/unit/engine/step_job.h"

namespace lockstep::engine {
namespace {

constexpr int64_t kSteps = 2;
constexpr int kLayersFrom = 24, kJobs = 48;

// Numbers that follow from the job's number alone.
class Draw {
 public:
  explicit Draw(uint64_t job) : job_(job) {}
  // In [low, high].
  int64_t operator()(int64_t low, int64_t high) {
    const uint64_t bits = MixBits(job_ * 1000 + ++count_) >> 16;
    return low + static_cast<int64_t>(bits % static_cast<uint64_t>(high - low + 1));
  }
  bool Half() { return (*this)(0, 1) == 1; }

 private:
  const uint64_t job_;
  uint64_t count_ = 0;
};

void DrawImages(Draw* draw, TrainSpec* spec) {
  // Enough pixels and channels for Winograd's algorithm in some of them.
  const int64_t side = (*draw)(6, 13);
  spec->input = ClassificationInput({(*draw)(1, 4), side, side + (*draw)(0, 2)}, 10);
  spec->micro_batch = (*draw)(2, 5);
  if (draw->Half()) {
    spec->model =
        ResnetSpec{.depth = 18, .stem = "cifar", .zero_init = false, .width = (*draw)(2, 18)};
    return;
  }
  spec->model = CnnSpec{.channels = {(*draw)(5, 20), (*draw)(16, 34)},
                        .kernel = draw->Half() ? 3 : 5,
                        .batch_norm = draw->Half(),
                        .hidden = {(*draw)(9, 40)}};
}

// A convolution or pooling of images of `side` pixels each way, which becomes the result's.
LayerSpec DrawWindow(Draw* draw, int64_t* side) {
  using Kind = LayerSpec::Kind;
  const Kind kinds[] = {Kind::kConv, Kind::kMaxPool, Kind::kAvgPool};
  LayerSpec layer{.kind = kinds[(*draw)(0, 2)], .kernel = (*draw)(1, 3)};
  layer.padding = (*draw)(0, layer.kernel / 2);
  layer.stride = (*draw)(0, 3);  // 0: the kernel's, and 1 of a convolution
  if (layer.kind == Kind::kConv) layer.width = (*draw)(4, 20);
  const int64_t usual = layer.kind == Kind::kConv ? 1 : layer.kernel;
  const int64_t stride = layer.stride == 0 ? usual : layer.stride;
  *side = (*side + 2 * layer.padding - layer.kernel) / stride + 1;
  return layer;
}

// Layers in a row, as a job file may name them.
void DrawLayers(Draw* draw, TrainSpec* spec) {
  using Kind = LayerSpec::Kind;
  int64_t side = (*draw)(8, 14);
  spec->input = ClassificationInput({(*draw)(1, 4), side, side}, 10);
  spec->micro_batch = (*draw)(2, 4);
  LayersSpec layers;
  for (int64_t i = (*draw)(2, 4); i > 0 && side >= 4; --i) {
    layers.sequence.push_back(DrawWindow(draw, &side));
    const Kind kinds[] = {Kind::kBatchNorm, Kind::kRelu, Kind::kTanh, Kind::kGelu};
    if (draw->Half()) layers.sequence.push_back({.kind = kinds[(*draw)(0, 3)]});
  }
  layers.sequence.push_back({.kind = Kind::kLinear});
  spec->model = layers;
}

void DrawTexts(Draw* draw, TrainSpec* spec) {
  const auto type = FieldSpec::Type::kInt32;
  const int64_t length = (*draw)(5, 60), vocab = (*draw)(20, 70), heads = (*draw)(1, 3);
  const int64_t width = heads * (*draw)(5, 20);
  const double dropout = draw->Half() ? 0.2 : 0;
  spec->input = {{{"tokens", type, {length}, vocab}, {"labels", type, {length}, vocab}}, vocab};
  spec->micro_batch = (*draw)(1, 3);
  spec->eval_block = 2;
  const auto set = [&](auto& model) {
    model.layers = 2;
    model.heads = heads;
    model.width = width;
    model.vocab = vocab;
    model.dropout = dropout;
  };
  draw->Half() ? set(spec->model.emplace<GptSpec>()) : set(spec->model.emplace<BertSpec>());
}

OptimizerSpec DrawOptimizer(Draw* draw) {
  switch ((*draw)(0, 3)) {
    case 0:
      return SgdSpec{.lr = 0.01, .momentum = 0.9};
    case 1:
      return AdamSpec{.lr = 1e-2, .decoupled = true};
    case 2:
      return LambSpec{};
    default:
      return MuonSpec{};
  }
}

TrainSpec DrawnJob(int job) {
  Draw draw(static_cast<uint64_t>(job) + 7);
  TrainSpec spec = SmallMlp();
  spec.model = MlpSpec{{draw(20, 300), draw(9, 60)}};
  if (job >= kLayersFrom) {
    DrawLayers(&draw, &spec);
  } else if (job % 3 == 1) {
    DrawImages(&draw, &spec);
  } else if (job % 3 == 2) {
    DrawTexts(&draw, &spec);
  }
  spec.optimizer = DrawOptimizer(&draw);
  spec.accumulate = static_cast<int>(draw(1, 2));
  spec.clip_norm = draw.Half() ? 1 : 0;
  const char* const precisions[] = {"fp32", "bf16", "fp16", "pure_bf16"};
  spec.precision = precisions[draw(0, 3)];
  spec.schedule = {.kind = ScheduleSpec::Kind::kCosine, .total_updates = 10};
  return spec;
}

// The gradients of every step, the last ones by weights that all of the optimizer has touched.
std::vector<float> Trained(TrainSpec spec, Isa isa, int threads, bool pairs) {
  spec.passes.isa = Name(isa);
  spec.passes.bf16_pairs = pairs;
  spec.threads = threads;
  Job job(spec);
  std::vector<float> all;
  for (int64_t step = 1; step <= kSteps; ++step) {
    const std::vector<float> gradients =
        SumOf(PoisonedGradients(&job, step, 0), PoisonedGradients(&job, step, 1));
    all.insert(all.end(), gradients.begin(), gradients.end());
    UpdateWith(&job, step, gradients);
  }
  return all;
}

class SameBitsTest : public testing::TestWithParam<int> {};

TEST_P(SameBitsTest, OnEveryInstructionSetAndWithAnyThreads) {
  const TrainSpec spec = DrawnJob(GetParam());
  const std::vector<float> portable = Trained(spec, Isa::kPortable, 1, false);
  for (const Isa isa : UsableIsas()) {
    for (const bool pairs : {false, true}) {
      ASSERT_TRUE(EqualBits(Trained(spec, isa, 1, pairs), portable))
          << Name(isa) << (pairs ? ", pairs" : "");
    }
  }
  for (const int threads : {2, 3, 5}) {
    ASSERT_TRUE(EqualBits(Trained(spec, DetectIsa(), threads, false), portable))
        << threads << " threads";
  }
  // What an operator leaves out of its result shows what lay there before.
  TrainSpec apart = spec;
  apart.passes.reuse_memory = apart.passes.in_place = false;
  ASSERT_TRUE(EqualBits(Trained(apart, DetectIsa(), 1, false), portable)) << "memory of its own";
}

// AddressSanitizer looks at memory, not at numbers.
#ifdef LOCKSTEP_SANITIZE_ADDRESS
INSTANTIATE_TEST_SUITE_P(Jobs, SameBitsTest, testing::Range(0, kJobs, 4));
#else
INSTANTIATE_TEST_SUITE_P(Jobs, SameBitsTest, testing::Range(0, kJobs));
#endif

// The variable is asked where a job names no set.
TEST(ChooseIsaTest, TheVariableChooses) {
  setenv(kIsaVariable, "portable", 1);
  EXPECT_EQ(*ChooseIsa(""), Isa::kPortable);
  EXPECT_EQ(*ChooseIsa(Name(DetectIsa())), DetectIsa());
  setenv(kIsaVariable, "sse2", 1);
  EXPECT_EQ(
      ChooseIsa("").status().message(),
      "LOCKSTEP_ISA: no instruction set 'sse2': there are portable, avx2, avx512, avx512_bf16");
  unsetenv(kIsaVariable);
  EXPECT_EQ(*ChooseIsa(""), DetectIsa());
}

}  // namespace
}  // namespace lockstep::engine
