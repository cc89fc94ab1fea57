// SPDX-License-Identifier: Apache-2.0
// What a sample is made of: named arrays of a fixed shape. Data sets say which they deliver, models
// which they take.
// Thread-safety: values.
#ifndef LOCKSTEP_COMMON_FIELD_H_
#define LOCKSTEP_COMMON_FIELD_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace lockstep {

// One array of a batch, [samples, shape...].
struct FieldSpec {
  enum class Type { kFloat32, kInt32 };
  std::string name;
  Type type = Type::kFloat32;
  std::vector<int64_t> shape;  // of one sample: {1, 28, 28}, {784}; {} is one value
  int64_t limit = 0;           // integers are below it; 0: not checked

  bool operator==(const FieldSpec&) const = default;
  // Values of one sample.
  int64_t elements() const {
    int64_t count = 1;
    for (const int64_t extent : shape) count *= extent;
    return count;
  }
  // Bytes of one sample: both types take four a value.
  size_t bytes() const { return static_cast<size_t>(elements()) * 4; }
};

// The name of the field that holds the targets.
inline constexpr const char* kLabelsField = "labels";

}  // namespace lockstep

#endif  // LOCKSTEP_COMMON_FIELD_H_
