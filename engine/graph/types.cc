// SPDX-License-Identifier: Apache-2.0
#include "engine/graph/types.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/check.h"

namespace lockstep::engine {

size_t SizeOf(DType dtype) {
  if (IsHalf(dtype)) return 2;
  return dtype == DType::kF64 ? 8 : 4;
}

const char* Name(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "f32";
    case DType::kF64:
      return "f64";
    case DType::kI32:
      return "i32";
    case DType::kBF16:
      return "bf16";
    case DType::kF16:
      return "f16";
  }
  return "?";
}

DType DTypeOf(const std::string& name) {
  for (const DType type : {DType::kF32, DType::kF64, DType::kI32, DType::kBF16, DType::kF16}) {
    if (name == Name(type)) return type;
  }
  LS_CHECK(false) << "no type is named " << name;
  __builtin_unreachable();
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
