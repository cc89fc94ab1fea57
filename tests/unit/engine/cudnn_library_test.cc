// SPDX-License-Identifier: Apache-2.0
// The installed cuDNN, asked without a GPU: that it has every function, and that it compiles the
// graphs of attention for GPUs that are described to it.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <link.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "engine/cuda/attention_cudnn.h"
#include "engine/cuda/conv_cudnn.h"
#include "engine/cuda/cudnn.h"
#include "tests/unit/engine/one_convolution.h"

namespace lockstep::engine::cuda {
namespace {

// A GPU as cuDNN writes it down itself (CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION), which has no
// documented form: as 9.19 takes it.
std::string DescribedGpu(int compute) {
  return absl::StrFormat(
      R"({"deviceName":"a GPU","deviceVer":%d,"driverVer":13000,"cudaDeviceId":0,"pciDeviceId":0,)"
      R"("multiProcessorCount":132,"smClockRateKHz":1980000,"memClockRateKHz":2619000,)"
      R"("l2CacheSize":52428800,"totalGlobalMem":85000000000,"warpSize":32,)"
      R"("maxGridSize":[2147483647,65535,65535],"maxBlockSize":[1024,1024,64],)"
      R"("regsPerBlock":65536,"maxRegistersPerSM":65536,"maxCtasPerSM":32,)"
      R"("maxThreadsPerBlock":1024,"maxThreadsPerSM":2048,"maxSharedMemoryPerBlock":49152,)"
      R"("maxSharedMemoryPerBlockOptin":%d,"reservedSharedMemoryPerBlock":1024,)"
      R"("isTccDriver":0,"supportCoopLaunch":1})",
      10 * compute, compute < 90 ? 101376 : 232448);
}

class CudnnLibraryTest : public testing::Test {
 protected:
  void SetUp() override {
    const absl::StatusOr<CudnnLibrary> library = LoadCudnn(nullptr);
    if (!library.ok()) GTEST_SKIP() << library.status().message();
    backend_ = library->api.backend;
    version_ = library->version;
    no_compiler_ = library->no_compiler;
  }

  // Skips where graphs cannot be prepared for a GPU that is not there.
  void NeedDriver() {
    if (version_ < kCudnnForAttention) GTEST_SKIP() << "an older cuDNN";
    if (::dlopen(LOCKSTEP_FAKE_DRIVER, RTLD_NOW | RTLD_NOLOAD) != nullptr) return;
    if (::dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL) != nullptr) {
      GTEST_SKIP() << "there is a driver, whose GPU is asked when it trains";
    }
    ASSERT_NE(::dlopen(LOCKSTEP_FAKE_DRIVER, RTLD_NOW | RTLD_GLOBAL), nullptr) << ::dlerror();
  }

  // Returns whether the library refuses what it may have to compile, and has nothing to do it with:
  // which graphs it compiles differs between versions.
  bool LacksCompiler(const absl::Status& status) const {
    return !status.ok() && !no_compiler_.empty();
  }

