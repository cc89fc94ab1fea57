// SPDX-License-Identifier: Apache-2.0
// Names and secrets that nobody guesses.
// Thread-safety: thread-safe.
#ifndef LOCKSTEP_COMMON_RANDOM_HEX_H_
#define LOCKSTEP_COMMON_RANDOM_HEX_H_

#include <cstddef>
#include <string>

namespace lockstep {

// `bytes` random bytes (at most 256) from the kernel as hexadecimal digits, two for each.
std::string RandomHex(size_t bytes);

}  // namespace lockstep

#endif  // LOCKSTEP_COMMON_RANDOM_HEX_H_
