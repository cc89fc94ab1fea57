// SPDX-License-Identifier: Apache-2.0
// Masks of dropout from a node's attributes and the run's address (ops/dropout.cc).
// Thread-safety: pure functions.
#ifndef LOCKSTEP_ENGINE_CPU_RANDOM_ADDRESS_H_
#define LOCKSTEP_ENGINE_CPU_RANDOM_ADDRESS_H_

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "engine/cpu/simd/row_kernels.h"
#include "engine/graph/graph.h"

namespace lockstep::engine::cpu {

// What a node drops: `rate` of the elements, as a multiple of 2^-16 (below 1). What is kept is
// scaled by exactly that.
struct DropRule {
  uint64_t key = 0;
  uint32_t threshold = 0;  // 16-bit numbers below it
  float scale = 1;         // of what is kept

  explicit DropRule(const Attrs& attrs)
      : key(static_cast<uint64_t>(attrs.Int("key"))),
        threshold(std::min(static_cast<uint32_t>(std::floor(attrs.Double("rate") * 0x1.0p16 + 0.5)),
                           0xFFFFu)),
        scale(static_cast<float>(0x1.0p16 / (0x1.0p16 - threshold))) {}

  // The site of this rule at an address (ops::kAddressWords numbers).
  RandomSite At(const int32_t* address) const {
    const uint32_t high = static_cast<uint32_t>(address[1]) << 16;
    return {key, static_cast<uint32_t>(address[0]), static_cast<uint32_t>(address[2]) | high};
  }
};

// The micro-batch of an address.
inline int64_t MicroOf(const int32_t* address) { return address[3]; }

}  // namespace lockstep::engine::cpu

#endif  // LOCKSTEP_ENGINE_CPU_RANDOM_ADDRESS_H_
