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
  typedef uint32_t Bits __attribute__((vector_size(kBytes)));
  static constexpr int64_t kWidth = kBytes / sizeof(float);
};

// To bf16, to nearest even, in the upper half of the float. A NaN, whose payload might carry over
// into its sign, becomes a quiet one.
inline float RoundOne(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
  bits = nan ? bits | 0x00400000u : bits + 0x7fffu + (bits >> 16 & 1u);
  bits &= 0xffff0000u;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}

template <int kBytes>
[[gnu::always_inline]] inline void Round(typename Vec<kBytes>::Type* x) {
  using U = typename Vec<kBytes>::Bits;
  U bits;
  std::memcpy(&bits, x, kBytes);
  const U nan = reinterpret_cast<U>((bits & 0x7fffffffu) > 0x7f800000u);
  const U rounded = bits + 0x7fffu + (bits >> 16 & 1u);
  bits = ((nan & (bits | 0x00400000u)) | (~nan & rounded)) & 0xffff0000u;
  std::memcpy(x, &bits, kBytes);
}

// memcpy is how an unaligned vector is read and written without breaking aliasing; all of it is
// inlined. Reads of a vector precede its write, so `out` may be an input. With `kRounds` each sum
// is rounded.
template <int kBytes>
[[gnu::always_inline]] inline void RoundAll(const float* a, float* out, int64_t count) {
  typename Vec<kBytes>::Type va;
  int64_t i = 0;
  for (; i + Vec<kBytes>::kWidth <= count; i += Vec<kBytes>::kWidth) {
    std::memcpy(&va, a + i, kBytes);
    Round<kBytes>(&va);
    std::memcpy(out + i, &va, kBytes);
  }
  for (; i < count; ++i) out[i] = RoundOne(a[i]);
}

template <int kBytes, bool kRounds>
[[gnu::always_inline]] inline void Add2(const float* a, const float* b, float* out, int64_t count) {
  typename Vec<kBytes>::Type va, vb;
  int64_t i = 0;
  for (; i + Vec<kBytes>::kWidth <= count; i += Vec<kBytes>::kWidth) {
    std::memcpy(&va, a + i, kBytes);
    std::memcpy(&vb, b + i, kBytes);
    va = va + vb;
    if constexpr (kRounds) Round<kBytes>(&va);
    std::memcpy(out + i, &va, kBytes);
  }
  for (; i < count; ++i) out[i] = kRounds ? RoundOne(a[i] + b[i]) : a[i] + b[i];
}

template <int kBytes, bool kRounds>
[[gnu::always_inline]] inline void Add4(const float* a, const float* b, const float* c,
                                        const float* d, float* out, int64_t count) {
  typename Vec<kBytes>::Type va, vb, vc, vd;
  int64_t i = 0;
  for (; i + Vec<kBytes>::kWidth <= count; i += Vec<kBytes>::kWidth) {
    std::memcpy(&va, a + i, kBytes);
    std::memcpy(&vb, b + i, kBytes);
    std::memcpy(&vc, c + i, kBytes);
    std::memcpy(&vd, d + i, kBytes);
    va = va + vb;
    vc = vc + vd;
    if constexpr (kRounds) {
      Round<kBytes>(&va);
      Round<kBytes>(&vc);
    }
    va = va + vc;
    if constexpr (kRounds) Round<kBytes>(&va);
    std::memcpy(out + i, &va, kBytes);
  }
  for (; i < count; ++i) {
    const float left = a[i] + b[i], right = c[i] + d[i];
    out[i] = kRounds ? RoundOne(RoundOne(left) + RoundOne(right)) : left + right;
  }
}

// The variants of one instruction set; `target` is what a function of it is declared with.
#define LOCKSTEP_TREE_KERNELS(Isa, bytes, target)                                            \
  target void Add2##Isa(const float* a, const float* b, float* out, int64_t count) {         \
    Add2<bytes, false>(a, b, out, count);                                                    \
  }                                                                                          \
  target void Add4##Isa(const float* a, const float* b, const float* c, const float* d,      \
                        float* out, int64_t count) {                                         \
    Add4<bytes, false>(a, b, c, d, out, count);                                              \
  }                                                                                          \
  target void Add2Round##Isa(const float* a, const float* b, float* out, int64_t count) {    \
    Add2<bytes, true>(a, b, out, count);                                                     \
  }                                                                                          \
  target void Add4Round##Isa(const float* a, const float* b, const float* c, const float* d, \
                             float* out, int64_t count) {                                    \
    Add4<bytes, true>(a, b, c, d, out, count);                                               \
  }                                                                                          \
  target void Round##Isa(const float* a, float* out, int64_t count) {                        \
    RoundAll<bytes>(a, out, count);                                                          \
  }

LOCKSTEP_TREE_KERNELS(Portable, 16, )
constexpr TreeKernels kPortable{"portable",        Add2Portable,      Add4Portable,
                                Add2RoundPortable, Add4RoundPortable, RoundPortable};

#if defined(__x86_64__)
LOCKSTEP_TREE_KERNELS(Avx2, 32, [[gnu::target("avx2")]])
LOCKSTEP_TREE_KERNELS(Avx512, 64, [[gnu::target("avx512f")]])
constexpr TreeKernels kAvx2{"avx2", Add2Avx2, Add4Avx2, Add2RoundAvx2, Add4RoundAvx2, RoundAvx2};
constexpr TreeKernels kAvx512{"avx512f",       Add2Avx512,      Add4Avx512,
                              Add2RoundAvx512, Add4RoundAvx512, RoundAvx512};
#endif
#undef LOCKSTEP_TREE_KERNELS

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
