// SPDX-License-Identifier: Apache-2.0
// Times the engine's matrix product on the shapes that occur in the models of the comparison, one
// thread, and where libdnnl-dev was there at build time oneDNN's matmul on the same operands in
// turn. Operands change from call to call in training, so both sides pay for their own packing.
// Prints for each shape the median GFLOP/s and the share of this machine's FMA peak, then those of
// the same product with bf16 factors as they are, and with the same factors widened to fp32 first.
//
//   bench_gemm [runs] [part of a case's name]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "bench/timing.h"
#include "engine/cpu/gemm.h"
#include "engine/cpu/machine_peak.h"
#include "engine/cpu/simd/half_kernels.h"
#ifdef LOCKSTEP_BENCH_DNNL
#include "bench/dnnl_matmul.h"
#endif

namespace lockstep::engine {
namespace {

struct Case {
  const char* what;
  GemmShape shape;
};

constexpr Case kCases[] = {
    {"mlp fc1 forward", {64, 256, 784, false, true}},
    {"mlp fc1 dw", {256, 784, 64, true, false}},
    {"gpt qkv forward", {2048, 1152, 384, false, false}},
    {"gpt qkv dx", {2048, 384, 1152, false, true}},
    {"gpt qkv dw", {384, 1152, 2048, true, false}},
    {"gpt out forward", {2048, 384, 384, false, false}},
    {"gpt up forward", {2048, 1536, 384, false, false}},
    {"gpt up dx", {2048, 384, 1536, false, true}},
    {"gpt up dw", {384, 1536, 2048, true, false}},
    {"gpt down forward", {2048, 384, 1536, false, false}},
    {"gpt down dx", {2048, 1536, 384, false, true}},
    {"gpt down dw", {1536, 384, 2048, true, false}},
    {"bert q forward", {2048, 256, 256, false, true}},
    {"bert q dx", {2048, 256, 256, false, false}},
    {"bert q dw", {256, 256, 2048, true, false}},
    {"bert up forward", {2048, 1024, 256, false, true}},
    {"bert up dx", {2048, 256, 1024, false, false}},
    {"bert up dw", {1024, 256, 2048, true, false}},
    {"bert down forward", {2048, 256, 1024, false, true}},
    {"bert down dx", {2048, 1024, 256, false, false}},
    {"bert down dw", {256, 1024, 2048, true, false}},
    {"mlm head forward", {2048, 30522, 256, false, true}},
    {"mlm head dx", {2048, 256, 30522, false, false}},
    {"mlm head dw", {30522, 256, 2048, true, false}},
    {"generate qkv", {1, 2304, 768, false, false}},
    {"generate down", {1, 768, 3072, false, false}},
    {"generate head", {1, 50257, 768, false, true}},
    {"generate qkv, 4", {4, 2304, 768, false, false}},
    {"generate head, 4", {4, 50257, 768, false, true}},
    {"generate head, 8", {8, 50257, 768, false, true}},
};

bench::Memory<float> Filled(int64_t count) {
  auto memory = bench::Allocate<float>(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i)
    memory[static_cast<size_t>(i)] = static_cast<float>(i % 97 - 48) / 64;
  return memory;
}

// Seconds of one call each: with bf16 factors, and with these widened before.
struct HalfTimes {
  double pairs;
  double widened;
};
HalfTimes TimeBf16(GemmShape shape, Isa isa, int calls, ThreadPool* pool) {
  const Gemm plain(shape, isa, 1);
  shape.bf16 = true;
  const Gemm gemm(shape, isa, 1);
  const HalfKernels& half = HalfKernelsFor(isa);
  const int64_t a_count = shape.m * shape.k, b_count = shape.k * shape.n;
  const auto a = Filled(a_count), b = Filled(b_count), c = Filled(shape.m * shape.n);
  const auto a_half = bench::Allocate<uint16_t>(static_cast<size_t>(a_count));
  const auto b_half = bench::Allocate<uint16_t>(static_cast<size_t>(b_count));
  half.narrow_bf16(a.get(), a_count, a_half.get());
  half.narrow_bf16(b.get(), b_count, b_half.get());
  const size_t bytes = std::max(gemm.scratch_bytes(), plain.scratch_bytes());
  const auto scratch = Filled(static_cast<int64_t>(bytes / sizeof(float)) + 16);
  std::vector<double> pairs, widened;
  for (int i = 0; i <= calls; ++i) {
    const double t0 = bench::Now();
    gemm.Run(a_half.get(), b_half.get(), c.get(), false, {}, scratch.get(), pool);
    const double t1 = bench::Now();
    half.widen_bf16(a_half.get(), a_count, a.get());
    half.widen_bf16(b_half.get(), b_count, b.get());
    plain.Run(a.get(), b.get(), c.get(), false, {}, scratch.get(), pool);
    const double t2 = bench::Now();
    if (i == 0) continue;
    pairs.push_back(t1 - t0);
    widened.push_back(t2 - t1);
  }
  return {bench::Median(pairs), bench::Median(widened)};
}

int Run(int runs, const char* only) {
  const Isa isa = DetectIsa();
  ThreadPool pool(1);
  const double peak = MeasureFmaPeak();
  std::printf("%s, FMA peak %.1f GFLOP/s\n", Name(isa), peak * 1e-9);
  for (const auto& [what, shape] : kCases) {
    if (only != nullptr && std::strstr(what, only) == nullptr) continue;
    const Gemm gemm(shape, isa, 1);
    const auto a = Filled(shape.m * shape.k), b = Filled(shape.k * shape.n);
    const auto c = Filled(shape.m * shape.n);
    const auto scratch = Filled(static_cast<int64_t>(gemm.scratch_bytes() / sizeof(float)) + 16);
    const double flops =
        2.0 * static_cast<double>(shape.m * shape.n) * static_cast<double>(shape.k);
    const int calls = std::max(runs, static_cast<int>(2e9 / flops));
    std::vector<double> ours, theirs;
#ifdef LOCKSTEP_BENCH_DNNL
    bench::DnnlMatmul dnnl(shape, a.get(), b.get(), c.get());
#endif
    for (int i = 0; i <= calls; ++i) {
      const double t0 = bench::Now();
      gemm.Run(a.get(), b.get(), c.get(), false, {}, scratch.get(), &pool);
      const double t1 = bench::Now();
      if (i > 0) ours.push_back(t1 - t0);
#ifdef LOCKSTEP_BENCH_DNNL
      dnnl.Run();
      if (i > 0) theirs.push_back(bench::Now() - t1);
#endif
    }
    const double mine = flops / bench::Median(ours);
    std::printf("%-18s m %5lld n %5lld k %5lld %s%s  %6.1f GFLOP/s %5.1f %%", what,
                static_cast<long long>(shape.m), static_cast<long long>(shape.n),
                static_cast<long long>(shape.k), shape.a_transposed ? "A'" : "A ",
                shape.b_transposed ? "B'" : "B ", mine * 1e-9, mine / peak * 100);
    if (!theirs.empty()) {
      const double other = flops / bench::Median(theirs);
      std::printf("   oneDNN %6.1f GFLOP/s %5.1f %%   x %.2f", other * 1e-9, other / peak * 100,
                  mine / other);
    }
    const HalfTimes halves = TimeBf16(shape, isa, calls, &pool);
    std::printf("   bf16 %6.1f widened %6.1f GFLOP/s x %.2f\n", flops / halves.pairs * 1e-9,
                flops / halves.widened * 1e-9, halves.widened / halves.pairs);
  }
  return 0;
}

}  // namespace
}  // namespace lockstep::engine

int main(int argc, char** argv) {
  return lockstep::engine::Run(argc > 1 ? std::max(1, std::atoi(argv[1])) : 3,
                               argc > 2 ? argv[2] : nullptr);
}
