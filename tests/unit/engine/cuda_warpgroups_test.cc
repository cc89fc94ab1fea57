// SPDX-License-Identifier: Apache-2.0
// Attention by warpgroups on the emulated GPU is compared with that by mma.sync before a process
// takes it, and faults that are planted in it are found.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "engine/cuda/device.h"
#include "engine/cuda/warpgroup_check.h"
#include "tests/emulation/emulation.h"
#include "tests/unit/engine/on_gpu.h"
#include "tests/unit/engine/step_job.h"

namespace lockstep::engine {
namespace {

using cuda::Code;
using cuda::Type;
using testing::AllOf;
using testing::HasSubstr;
using testing::MatchesRegex;
using testing::Not;

// What is wrong with the kernels by warpgroups.
enum class Fault {
  kNone,
  kResult,
  kLogSum,
  kGradient,
  kNothing,
  kLaunch,
  kAddress,
  kOthers,
  kHang
};
Fault fault = Fault::kNone;
bool hangs = false;  // the GPU's work does not end
int waits = 0;       // for such work

// Turns a bit of the fraction of an element in 16 bits.
void Spoil(const cuda::View& view, int64_t element) {
  auto& bits = static_cast<uint16_t*>(view.data)[element];
  bits = static_cast<uint16_t>(bits ^ (view.type == Type::kBF16 ? 0x0040 : 0x0200));
}

Code Attention(const cuda::AttentionArgs& args, cuda::Stream stream) {
  if (args.warpgroups && fault == Fault::kNothing) return 0;
  if (args.warpgroups && fault == Fault::kLaunch) return 98;
  if (args.warpgroups && fault == Fault::kHang) hangs = true;
  if (fault == (args.warpgroups ? Fault::kAddress : Fault::kOthers)) emulation::FailAfter(1);
  const Code code = cuda::EmulatedTables()->kernels->attention(args, stream);
  if (!args.warpgroups) return code;
  if (fault == Fault::kResult) Spoil(args.y, args.length * args.width - 3);
  if (fault == Fault::kLogSum) static_cast<float*>(args.log_sums.data)[7] += 0.001f;
  return code;
}

Code AttentionBackward(const cuda::AttentionBackwardArgs& args, cuda::Stream stream) {
  const Code code = cuda::EmulatedTables()->kernels->attention_backward(args, stream);
  if (args.forward.warpgroups && fault == Fault::kGradient) {
    Spoil(args.dv, 130 * args.forward.stride + 5);
  }
  return code;
}

int EventReached(cuda::Event event) {
  return hangs ? 0 : cuda::EmulatedTables()->runtime->event_reached(event);
}
Code WaitStream(cuda::Stream stream) {
  waits += hangs ? 1 : 0;
  return cuda::EmulatedTables()->runtime->wait_stream(stream);
}

// A GPU of its own, whose kernels by warpgroups have the fault.
struct FaultyGpu {
  FaultyGpu()
      : kernels(*cuda::EmulatedTables()->kernels),
        runtime(*cuda::EmulatedTables()->runtime),
        tables(*cuda::EmulatedTables()) {
    kernels.attention = Attention;
    kernels.attention_backward = AttentionBackward;
    runtime.event_reached = EventReached;
    runtime.wait_stream = WaitStream;
    tables.kernels = &kernels;
    tables.runtime = &runtime;
  }
  cuda::Kernels kernels;
  cuda::Runtime runtime;
  cuda::Tables tables;
};

class WarpgroupCheckTest : public testing::Test {
 protected:
  void SetUp() override {
    if (TakesRealGpu()) GTEST_SKIP() << "of the emulated GPU";
  }
  void TearDown() override {
    fault = Fault::kNone;
    hangs = false;
    emulation::Repair();
    cuda::UseTables(TakesRealGpu() ? nullptr : cuda::EmulatedTables());
  }

  // What the check says of the fault.
  static std::string Said(Fault planted, Type type) {
    FaultyGpu gpu;
    cuda::UseTables(&gpu.tables);
    fault = planted;
    const auto device = cuda::Device::Open(0).value();
    std::byte* const memory = device->Allocate(kCudaWorkspaceBytes, "a test").value();
    return std::string(cuda::CheckWarpgroups(device.get(), type, memory).message());
  }

  // What an executor's creation says of it.
  static absl::Status CreatedWith(Fault planted) {
    static const FaultyGpu* const gpu = new FaultyGpu;
    cuda::UseTables(&gpu->tables);
    fault = planted;
    const auto plan = Plan::Compile(WideHeads()).value();
    Pages state(plan->state_bytes());
    return Executor::Create(plan, {state.data(), nullptr}).status();
  }

