// SPDX-License-Identifier: Apache-2.0
// What of this machine's FMA peak a product can reach at all: all operands in the first-level
// cache, the engine's tile of 12 x 32, and in turn with it a loop in assembler that does nothing
// but what such a tile must: for each count of k 2 vectors of B, 12 numbers of A, 24
// multiplications. The peak's loop reads no memory. AVX-512 alone.
//
//   bench_tile [rounds]
//
// Prints for blocks of 64, 128 and 256 counts of k the medians of both and their shares of the
// peak.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "bench/timing.h"
#include "engine/cpu/isa.h"
#include "engine/cpu/machine_peak.h"
#include "engine/cpu/simd/simd.h"

namespace lockstep::engine {
namespace {

constexpr int kRows = 12, kColumns = 32, kUnroll = 4;

#define LS_FMA(acc0, acc1)                   \
  "vfmadd231ps %%zmm24, %%zmm26, %%zmm" acc0 \
  "\n"                                       \
  "vfmadd231ps %%zmm25, %%zmm26, %%zmm" acc1 "\n"
// Three rows from one pointer, `at` bytes on.
#define LS_ROWS(p, at, c0, c1, c2, c3, c4, c5)                                                 \
  "vbroadcastss " at "(%[" p                                                                   \
  "]), %%zmm26\n" LS_FMA(c0, c1) "vbroadcastss " at "(%[" p "], %[row], 4), %%zmm26\n" LS_FMA( \
      c2, c3) "vbroadcastss " at "(%[" p "], %[row], 8), %%zmm26\n" LS_FMA(c4, c5)
#define LS_STEP(at, b0, b1)                                                         \
  "vmovups " b0                                                                     \
  "(%[b]), %%zmm24\n"                                                               \
  "vmovups " b1 "(%[b]), %%zmm25\n" LS_ROWS("a0", at, "0", "1", "2", "3", "4", "5") \
      LS_ROWS("a1", at, "6", "7", "8", "9", "10", "11")                             \
          LS_ROWS("a2", at, "12", "13", "14", "15", "16", "17")                     \
              LS_ROWS("a3", at, "18", "19", "20", "21", "22", "23")

// C is not written: the sums stay where they are.
__attribute__((target("avx512f"), noinline)) void Assembled(const Tile& t) {
  const float *a0 = t.a, *a1 = a0 + 3 * t.a_row, *a2 = a1 + 3 * t.a_row, *a3 = a2 + 3 * t.a_row;
  const float* b = t.b;
  int64_t steps = t.k / kUnroll;
  asm volatile(
      "vpxorq %%zmm0, %%zmm0, %%zmm0\n"
      ".irp i, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23\n"
      "vmovaps %%zmm0, %%zmm\\i\n"
      ".endr\n"
      "1:\n"
      LS_STEP("0", "0", "64")
      LS_STEP("4", "128", "192")
      LS_STEP("8", "256", "320")
      LS_STEP("12", "384", "448")
      "add $16, %[a0]\n add $16, %[a1]\n add $16, %[a2]\n add $16, %[a3]\n add $512, %[b]\n"
      "dec %[n]\n"
      "jnz 1b\n"
      : [a0] "+r"(a0), [a1] "+r"(a1), [a2] "+r"(a2), [a3] "+r"(a3), [b] "+r"(b), [n] "+r"(steps)
      : [row] "r"(t.a_row)
      : "memory", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9",
        "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "xmm16", "xmm17", "xmm18", "xmm19",
        "xmm20", "xmm21", "xmm22", "xmm23", "xmm24", "xmm25", "xmm26");
}

int Run(int rounds) {
  if (DetectIsa() < Isa::kAvx512) {
    std::fprintf(stderr, "bench_tile: this CPU has no AVX-512\n");
    return 1;
  }
  const SimdKernels& simd = SimdFor(Isa::kAvx512);
  for (const int64_t k : {64, 128, 256}) {
    const int64_t row = k + 16;  // rows of A in different sets of the cache
    const auto a = bench::Allocate<float>(static_cast<size_t>(kRows * row));
    const auto b = bench::Allocate<float>(static_cast<size_t>(k * kColumns));
    const auto c = bench::Allocate<float>(static_cast<size_t>(kRows * kColumns));
    for (int64_t i = 0; i < kRows * row; ++i) a[static_cast<size_t>(i)] = 0.5f;
    for (int64_t i = 0; i < k * kColumns; ++i) b[static_cast<size_t>(i)] = 0.25f;
    Tile tile;
    tile.k = k;
    tile.a = a.get();
    tile.a_row = row;
    tile.a_k = 1;
    tile.b = b.get();
    tile.b_stride = kColumns;
    tile.c = c.get();
    tile.c_stride = kColumns;
    tile.columns = kColumns;
    const int64_t calls = 100'000 / k;
    std::vector<double> ours, assembled, peaks;
    const auto time = [&](auto run, std::vector<double>* rates) {
      const double start = bench::Now();
      for (int64_t i = 0; i < calls; ++i) run(tile);
      const double flops = 2.0 * kRows * kColumns * static_cast<double>(k * calls);
      rates->push_back(flops / (bench::Now() - start) * 1e-9);
    };
    for (int i = 0; i < rounds; ++i) {
      time(simd.tile[kRows], &ours);
      time(Assembled, &assembled);
      if (i % 20 == 0) peaks.push_back(MeasureFmaPeak() * 1e-9);
    }
    const double peak = bench::Median(peaks);
    std::printf(
        "k %3lld  tile %6.1f GFLOP/s %5.1f %%   assembled %6.1f GFLOP/s %5.1f %%   peak %.1f\n",
        static_cast<long long>(k), bench::Median(ours), bench::Median(ours) / peak * 100,
        bench::Median(assembled), bench::Median(assembled) / peak * 100, peak);
  }
  return 0;
}

}  // namespace
}  // namespace lockstep::engine

int main(int argc, char** argv) {
  return lockstep::engine::Run(argc > 1 ? std::max(1, std::atoi(argv[1])) : 200);
}
