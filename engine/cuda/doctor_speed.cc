// SPDX-License-Identifier: Apache-2.0
#include "engine/cuda/doctor_speed.h"

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/clock.h"
#include "common/status.h"
#include "engine/cpu/gemm.h"
#include "engine/cpu/isa.h"
#include "engine/cpu/thread_pool.h"
#include "engine/cuda/device.h"
#include "engine/cuda/gemm.h"

namespace lockstep::engine {
namespace {

constexpr size_t kCopyBytes = size_t{32} << 20;
constexpr int kRepeats = 4;
constexpr int64_t kFirstSide = 64, kLastSide = 4096;
constexpr double kLongEnough = 0.02;  // seconds of the CPU

// The shortest time of one call, in seconds, after one to warm up.
absl::StatusOr<double> Shortest(const std::function<absl::Status()>& call) {
  double shortest = 0;
  for (int i = 0; i <= kRepeats; ++i) {
    const absl::Time start = Clock::Real()->Now();
    LS_RETURN_IF_ERROR(call());
    const double seconds = absl::ToDoubleSeconds(Clock::Real()->Now() - start);
    if (i == 1 || (i > 1 && seconds < shortest)) shortest = seconds;
  }
  return std::max(shortest, 1e-9);
}

double CpuSeconds(int64_t side) {
  const Gemm gemm({side, side, side}, DetectIsa(), 1);
  const size_t floats = static_cast<size_t>(side * side);
  const auto scratch_bytes = (std::max<size_t>(gemm.scratch_bytes(), 1) + 63) / 64 * 64;
  std::vector<float> a(floats, 0.5f), b(floats, 0.25f), c(floats);
  const std::unique_ptr<float, void (*)(void*)> scratch(
      static_cast<float*>(std::aligned_alloc(64, scratch_bytes)), std::free);
  ThreadPool pool(1);
  return *Shortest([&] {
    gemm.Run(a.data(), b.data(), c.data(), false, {}, scratch.get(), &pool);
    return absl::OkStatus();
  });
}

// Of `side`^3 products of zeros, which take as long as any others.
absl::StatusOr<double> GpuSeconds(cuda::Device* device, std::byte* memory, int64_t side,
                                  cuda::Type type, bool tf32) {
  cuda::MatmulShape shape;
  shape.m = shape.n = shape.k = shape.lda = shape.ldb = shape.ldc = side;
  shape.factors = shape.result = type;
  shape.tf32 = tf32;
  LS_ASSIGN_OR_RETURN(const cuda::Product product,
                      cuda::Product::Make({&device->tables(), tf32}, shape));
  const size_t bytes = static_cast<size_t>(side * side) * sizeof(float);
  CudaContext context;
  context.stream = device->compute();
  context.workspace = memory + 3 * bytes;
  return Shortest([&]() -> absl::Status {
    LS_RETURN_IF_ERROR(device->Check(
        product.Run(context, memory, memory + bytes, memory + 2 * bytes), "a matrix product"));
    return device->Wait(context.stream);
  });
}

}  // namespace

absl::StatusOr<std::string> MeasureCopies(int index) {
  LS_ASSIGN_OR_RETURN(const std::unique_ptr<cuda::Device> device, cuda::Device::Open(index));
  LS_ASSIGN_OR_RETURN(std::byte* const there, device->Allocate(kCopyBytes, "copies"));
  LS_ASSIGN_OR_RETURN(std::byte* const here, device->AllocatePinned(kCopyBytes, "copies"));
  const auto measure = [&](std::byte* to, std::byte* from) {
    return Shortest([&]() -> absl::Status {
      LS_RETURN_IF_ERROR(device->Copy(to, from, kCopyBytes, device->copies()));
      return device->Wait(device->copies());
    });
  };
  LS_ASSIGN_OR_RETURN(const double up, measure(there, here));
  LS_ASSIGN_OR_RETURN(const double down, measure(here, there));
  const double gigabytes = static_cast<double>(kCopyBytes) / 1e9;
  return absl::StrFormat("to the GPU %.1f GB/s, back %.1f GB/s (page-locked, 32 MiB)",
                         gigabytes / up, gigabytes / down);
}

absl::StatusOr<std::string> CompareProducts(int index) {
  LS_ASSIGN_OR_RETURN(const std::unique_ptr<cuda::Device> device, cuda::Device::Open(index));
  int64_t side = kFirstSide;
  double cpu = CpuSeconds(side);
  // An emulated GPU is slower than the CPU: a small product is enough of it.
  const int64_t last = device->properties().multiprocessors > 1 ? kLastSide : kFirstSide;
  while (cpu < kLongEnough && side < last) cpu = CpuSeconds(side *= 2);
  const size_t bytes = 3 * static_cast<size_t>(side * side) * sizeof(float);
  LS_ASSIGN_OR_RETURN(std::byte* const memory,
                      device->Allocate(bytes + kCudaWorkspaceBytes, "matrix products"));
  LS_RETURN_IF_ERROR(
      device->Check(device->runtime().clear(memory, bytes, device->compute()), "memory"));
  std::string text = absl::StrFormat("%d x %d: one CPU thread %.2f ms", side, side, 1e3 * cpu);
  const auto add = [&](const char* name, cuda::Type type, bool tf32) -> absl::Status {
    LS_ASSIGN_OR_RETURN(const double gpu, GpuSeconds(device.get(), memory, side, type, tf32));
    const double teraflops = 2.0 * static_cast<double>(side * side * side) / gpu / 1e12;
    absl::StrAppendFormat(&text, "; GPU %s %.3f ms (%.0fx, %.1f TFLOP/s)", name, 1e3 * gpu,
                          cpu / gpu, teraflops);
    return absl::OkStatus();
  };
  LS_RETURN_IF_ERROR(add("fp32", cuda::Type::kF32, false));
  LS_RETURN_IF_ERROR(add("tf32", cuda::Type::kF32, true));
  LS_RETURN_IF_ERROR(add("bf16", cuda::Type::kBF16, false));
  return text;
}

}  // namespace lockstep::engine
