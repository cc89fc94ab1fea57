// SPDX-License-Identifier: Apache-2.0
// Filters of a convolution in the order of the product that they are the factor B of, one value or
// one pair of bf16 values of neighbouring inputs an element. Thread-safety: pure functions.
#ifndef LOCKSTEP_ENGINE_CPU_IMAGE_CONV_FILTERS_H_
#define LOCKSTEP_ENGINE_CPU_IMAGE_CONV_FILTERS_H_

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/cpu/thread_pool.h"

namespace lockstep::engine::cpu {

// The filter tap that stands at a place of a patch.
struct Tap {
  int64_t row;
  int64_t column;
};

// Element (tap, input, output) of a filter bank lies at tap + input * in + output * out.
struct FilterOrder {
  int64_t inputs;
  int64_t outputs;
  int64_t in;
  int64_t out;
  int64_t group;  // between groups
};

// The element of B at `tap` for input `i`: of a pair the values of inputs 2i and 2i + 1.
inline float ElementOf(const float* tap, const FilterOrder& order, int64_t i) {
  return tap[i * order.in];
}
// Of bf16.
inline float ElementOf(const uint16_t* tap, const FilterOrder& order, int64_t i) {
  return std::bit_cast<float>(tap[2 * i * order.in] |
                              static_cast<uint32_t>(tap[(2 * i + 1) * order.in]) << 16);
}

// panels[panel of `width` outputs][tap, input][width], 0 beyond the last output, from the filters
// of one group. `filter_width`: of a filter's rows; `inputs` counts elements. Filters are read
// once, by neighbouring taps. Blocks until all is there.
template <typename T>
void PackFilters(const std::vector<Tap>& taps, int64_t filter_width, const FilterOrder& order,
                 const T* weight, int64_t inputs, int64_t width, float* panels, ThreadPool* pool) {
  const int64_t count = (order.outputs + width - 1) / width;
  const int64_t depth = static_cast<int64_t>(taps.size()) * inputs;
  pool->Run([&](int index) {
    const auto [begin, end] = PartOf(count, index, pool->threads());
    for (int64_t panel = begin; panel < end; ++panel) {
      const int64_t first = panel * width, valid = std::min(width, order.outputs - first);
      const T* from = weight + first * order.out;
      for (int64_t i = 0; i < inputs; ++i) {
        float* to = panels + (panel * depth + i) * width;
        for (const Tap& place : taps) {
          const T* tap = from + place.row * filter_width + place.column;
          for (int64_t l = 0; l < valid; ++l) to[l] = ElementOf(tap + l * order.out, order, i);
          for (int64_t l = valid; l < width; ++l) to[l] = 0;
          to += inputs * width;
        }
      }
    }
  });
}

}  // namespace lockstep::engine::cpu

#endif  // LOCKSTEP_ENGINE_CPU_IMAGE_CONV_FILTERS_H_
