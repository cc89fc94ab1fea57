// SPDX-License-Identifier: Apache-2.0
#include "data/rows.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace lockstep::data {
namespace {

void ScaleBytes(const uint8_t* in, int64_t count, float scale, float shift, float* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = static_cast<float>(in[i]) * scale + shift;
}

void AddThree(const float* a, const float* b, const float* c, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = (a[i] + b[i]) + c[i];
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) void ScaleBytesAvx2(const uint8_t* in, int64_t count, float scale,
                                                    float shift, float* out) {
  const __m256 vscale = _mm256_set1_ps(scale), vshift = _mm256_set1_ps(shift);
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(in + i));
    const __m256 value = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes));
    _mm256_storeu_ps(out + i, _mm256_add_ps(_mm256_mul_ps(value, vscale), vshift));
  }
  ScaleBytes(in + i, count - i, scale, shift, out + i);
}

__attribute__((target("avx2"))) void AddThreeAvx2(const float* a, const float* b, const float* c,
                                                  int64_t count, float* out) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m256 sum = _mm256_add_ps(_mm256_loadu_ps(a + i), _mm256_loadu_ps(b + i));
    _mm256_storeu_ps(out + i, _mm256_add_ps(sum, _mm256_loadu_ps(c + i)));
  }
  AddThree(a + i, b + i, c + i, count - i, out + i);
}
#endif

constexpr RowKernels kPortable{ScaleBytes, AddThree};

}  // namespace

const RowKernels& PortableRowKernels() { return kPortable; }

const RowKernels& BestRowKernels() {
#if defined(__x86_64__)
  static constexpr RowKernels kAvx2{ScaleBytesAvx2, AddThreeAvx2};
  static const bool has_avx2 = __builtin_cpu_supports("avx2");
  if (has_avx2) return kAvx2;
#endif
  return kPortable;
}

}  // namespace lockstep::data
