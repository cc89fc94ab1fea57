// SPDX-License-Identifier: Apache-2.0
// Convolutions by cuDNN, on the emulated GPU and its clock with a fake library
// (tests/emulation/fake_cudnn.h): when it is taken, and that it computes what our own kernels do.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>

#include "absl/strings/str_cat.h"
#include "engine/cuda/conv_tuning.h"
#include "tests/unit/engine/cudnn_fixture.h"
#include "tests/unit/engine/one_convolution.h"
#include "tests/unit/engine/step_job.h"

namespace lockstep::engine {
namespace {

using cuda::Cudnn;
using cuda::CudnnAlgorithm;
using cuda::Disagreement;
using cuda::Type;
using testing::HasSubstr;

class ConvolutionTest : public CudnnTest {
 protected:
  // The algorithm that is chosen anew; kOwn when it is none of the library's.
  int Chosen(const Convolution& convolution, Direction direction) {
    return ChosenFor(NodeOf(convolution, direction));
  }

  const Convolution plain_ = Convolutions()[0];
};

// ---- what it computes ----

class CudnnParityTest : public ConvolutionTest,
                        public testing::WithParamInterface<std::tuple<Convolution, Direction>> {};

TEST_P(CudnnParityTest, TheQuickerLibraryGivesWhatOurKernelsDo) {
  const auto& [convolution, direction] = GetParam();
  const OneNode node = NodeOf(convolution, direction);
  const std::vector<float> expected = Run(node, Own(node));
  const Chooser chooser = Open();
  const CudaKernel kernel = Prepare(node, chooser.target).value();
  for (const fake_cudnn::Call& call : fake_->calls) {
    EXPECT_TRUE(call.algorithm == 1 || call.algorithm == 2) << call.algorithm;
  }
  fake_->calls.clear();
  const std::vector<float> made = Run(node, kernel);
  const double unit = convolution.type == DType::kF32    ? 0
                      : convolution.type == DType::kBF16 ? 0x1p-7
                                                         : 0x1p-10;
  for (size_t i = 0; i < made.size(); ++i) {
    const double want = static_cast<double>(expected[i]);
    ASSERT_NEAR(static_cast<double>(made[i]), want,
                2e-6 * (1 + std::fabs(want)) + unit * std::fabs(want))
        << i;
  }
  // Sums of 16-bit operands that go on in fp32 are those of a graph, which knows no groups here.
  const bool half = convolution.type != DType::kF32;
  const bool goes_on = direction == kForward ? convolution.extra > 0 : direction == kFilters;
  const bool groups = convolution.attrs.Int("groups", 1) > 1;
  if (half && goes_on && groups) {
    EXPECT_TRUE(fake_->calls.empty());
    return;
  }
  ASSERT_EQ(fake_->calls.size(), 1u);
  if (half && goes_on) {
    EXPECT_EQ(fake_->calls[0].direction, 3);
    EXPECT_EQ(fake_->calls[0].products, 1);
    return;
  }
  EXPECT_EQ(fake_->calls[0].direction, direction);
  EXPECT_EQ(fake_->calls[0].groups, convolution.attrs.Int("groups", 1));
  EXPECT_EQ(fake_->calls[0].math, convolution.type == DType::kF32 ? 3 : 1);
}

std::string NameOf(const testing::TestParamInfo<std::tuple<Convolution, Direction>>& info) {
  const char* const names[] = {"forward", "images", "filters"};
  return absl::StrCat(std::get<0>(info.param).name, "_", names[std::get<1>(info.param)]);
}
INSTANTIATE_TEST_SUITE_P(All, CudnnParityTest,
                         testing::Combine(testing::ValuesIn(Convolutions()),
                                          testing::Values(kForward, kImages, kFilters)),
                         NameOf);

TEST_F(ConvolutionTest, AGradientOfFiltersIsAddedTo) {
  OneNode node = NodeOf(plain_, kFilters);
  const Chooser chooser = Open();
  const CudaKernel kernel = Prepare(node, chooser.target).value();
  const std::vector<float> once = Run(node, kernel);
  node.operands.outputs[0].region = Region::kGradients;
  CudaContext context = context_;
  context.base[static_cast<int>(Region::kGradients)] = arena_;
  context.accumulate = true;
  const CudaKernel adding = Prepare(node, chooser.target).value();
  ASSERT_EQ(adding(context), 0);
  const std::vector<float> twice = Output(node);
  for (size_t i = 0; i < once.size(); ++i) EXPECT_EQ(twice[i], 2 * once[i]);
}

TEST_F(ConvolutionTest, Tf32AndFp32AreAskedForByName) {
  const OneNode node = NodeOf(plain_, kForward);
  Chooser chooser = Open();
  chooser.target.tf32 = true;
  Run(node, Prepare(node, chooser.target).value());
  EXPECT_EQ(fake_->calls.back().math, 0);
  chooser.target.tf32 = false;
  Run(node, Prepare(node, chooser.target).value());
  EXPECT_EQ(fake_->calls.back().math, 3);
}

TEST_F(ConvolutionTest, WhatWouldBeRoundedTwiceStaysOurs) {
  Convolution half = Convolutions()[7];
  EXPECT_EQ(Chosen(half, kForward), 1);
  half.extra = 1;
  EXPECT_EQ(Chosen(half, kForward), CudnnAlgorithm::kOwn);
  EXPECT_EQ(Chosen(half, kFilters), CudnnAlgorithm::kOwn);
}

// A bias in front of the rounding, and gradients of filters of 16-bit images.
TEST_F(ConvolutionTest, AGraphThatIsWrongOrGoneIsNotTaken) {
  const Convolution half = Convolutions()[8];
  fake_->milliseconds = 0.5;
  for (const Direction direction : {kForward, kFilters}) {
    EXPECT_EQ(Chosen(half, direction), 1);
    fake_->leaves_one_out = true;
    EXPECT_EQ(Chosen(half, direction), 2);
    fake_->leaves_one_out = false;
    const OneNode node = NodeOf(half, direction);
    Chooser first = Open();
    ASSERT_TRUE(Prepare(node, first.target).ok());
    first.products->Finish();
    fake_->missing = 1;
    const Chooser second = Open();
    EXPECT_THAT(std::string(Prepare(node, second.target).status().message()),
                HasSubstr("no algorithm 1 for conv"));
    fake_->missing = -1;
  }
}

// ---- what is taken ----

TEST_F(ConvolutionTest, WhatIsSlowerIsPassedOverAndKept) {
  fake_->milliseconds = 5;
  EXPECT_EQ(Chosen(plain_, kForward), CudnnAlgorithm::kOwn);
  const OneNode node = NodeOf(plain_, kForward);
  Chooser chooser = Open();
  ASSERT_TRUE(Prepare(node, chooser.target).ok());
  chooser.products->Finish();
  EXPECT_THAT(TextOfFile(),
              HasSubstr("cuDNN 9.19.0\tconv:2x5x7x3:4x3x3:s1x1:p1x1:d1x1:g1:f32\town"));
}

TEST_F(ConvolutionTest, ALibraryThatRefusesIsSaidAndKeptForTheRunAlone) {
  const Convolution half = Convolutions()[8];
  const auto check = [&](const Convolution& convolution, Direction direction, const char* said) {
    testing::internal::CaptureStderr();
    const OneNode node = NodeOf(convolution, direction);
    Chooser chooser = Open();
    const CudaKernel kernel = Prepare(node, chooser.target).value();
    EXPECT_EQ(AlgorithmOf(node, kernel), CudnnAlgorithm::kOwn);
    chooser.products->Finish();
    EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr(said));
    EXPECT_EQ(TextOfFile().find("conv"), std::string::npos);
    EXPECT_THAT(TextOf(RunFile()), HasSubstr("\trefused\n"));
  };
  fake_->find_status = 3000;
  check(plain_, kForward,
        "offers nothing for conv (conv:2x5x7x3:4x3x3:s1x1:p1x1:d1x1:g1:f32): "
        "it names no algorithm: status 3000, the fake cuDNN's error");
  fake_->find_status = 0;
  fake_->heuristics_status = 3007;
  check(half, kFilters, "it proposes no engine: status 3007");
  fake_->heuristics_status = 0;
  fake_->graph_status = 2003;
  check(half, kForward, "cuDNN refuses the graph with status 2003");
}

TEST_F(ConvolutionTest, WhatIsWrongIsPassedOver) {
  fake_->milliseconds = 0.5;
  EXPECT_EQ(Chosen(plain_, kForward), 1);
  fake_->leaves_one_out = true;
  for (const Direction direction : {kForward, kImages, kFilters}) {
    EXPECT_EQ(Chosen(plain_, direction), 2) << direction;
  }
}

TEST_F(ConvolutionTest, WhatFailsIsPassedOver) {
  fake_->milliseconds = 0.5;
  fake_->run_status = 5000;
  EXPECT_EQ(Chosen(plain_, kImages), 2);
}

TEST_F(ConvolutionTest, WhatHasOtherBitsInEachRunIsPassedOver) {
  fake_->milliseconds = 0.5;
  fake_->drifts = true;
  EXPECT_EQ(Chosen(plain_, kFilters), 2);
}

// Two workers of a host: what one has measured the other takes, whatever is quickest by then.
TEST_F(ConvolutionTest, RanksTakeTheSameFromOneFile) {
  const OneNode node = NodeOf(plain_, kForward);
  Chooser first = Open();
  EXPECT_EQ(AlgorithmOf(node, Prepare(node, first.target).value()), 1);
  EXPECT_EQ(first.cudnn->measured(), 1);
  first.products->Finish();
  fake_->milliseconds = 50;
  fake_->calls.clear();
  const Chooser second = Open();
  const CudaKernel kernel = Prepare(node, second.target).value();
  EXPECT_TRUE(fake_->calls.empty());
  EXPECT_EQ(second.cudnn->measured(), 0);
  EXPECT_EQ(AlgorithmOf(node, kernel), 1);
}

TEST_F(ConvolutionTest, AnAlgorithmOfTheFileThatIsGoneIsAnError) {
  const OneNode node = NodeOf(plain_, kForward);
  Chooser first = Open();
  ASSERT_TRUE(Prepare(node, first.target).ok());
  first.products->Finish();
  fake_->missing = 1;
  const Chooser second = Open();
  const absl::Status status = Prepare(node, second.target).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()), HasSubstr("no algorithm 1 for conv:2x5x7x3"));
  EXPECT_THAT(std::string(status.message()), HasSubstr(file_));
}

