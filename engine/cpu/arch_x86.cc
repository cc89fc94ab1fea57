// SPDX-License-Identifier: Apache-2.0
#include <cpuid.h>
#include <immintrin.h>

#include <cstring>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"
#include "engine/cpu/arch.h"
#include "engine/cpu/image/image_simd.h"
#include "engine/cpu/numerics.h"
#include "engine/cpu/simd/half_kernels.h"
#include "engine/cpu/simd/optim_kernels.h"
#include "engine/cpu/simd/row_kernels.h"
#include "engine/cpu/simd/simd.h"

namespace lockstep::engine {
namespace {

// MXCSR: bit 15 flushes results, bit 6 treats operands as zero.
constexpr unsigned kFlush = (1u << 15) | (1u << 6);

constexpr int kRounds = 1000000;
constexpr int kChains = 12;  // more than latency x throughput, fewer than registers

__attribute__((target("avx512f"))) void Avx512Loop() {
  __m512 acc[kChains];
  for (int i = 0; i < kChains; ++i) acc[i] = _mm512_set1_ps(static_cast<float>(i));
  const __m512 x = _mm512_set1_ps(0.5f);
  for (int r = 0; r < kRounds; ++r) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) acc[i] = _mm512_fmadd_ps(acc[i], x, x);
  }
  for (int i = 0; i < kChains; ++i) asm volatile("" : : "x"(acc[i]));
}

__attribute__((target("avx2,fma"))) void Avx2Loop() {
  __m256 acc[kChains];
  for (int i = 0; i < kChains; ++i) acc[i] = _mm256_set1_ps(static_cast<float>(i));
  const __m256 x = _mm256_set1_ps(0.5f);
  for (int r = 0; r < kRounds; ++r) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) acc[i] = _mm256_fmadd_ps(acc[i], x, x);
  }
  for (int i = 0; i < kChains; ++i) asm volatile("" : : "x"(acc[i]));
}

// __builtin_cpu_supports asks the operating system about AVX's registers, which F16C needs; clang
// 14's does not know F16C itself.
bool HasF16c() {
  static const bool has = [] {
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx") && __get_cpuid(1, &eax, &ebx, &ecx, &edx) &&
           (ecx & bit_F16C) != 0;
  }();
  return has;
}

// The table of `isa` among those of AVX-512, AVX2 and plain vectors.
template <typename Table>
const Table& Of(Isa isa, const Table& avx512, const Table& avx2, const Table& portable) {
  if (isa >= Isa::kAvx512) return avx512;
  return isa == Isa::kAvx2 ? avx2 : portable;
}

}  // namespace

bool CpuFusesProducts() {
  // __builtin_cpu_supports also asks the operating system (XGETBV).
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

Isa CpuIsa() {
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq")) {
    return __builtin_cpu_supports("avx512bf16") ? Isa::kAvx512Bf16 : Isa::kAvx512;
  }
  return CpuFusesProducts() ? Isa::kAvx2 : Isa::kPortable;
}

std::string CpuName() {
  constexpr unsigned kFirst = 0x80000002, kLast = 0x80000004;
  char name[(kLast - kFirst + 1) * 16 + 1] = {};
  for (unsigned leaf = kFirst; leaf <= kLast; ++leaf) {
    unsigned registers[4] = {};
    if (!__get_cpuid(leaf, &registers[0], &registers[1], &registers[2], &registers[3])) return "?";
    std::memcpy(name + (leaf - kFirst) * sizeof registers, registers, sizeof registers);
  }
  return std::string(absl::StripAsciiWhitespace(name));
}

std::string CpuSignature() {
  unsigned signature = 0, unused = 0;
  __get_cpuid(1, &signature, &unused, &unused, &unused);
  __builtin_cpu_init();
  std::string text = absl::StrFormat("signature %x,", signature);
  if (__builtin_cpu_supports("avx2")) text += " avx2";
  if (__builtin_cpu_supports("avx512f")) text += " avx512f";
  if (__builtin_cpu_supports("avx512dq")) text += " avx512dq";
  if (__builtin_cpu_supports("avx512bf16")) text += " avx512bf16";
  return text;
}

double RunFmaLoop(Isa isa) {
  isa >= Isa::kAvx512 ? Avx512Loop() : Avx2Loop();
  const int lanes = isa >= Isa::kAvx512 ? 16 : 8;
  return 2.0 * lanes * kChains * kRounds;
}

bool FlushesDenormals() { return (_mm_getcsr() & kFlush) == kFlush; }

void FlushDenormals() {
  if (!FlushesDenormals()) _mm_setcsr(_mm_getcsr() | kFlush);
}

const SimdKernels& SimdFor(Isa isa) {
  if (isa == Isa::kAvx512Bf16) return simd::kAvx512Bf16Kernels;
  return Of(isa, simd::kAvx512Kernels, simd::kAvx2Kernels, simd::kPortableKernels);
}

const RowKernels& RowKernelsFor(Isa isa) {
  return Of(isa, simd::kAvx512RowKernels, simd::kAvx2RowKernels, simd::kPortableRowKernels);
}

const OptimKernels& OptimKernelsFor(Isa isa) {
  return Of(isa, simd::kAvx512OptimKernels, simd::kAvx2OptimKernels, simd::kPortableOptimKernels);
}

const ImageSimd& ImageSimdFor(Isa isa) {
  return Of(isa, simd::kAvx512Image, simd::kAvx2Image, simd::kPortableImage);
}

const HalfKernels& HalfKernelsFor(Isa isa) {
  return Of(isa, simd::kAvx512HalfKernels,
            HasF16c() ? simd::kF16cHalfKernels : simd::kPortableHalfKernels,
            simd::kPortableHalfKernels);
}

}  // namespace lockstep::engine
