// SPDX-License-Identifier: Apache-2.0
#include "engine/cuda/doctor_speed.h"

#include <algorithm>
#include <cstdint>
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
#include "engine/cuda/stopwatch.h"

namespace lockstep::engine {
namespace {

constexpr size_t kCopyBytes = size_t{32} << 20;
constexpr int kRepeats = 4;
constexpr int64_t kFirstSide = 64, kLastSide = 4096;
constexpr double kLongEnough = 0.02;  // seconds of the CPU
constexpr int64_t kGpuSide = 8192;    // milliseconds, so that a launch is nothing of it
constexpr size_t kMatrices = 3;       // two factors and their product

size_t MatrixBytes(int64_t side) { return static_cast<size_t>(side * side) * sizeof(float); }

// Of a product of two matrices of `side` rows.
double Teraflops(int64_t side, double seconds) {
  const auto rows = static_cast<double>(side);
  return 2 * rows * rows * rows / seconds / 1e12;
}

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

// Made factors: numbers whose size is between 1/2 and 1, as fp32 and as two of bf16. Zeros would
// take less power, and with it a higher clock rate.
absl::Status FillFactors(const cuda::Device& device, std::byte* memory, size_t bytes) {
  std::vector<uint32_t> made(std::min(bytes, kCopyBytes) / sizeof(uint32_t));
  uint32_t state = 1;
  for (uint32_t& word : made) {
    state = state * 1664525 + 1013904223;
    word = 0x3f003f00 | (state >> 8 & 0x807f807f);
  }
  const size_t block = made.size() * sizeof(uint32_t);
  for (size_t at = 0; at < bytes; at += block) {
    LS_RETURN_IF_ERROR(
        device.Copy(memory + at, made.data(), std::min(block, bytes - at), device.compute()));
  }
  return device.Wait(device.compute());
}

// The largest side up to kGpuSide whose matrices take no more than half of the memory that is free.
absl::StatusOr<int64_t> GpuSide(const cuda::Device& device) {
  // An emulated GPU is slower than the CPU: a small product is enough of it.
  if (device.properties().multiprocessors <= 1) return kFirstSide;
  size_t free_bytes = 0, total_bytes = 0;
  LS_RETURN_IF_ERROR(
      device.Check(device.runtime().memory(&free_bytes, &total_bytes), "the GPU's memory"));
  int64_t side = kGpuSide;
  while (side > kFirstSide && 2 * MatrixBytes(side) * kMatrices > free_bytes) side /= 2;
  return side;
}

// Of a product of two matrices of `side` rows, by the GPU's clock.
absl::StatusOr<double> GpuSeconds(cuda::Device* device, cuda::Stopwatch* stopwatch,
                                  std::byte* memory, int64_t side, cuda::Type type, bool tf32) {
  cuda::MatmulShape shape;
  shape.m = shape.n = shape.k = shape.lda = shape.ldb = shape.ldc = side;
  shape.factors = shape.result = type;
  shape.tf32 = tf32;
  LS_ASSIGN_OR_RETURN(const cuda::Product product,
                      cuda::Product::Make({&device->tables(), tf32}, shape));
  const size_t bytes = MatrixBytes(side);
  CudaContext context;
  context.stream = device->compute();
  context.workspace = memory + kMatrices * bytes;
  const auto run = [&] { return product.Run(context, memory, memory + bytes, memory + 2 * bytes); };
  LS_RETURN_IF_ERROR(device->Check(run(), "a matrix product"));
  LS_RETURN_IF_ERROR(device->Wait(context.stream));
  LS_ASSIGN_OR_RETURN(const cuda::Stopwatch::Result result,
                      stopwatch->Compare({run}, "a matrix product"));
  return std::max(1e-3 * static_cast<double>(result.milliseconds[0]), 1e-9);
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
  LS_ASSIGN_OR_RETURN(const int64_t gpu_side, GpuSide(*device));
  const size_t bytes = MatrixBytes(gpu_side);
  LS_ASSIGN_OR_RETURN(std::byte* const memory,
                      device->Allocate(kMatrices * bytes + kCudaWorkspaceBytes, "matrix products"));
  LS_RETURN_IF_ERROR(FillFactors(*device, memory, 2 * bytes));
  LS_ASSIGN_OR_RETURN(cuda::Stopwatch stopwatch, cuda::Stopwatch::Make(device.get()));
  const double by_cpu = Teraflops(side, cpu);
  std::string text = absl::StrFormat("%d x %d by one CPU thread %.2f TFLOP/s; %d x %d by the GPU",
                                     side, side, by_cpu, gpu_side, gpu_side);
  const auto add = [&](const char* name, cuda::Type type, bool tf32) -> absl::Status {
    LS_ASSIGN_OR_RETURN(const double seconds,
                        GpuSeconds(device.get(), &stopwatch, memory, gpu_side, type, tf32));
    const double by_gpu = Teraflops(gpu_side, seconds);
    absl::StrAppendFormat(&text, " %s %.2f TFLOP/s (%.0fx)", name, by_gpu, by_gpu / by_cpu);
    return absl::OkStatus();
  };
  LS_RETURN_IF_ERROR(add("fp32", cuda::Type::kF32, false));
  text += ",";
  LS_RETURN_IF_ERROR(add("tf32", cuda::Type::kF32, true));
  text += ",";
  LS_RETURN_IF_ERROR(add("bf16", cuda::Type::kBF16, false));
  return text;
}

}  // namespace lockstep::engine
