// SPDX-License-Identifier: Apache-2.0
// Kernels of image_simd.h and half_kernels.h.
#include <algorithm>
#include <array>
#include <bit>
#include <vector>

#include "engine/cpu/kernel_comparison.h"

namespace lockstep::engine {
namespace {

constexpr int64_t kChannels = 77;
constexpr int64_t kStride = 96;  // between pixels, or elements of a transform
constexpr RowBlock kBlock{7, kChannels, kStride};

// `count` pixels from `first` on.
template <typename T>
std::array<T*, 16> Pixels(T* first, size_t count = 16) {
  std::array<T*, 16> pixels{};
  for (size_t i = 0; i < count; ++i) pixels[i] = first + static_cast<int64_t>(i) * kStride;
  return pixels;
}

// Places, as floats behind `out`.
void PutPlaces(const std::vector<int32_t>& places, float* out) {
  for (const int32_t place : places) *out++ = static_cast<float>(place);
}

void CheckBatchNorms(KernelComparison* compare) {
  const float *x = compare->x(), *y = compare->y(), *z = compare->z();
  compare->Run("moments", [&](const KernelTables& t, float* out) {
    t.image->moments(kBlock, x, z, out, out + kStride);
  });
  for (const bool more : {false, true}) {
    const float* other = more ? y : nullptr;
    compare->Run("normalise", [&](const KernelTables& t, float* out) {
      t.image->normalise(kBlock, x, z, z + kStride, other, more, out);
    });
    compare->Run("gradient_sums", [&](const KernelTables& t, float* out) {
      t.image->gradient_sums(kBlock, x, other, x + 1024, z, out, out + kStride);
    });
    compare->Run("gradient", [&](const KernelTables& t, float* out) {
      t.image->gradient(kBlock, x, other, x + 1024, z, z + 96, z + 192, z + 288, out);
    });
  }
}

void CheckPooling(KernelComparison* compare) {
  const float *x = compare->x(), *y = compare->y();
  const auto pixels = Pixels(x);
  for (const int64_t count : {4, 9}) {
    compare->Run("largest", [&](const KernelTables& t, float* out) {
      t.image->largest(pixels.data(), count, kChannels, out);
    });
    for (int form = 0; form < 4; ++form) {
      compare->Run("largest_gradient", [&](const KernelTables& t, float* out) {
        t.image->largest_gradient(pixels.data(), Pixels(out).data(), count, y, kChannels,
                                  (form & 1) != 0, (form & 2) != 0);
      });
    }
    compare->Run("average", [&](const KernelTables& t, float* out) {
      t.image->average(pixels.data(), count, 0.25f, kChannels, out);
    });
  }
  std::vector<int32_t> places(kChannels);
  for (const bool relu : {false, true}) {
    compare->Run("largest_place", [&](const KernelTables& t, float* out) {
      std::fill(places.begin(), places.end(), -1);
      t.image->largest_place(pixels.data(), kChannels, relu, out, places.data());
      PutPlaces(places, out + kStride);
    });
  }
  for (size_t i = 0; i < places.size(); ++i) places[i] = static_cast<int32_t>(i * 7 % 4);
  compare->Run("unpool", [&](const KernelTables& t, float* out) {
    t.image->unpool(y, places.data(), kChannels, Pixels(out).data());
  });
}

void CheckWinograd(KernelComparison* compare) {
  const float *x = compare->x(), *y = compare->y(), *z = compare->z();
  const auto pixels = Pixels(x), others = Pixels(y, 4);
  compare->Run("winograd_input", [&](const KernelTables& t, float* out) {
    t.image->winograd_input(pixels.data(), kChannels, kStride, out);
  });
  compare->Run("winograd_gradient", [&](const KernelTables& t, float* out) {
    t.image->winograd_gradient(pixels.data(), kChannels, kStride, out);
  });
  for (const bool more : {false, true}) {
    compare->Run("winograd_output", [&](const KernelTables& t, float* out) {
      auto to = Pixels(out, 4);
      if (more) to[2] = nullptr;
      t.image->winograd_output(x, kStride, kChannels, more ? z : nullptr,
                               more ? others.data() : nullptr, more, more ? pixels.data() : nullptr,
                               to.data());
    });
    compare->Run("winograd_filters", [&](const KernelTables& t, float* out) {
      t.image->winograd_filters(x, 9, 29, more, kStride, out);
    });
    compare->Run("winograd_filter_gradients", [&](const KernelTables& t, float* out) {
      t.image->winograd_filter_gradients(x, kStride, 29, more, out);
    });
    compare->Run("winograd_pooled", [&](const KernelTables& t, float* out) {
      std::vector<int32_t> places(kChannels, -1);
      t.image->winograd_pooled(x, kStride, kChannels, z, more, out, places.data());
      PutPlaces(places, out + kStride);
    });
  }
}

// A 3 x 3 convolution of an image of 2 channels, 2 rows of 3 pooled pixels.
void CheckDirect(KernelComparison* compare) {
  constexpr int64_t kPixel = 2, kRow = 8 * kPixel, kDepth = 9 * kPixel, kFilters = 61;
  const float *x = compare->x(), *y = compare->y(), *z = compare->z();
  std::vector<int64_t> taps;
  for (int64_t row = 0; row < 3; ++row) {
    for (int64_t i = 0; i < 3 * kPixel; ++i) taps.push_back(row * kRow + i);
  }
  compare->Run("direct_pooled", [&](const KernelTables& t, float* out) {
    std::vector<int32_t> places(3 * kFilters, -1);
    t.image->direct_pooled(
        {x, kRow, kPixel, taps.data(), kDepth, y, z, true, 3, kFilters, out, places.data()});
    PutPlaces(places, out + 1024);
  });
  std::vector<int32_t> places(2 * 3 * kFilters);
  for (size_t i = 0; i < places.size(); ++i) places[i] = static_cast<int32_t>(i * 5 % 4);
  for (const int64_t run : {6, 3, 5}) {
    compare->Run("direct_gradient", [&](const KernelTables& t, float* out) {
      t.image->direct_gradient(
          {y, places.data(), 2, 3, kFilters, 1, kFilters, x, kRow, kPixel, 3, run, out});
    });
  }
}

}  // namespace

void CheckImageKernels(KernelComparison* compare) {
  CheckBatchNorms(compare);
  CheckPooling(compare);
  CheckWinograd(compare);
  CheckDirect(compare);
}

// Numbers of every exponent, and fp32 values in the middle between two of them.
void CheckHalfKernels(KernelComparison* compare) {
  constexpr int64_t kHalves = 1 << 12;
  std::vector<uint16_t> halves(kHalves + 5);
  // Every 16th number, another remainder in each part: all exponents, zeros, infinities, NaN.
  for (size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<uint16_t>(i * 16 + i / 256);
  const auto count = static_cast<int64_t>(halves.size());
  compare->Run("widen_bf16", [&](const KernelTables& t, float* out) {
    t.half->widen_bf16(halves.data(), count, out);
  });
  compare->Run("widen_f16", [&](const KernelTables& t, float* out) {
    t.half->widen_f16(halves.data(), count, out);
  });
  std::vector<float> values(halves.size());
  for (size_t i = 0; i < values.size(); ++i) {
    // Exponents from 2^-20 to 2^20, in the middle between two numbers for every other one.
    const auto exponent = static_cast<uint32_t>(107 + i % 41) << 23;
    const uint32_t fraction = static_cast<uint32_t>(i * 2654435761u) & 0x7fffff;
    const uint32_t middle = i % 4 == 0 ? 0x8000 : 0x1000;
    const uint32_t bits = i % 2 == 0 ? (fraction & ~(2 * middle - 1)) | middle : fraction;
    values[i] = std::bit_cast<float>((i % 3 == 0 ? 0x80000000u : 0u) | exponent | bits);
  }
  const auto put = [](const std::vector<uint16_t>& numbers, float* out) {
    for (const uint16_t number : numbers) *out++ = static_cast<float>(number);
  };
  compare->Run("narrow_bf16", [&](const KernelTables& t, float* out) {
    std::vector<uint16_t> numbers(values.size());
    t.half->narrow_bf16(values.data(), count, numbers.data());
    put(numbers, out);
  });
  compare->Run("narrow_f16", [&](const KernelTables& t, float* out) {
    std::vector<uint16_t> numbers(values.size());
    t.half->narrow_f16(values.data(), count, numbers.data());
    put(numbers, out);
  });
  // Finite ones: which NaN comes out depends on the order of the operands.
  std::vector<uint16_t> finite = halves;
  for (uint16_t& number : finite) {
    if ((number & 0x7f80) == 0x7f80) number = 0x3f80;
  }
  const std::vector<uint16_t> others(finite.rbegin(), finite.rend());
  compare->Run("add_bf16", [&](const KernelTables& t, float* out) {
    std::vector<uint16_t> numbers(finite.size());
    t.half->add_bf16(finite.data(), others.data(), count, numbers.data());
    put(numbers, out);
  });
  compare->Run("relu_backward_bf16", [&](const KernelTables& t, float* out) {
    std::vector<uint16_t> numbers(finite.size());
    t.half->relu_backward_bf16(others.data(), halves.data(), count, numbers.data());
    put(numbers, out);
  });
}

}  // namespace lockstep::engine
