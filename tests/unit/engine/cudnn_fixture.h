// SPDX-License-Identifier: Apache-2.0
// A node on the emulated GPU and its clock that our own kernels or a fake cuDNN
// (tests/emulation/fake_cudnn.h) may do.
#ifndef LOCKSTEP_TESTS_UNIT_ENGINE_CUDNN_FIXTURE_H_
#define LOCKSTEP_TESTS_UNIT_ENGINE_CUDNN_FIXTURE_H_

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/half.h"
#include "common/philox.h"
#include "engine/cuda/cudnn_tuning.h"
#include "engine/cuda/module.h"
#include "tests/emulation/emulation.h"
#include "tests/emulation/fake_cudnn.h"
#include "tests/emulation/include/cuda_runtime.h"
#include "tests/unit/engine/one_node.h"

namespace lockstep::engine {

inline constexpr const char* kVariable = "LOCKSTEP_CUDNN_LIBRARY";

class CudnnTest : public testing::Test {
 protected:
  // The module's.
  virtual const cuda::Tables* tables() const { return cuda::EmulatedTables(); }

  void SetUp() override {
    cuda::UseTables(tables());
    ::setenv(kVariable, LOCKSTEP_FAKE_CUDNN, 1);
    void* library = ::dlopen(LOCKSTEP_FAKE_CUDNN, RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(library, nullptr) << ::dlerror();
    const auto symbol = reinterpret_cast<fake_cudnn::Switches* (*)()>(
        ::dlsym(library, fake_cudnn::kFakeCudnnSymbol));
    fake_ = symbol();
    *fake_ = {};
    fake_->enqueue = [](void* stream, std::function<void()> work) {
      return static_cast<int>(emulation::Do(static_cast<cudaStream_t>(stream), std::move(work)));
    };
    fake_->spend = emulation::Spend;
    emulation::SetFastestAlgorithm(2);  // which fails: products take 2 ms
    file_ = absl::StrCat(testing::TempDir(), "/cudnn-", ::getpid(), "-", number_++, "/a.tsv");
    device_ = cuda::Device::Open(0).value();
    arena_ = device_->Allocate(kArenaBytes, "a test").value();
    context_.base[static_cast<int>(Region::kArena)] = arena_;
    context_.stream = device_->compute();
    context_.workspace = device_->Allocate(kCudaWorkspaceBytes, "a test").value();
  }
  void TearDown() override {
    device_.reset();
    emulation::SetStreams(emulation::Streams::kEager);
    emulation::SetFastestAlgorithm(0);
    EXPECT_EQ(fake_->handles, 0);
    EXPECT_EQ(fake_->descriptors, 0);
    *fake_ = {};
  }

  // The run's own file, beside the one that runs share.
  std::string RunFile() const { return file_ + ".run"; }

  // What prepares kernels with the choices of the files.
  struct Chooser {
    std::unique_ptr<cuda::ProductTuning> products;
    std::unique_ptr<cuda::CudnnTuning> cudnn;
    CudaTarget target;
  };
  Chooser Open() {
    Chooser made;
    made.products = cuda::ProductTuning::Open(
                        device_.get(), {RunFile(), file_},
                        {arena_, kArenaBytes, static_cast<std::byte*>(context_.workspace)})
                        .value();
    made.cudnn = cuda::CudnnTuning::Open(device_.get(), cuda::Cudnn::Open(*device_).value(),
                                         made.products.get(), context_)
                     .value();
    made.target.tables = &device_->tables();
    made.target.tuning = made.products.get();
    made.target.cudnn = made.cudnn.get();
    return made;
  }
  absl::StatusOr<CudaKernel> Prepare(const OneNode& node, const CudaTarget& target) {
    return CudaKernelOf(*node.node().op).prepare(node.graph, node.node(), node.operands, target);
  }
  CudaKernel Own(const OneNode& node) {
    CudaTarget target;
    target.tables = &device_->tables();
    return Prepare(node, target).value();
  }

  // Fills the inputs with values in [-1, 1) and the outputs with NaN.
  void FillOperands(const OneNode& node) {
    for (size_t i = 0; i < node.node().inputs.size(); ++i) {
      const TensorType& type = node.graph.type(node.node().inputs[i]);
      std::byte* at = arena_ + node.operands.inputs[i].offset;
      for (int64_t j = 0; j < type.elements(); ++j) {
        const uint64_t bits = MixBits(i * 1000003 + static_cast<uint64_t>(j));
        const float value = UniformFloat(static_cast<uint32_t>(bits)) * 2 - 1;
        if (type.dtype == DType::kF32) {
          reinterpret_cast<float*>(at)[j] = value;
        } else {
          reinterpret_cast<uint16_t*>(at)[j] = type.dtype == DType::kBF16
                                                   ? BFloat16::FromFloat(value).bits
                                                   : Float16::FromFloat(value).bits;
        }
      }
    }
    for (size_t i = 0; i < node.operands.outputs.size(); ++i) {
      std::memset(arena_ + node.operands.outputs[i].offset, 0xFF, node.node().outputs[i].bytes());
    }
  }
  std::vector<float> Output(const OneNode& node, size_t output = 0) const {
    const TensorType& type = node.node().outputs[output];
    const std::byte* at = arena_ + node.operands.outputs[output].offset;
    std::vector<float> values;
    for (int64_t j = 0; j < type.elements(); ++j) {
      const auto half = [&] { return reinterpret_cast<const uint16_t*>(at)[j]; };
      values.push_back(type.dtype == DType::kF32    ? reinterpret_cast<const float*>(at)[j]
                       : type.dtype == DType::kBF16 ? BFloat16{half()}.ToFloat()
                                                    : Float16{half()}.ToFloat());
    }
    return values;
  }
  std::vector<float> Run(const OneNode& node, const CudaKernel& kernel) {
    FillOperands(node);
    EXPECT_EQ(kernel(context_), 0);
    return Output(node);
  }
  // The algorithm that `kernel` runs; kOwn when it is none of the library's.
  int AlgorithmOf(const OneNode& node, const CudaKernel& kernel) {
    fake_->calls.clear();
    Run(node, kernel);
    return fake_->calls.empty() ? cuda::CudnnAlgorithm::kOwn : fake_->calls.back().algorithm;
  }
  // The same when it is chosen anew.
  int ChosenFor(const OneNode& node) {
    const Chooser chooser = Open();
    return AlgorithmOf(node, Prepare(node, chooser.target).value());
  }
  std::string TextOfFile() const { return TextOf(file_); }
  static std::string TextOf(const std::string& file) {
    std::stringstream text;
    text << std::ifstream(file).rdbuf();
    return text.str();
  }

  static constexpr size_t kArenaBytes = 1 << 20;
  static inline int number_ = 0;
  fake_cudnn::Switches* fake_ = nullptr;
  std::unique_ptr<cuda::Device> device_;
  std::byte* arena_ = nullptr;
  CudaContext context_;
  std::string file_;  // which runs share
};

}  // namespace lockstep::engine

#endif  // LOCKSTEP_TESTS_UNIT_ENGINE_CUDNN_FIXTURE_H_