TEST_F(ConvolutionTest, WithoutALockOurKernelsAreTaken) {
  file_ = "/dev/null/a.tsv";
  EXPECT_EQ(Chosen(plain_, kForward), CudnnAlgorithm::kOwn);
}

TEST_F(ConvolutionTest, ConvolutionsAreToldApart) {
  std::set<std::string> names;
  const std::vector<Convolution> all = Convolutions();
  CudaTarget target;
  for (const Convolution& convolution : all) {
    for (const Direction direction : {kForward, kImages, kFilters}) {
      const OneNode node = NodeOf(convolution, direction);
      const auto part = static_cast<cuda::ConvPart>(direction);
      const cuda::Operands operands(node.graph, node.node(), node.operands, target);
      const cuda::ConvPlan plan(node.graph, node.node(), part);
      for (const bool tf32 : {false, true}) {
        names.insert(cuda::DescribeConvolution(operands, node.node(), plan, tf32));
      }
    }
  }
  // The last two have the same gradients.
  EXPECT_EQ(names.size(), all.size() * 6 - 4);
}

// ---- what counts as the same ----

TEST(Disagreement, RoundingIsNone) {
  const std::vector<float> expected = {1, -2, 0.5f, 3};
  EXPECT_EQ(Disagreement({1, -2, 0.5f, 3.000001f}, expected, Type::kF32, 16, false), "");
  EXPECT_EQ(Disagreement({1, -2.0155f, 0.5f, 3}, expected, Type::kBF16, 16, false), "");
  EXPECT_EQ(Disagreement({1, -2.005f, 0.5f, 3}, expected, Type::kF32, 16, true), "");
}

