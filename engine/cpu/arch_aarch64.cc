// SPDX-License-Identifier: Apache-2.0
// Plain vectors alone, which the compiler makes NEON's of.
#include <asm/hwcap.h>
#include <sys/auxv.h>

#include <cstdint>
#include <string>

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

typedef float V __attribute__((vector_size(16)));

// FPCR: bit 24 flushes results and treats operands as zero.
constexpr uint64_t kFlush = uint64_t{1} << 24;

constexpr int kRounds = 1000000;
constexpr int kChains = 12;  // more than latency x throughput, fewer than registers

uint64_t ControlRegister() {
  uint64_t value;
  asm volatile("mrs %0, fpcr" : "=r"(value));
  return value;
}

// Which core this is, as its maker numbers it; 0 where the kernel does not say.
uint64_t MainId() {
  uint64_t value = 0;
  if ((getauxval(AT_HWCAP) & HWCAP_CPUID) != 0) asm("mrs %0, midr_el1" : "=r"(value));
  return value;
}

}  // namespace

bool CpuFusesProducts() { return true; }

Isa CpuIsa() { return Isa::kPortable; }

std::string CpuName() { return absl::StrFormat("aarch64 %08x", MainId()); }

std::string CpuSignature() { return "neon"; }

double RunFmaLoop(Isa) {
  V acc[kChains];
  for (int i = 0; i < kChains; ++i) acc[i] = V{} + static_cast<float>(i);
  const V x = V{} + 0.5f;
  for (int r = 0; r < kRounds; ++r) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) asm("fmla %0.4s, %1.4s, %1.4s" : "+w"(acc[i]) : "w"(x));
  }
  for (int i = 0; i < kChains; ++i) asm volatile("" : : "w"(acc[i]));
  return 2.0 * 4 * kChains * kRounds;
}

bool FlushesDenormals() { return (ControlRegister() & kFlush) != 0; }

void FlushDenormals() {
  if (!FlushesDenormals()) asm volatile("msr fpcr, %0" : : "r"(ControlRegister() | kFlush));
}

const SimdKernels& SimdFor(Isa) { return simd::kPortableKernels; }
const RowKernels& RowKernelsFor(Isa) { return simd::kPortableRowKernels; }
const OptimKernels& OptimKernelsFor(Isa) { return simd::kPortableOptimKernels; }
const ImageSimd& ImageSimdFor(Isa) { return simd::kPortableImage; }
const HalfKernels& HalfKernelsFor(Isa) { return simd::kPortableHalfKernels; }

}  // namespace lockstep::engine
