// SPDX-License-Identifier: Apache-2.0
// Dropout's bits from attention to its gradient on a GPU: the same weights, whatever kernels the
// GPU has.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <tuple>
#include <vector>

#include "tests/emulation/emulation.h"
#include "tests/unit/engine/on_gpu.h"
#include "tests/unit/engine/step_job.h"

namespace lockstep::engine {
namespace {

using Mode = RecomputeSpec::Mode;

// Which bits each launch was given.
struct Seen {
  int left = 0;
  int read = 0;
  int drawn = 0;
};
Seen seen;
bool spoils = false;

cuda::Code Attention(const cuda::AttentionArgs& args, cuda::Stream stream) {
  seen.left += args.kept != nullptr ? 1 : 0;
  const cuda::Code code = cuda::EmulatedTables()->kernels->attention(args, stream);
  // The bits of one pair of columns for another.
  if (spoils && args.kept != nullptr) std::swap_ranges(args.kept, args.kept + 64, args.kept + 64);
  return code;
}
cuda::Code AttentionBackward(const cuda::AttentionBackwardArgs& args, cuda::Stream stream) {
  seen.read += args.forward.kept != nullptr ? 1 : 0;
  seen.drawn += args.kept != nullptr ? 1 : 0;
  return cuda::EmulatedTables()->kernels->attention_backward(args, stream);
}

class CudaKeptDropoutTest : public testing::Test {
 protected:
  void SetUp() override {
    if (TakesRealGpu()) GTEST_SKIP() << "of the emulated GPU";
    kernels_ = *cuda::EmulatedTables()->kernels;
    kernels_.attention = Attention;
    kernels_.attention_backward = AttentionBackward;
    tables_ = *cuda::EmulatedTables();
    tables_.kernels = &kernels_;
    cuda::UseTables(&tables_);
  }
  void TearDown() override {
    ::unsetenv("LOCKSTEP_WARPGROUPS");
    spoils = false;
    if (!TakesRealGpu()) cuda::UseTables(cuda::EmulatedTables());
  }

  // A block whose attention suits the kernels of sm_90a.
  static TrainSpec OneBlock() {
    TrainSpec spec = TinyGpt();
    auto& gpt = std::get<GptSpec>(spec.model);
    gpt.layers = 1;
    gpt.width = 128;
    for (FieldSpec& field : spec.input.fields) field.shape = {130};
    spec.micro_batch = 1;
    spec.shards = 1;
    spec.loss_scale.init = 256;  // which overflows in no step
    spec.precision = "bf16";
    spec.device = DeviceKind::kCuda;
    return spec;
  }
  // The state after two steps; `seen` is what they launched.
  static std::vector<char> Trained(const TrainSpec& spec) {
    Job job(spec);
    seen = {};
    for (const int64_t step : {1, 2}) UpdateWith(&job, step, PoisonedGradients(&job, step, 0));
    LS_CHECK(job.executor->PublishState().ok());
    return job.StateBytes();
  }
  static std::vector<char> TrainedWithout(TrainSpec spec) {
    spec.passes.keep_dropout = false;
    return Trained(spec);
  }

  cuda::Kernels kernels_;
  cuda::Tables tables_;
};

TEST_F(CudaKeptDropoutTest, TheWeightsAreThoseOfDrawing) {
  for (const auto& [mode, accumulate, precision] :
       {std::tuple(Mode::kNone, 3, "bf16"), std::tuple(Mode::kSelective, 1, "fp16"),
        std::tuple(Mode::kBlocks, 1, "bf16")}) {
    SCOPED_TRACE(accumulate);
    TrainSpec spec = OneBlock();
    spec.recompute.mode = mode;
    spec.accumulate = accumulate;
    spec.precision = precision;
    const std::vector<char> expected = TrainedWithout(spec);
    EXPECT_EQ(seen.left, 0);
    EXPECT_EQ(seen.read, 0);
    EXPECT_GT(seen.drawn, 0);
    const int64_t before = emulation::GroupProducts();
    EXPECT_TRUE(Trained(spec) == expected);
    EXPECT_GT(emulation::GroupProducts(), before);
    EXPECT_GT(seen.left, 0);
    EXPECT_EQ(seen.read, seen.left);
    EXPECT_EQ(seen.drawn, 0);
  }
}

TEST_F(CudaKeptDropoutTest, OtherBitsMakeOtherWeights) {
  TrainSpec spec = OneBlock();
  spec.accumulate = 1;
  const std::vector<char> expected = Trained(spec);
  spoils = true;
  EXPECT_FALSE(Trained(spec) == expected);
}

// The plan is the same on each GPU: one without warpgroups leaves its memory alone, and draws.
TEST_F(CudaKeptDropoutTest, GpusWithoutWarpgroupsDraw) {
  ::setenv("LOCKSTEP_WARPGROUPS", "0", 1);
  TrainSpec spec = OneBlock();
  spec.accumulate = 1;
  const std::vector<char> expected = TrainedWithout(spec);
  const int64_t before = emulation::GroupProducts();
  EXPECT_TRUE(Trained(spec) == expected);
  EXPECT_EQ(emulation::GroupProducts(), before);
  EXPECT_EQ(seen.left, 0);
  EXPECT_EQ(seen.read, 0);
}

}  // namespace
}  // namespace lockstep::engine
