// SPDX-License-Identifier: Apache-2.0
// A fast hash of memory, to see that two copies of it agree. It is no defence
// against intent. Thread-safety: pure function.
#ifndef LOCKSTEP_COMMON_HASH_BYTES_H_
#define LOCKSTEP_COMMON_HASH_BYTES_H_

#include <cstddef>
#include <cstdint>

namespace lockstep {

// Four lanes of 64 bits, each multiplied and rotated in turn. Any single wrong bit changes it.
uint64_t HashBytes(const void* data, size_t bytes);

}  // namespace lockstep

#endif  // LOCKSTEP_COMMON_HASH_BYTES_H_
