// SPDX-License-Identifier: Apache-2.0
// Addressed randomness: a number is a function of its address and is never drawn from a stream.
// Philox4x32 of J. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
// Thread-safety: pure functions.
#ifndef LOCKSTEP_COMMON_PHILOX_H_
#define LOCKSTEP_COMMON_PHILOX_H_

#include <array>
#include <cstdint>
#include <string_view>

namespace lockstep {

// Four random words for `counter` under `key`. The paper's choice is 10 rounds; 7 are the fewest
// that pass all of its tests (BigCrush).
inline std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter, uint64_t key,
                                          int rounds = 10) {
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < rounds; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53} * counter[0];
    const uint64_t p1 = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(p1 >> 32) ^ counter[1] ^ k0, static_cast<uint32_t>(p1),
               static_cast<uint32_t>(p0 >> 32) ^ counter[3] ^ k1, static_cast<uint32_t>(p0)};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return counter;
}

// The finaliser of splitmix64: a bijection that spreads every bit.
inline uint64_t MixBits(uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

// The key of a site: hash(seed, name). `site` is a stable name such as a parameter's path.
inline uint64_t SiteKey(uint64_t seed, std::string_view site) {
  uint64_t h = 0xCBF29CE484222325u;  // FNV-1a
  for (const char c : site) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
  return MixBits(h ^ MixBits(seed));
}

// Uniform in [0, 1) with 24 bits.
inline float UniformFloat(uint32_t word) { return static_cast<float>(word >> 8) * 0x1.0p-24f; }

}  // namespace lockstep

#endif  // LOCKSTEP_COMMON_PHILOX_H_
