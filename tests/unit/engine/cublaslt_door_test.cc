// SPDX-License-Identifier: Apache-2.0
// What the CUDA module asks of cuBLASLt, put to a fake one that is as strict as the real one
// documents.
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "engine/cuda/gemm.h"
#include "engine/cuda/kernels/runtime.h"
#include "engine/cuda/tuning.h"
#include "tests/emulation/fake_cublaslt.h"

namespace {
int current_device = 0;
}  // namespace

// What the module links of CUDA's runtime for its products.
cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return cudaSuccess;
}
cudaError_t cudaGetLastError() { return cudaSuccess; }

namespace lockstep::engine::cuda {
namespace {

// In a process of its own: what is loaded, or is not, stays so.
TEST(CublasLtDeathTest, WhyNoPathCanBeLoadedIsToldOfEach) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const std::string torn = testing::TempDir() + "/cublaslt_door_test-torn.so";
  std::ofstream(torn) << "torn";
  const std::vector<const char*> paths = {"libnowhere.so.13", torn.c_str(), "/nowhere/last.so"};
  const auto load = [&] {
    std::fputs(kMatmul.load(paths.data(), static_cast<int>(paths.size())), stderr);
    std::exit(0);
  };
  EXPECT_EXIT(load(), testing::ExitedWithCode(0),
              "cannot be loaded .libnowhere.so.13: .*; .*-torn.so: file too short; "
              "/nowhere/last.so: .*LOCKSTEP_CUDA_LIBRARIES");
}

class CublasLtTest : public testing::Test {
 protected:
  void SetUp() override {
    void* library = ::dlopen(LOCKSTEP_FAKE_CUBLASLT, RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(library, nullptr) << ::dlerror();
    auto* const settings = reinterpret_cast<fake_cublaslt::Settings* (*)()>(
        ::dlsym(library, fake_cublaslt::kSettingsSymbol));
    ASSERT_NE(settings, nullptr);
    fake_ = settings();
    fake_->heeds_reductions = true;
    Choose(0);
    EXPECT_EQ(Load(), "");
  }
  void TearDown() override { Choose(0); }

  // Makes a device the current one.
  void Choose(int device) { current_device = fake_->device = device; }
  static std::string Load() {
    const std::vector<const char*> paths = {"/nowhere/libcublasLt.so.13", LOCKSTEP_FAKE_CUBLASLT};
    return kMatmul.load(paths.data(), static_cast<int>(paths.size()));
  }
  static std::vector<MatmulAlgorithm> Candidates(const MatmulShape& shape) {
    std::vector<MatmulAlgorithm> found(kMatmulCandidates);
    std::array<char, 512> error{};
    found.resize(static_cast<size_t>(
        kMatmul.candidates(shape, 1 << 20, found.data(), error.data(), error.size())));
    return found;
  }
  static std::shared_ptr<void> Prepared(const MatmulShape& shape, const MatmulAlgorithm& chosen) {
    std::array<char, 512> error{};
    return {kMatmul.prepare(shape, chosen, error.data(), error.size()), kMatmul.destroy};
  }

  fake_cublaslt::Settings* fake_ = nullptr;
  const MatmulShape shape_ = {.m = 32,
                              .n = 16,
                              .k = 8,
                              .lda = 8,
                              .ldb = 16,
                              .ldc = 16,
                              .factors = Type::kBF16,
                              .result = Type::kBF16};
};

// Parts of a split k in bf16 would be sums in bf16; parts that are added in place come in any
// order.
TEST_F(CublasLtTest, ASplitKIsSummedInFp32) {
  EXPECT_EQ(Candidates(shape_).size(), 2u);  // with parts in the compute type, without parts
  EXPECT_EQ(fake_->reductions, 2u);
  fake_->heeds_reductions = false;  // a library that offers all is not followed
  const std::vector<MatmulAlgorithm> found = Candidates(shape_);
  ASSERT_EQ(found.size(), 2u);
  for (const MatmulAlgorithm& algorithm : found) {
    EXPECT_TRUE(algorithm.words[1] == 0 || algorithm.words[1] == 2) << algorithm.words[1];
  }
}

// A bias has the result's type: what the library refuses is not asked for.
TEST_F(CublasLtTest, ABiasIsPartOfAProductOf16Bits) {
  MatmulShape shape = shape_;
  shape.bias = true;
  for (const MatmulAlgorithm& algorithm : Candidates(shape)) EXPECT_FALSE(algorithm.fused);
  const Kernels kernels = {};
  const Tables tables = {kTablesVersion, "", false, nullptr, &kernels, &kMatmul};
  for (const Type factors : {Type::kBF16, Type::kF16, Type::kF32}) {
    for (const Type result : {factors, Type::kF32}) {
      for (const Type bias : {Type::kF32, factors}) {
        for (const bool relu : {false, true}) {
          GemmSpec spec{shape};
          spec.shape.factors = factors;
          spec.shape.result = result;
          spec.shape.bias_type = bias;
          spec.shape.relu = relu;
          const auto gemm = Gemm::Make({&tables}, spec);
          ASSERT_TRUE(gemm.ok()) << gemm.status();
          EXPECT_TRUE((*gemm)->fuses()) << NameOf(factors) << NameOf(result) << NameOf(bias);
        }
      }
    }
  }
}

// The library chooses for a bias that is aligned; it is not given another.
TEST_F(CublasLtTest, ABiasThatIsNotAlignedIsAddedByOurKernels) {
  const Kernels kernels = {};
  const Tables tables = {kTablesVersion, "", false, nullptr, &kernels, &kMatmul};
  GemmSpec spec{shape_};
  spec.shape.relu = true;
  for (const Type result : {Type::kBF16, Type::kF32}) {
    for (const bool bias : {false, true}) {
      spec.shape.result = result;
      spec.shape.bias = bias;
      spec.shape.alignment = 4;
      const auto gemm = Gemm::Make({&tables}, spec);
      ASSERT_TRUE(gemm.ok()) << gemm.status();
      EXPECT_EQ((*gemm)->fuses(), !bias) << NameOf(result);
    }
  }
}

// What is added to a product is the library's C, where the result does not lie over it.
TEST_F(CublasLtTest, AnAddendIsTheLibrarysC) {
  const Kernels kernels = {};
  const Tables tables = {kTablesVersion, "", false, nullptr, &kernels, &kMatmul};
  GemmSpec spec{shape_};
  spec.shape.result = Type::kF32;
  spec.residual = true;
  ASSERT_TRUE(Gemm::AddsResidual(spec));
  const auto gemm = Gemm::Make({&tables}, spec);
  ASSERT_TRUE(gemm.ok()) << gemm.status();
  float result = 0, addend = 0;
  Gemm::Operands operands;
  operands.c = {&result, Type::kF32};
  operands.residual = {&addend, Type::kF32};
  EXPECT_EQ((*gemm)->Run({}, operands), 0);  // the kernels would be called in vain
  EXPECT_EQ(fake_->c, &addend);
  EXPECT_EQ(fake_->d, &result);
  EXPECT_EQ(fake_->beta, 1);
  // What is rounded after the sum, or comes between, is a kernel's of our own.
  for (const auto& change : {+[](GemmSpec* own) { own->shape.result = Type::kBF16; },
                             +[](GemmSpec* own) { own->residual_type = Type::kBF16; },
                             +[](GemmSpec* own) { own->shape.bias = true; },
                             +[](GemmSpec* own) { own->shape.relu = true; }}) {
    GemmSpec own = spec;
    change(&own);
    EXPECT_FALSE(Gemm::AddsResidual(own));
  }
}

TEST_F(CublasLtTest, EachDeviceHasAHandleOfItsOwn) {
  const int before = fake_->handles;
  EXPECT_EQ(Load(), "");
  EXPECT_EQ(fake_->handles, before);  // of device 0, made by SetUp
  Choose(1);
  EXPECT_EQ(Load(), "");
  EXPECT_EQ(fake_->handles, before + 1);
  const std::vector<MatmulAlgorithm> found = Candidates(shape_);
  ASSERT_FALSE(found.empty());
  const std::shared_ptr<void> prepared = Prepared(shape_, found[0]);
  ASSERT_NE(prepared, nullptr);
  EXPECT_EQ(kMatmul.run(prepared.get(), {}, nullptr), 0);
  Choose(0);
  EXPECT_NE(kMatmul.run(prepared.get(), {}, nullptr), 0) << "it is the other device's";
  EXPECT_FALSE(Candidates(shape_).empty());
}

}  // namespace
}  // namespace lockstep::engine::cuda
