// SPDX-License-Identifier: Apache-2.0
// Whole numbers in steps of a unit.
// Thread-safety: pure functions.
#ifndef LOCKSTEP_COMMON_ROUND_UP_H_
#define LOCKSTEP_COMMON_ROUND_UP_H_

#include <type_traits>

namespace lockstep {

// Returns the least number of units that is not below `value`. REQUIRES: unit > 0.
template <typename T>
constexpr T DivideUp(T value, std::type_identity_t<T> unit) {
  return static_cast<T>(value / unit + (value % unit > 0 ? 1 : 0));
}

// Returns the least multiple of `unit` that is not below `value`. REQUIRES: unit > 0.
template <typename T>
constexpr T RoundUp(T value, std::type_identity_t<T> unit) {
  return static_cast<T>(DivideUp(value, unit) * unit);
}

}  // namespace lockstep

#endif  // LOCKSTEP_COMMON_ROUND_UP_H_