  CudnnBackend backend_;
  size_t version_ = 0;
  std::string no_compiler_;
};

TEST_F(CudnnLibraryTest, HasEveryFunction) {
  EXPECT_GE(version_, 90000u);
  EXPECT_NE(backend_.execute, nullptr);
}

// The library asks the loader for the compiler by its name: what is loaded is found, wherever it
// lies. What lies beside the library is taken before what the loader knows.
TEST_F(CudnnLibraryTest, ItsCompilerIsLoaded) {
  if (!no_compiler_.empty()) GTEST_SKIP() << no_compiler_;
  const auto path_of = [](const char* name) {
    link_map* map = nullptr;
    void* const handle = ::dlopen(name, RTLD_NOW | RTLD_NOLOAD);
    return handle != nullptr && ::dlinfo(handle, RTLD_DI_LINKMAP, static_cast<void*>(&map)) == 0
               ? std::filesystem::path(map->l_name)
               : std::filesystem::path();
  };
  const std::filesystem::path compiler = path_of("libnvrtc.so.13");
  ASSERT_FALSE(compiler.empty());
  const std::string folder = path_of("libcudnn.so.9").parent_path().string();
  const std::string first = NvrtcPaths({folder}).front();
  if (first == "libnvrtc.so.13") GTEST_SKIP() << "none lies beside " << folder;
  EXPECT_TRUE(std::filesystem::equivalent(compiler, first)) << compiler << " is not " << first;
}

struct Asked {
  int compute;
  CudnnAttentionShape shape;
};

std::vector<Asked> AllAsked() {
  std::vector<Asked> all;
  for (const int compute : {80, 90, 100, 103}) {
    for (const bool backward : {false, true}) {
      for (const bool causal : {false, true}) {
        CudnnAttentionShape shape;
        shape.batch = 2;
        shape.heads = 3;
        shape.length = causal ? 77 : 256;
        shape.depth = causal ? 40 : 128;
        shape.stride = (causal ? 3 : 1) * shape.heads * shape.depth;
        shape.type = causal ? Type::kBF16 : Type::kF16;
        shape.causal = causal;
        shape.backward = backward;
        all.push_back({compute, shape});
      }
    }
  }
  return all;
}

class CudnnCompileTest : public CudnnLibraryTest, public testing::WithParamInterface<Asked> {};

TEST_P(CudnnCompileTest, AttentionHasAWay) {
  NeedDriver();
  if (IsSkipped()) return;
  const auto& [compute, shape] = GetParam();
  const std::string json = DescribedGpu(compute);
  CudnnDescriptor gpu(backend_, CudnnKind::kDeviceProperties);
  gpu.Set(CudnnAttribute::kDeviceJson, CudnnAttributeType::kChar, static_cast<int64_t>(json.size()),
          json.data())
      .Finalize();
  if (gpu.status() != 0) GTEST_SKIP() << "this cuDNN describes GPUs in another form";
  const auto attention = CudnnAttention::Make(&backend_, {nullptr, gpu.object()}, shape);
  ASSERT_TRUE(attention.ok()) << attention.status();
  const CudnnGraph& graph = (*attention)->graph();
  const auto proposed = CudnnPlan::Propose(graph, 2);
  if (LacksCompiler(proposed.status())) GTEST_SKIP() << proposed.status() << no_compiler_;
  ASSERT_TRUE(proposed.ok()) << proposed.status();
  ASSERT_FALSE(proposed->empty());
  for (const CudnnAlgorithm& algorithm : *proposed) {
    const absl::StatusOr<CudnnPlan> plan = CudnnPlan::Make(graph, algorithm);
    if (LacksCompiler(plan.status())) GTEST_SKIP() << plan.status() << no_compiler_;
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_LE(plan->workspace_bytes(),
              shape.backward ? AttentionWorkspaceBytes(shape, size_t{4} << 30) : 4096u);
  }
  for (const CudnnAlgorithm& algorithm : UnproposedAttention(shape, compute, version_)) {
    EXPECT_GE(compute, 100);
    const absl::StatusOr<CudnnPlan> plan = CudnnPlan::Make(graph, algorithm);
    if (LacksCompiler(plan.status())) GTEST_SKIP() << plan.status() << no_compiler_;
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_LE(plan->workspace_bytes(), 4096u);
  }
}

std::string NameOfAsked(const testing::TestParamInfo<Asked>& info) {
  return absl::StrFormat("sm_%d_%s_%s", info.param.compute,
                         info.param.shape.backward ? "backward" : "forward",
                         info.param.shape.causal ? "causal" : "all");
}
INSTANTIATE_TEST_SUITE_P(All, CudnnCompileTest, testing::ValuesIn(AllAsked()), NameOfAsked);

// ResNet-50's, with what inference adds to them, and the gradients of their filters.
TEST_F(CudnnLibraryTest, ConvolutionsThatGoOnInFp32HaveAWay) {
  NeedDriver();
  if (IsSkipped()) return;
  const auto pair = [](int64_t a, int64_t b) { return Shape{a, b}; };
  const Attrs relu = {{"activation", std::string("relu")}};
  const Attrs strides = {{"stride", pair(2, 2)}, {"padding", pair(1, 1)}};
  const Convolution asked[] = {
      {"ones", {8, 14, 14, 64}, {256, 64, 1, 1}, relu, DType::kBF16, 2},
      {"strides", {8, 28, 28, 128}, {128, 128, 3, 3}, strides, DType::kF16, 1}};
  const CudaTarget target;
  for (const int compute : {80, 90, 100}) {
    const std::string json = DescribedGpu(compute);
    CudnnDescriptor gpu(backend_, CudnnKind::kDeviceProperties);
    gpu.Set(CudnnAttribute::kDeviceJson, CudnnAttributeType::kChar,
            static_cast<int64_t>(json.size()), json.data())
        .Finalize();
    if (gpu.status() != 0) GTEST_SKIP() << "this cuDNN describes GPUs in another form";
    for (const Convolution& convolution : asked) {
      for (const Direction direction : {kForward, kFilters}) {
        const OneNode node = NodeOf(convolution, direction);
        const ConvPlan plan(node.graph, node.node(), static_cast<ConvPart>(direction));
        const Operands operands(node.graph, node.node(), node.operands, target);
        const auto made = CudnnFusedConvolution::Make(&backend_, {nullptr, gpu.object()}, plan,
                                                      FusionOf(operands, node.node(), plan));
        ASSERT_TRUE(made.ok()) << made.status();
        absl::StatusOr<std::vector<CudnnAlgorithm>> proposed =
            CudnnPlan::Propose((*made)->graph(), 1);
        if (LacksCompiler(proposed.status())) GTEST_SKIP() << proposed.status() << no_compiler_;
        ASSERT_TRUE(proposed.ok()) << proposed.status();
        ASSERT_FALSE(proposed->empty()) << convolution.name << direction << " sm_" << compute;
        if (compute != 90) continue;  // compiling takes a second
        CudnnWays ways((*made)->graph(), CudnnWorkspaceBytes(plan));
        const auto ready = ways.Ready(*std::move(proposed));
        if (LacksCompiler(ready.status())) GTEST_SKIP() << ready.status() << no_compiler_;
        ASSERT_TRUE(ready.ok()) << ready.status();
        EXPECT_FALSE(ready->empty()) << convolution.name << direction;
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::engine::cuda
