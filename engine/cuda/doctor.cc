// SPDX-License-Identifier: Apache-2.0
#include "engine/cuda/doctor.h"

#include <array>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/cuda_version.h"
#include "common/nvml.h"
#include "common/status.h"
#include "engine/cuda/attention_cudnn.h"
#include "engine/cuda/cudnn.h"
#include "engine/cuda/device.h"
#include "engine/cuda/doctor_speed.h"
#include "engine/cuda/gemm.h"
#include "engine/cuda/module.h"
#include "engine/cuda/warpgroup_check.h"

namespace lockstep::engine {
namespace {

using State = GpuFinding::State;

GpuFinding Driver() {
  const absl::StatusOr<std::unique_ptr<Nvml>> nvml = Nvml::Open();
  if (absl::IsNotFound(nvml.status())) {
    return {State::kMissing, "driver",
            absl::StrCat(nvml.status().message(), ": install NVIDIA's driver (CUDA ", kCudaMajor,
                         " needs ", kLeastCudaDriver, " or newer)")};
  }
  const std::string version = nvml.ok() ? (*nvml)->DriverVersion() : "";
  if (version.empty()) {
    return {State::kMissing, "driver", "the driver does not answer: see nvidia-smi"};
  }
  const std::string too_old = WhyTooOld(**nvml);
  if (!too_old.empty()) return {State::kMissing, "driver", too_old};
  return {State::kGood, "driver", version};
}

// Finds whether convolutions and attention will use it.
GpuFinding ExamineCudnn(const cuda::Tables* tables) {
  const absl::StatusOr<cuda::CudnnLibrary> library = cuda::LoadCudnn(tables);
  if (!library.ok()) {
    return {State::kOptional, "cuDNN",
            absl::StrCat(library.status().message(),
                         "; convolutions and attention use our own kernels")};
  }
  const std::string text = absl::StrCat(library->name(), ", ", library->path);
  const absl::StatusOr<std::unique_ptr<cuda::Device>> device = cuda::Device::Open(0);
  if (!device.ok()) {
    return {State::kOptional, "cuDNN", absl::StrCat(text, "; without a GPU it is not tried")};
  }
  const auto handle = cuda::Cudnn::Open(**device);
  if (!handle.ok()) {
    return {State::kDoubtful, "cuDNN",
            absl::StrCat(handle.status().message(),
                         "; convolutions and attention use our own kernels")};
  }
  if ((*handle)->version() >= cuda::kCudnnForAttention &&
      (*device)->properties().compute_major >= 8) {
    const absl::Status tried = cuda::TryAttention(**handle);
    if (!tried.ok()) {
      return {State::kDoubtful, "cuDNN",
              absl::StrCat(text, " prepares no attention: ", tried.message(),
                           library->no_compiler.empty() ? "" : "; ", library->no_compiler,
                           "; our own kernels do what it cannot")};
    }
  }
  return {State::kGood, "cuDNN",
          absl::StrCat(text, "; convolutions and attention use it where it is measured quicker")};
}

// A product of two matrices whose result is known: the largest error.
absl::StatusOr<float> Multiply(int index) {
  constexpr int64_t kSide = 64;
  LS_ASSIGN_OR_RETURN(const std::unique_ptr<cuda::Device> device, cuda::Device::Open(index));
  cuda::MatmulShape shape;
  shape.m = shape.n = shape.k = shape.lda = shape.ldb = shape.ldc = kSide;
  LS_ASSIGN_OR_RETURN(const cuda::Product product,
                      cuda::Product::Make({&device->tables(), false}, shape));
  std::array<float, kSide * kSide> a, b, c;
  for (int64_t i = 0; i < kSide * kSide; ++i) {
    a[static_cast<size_t>(i)] = static_cast<float>(i % 7);
    b[static_cast<size_t>(i)] = static_cast<float>(i % 5);
  }
  const size_t bytes = sizeof(a);
  LS_ASSIGN_OR_RETURN(std::byte * memory,
                      device->Allocate(3 * bytes + kCudaWorkspaceBytes, "a matrix product"));
  CudaContext context;
  context.stream = device->compute();
  context.workspace = memory + 3 * bytes;
  LS_RETURN_IF_ERROR(device->Copy(memory, a.data(), bytes, context.stream));
  LS_RETURN_IF_ERROR(device->Copy(memory + bytes, b.data(), bytes, context.stream));
  LS_RETURN_IF_ERROR(device->Check(product.Run(context, memory, memory + bytes, memory + 2 * bytes),
                                   "a matrix product"));
  LS_RETURN_IF_ERROR(device->Copy(c.data(), memory + 2 * bytes, bytes, context.stream));
  LS_RETURN_IF_ERROR(device->Wait(context.stream));
  float error = 0;
  for (int64_t i = 0; i < kSide; ++i) {
    for (int64_t j = 0; j < kSide; ++j) {
      float sum = 0;  // of small integers: exact in any order
      for (int64_t k = 0; k < kSide; ++k) {
        sum += a[static_cast<size_t>(i * kSide + k)] * b[static_cast<size_t>(k * kSide + j)];
      }
      error = std::max(error, std::fabs(sum - c[static_cast<size_t>(i * kSide + j)]));
    }
  }
  return error;
}

GpuFinding ExamineGpu(const cuda::Tables& tables, int index,
                      const cuda::DeviceProperties& properties) {
  const std::string part = absl::StrCat("GPU ", index);
  const std::string text =
      absl::StrCat(cuda::DescribeProperties(tables, properties), ", ", properties.uuid);
  const absl::StatusOr<float> error = Multiply(index);
  if (!error.ok()) {
    return {State::kMissing, part, absl::StrCat(text, ": ", error.status().message())};
  }
  if (*error != 0) {
    return {
        State::kMissing, part,
        absl::StrFormat("%s: a matrix product is wrong by %g: do not train on it", text, *error)};
  }
  return {State::kGood, part, absl::StrCat(text, "; a matrix product is right")};
}

// Finds whether attention's kernels of sm_90a agree with those that all GPUs have; kMissing: the
// GPU does nothing more in this process. REQUIRES: it has both.
GpuFinding ExamineAttention(int index) {
  bool ends_all = false;
  const auto checked = [&]() -> absl::Status {
    LS_ASSIGN_OR_RETURN(const std::unique_ptr<cuda::Device> device, cuda::Device::Open(index));
    LS_ASSIGN_OR_RETURN(std::byte * memory, device->Allocate(kCudaWorkspaceBytes, "attention"));
    absl::Status result = cuda::CheckWarpgroups(device.get(), cuda::Type::kBF16, memory);
    ends_all = absl::IsFailedPrecondition(result);
    return result;
  };
  const absl::Status status = checked();
  if (status.ok()) return {State::kGood, "attention", "by wgmma it is what it is by mma.sync"};
  if (ends_all) return {State::kMissing, "attention", std::string(status.message())};
  return {State::kDoubtful, "attention",
          absl::StrCat(status.message(), "; jobs do it by mma.sync here")};
}

GpuFinding Measured(const char* part, const absl::StatusOr<std::string>& text) {
  if (text.ok()) return {State::kGood, part, *text};
  return {State::kOptional, part, std::string(text.status().message())};
}

}  // namespace

std::vector<GpuFinding> ExamineGpus() {
  std::vector<GpuFinding> findings = {Driver()};
  const absl::StatusOr<const cuda::Tables*> module = cuda::LoadModule();
  if (!module.ok()) {
    findings.push_back({State::kMissing, "CUDA module", std::string(module.status().message())});
  } else {
    findings.push_back({State::kGood, "CUDA module", (*module)->name});
    const absl::Status loaded = cuda::LoadMatmul(**module);
    findings.push_back(
        {loaded.ok() ? State::kGood : State::kMissing, "cuBLASLt",
         loaded.ok() ? (*module)->matmul->version() : std::string(loaded.message())});
  }
  findings.push_back(ExamineCudnn(module.ok() ? *module : nullptr));
  if (!module.ok()) return findings;
  const auto devices = cuda::ListDevices();
  if (!devices.ok()) {
    findings.push_back({State::kMissing, "GPU", std::string(devices.status().message())});
    return findings;
  }
  for (size_t i = 0; i < devices->size(); ++i) {
    const int index = static_cast<int>(i);
    findings.push_back(ExamineGpu(**module, index, (*devices)[i]));
    if (findings.back().state != State::kGood) continue;
    if (cuda::HasWarpgroups(**module, (*devices)[i])) {
      findings.push_back(ExamineAttention(index));
      if (findings.back().state == State::kMissing) continue;
    }
    findings.push_back(Measured("copies", MeasureCopies(index)));
    findings.push_back(Measured("products", CompareProducts(index)));
  }
  return findings;
}

}  // namespace lockstep::engine
