// SPDX-License-Identifier: Apache-2.0
#include "engine/graph/types.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace lockstep::engine {

size_t SizeOf(DType dtype) { return dtype == DType::kF64 ? 8 : 4; }

const char* Name(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "f32";
    case DType::kF64:
      return "f64";
    case DType::kI32:
      return "i32";
  }
  return "?";
}

int64_t Elements(const Shape& shape) {
  int64_t product = 1;
  for (const int64_t extent : shape) product *= extent;
  return product;
}

std::string ToString(const Shape& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ","), "]");
}

std::string ToString(const TensorType& type) {
  return absl::StrCat(Name(type.dtype), ToString(type.shape));
}

}  // namespace lockstep::engine