  // A step with attention that suits warpgroups: how many of their products it has.
  static int64_t ProductsOfAStep(Job* job) {
    const int64_t before = emulation::GroupProducts();
    std::vector<float> out(static_cast<size_t>(job->plan->gradient_count()));
    const TrainSpec& spec = job->plan->spec();
    const AnyBatch batch(spec, 1, 0, 0, spec.micro_batch);
    EXPECT_TRUE(job->executor->RunShard(1, 0, 0, batch.fields(), out.data(), {}).ok());
    return emulation::GroupProducts() - before;
  }

  static TrainSpec WideHeads() {
    TrainSpec spec = TinyGpt();
    auto& gpt = std::get<GptSpec>(spec.model);
    gpt.layers = 1;
    gpt.width = 128;
    spec.precision = "bf16";
    spec.device = DeviceKind::kCuda;
    return spec;
  }
};

TEST_F(WarpgroupCheckTest, BothKindsOfKernelsAgree) {
  const int64_t before = emulation::GroupProducts();
  EXPECT_EQ(Said(Fault::kNone, Type::kBF16), "");
  EXPECT_EQ(Said(Fault::kNone, Type::kF16), "");
  EXPECT_GT(emulation::GroupProducts(), before);
}

TEST_F(WarpgroupCheckTest, FaultsAreFoundAndNamed) {
  for (const Type type : {Type::kBF16, Type::kF16}) {
    EXPECT_THAT(Said(Fault::kResult, type), HasSubstr("the results of attention with heads of 64"));
    EXPECT_THAT(Said(Fault::kLogSum, type), HasSubstr("the logarithms of sums of attention"));
    EXPECT_THAT(Said(Fault::kGradient, type), HasSubstr("the gradients of attention"));
    EXPECT_THAT(Said(Fault::kNothing, type), HasSubstr("value 0 of"));
    EXPECT_THAT(Said(Fault::kLaunch, type), HasSubstr("attention by wgmma: "));
  }
}

// Once for a process and GPU.
TEST_F(WarpgroupCheckTest, AnExecutorChecksOnce) {
  static const FaultyGpu* const gpu = new FaultyGpu;  // which nobody has asked about
  cuda::UseTables(&gpu->tables);
  int64_t checked[2];
  for (int64_t& products : checked) {
    const int64_t before = emulation::GroupProducts();
    Job job(WideHeads());
    products = emulation::GroupProducts() - before;
    EXPECT_GT(ProductsOfAStep(&job), 0);
    EXPECT_EQ(job.executor->engines().at("attention-backward by wgmma"), 1);
    EXPECT_EQ(job.executor->engines().count("attention by mma.sync"), 0);
  }
  EXPECT_GT(checked[0], 0);
  EXPECT_EQ(checked[1], 0);
}

TEST_F(WarpgroupCheckTest, AnExecutorDoesWithoutKernelsThatFail) {
  static const FaultyGpu* const gpu = new FaultyGpu;
  cuda::UseTables(&gpu->tables);
  fault = Fault::kGradient;
  testing::internal::CaptureStderr();
  Job job(WideHeads());
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, HasSubstr("attention is done by mma.sync on "));
  EXPECT_THAT(log,
              HasSubstr("the gradients of attention with heads of 64 columns in bf16, causal"));
  EXPECT_EQ(ProductsOfAStep(&job), 0);
  testing::internal::CaptureStderr();
  Job next(WideHeads());
  EXPECT_EQ(ProductsOfAStep(&next), 0);
  EXPECT_EQ(next.executor->engines().at("attention-backward by mma.sync"), 1);
  EXPECT_EQ(next.executor->engines().count("attention by wgmma"), 0);
  EXPECT_EQ(testing::internal::GetCapturedStderr().find("mma.sync"), std::string::npos);
}

// A GPU does nothing more for a process after some faults of its kernels.
TEST_F(WarpgroupCheckTest, AnExecutorSaysWhatToDoWhereTheGpuDoesNothingMore) {
  const absl::Status status = CreatedWith(Fault::kAddress);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("attention by wgmma: unspecified launch failure"),
                    HasSubstr("set LOCKSTEP_WARPGROUPS=0")));
}

