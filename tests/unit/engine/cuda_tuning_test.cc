// SPDX-License-Identifier: Apache-2.0
// The choice of algorithms for matrix products, on the emulated GPU and its clock.
#include "engine/cuda/tuning.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <fstream>
#include <set>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "common/durable_file.h"
#include "common/half.h"
#include "engine/cuda/gemm.h"
#include "engine/cuda/module.h"
#include "tests/emulation/emulation.h"
#include "tests/unit/engine/step_job.h"

namespace lockstep::engine {
namespace {

using cuda::MatmulAlgorithm;
using cuda::MatmulShape;
using cuda::ProductTuning;

class TuningTest : public testing::Test {
 protected:
  void SetUp() override {
    cuda::UseTables(cuda::EmulatedTables());
    device_ = cuda::Device::Open(0).value();
    memory_ = device_->Allocate(kBytes, "a test").value();
    folder_ = absl::StrCat(testing::TempDir(), "/tuning-", ::getpid(), "-", number_++);
    first_ = folder_ + "/run/algorithms.tsv";
    second_ = folder_ + "/cache/algorithms.tsv";
  }
  void TearDown() override {
    emulation::SetFastestAlgorithm(0);
    emulation::SetFusedCost(0);
  }

  std::unique_ptr<ProductTuning> Open() {
    return ProductTuning::Open(device_.get(), {first_, second_}, {memory_, kBytes, memory_})
        .value();
  }
  static std::string TextOf(const std::string& path) {
    std::stringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
  }