TEST(Disagreement, MoreIsSaidWithItsPlace) {
  const std::vector<float> expected = {1, -2, 0.5f, 3};
  EXPECT_THAT(Disagreement({1, -2, 0.5f, 3.0001f}, expected, Type::kF32, 16, false),
              HasSubstr("value 3 of 4 is 3.0001 instead of 3"));
  EXPECT_NE(Disagreement({1, -2.1f, 0.5f, 3}, expected, Type::kBF16, 16, false), "");
  EXPECT_NE(Disagreement({1, -2, NAN, 3}, expected, Type::kF32, 16, false), "");
}

// ---- whether it is there ----

TEST_F(ConvolutionTest, ALibraryThatDoesNotStartSaysWhy) {
  fake_->create_status = 1001;
  const auto opened = Cudnn::Open(*device_);
  EXPECT_EQ(opened.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(opened.status().message()), HasSubstr("does not start on"));
}

// The loader would not give it to cuDNN, which asks for the compiler by the name that it has
// itself.
TEST_F(ConvolutionTest, WhatIsNotItsCompilerIsNotTaken) {
  constexpr const char* kCompiler = "LOCKSTEP_NVRTC_LIBRARY";
  const auto why = [&](const char* path) {
    ::setenv(kCompiler, path, 1);
    const std::string said = cuda::LoadCudnn(nullptr).value().no_compiler;
    ::unsetenv(kCompiler);
    return said;
  };
  EXPECT_THAT(why("libm.so.6"), HasSubstr("libm.so.6 does not call itself libnvrtc.so.13"));
  EXPECT_THAT(why("/nowhere.so"), HasSubstr("NVRTC, with which cuDNN compiles some kernels, is not "
                                            "loaded either (/nowhere.so: cannot open"));
  EXPECT_THAT(why(""), HasSubstr("nowhere to look"));
}