// A GPU that does nothing more for another reason is not said to by these kernels.
TEST_F(WarpgroupCheckTest, AFaultOfOtherKernelsIsNotTheirs) {
  const absl::Status status = CreatedWith(Fault::kOthers);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("attention by mma.sync"), HasSubstr("the GPU does nothing more"),
                    Not(HasSubstr("LOCKSTEP_WARPGROUPS"))));
}

// As behind a barrier that a warp does not reach: whatever waits for the GPU would wait for ever.
TEST_F(WarpgroupCheckTest, WorkThatDoesNotEndIsSaidAndNotWaitedFor) {
  FaultyGpu gpu;
  cuda::Runtime& runtime = gpu.runtime;
  static std::vector<cuda::Event> events;
  events.clear();
  runtime.create_event = [](cuda::Event* event) {
    const Code code = cuda::EmulatedTables()->runtime->create_event(event);
    events.push_back(*event);
    return code;
  };
  cuda::UseTables(&gpu.tables);
  fault = Fault::kHang;
  waits = 0;
  auto device = cuda::Device::Open(0).value();
  const std::vector<cuda::Stream> streams = {device->compute(), device->copies(),
                                             device->returns()};
  std::byte* const memory = device->Allocate(kCudaWorkspaceBytes, "a test").value();
  std::vector<float> pinned(16);
  ASSERT_TRUE(device->Pin(pinned.data(), pinned.size() * sizeof(float)));
  const absl::Status status =
      cuda::CheckWarpgroups(device.get(), Type::kBF16, memory, absl::ZeroDuration());
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("attention by wgmma does not end within 0"),
                    HasSubstr("set LOCKSTEP_WARPGROUPS=0")));
  EXPECT_EQ(device->Wait(device->copies()).code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(cuda::Device::AnyIsAbandoned());
  device->Unpin(pinned.data());
  device.reset();
  EXPECT_EQ(waits, 0);
  // What a process leaves to its end.
  runtime.unpin(pinned.data());
  runtime.release(memory);
  for (const cuda::Stream stream : streams) runtime.destroy_stream(stream);
  for (const cuda::Event event : events) runtime.destroy_event(event);
}

// Workers that would do attention by different kernels may not compute together.
TEST_F(WarpgroupCheckTest, TheDeviceHashTellsWhetherAttentionGoesByWarpgroups) {
  const auto hash = [](const cuda::Tables* tables, const TrainSpec& spec) {
    cuda::UseTables(tables);
    Job job(spec);
    std::vector<float> gradients(static_cast<size_t>(job.plan->gradient_count()));
    return job.executor->DeviceHash(gradients.data()).value();
  };
  static const FaultyGpu* const gpu = new FaultyGpu;
  constexpr const char* kHex = "[0-9a-f]+";
  const std::string with = hash(cuda::EmulatedTables(), WideHeads());
  EXPECT_THAT(with, MatchesRegex("[0-9a-f]+-wgmma"));
  EXPECT_EQ(hash(cuda::EmulatedTables(), WideHeads()), with);
  fault = Fault::kResult;
  EXPECT_THAT(hash(&gpu->tables, WideHeads()), MatchesRegex(kHex));
  fault = Fault::kNone;
  ::setenv("LOCKSTEP_WARPGROUPS", "0", 1);
  EXPECT_THAT(hash(cuda::EmulatedTables(), WideHeads()), MatchesRegex(kHex));
  ::unsetenv("LOCKSTEP_WARPGROUPS");
  // A module without code for sm_90a.
  static const cuda::Tables without = [] {
    cuda::Tables tables = *cuda::EmulatedTables();
    tables.warpgroups = false;
    return tables;
  }();
  EXPECT_THAT(hash(&without, WideHeads()), MatchesRegex(kHex));
  // Heads that other kernels do.
  TrainSpec narrow = WideHeads();
  std::get<GptSpec>(narrow.model).heads = 8;
  EXPECT_THAT(hash(cuda::EmulatedTables(), narrow), MatchesRegex(kHex));
}

// Nothing is checked that is not used.
TEST_F(WarpgroupCheckTest, OtherAttentionAsksForNoCheck) {
  static const FaultyGpu* const gpu = new FaultyGpu;
  cuda::UseTables(&gpu->tables);
  const int64_t before = emulation::GroupProducts();
  TrainSpec narrow = WideHeads(), floats = WideHeads();
  std::get<GptSpec>(narrow.model).heads = 8;
  floats.precision = "fp32";
  for (const TrainSpec& spec : {narrow, floats}) Job job(spec);
  EXPECT_EQ(emulation::GroupProducts(), before);
}

}  // namespace
}  // namespace lockstep::engine