  static constexpr size_t kBytes = 1 << 20;
  static inline int number_ = 0;
  std::unique_ptr<cuda::Device> device_;
  std::byte* memory_ = nullptr;
  std::string folder_, first_, second_;
  const MatmulShape shape_ = {.m = 32, .n = 16, .k = 8, .lda = 8, .ldb = 16, .ldc = 16};
};

TEST_F(TuningTest, TheQuickestIsTakenAndKept) {
  emulation::SetFastestAlgorithm(1);
  auto tuning = Open();
  EXPECT_EQ(tuning->Choose(shape_)->words[0], 1u);
  EXPECT_EQ(tuning->measured(), 1);
  const int64_t runs = emulation::ProductsRun();
  EXPECT_EQ(tuning->Choose(shape_)->words[0], 1u);  // from memory
  EXPECT_EQ(emulation::ProductsRun(), runs);
  tuning->Finish();
  EXPECT_EQ(TextOf(first_), TextOf(second_));
  EXPECT_NE(TextOf(first_).find("32x16x8nn"), std::string::npos);

  // A later run measures nothing, whatever would be quickest then.
  emulation::SetFastestAlgorithm(0);
  tuning = Open();
  EXPECT_EQ(tuning->Choose(shape_)->words[0], 1u);
  EXPECT_EQ(tuning->measured(), 0);
  EXPECT_EQ(emulation::ProductsRun(), runs);
}

// Who is killed while it measures leaves the files what it had measured, but for the last few.
TEST_F(TuningTest, FilesAreWrittenWhileItMeasures) {
  auto tuning = Open();
  MatmulShape shape = shape_;
  for (shape.m = 1; shape.m <= 20; ++shape.m) ASSERT_TRUE(tuning->Choose(shape).ok());
  EXPECT_EQ(tuning->measured(), 20);
  tuning.reset();  // without Finish
  EXPECT_EQ(TextOf(first_), TextOf(second_));
  tuning = Open();
  for (shape.m = 1; shape.m <= 20; ++shape.m) ASSERT_TRUE(tuning->Choose(shape).ok());
  EXPECT_EQ(tuning->measured(), 4);
}

TEST_F(TuningTest, AnAlgorithmThatFailsIsNotTaken) {
  emulation::SetFastestAlgorithm(2);
  EXPECT_EQ(Open()->Choose(shape_)->words[0], 1u);  // 2 ms against 3
}

TEST_F(TuningTest, TheFirstFileDecides) {
  emulation::SetFastestAlgorithm(1);
  auto tuning = Open();
  ASSERT_TRUE(tuning->Choose(shape_).ok());
  tuning->Finish();
  std::string other = TextOf(second_);
  const size_t at = other.find("plain.0.1.");
  ASSERT_NE(at, std::string::npos) << other;
  other.replace(at, 10, "plain.0.0.");
  ASSERT_TRUE(WriteFileDurably(second_, other).ok());
  EXPECT_EQ(Open()->Choose(shape_)->words[0], 1u);
  ASSERT_EQ(::unlink(first_.c_str()), 0);
  EXPECT_EQ(Open()->Choose(shape_)->words[0], 0u);
}

TEST_F(TuningTest, LinesThatAreNoneAreLeftOut) {
  emulation::SetFastestAlgorithm(1);
  ASSERT_TRUE(WriteFileDurably(first_, "a line\nan\tother\tone\n\tx\tplain.0.1\n").ok());
  auto tuning = Open();
  EXPECT_EQ(tuning->Choose(shape_)->words[0], 1u);
  tuning->Finish();
  EXPECT_EQ(TextOf(first_).find("other"), std::string::npos);
}

TEST_F(TuningTest, ProductsAreToldApart) {
  std::set<std::string> names;
  for (const int change : {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}) {
    MatmulShape shape = shape_;
    if (change == 1) shape.a_transposed = true;
    if (change == 2) shape.ldb = 32;
    if (change == 3) shape.result = cuda::Type::kBF16;
    if (change == 4) shape.alignment = 4;
    if (change == 5) shape.bias = true;
    if (change == 6) shape.tf32 = true;
    if (change == 7) shape.adds = true;
    if (change == 8) shape.epilogue = cuda::Epilogue::kGeluKept;
    if (change == 9) shape.epilogue = cuda::Epilogue::kSumsA;
    names.insert(cuda::DescribeProduct(shape));
  }
  EXPECT_EQ(names.size(), 10u);
}

// Nobody can lock a file in a folder that is none: the library chooses, which depends on nothing.
TEST_F(TuningTest, WithoutALockNothingIsMeasured) {
  emulation::SetFastestAlgorithm(1);
  auto tuning =
      ProductTuning::Open(device_.get(), {"/dev/null/algorithms.tsv"}, {memory_, kBytes, memory_})
          .value();
  EXPECT_EQ(tuning->Choose(shape_)->words[0], 0u);
  EXPECT_EQ(tuning->measured(), 0);
  tuning->Finish();
}

// While one measures, another process waits.
TEST_F(TuningTest, TheLastFileIsLocked) {
  auto tuning = Open();
  const UniqueFd other(::open((second_ + ".lock").c_str(), O_RDWR));
  ASSERT_TRUE(other.valid());
  EXPECT_NE(::flock(other.get(), LOCK_EX | LOCK_NB), 0);
  tuning->Finish();
  EXPECT_EQ(::flock(other.get(), LOCK_EX | LOCK_NB), 0);
}

// The library's handle belongs to the device that is current when it is loaded: the emulated one
// says so. It is looked for in every folder of the list.
TEST_F(TuningTest, TheLibraryIsLoadedForTheDevice) {
  EXPECT_TRUE(emulation::DeviceIsChosen());
  ::setenv("LOCKSTEP_CUDA_LIBRARIES", "/one:/two", 1);
  EXPECT_TRUE(cuda::Device::Open(0).ok());
  ::unsetenv("LOCKSTEP_CUDA_LIBRARIES");
  const std::vector<std::string>& paths = emulation::MatmulPaths();
  ASSERT_GT(paths.size(), 3u);
  EXPECT_EQ(paths[0], "libproducts.so.13");
  EXPECT_EQ(paths[1], "/one/libproducts.so.13");
  EXPECT_EQ(paths[2], "/two/libproducts.so.13");
  ::setenv("LOCKSTEP_CUBLASLT_LIBRARY", "/own/file", 1);
  EXPECT_TRUE(cuda::Device::Open(0).ok());
  ::unsetenv("LOCKSTEP_CUBLASLT_LIBRARY");
  EXPECT_EQ(emulation::MatmulPaths(), std::vector<std::string>{"/own/file"});
}

TEST_F(TuningTest, AnInstanceOfAGpuIsNamedAsOne) {
  EXPECT_EQ(std::string(device_->properties().uuid).substr(0, 4), "GPU-");
  emulation::SetDeviceName("NVIDIA H200 MIG 1g.18gb");
  const auto devices = cuda::ListDevices();
  emulation::SetDeviceName("an emulated GPU");
  ASSERT_TRUE(devices.ok());
  EXPECT_EQ(std::string((*devices)[0].uuid), "MIG-00000000-0000-0000-0000-000000000000");
}

// Zeros hardly change a bit and take less power than a step does.
TEST_F(TuningTest, ProductsAreTimedOnNumbersThatChangeManyBits) {
  auto tuning = Open();
  const auto* halves = reinterpret_cast<const uint16_t*>(memory_);
  int changes = 0;
  for (size_t i = 0; i < kBytes / 2; ++i) {
    const BFloat16 bf16{halves[i]};
    const Float16 f16{halves[i]};
    ASSERT_TRUE(std::abs(bf16.ToFloat()) <= 2 && std::abs(f16.ToFloat()) <= 2) << halves[i];
    // No byte is FP8's NaN or infinity, and fp32 has the upper half's exponent.
    for (const int byte : {halves[i] & 0xff, halves[i] >> 8}) {
      ASSERT_TRUE((byte & 0x7f) != 0x7f && (byte & 0x7c) != 0x7c) << byte;
    }
    if (i > 0) changes += std::popcount(static_cast<unsigned>(halves[i] ^ halves[i - 1]));
  }
  EXPECT_NEAR(static_cast<double>(changes) / (kBytes / 2), 5, 0.1);  // of ten bits
  const std::vector<std::byte> made(memory_, memory_ + kBytes);
  ASSERT_TRUE(tuning->Choose(shape_).ok());
  tuning->Finish();
  EXPECT_EQ(std::count(memory_, memory_ + kBytes, std::byte{0}), kBytes);
  tuning = Open();
  EXPECT_EQ(std::vector<std::byte>(memory_, memory_ + kBytes), made);
}

// What follows a product is its part where that is quicker than a kernel of our own, as files keep.
TEST_F(TuningTest, WhatFollowsAProductIsDoneTheQuickerWay) {
  TrainSpec spec = TinyGpt();
  spec.device = DeviceKind::kCuda;
  spec.precision = "bf16";
  const auto plan = Plan::Compile(spec).value();
  const auto fused = [&](const std::string& file) {
    Pages state(plan->state_bytes());
    engine::Memory memory{state.data(), nullptr};
    memory.tuning_files = {file};
    const auto executor = Executor::Create(plan, memory).value();
    executor->InitState();
    std::vector<float> gradients(static_cast<size_t>(plan->gradient_count()));
    const int64_t before = emulation::FusedProductsRun();
    EXPECT_TRUE(executor->DeviceHash(gradients.data()).ok());
    return emulation::FusedProductsRun() - before;
  };
  // Biases, gelus and sums for the gradients of biases.
  const int64_t all = fused(first_);
  EXPECT_GT(all, 10);
  EXPECT_NE(TextOf(first_).find("together"), std::string::npos);
  emulation::SetFusedCost(5);
  EXPECT_EQ(fused(first_), all);
  EXPECT_EQ(fused(second_), 0);
  EXPECT_NE(TextOf(second_).find("apart"), std::string::npos);
}

// A job that never evaluates has no room for the products of an evaluation block.
TEST_F(TuningTest, WhatIsNeverRunIsNotMeasured) {
  TrainSpec spec = SmallMlp();
  spec.device = DeviceKind::kCuda;
  spec.eval_block = 100 * spec.micro_batch;
  spec.evaluates = false;
  const auto plan = Plan::Compile(spec).value();
  Pages state(plan->state_bytes());
  engine::Memory memory{state.data(), nullptr};
  memory.tuning_files = {first_};
  ASSERT_TRUE(Executor::Create(plan, memory).ok());
  EXPECT_EQ(TextOf(first_).find(absl::StrCat(spec.eval_block)), std::string::npos)
      << TextOf(first_);
}

// A whole plan: the same table, the same bits; another algorithm, other bits.
TEST_F(TuningTest, AnExecutorTakesItsProductsFromTheFiles) {
  TrainSpec spec = TinyGpt();
  spec.device = DeviceKind::kCuda;
  const auto plan = Plan::Compile(spec).value();
  const auto hash = [&](const std::string& file) {
    Pages state(plan->state_bytes());
    engine::Memory memory{state.data(), nullptr};
    if (!file.empty()) memory.tuning_files = {file};
    const auto executor = Executor::Create(plan, memory).value();
    executor->InitState();
    std::vector<float> gradients(static_cast<size_t>(plan->gradient_count()));
    return executor->DeviceHash(gradients.data()).value();
  };
  const std::string library = hash("");
  emulation::SetFastestAlgorithm(1);
  const std::string measured = hash(first_);
  EXPECT_NE(measured, library);
  emulation::SetFastestAlgorithm(0);
  const int64_t before = emulation::ProductsRun();
  EXPECT_EQ(hash(first_), measured);
  const int64_t loaded = emulation::ProductsRun() - before;
  EXPECT_EQ(hash(second_), library);  // which is measured as the quickest
  EXPECT_GT(emulation::ProductsRun() - before - loaded, loaded);
}

}  // namespace
}  // namespace lockstep::engine
