// SPDX-License-Identifier: Apache-2.0
// The emulated GPU's version of engine/cuda/kernels/warp_matrix.h: the same layouts of fragments,
// so that kernels are tested with those of the real instructions. Asynchronous copies land only
// when they are waited for.
// Thread-safety: as the emulation.
#ifndef LOCKSTEP_TESTS_EMULATION_INCLUDE_EMULATED_WARP_MATRIX_H_
#define LOCKSTEP_TESTS_EMULATION_INCLUDE_EMULATED_WARP_MATRIX_H_

#include <cmath>
#include <cstdint>
#include <cstring>

#include "common/check.h"
#include "common/half.h"

namespace lockstep::engine::cuda {

template <Type kType>
inline float HalfOf(uint32_t word, int half) {
  const auto bits = static_cast<uint16_t>(word >> (16 * half));
  return kType == Type::kBF16 ? BFloat16{bits}.ToFloat() : Float16{bits}.ToFloat();
}

template <Type kType>
inline void MultiplyAdd(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  struct Words {
    uint32_t a[4], b[2];
  };
  const Words own = {{a[0], a[1], a[2], a[3]}, {b0, b1}};
  const Words* all = emulation::Share(own);
  const int lane = emulation::Lane();
  for (int i = 0; i < 4; ++i) {
    const int row = lane / 4, column = lane % 4 * 2 + i % 2;
    for (int k = 0; k < 16; ++k) {
      const Words& left = all[row * 4 + k % 8 / 2];
      const Words& right = all[column * 4 + k % 8 / 2];
      c[i] +=
          HalfOf<kType>(left.a[i / 2 + k / 8 * 2], k % 2) * HalfOf<kType>(right.b[k / 8], k % 2);
    }
  }
}

template <Type kType>
inline void Multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  for (float& each : c) each = 0;
  MultiplyAdd<kType>(c, a, b0, b1);
}

inline void LoadMatrices(uint32_t (&parts)[4], const uint16_t* row) {
  LS_CHECK(emulation::IsAligned(row, 16));
  const uint16_t* const* rows = emulation::Share(row);
  const int lane = emulation::Lane();
  for (int i = 0; i < 4; ++i) {
    std::memcpy(&parts[i], rows[8 * i + lane / 4] + lane % 4 * 2, 4);
  }
}
inline void LoadTransposed(uint32_t (&parts)[4], const uint16_t* row) {
  LS_CHECK(emulation::IsAligned(row, 16));
  const uint16_t* const* rows = emulation::Share(row);
  const int lane = emulation::Lane();
  for (int i = 0; i < 4; ++i) {
    const uint32_t low = rows[8 * i + lane % 4 * 2][lane / 4];
    const uint32_t high = rows[8 * i + lane % 4 * 2 + 1][lane / 4];
    parts[i] = low | high << 16;
  }
}

inline void CopyAsync(uint16_t* to, const uint16_t* from, bool inside) {
  emulation::CopyLater(to, inside ? from : nullptr, 16);
}
inline void CommitCopies() { emulation::CommitCopies(); }
template <int kPending = 0>
inline void WaitForCopies() {
  emulation::WaitForCopies(kPending);
}

template <Type kType>
inline uint32_t Pack(float low, float high) {
  if (kType == Type::kBF16) {
    return BFloat16::FromFloat(low).bits | uint32_t{BFloat16::FromFloat(high).bits} << 16;
  }
  return Float16::FromFloat(low).bits | uint32_t{Float16::FromFloat(high).bits} << 16;
}

inline float PowerOfTwo(float x) { return std::exp2(x); }

inline uint32_t MostOf(uint32_t a, uint32_t b, uint32_t c) { return (a & b) | ((a | b) & c); }
inline uint32_t SignsOfHalves(uint32_t halves) {
  return (halves >> 31) * 0xffff0000u | (halves >> 15 & 1) * 0xffffu;
}
inline void SetBit(uint32_t& bits, int bit, bool is) {
  if (is) bits |= 1u << bit;
}

inline int FreshThread() { return static_cast<int>(threadIdx.x); }
inline int FreshLane() { return emulation::Lane(); }

inline uint16_t* SharedMemory() { return static_cast<uint16_t*>(emulation::SharedMemory()); }
inline uint32_t SharedAddress(const void* pointer) {
  return static_cast<uint32_t>(static_cast<const char*>(pointer) -
                               static_cast<const char*>(emulation::SharedMemory()));
}

}  // namespace lockstep::engine::cuda

#endif  // LOCKSTEP_TESTS_EMULATION_INCLUDE_EMULATED_WARP_MATRIX_H_