// As cuDNN's own RUNPATH has it.
TEST(NvrtcPaths, WhatLiesBesideTheLibrariesComesFirst) {
  const std::string root = absl::StrCat(testing::TempDir(), "/beside-", ::getpid(), "/nvidia/");
  const std::string places[] = {root + "cu13/lib", root + "cudnn/lib", root + "other/lib"};
  for (const std::string& place : places) std::filesystem::create_directories(place);
  std::ofstream(root + "cu13/lib/libnvrtc.so.13") << "";
  const std::string other = root + "other/lib/libnvrtc.so.13";
  std::ofstream(other.c_str()) << "";
  const std::vector<std::string> paths = cuda::NvrtcPaths({places[1], "", places[2]});
  ASSERT_GE(paths.size(), 4u);
  EXPECT_EQ(paths[0], root + "cudnn/lib/../../cu13/lib/libnvrtc.so.13");
  EXPECT_EQ(paths[1], other);
  EXPECT_EQ(paths[2], root + "other/lib/../../cu13/lib/libnvrtc.so.13");
  EXPECT_EQ(paths[3], "libnvrtc.so.13");
  ::setenv("LOCKSTEP_NVRTC_LIBRARY", "/a.so", 1);
  EXPECT_EQ(cuda::NvrtcPaths({places[2]}), std::vector<std::string>{"/a.so"});
  ::unsetenv("LOCKSTEP_NVRTC_LIBRARY");
  std::filesystem::remove_all(root);
}

TEST_F(ConvolutionTest, WhatIsNotCudnnIsNotTaken) {
  ::setenv(kVariable, "/nowhere.so", 1);
  EXPECT_THAT(std::string(Cudnn::Open(*device_).status().message()), HasSubstr("/nowhere.so"));
  ::setenv(kVariable, "libc.so.6", 1);
  EXPECT_THAT(std::string(Cudnn::Open(*device_).status().message()),
              HasSubstr("libc.so.6 is not cuDNN 9"));
  ::setenv(kVariable, "", 1);
  EXPECT_THAT(std::string(Cudnn::Open(*device_).status().message()), HasSubstr("nowhere to look"));
  ::unsetenv(kVariable);
  EXPECT_THAT(std::string(Cudnn::Open(*device_).status().message()), HasSubstr("an emulated one"));
}

// ---- whole steps ----

