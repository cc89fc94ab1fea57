// SPDX-License-Identifier: Apache-2.0
#include "collectives/tree_kernels.h"

#include <cstring>

namespace lockstep {
namespace {

// Vectors of the compiler's own kind: legal in every variant, and split where the machine is
// narrower.
template <int kBytes>
struct Vec {
  typedef float Type __attribute__((vector_size(kBytes)));
  static constexpr int64_t kWidth = kBytes / sizeof(float);
};

// memcpy is how an unaligned vector is read and written without breaking aliasing; all of it is
// inlined. Reads of a vector precede its write, so `out` may be an input.
template <int kBytes>
[[gnu::always_inline]] inline void Add2(const float* a, const float* b, float* out, int64_t count) {
  using V = typename Vec<kBytes>::Type;
  int64_t i = 0;
  for (; i + Vec<kBytes>::kWidth <= count; i += Vec<kBytes>::kWidth) {
    V va, vb;
    std::memcpy(&va, a + i, kBytes);
    std::memcpy(&vb, b + i, kBytes);
    va = va + vb;
    std::memcpy(out + i, &va, kBytes);
  }
  for (; i < count; ++i) out[i] = a[i] + b[i];
}

template <int kBytes>
[[gnu::always_inline]] inline void Add4(const float* a, const float* b, const float* c,
                                        const float* d, float* out, int64_t count) {
  using V = typename Vec<kBytes>::Type;
  int64_t i = 0;
  for (; i + Vec<kBytes>::kWidth <= count; i += Vec<kBytes>::kWidth) {
    V va, vb, vc, vd;
    std::memcpy(&va, a + i, kBytes);
    std::memcpy(&vb, b + i, kBytes);
    std::memcpy(&vc, c + i, kBytes);
    std::memcpy(&vd, d + i, kBytes);
    va = (va + vb) + (vc + vd);
    std::memcpy(out + i, &va, kBytes);
  }
  for (; i < count; ++i) out[i] = (a[i] + b[i]) + (c[i] + d[i]);
}

void Add2Portable(const float* a, const float* b, float* out, int64_t count) {
  Add2<16>(a, b, out, count);
}
void Add4Portable(const float* a, const float* b, const float* c, const float* d, float* out,
                  int64_t count) {
  Add4<16>(a, b, c, d, out, count);
}
constexpr TreeKernels kPortable{"portable", Add2Portable, Add4Portable};

#if defined(__x86_64__)
[[gnu::target("avx2")]] void Add2Avx2(const float* a, const float* b, float* out, int64_t count) {
  Add2<32>(a, b, out, count);
}
[[gnu::target("avx2")]] void Add4Avx2(const float* a, const float* b, const float* c,
                                      const float* d, float* out, int64_t count) {
  Add4<32>(a, b, c, d, out, count);
}
[[gnu::target("avx512f")]] void Add2Avx512(const float* a, const float* b, float* out,
                                           int64_t count) {
  Add2<64>(a, b, out, count);
}
[[gnu::target("avx512f")]] void Add4Avx512(const float* a, const float* b, const float* c,
                                           const float* d, float* out, int64_t count) {
  Add4<64>(a, b, c, d, out, count);
}
constexpr TreeKernels kAvx2{"avx2", Add2Avx2, Add4Avx2};
constexpr TreeKernels kAvx512{"avx512f", Add2Avx512, Add4Avx512};
#endif

}  // namespace

std::vector<TreeKernels> AllTreeKernels() {
  std::vector<TreeKernels> all = {kPortable};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) all.push_back(kAvx2);
  if (__builtin_cpu_supports("avx512f")) all.push_back(kAvx512);
#endif
  return all;
}

const TreeKernels& BestTreeKernels() {
  static const TreeKernels best = AllTreeKernels().back();
  return best;
}

}  // namespace lockstep
