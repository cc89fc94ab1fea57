// SPDX-License-Identifier: Apache-2.0
// The emulated GPU's version of what engine/cuda/kernels/warpgroup_matrix.h takes from sm_90a:
// right factors are read where the instruction's word says, by the layouts of the PTX manual. In
// one order of threads a product is made at once, in the other when it is waited for, so that what
// is touched too early shows. Thread-safety: as the emulation.
#ifndef LOCKSTEP_TESTS_EMULATION_INCLUDE_EMULATED_WARPGROUP_MATRIX_H_
#define LOCKSTEP_TESTS_EMULATION_INCLUDE_EMULATED_WARPGROUP_MATRIX_H_

#include "common/check.h"
#include "emulated_warp_matrix.h"

namespace lockstep::engine::cuda {

inline void BeginProducts() { emulation::BeginProducts(); }
inline void CommitProducts() { emulation::CommitProducts(); }
inline void WaitForProducts() { emulation::WaitForProducts(); }
inline void Settle(float (&)[8][4]) {}
inline uint32_t Zero() { return 0; }
inline void PublishShared() { emulation::PublishShared(); }
inline void WaitAt(int barrier, int threads) { emulation::WaitAt(barrier, threads); }
inline void ArriveAt(int barrier, int threads) { emulation::ArriveAt(barrier, threads); }

// Number (row, column) of the factor that `word` speaks of, `columns` saying that its columns lie
// side by side in 128 bytes each, else its rows do.
template <Type kType>
inline float FactorNumber(uint64_t word, bool columns, int row, int column) {
  LS_CHECK_EQ(word >> 62, 1u) << "chunks are turned over 128 bytes";
  LS_CHECK_EQ(word >> 49 & 7, 0u) << "tiles begin at multiples of 1024";
  const uint64_t start = (word & 0x3fff) << 4, stride = (word >> 32 & 0x3fff) << 4;
  const int outer = columns ? column : row, inner = columns ? row : column;
  uint64_t address = start + static_cast<uint64_t>(outer / 8) * stride +
                     static_cast<uint64_t>(outer % 8 * 128 + inner * 2);
  address ^= (address >> 7 & 7) << 4;
  uint16_t bits;
  std::memcpy(&bits, static_cast<const char*>(emulation::SharedMemory()) + address, 2);
  return kType == Type::kBF16 ? BFloat16{bits}.ToFloat() : Float16{bits}.ToFloat();
}

// A lane's part of a left factor [64, 16].
struct LeftWords {
  uint32_t a[4];
};

template <Type kType, bool kColumns, bool kAdd>
inline void MakeProduct(float (&s)[8][4], const LeftWords& left, uint64_t right) {
  const LeftWords* all = emulation::Share(left);
  const int lane = emulation::Lane();
  for (int t = 0; t < 8; ++t) {
    for (int i = 0; i < 4; ++i) {
      float sum = kAdd ? s[t][i] : 0;
      for (int k = 0; k < 16; ++k) {
        const LeftWords& a = all[lane / 4 * 4 + k % 8 / 2];
        sum += HalfOf<kType>(a.a[i / 2 + k / 8 * 2], k % 2) *
               FactorNumber<kType>(right, kColumns, k, t * 8 + lane % 4 * 2 + i % 2);
      }
      s[t][i] = sum;
    }
  }
}

// The lane's part of the left factor in shared memory.
template <Type kType>
inline LeftWords WordsOf(uint64_t left) {
  const int lane = emulation::Lane();
  const int row = static_cast<int>(threadIdx.x) % 128 / 32 * 16 + lane / 4;
  LeftWords words = {};
  for (int part = 0; part < 4; ++part) {
    for (int e = 0; e < 2; ++e) {
      const int column = part / 2 * 8 + lane % 4 * 2 + e;
      const float number = FactorNumber<kType>(left, true, column, row + part % 2 * 8);
      words.a[part] |= (Pack<kType>(number, 0) & 0xffff) << (16 * e);
    }
  }
  return words;
}
template <Type kType, bool kAdd>
inline void BeginSharedProduct(float (&s)[8][4], uint64_t left, uint64_t right) {
  emulation::ProductLater(
      [&s, left, right] { MakeProduct<kType, true, kAdd>(s, WordsOf<kType>(left), right); });
}

template <Type kType, Lies kLies, bool kAdd>
inline void BeginProduct(float (&s)[8][4], const uint32_t& a0, const uint32_t& a1,
                         const uint32_t& a2, const uint32_t& a3, uint64_t right) {
  emulation::ProductLater([&s, &a0, &a1, &a2, &a3, right] {
    MakeProduct<kType, kLies == Lies::kAsColumns, kAdd>(s, {{a0, a1, a2, a3}}, right);
  });
}

}  // namespace lockstep::engine::cuda

#endif  // LOCKSTEP_TESTS_EMULATION_INCLUDE_EMULATED_WARPGROUP_MATRIX_H_
