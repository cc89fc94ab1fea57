// SPDX-License-Identifier: Apache-2.0
// Element types and tensor types of the graph.
// Thread-safety: values; thread-compatible.
#ifndef LOCKSTEP_ENGINE_GRAPH_TYPES_H_
#define LOCKSTEP_ENGINE_GRAPH_TYPES_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::engine {

enum class DType { kF32, kF64, kI32, kBF16, kF16 };

// bf16 and fp16: how values are stored; arithmetic is in fp32.
inline bool IsHalf(DType dtype) { return dtype == DType::kBF16 || dtype == DType::kF16; }
// "bf16" as a DType. REQUIRES: it is a name of one.
DType DTypeOf(const std::string& name);

// Bytes of one element.
size_t SizeOf(DType dtype);
// "f32", "f64", "i32", "bf16", "f16".
const char* Name(DType dtype);

using Shape = std::vector<int64_t>;

// Product of the extents; 1 for a scalar.
int64_t Elements(const Shape& shape);
// "[64,784]".
std::string ToString(const Shape& shape);

// What one value of the graph is. Always dense and row-major.
struct TensorType {
  DType dtype = DType::kF32;
  Shape shape;

  int64_t elements() const { return Elements(shape); }
  size_t bytes() const { return static_cast<size_t>(elements()) * SizeOf(dtype); }
  bool operator==(const TensorType&) const = default;
};

// "f32[64,784]".
std::string ToString(const TensorType& type);

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_GRAPH_TYPES_H_
