// SPDX-License-Identifier: Apache-2.0
// Eight neighbouring channels of images as what a thread has: in one access of 16 bytes (32 in
// fp32) where all arrays are of one type, which is then known to the compiler, and rows are whole
// eights; else one by one. Included by .cu files only. Thread-safety: device code, and pure
// functions.
#ifndef LOCKSTEP_ENGINE_CUDA_KERNELS_CHANNELS_H_
#define LOCKSTEP_ENGINE_CUDA_KERNELS_CHANNELS_H_

#include <type_traits>

#include "engine/cuda/kernels/device_code.h"

namespace lockstep::engine::cuda {

// In place of a Type, where there is no common one.
inline constexpr int kAnyTypes = -1;

// The eight elements from i on, of which `channels` are there.
template <int kType>
__device__ __forceinline__ Eight LoadChannels(const View& view, int64_t i, int64_t channels) {
  if constexpr (kType != kAnyTypes) {
    return LoadEight({view.data, static_cast<Type>(kType)}, i);
  } else {
    Eight eight = {};
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      if (e < channels) eight.x[e] = Load(view, i + e);
    }
    return eight;
  }
}
// The same, back.
template <int kType>
__device__ __forceinline__ void StoreChannels(const View& view, int64_t i, const Eight& eight,
                                              int64_t channels) {
  if constexpr (kType != kAnyTypes) {
    StoreEight({view.data, static_cast<Type>(kType)}, i, eight);
  } else {
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      if (e < channels) Store(view, i + e, eight.x[e]);
    }
  }
}

// Returns the type of all `views` that there are, where rows are whole eights of them; else
// kAnyTypes. `floats` are of fp32.
template <size_t kViews, size_t kFloats>
int TypeOfAll(const View (&views)[kViews], const View (&floats)[kFloats], int64_t channels) {
  bool good = channels % 8 == 0;
  for (const View& view : views) {
    good = good && AlignedEight(view) && (view.data == nullptr || view.type == views[0].type);
  }
  for (const View& view : floats) good = good && AlignedEight(view) && view.type == Type::kF32;
  return good ? static_cast<int>(views[0].type) : kAnyTypes;
}

// Calls `launch` with the type as a constant.
template <typename F>
Code WithType(int type, const F& launch) {
  switch (type) {
    case static_cast<int>(Type::kF32):
      return launch(std::integral_constant<int, static_cast<int>(Type::kF32)>());
    case static_cast<int>(Type::kBF16):
      return launch(std::integral_constant<int, static_cast<int>(Type::kBF16)>());
    case static_cast<int>(Type::kF16):
      return launch(std::integral_constant<int, static_cast<int>(Type::kF16)>());
    default:
      return launch(std::integral_constant<int, kAnyTypes>());
  }
}

}  // namespace lockstep::engine::cuda

#endif  // LOCKSTEP_ENGINE_CUDA_KERNELS_CHANNELS_H_
