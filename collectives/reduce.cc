// SPDX-License-Identifier: Apache-2.0
#include "collectives/reduce.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "collectives/tree_kernels.h"
#include "common/check.h"
#include "common/half.h"

namespace lockstep {
namespace {

// Elements accumulated at once: the accumulator stays in L1.
constexpr int64_t kPiece = 1024;

template <typename T>
struct Storage {
  using Accumulator = T;
  static T Load(T value) { return value; }
  static T Store(T value) { return value; }
};
template <>
struct Storage<BFloat16> {
  using Accumulator = float;
  static float Load(BFloat16 value) { return value.ToFloat(); }
  static BFloat16 Store(float value) { return BFloat16::FromFloat(value); }
};
template <>
struct Storage<Float16> {
  using Accumulator = float;
  static float Load(Float16 value) { return value.ToFloat(); }
  static Float16 Store(float value) { return Float16::FromFloat(value); }
};

template <typename A>
A Plus(A a, A b) {
  if constexpr (std::is_integral_v<A>) {  // wraps, without the undefined signed overflow
    using U = std::make_unsigned_t<A>;
    return static_cast<A>(static_cast<U>(static_cast<U>(a) + static_cast<U>(b)));
  } else {
    return a + b;
  }
}

template <typename T, typename Combine>
void Reduce(absl::Span<const void* const> inputs, void* out, int64_t count, Combine combine) {
  using A = typename Storage<T>::Accumulator;
  A sum[kPiece];
  for (int64_t begin = 0; begin < count; begin += kPiece) {
    const int64_t size = std::min(kPiece, count - begin);
    const T* first = static_cast<const T*>(inputs[0]) + begin;
    for (int64_t i = 0; i < size; ++i) sum[i] = Storage<T>::Load(first[i]);
    for (size_t k = 1; k < inputs.size(); ++k) {
      const T* next = static_cast<const T*>(inputs[k]) + begin;
      for (int64_t i = 0; i < size; ++i) sum[i] = combine(sum[i], Storage<T>::Load(next[i]));
    }
    T* result = static_cast<T*>(out) + begin;
    for (int64_t i = 0; i < size; ++i) result[i] = Storage<T>::Store(sum[i]);
  }
}

// The sums of Reduce<float>, by vectors.
void SumFloats(absl::Span<const void* const> inputs, float* out, int64_t count) {
  const auto input = [&](size_t k) { return static_cast<const float*>(inputs[k]); };
  if (inputs.size() == 1) {
    if (input(0) != out && count > 0) std::memcpy(out, input(0), count * sizeof(float));
    return;
  }
  const auto add = BestTreeKernels().add2;
  float sum[kPiece];
  for (int64_t begin = 0; begin < count; begin += kPiece) {
    const int64_t size = std::min(kPiece, count - begin);
    // `out` may be any of the inputs: it is written when all of them have been read.
    const float* left = input(0) + begin;
    for (size_t k = 1; k < inputs.size(); ++k) {
      float* const to = k + 1 == inputs.size() ? out + begin : sum;
      add(left, input(k) + begin, to, size);
      left = to;
    }
  }
}

template <typename T>
void ReduceTyped(absl::Span<const void* const> inputs, void* out, int64_t count, ReduceOp op) {
  using A = typename Storage<T>::Accumulator;
  switch (op) {
    case ReduceOp::kSum:
      if constexpr (std::is_same_v<T, float>) return SumFloats(inputs, static_cast<T*>(out), count);
      return Reduce<T>(inputs, out, count, [](A a, A b) { return Plus(a, b); });
    case ReduceOp::kMax:
      return Reduce<T>(inputs, out, count, [](A a, A b) { return a < b ? b : a; });
    case ReduceOp::kMin:
      return Reduce<T>(inputs, out, count, [](A a, A b) { return b < a ? b : a; });
  }
}

}  // namespace

void ReduceInOrder(absl::Span<const void* const> inputs, void* out, int64_t count, DType dtype,
                   ReduceOp op) {
  LS_CHECK(!inputs.empty());
  switch (dtype) {
    case DType::kFloat32:
      return ReduceTyped<float>(inputs, out, count, op);
    case DType::kFloat64:
      return ReduceTyped<double>(inputs, out, count, op);
    case DType::kInt32:
      return ReduceTyped<int32_t>(inputs, out, count, op);
    case DType::kInt64:
      return ReduceTyped<int64_t>(inputs, out, count, op);
    case DType::kUInt8:
      return ReduceTyped<uint8_t>(inputs, out, count, op);
    case DType::kBFloat16:
      return ReduceTyped<BFloat16>(inputs, out, count, op);
    case DType::kFloat16:
      return ReduceTyped<Float16>(inputs, out, count, op);
  }
}

std::string_view DTypeName(DType dtype) {
  static constexpr std::string_view kNames[] = {"f32", "f64", "i32", "i64", "u8", "bf16", "f16"};
  const auto index = static_cast<size_t>(dtype);
  return index < std::size(kNames) ? kNames[index] : "?";
}

std::string_view ReduceOpName(ReduceOp op) {
  static constexpr std::string_view kNames[] = {"sum", "max", "min"};
  const auto index = static_cast<size_t>(op);
  return index < std::size(kNames) ? kNames[index] : "?";
}

}  // namespace lockstep