class CudnnStepTest : public CudnnTest {
 protected:
  TrainSpec Spec() const {
    TrainSpec spec = NormedCnn();
    spec.device = DeviceKind::kCuda;
    spec.shards = 1;
    spec.precision = precision_;
    return spec;
  }
  absl::StatusOr<std::unique_ptr<Executor>> Create(CudnnUse use, bool with_file = true) {
    plan_ = Plan::Compile(Spec()).value();
    state_ = std::make_unique<Pages>(plan_->state_bytes());
    engine::Memory memory{state_->data(), nullptr};
    if (with_file) memory.tuning_files = {file_};
    memory.cudnn = use;
    return Executor::Create(plan_, memory);
  }
  // The gradients of a step of two micro-batches; the second and later ones come from recordings.
  std::vector<float> Step(Executor* executor, int64_t step) {
    const TrainSpec spec = Spec();
    std::vector<float> gradients(static_cast<size_t>(plan_->gradient_count()));
    for (int micro = 0; micro < 2; ++micro) {
      const TestBatch batch = MakeBatch(spec, step, 0, micro);
      EXPECT_TRUE(executor->RunShard(step, 0, micro, batch.fields(), gradients.data(), {}).ok());
    }
    return gradients;
  }

  std::string precision_ = "fp32";
  std::shared_ptr<const Plan> plan_;
  std::unique_ptr<Pages> state_;
};

TEST_F(CudnnStepTest, RecordedStepsUseItAndAllocateNothing) {
  std::unique_ptr<Executor> own = Create(CudnnUse::kNever).value();
  own->InitState();
  const std::vector<float> expected = Step(own.get(), 0);
  EXPECT_TRUE(fake_->calls.empty());
  own.reset();
  for (const auto streams : {emulation::Streams::kEager, emulation::Streams::kLazy}) {
    emulation::SetStreams(streams);
    std::unique_ptr<Executor> executor = Create(CudnnUse::kAuto).value();
    executor->InitState();
    const int64_t allocations = emulation::Allocations();
    for (int repeat = 0; repeat < 4; ++repeat) {
      fake_->calls.clear();
      const std::vector<float> made = Step(executor.get(), 0);
      // Two convolutions in each of two micro-batches: forward, filters, and the images of one.
      EXPECT_EQ(fake_->calls.size(), 10u) << repeat;
      double most = 0, error = 0;
      for (size_t i = 0; i < made.size(); ++i) {
        most = std::max(most, static_cast<double>(std::fabs(expected[i])));
        error = std::max(error, static_cast<double>(std::fabs(made[i] - expected[i])));
      }
      EXPECT_LE(error, 1e-4 * most) << repeat;
    }
    EXPECT_EQ(emulation::Allocations(), allocations);
    EXPECT_GT(emulation::Captures(), 0);
  }
}

// In bf16 the gradients of filters are graphs, which are recorded too.
TEST_F(CudnnStepTest, RecordedGraphsGiveTheSameBits) {
  precision_ = "bf16";
  std::unique_ptr<Executor> executor = Create(CudnnUse::kAuto).value();
  executor->InitState();
  const std::vector<float> first = Step(executor.get(), 0);
  const int64_t allocations = emulation::Allocations();
  for (int repeat = 0; repeat < 3; ++repeat) {
    fake_->calls.clear();
    EXPECT_EQ(Step(executor.get(), 0), first) << repeat;
    int graphs = 0;
    for (const fake_cudnn::Call& call : fake_->calls) graphs += call.direction == 3 ? 1 : 0;
    EXPECT_GE(graphs, 2) << repeat;
  }
  EXPECT_EQ(emulation::Allocations(), allocations);
  EXPECT_GT(executor->engines().at("conv-weight by cuDNN"), 0);
}

TEST_F(CudnnStepTest, WhereItIsMissingOnlyAlwaysFails) {
  ::setenv(kVariable, "/nowhere.so", 1);
  EXPECT_TRUE(Create(CudnnUse::kAuto).ok());
  const absl::Status always = Create(CudnnUse::kAlways).status();
  EXPECT_EQ(always.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(always.message()), HasSubstr("resources.cudnn is always"));
  EXPECT_THAT(std::string(always.message()), HasSubstr("/nowhere.so"));
}

TEST_F(CudnnStepTest, WithoutFilesOnlyAlwaysFails) {
  EXPECT_TRUE(Create(CudnnUse::kAuto, false).ok());
  EXPECT_EQ(fake_->handles, 0);
  EXPECT_THAT(std::string(Create(CudnnUse::kAlways, false).status().message()),
              HasSubstr("resources.matmul"));
}

}  // namespace
}  // namespace lockstep::engine
