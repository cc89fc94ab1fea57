// SPDX-License-Identifier: Apache-2.0
#include "engine/cpu/image/direct_conv.h"

#include <algorithm>

namespace lockstep::engine {
namespace {

// Threads cut filters of a gradient at whole vectors of every instruction set.
constexpr int64_t kFilterUnit = 16;

int64_t PaddedRow(const ConvGeometry& g) {
  return (g.width + 2 * g.window.padding[1]) * g.channels;
}
int64_t PaddedFloats(const ConvGeometry& g) {
  return (g.height + 2 * g.window.padding[0]) * PaddedRow(g);
}
size_t Aligned(int64_t floats) { return static_cast<size_t>((floats + 15) / 16 * 16); }

}  // namespace

DirectConv::DirectConv(const ConvGeometry& g, Isa isa, int threads)
    : g_(g), simd_(ImageSimdFor(isa)), threads_(threads), row_floats_(PaddedRow(g)) {
  for (int64_t i = 0; i < g.window.kernel[0]; ++i) {
    for (int64_t e = 0; e < run(); ++e) taps_.push_back(i * row_floats_ + e);
  }
  weight_floats_ = Aligned(depth() * g.filters);
  image_floats_ = Aligned(PaddedFloats(g));
}

size_t DirectConv::scratch_bytes() const {
  return (weight_floats_ + image_floats_ * static_cast<size_t>(threads_)) * sizeof(float);
}

void DirectConv::CopyImage(const float* image, float* padded) const {
  const int64_t floats = g_.width * g_.channels;
  float* to = padded + g_.window.padding[0] * row_floats_ + g_.window.padding[1] * g_.channels;
  for (int64_t h = 0; h < g_.height; ++h, image += floats, to += row_floats_) {
    std::copy_n(image, floats, to);
  }
}

void DirectConv::RunPooled(const float* x, const float* filters, const float* bias, bool relu,
                           float* y, int32_t* places, float* scratch, ThreadPool* pool) const {
  // From [filter][channel][tap] to [tap][channel][filter].
  const int64_t taps = g_.taps();
  for (int64_t o = 0; o < g_.filters; ++o) {
    for (int64_t c = 0; c < g_.channels; ++c) {
      for (int64_t t = 0; t < taps; ++t) {
        scratch[(t * g_.channels + c) * g_.filters + o] = *filters++;
      }
    }
  }
  pool->Run([&](int index) {
    float* const padded = PaddedOf(scratch, index);
    std::fill_n(padded, image_floats_, 0.0f);
    DirectRow row;
    row.next_row = row_floats_;
    row.next_column = g_.channels;
    row.taps = taps_.data();
    row.depth = depth();
    row.weights = scratch;
    row.bias = bias;
    row.relu = relu;
    row.columns = columns();
    row.filters = g_.filters;
    const auto [begin, end] = PartOf(g_.images, index, threads_);
    for (int64_t image = begin; image < end; ++image) {
      pool->Moved();
      CopyImage(x + image * g_.height * g_.width * g_.channels, padded);
      for (int64_t r = 0; r < rows(); ++r) {
        const int64_t at = (image * rows() + r) * columns() * g_.filters;
        row.x = padded + 2 * r * row_floats_;
        row.y = y + at;
        row.places = places + at;
        simd_.direct_pooled(row);
      }
    }
  });
}

void DirectConv::RunWeightGradient(const float* dy, const int32_t* places, const float* x, bool add,
                                   float* dfilters, float* scratch, ThreadPool* pool) const {
  const int64_t taps = g_.taps(), pooled = rows() * columns() * g_.filters;
  std::fill_n(scratch, weight_floats_, 0.0f);
  pool->Run([&](int index) {
    const auto [first, last] =
        PartOf((g_.filters + kFilterUnit - 1) / kFilterUnit, index, threads_);
    if (first == last) return;
    float* const padded = PaddedOf(scratch, index);
    std::fill_n(padded, image_floats_, 0.0f);
    DirectGradient gradient;
    gradient.rows = rows();
    gradient.columns = columns();
    gradient.filters = g_.filters;
    gradient.begin = first * kFilterUnit;
    gradient.end = std::min(last * kFilterUnit, g_.filters);
    gradient.x = padded;
    gradient.next_row = row_floats_;
    gradient.next_column = g_.channels;
    gradient.kernel_rows = g_.window.kernel[0];
    gradient.run = run();
    gradient.sum = scratch;
    for (int64_t image = 0; image < g_.images; ++image) {
      pool->Moved();
      CopyImage(x + image * g_.height * g_.width * g_.channels, padded);
      gradient.dy = dy + image * pooled;
      gradient.places = places + image * pooled;
      simd_.direct_gradient(gradient);
    }
    for (int64_t o = gradient.begin; o < gradient.end; ++o) {
      float* to = dfilters + o * g_.channels * taps;
      for (int64_t c = 0; c < g_.channels; ++c) {
        for (int64_t t = 0; t < taps; ++t, ++to) {
          const float value = scratch[(t * g_.channels + c) * g_.filters + o];
          *to = add ? *to + value : value;
        }
      }
    }
  });
}

}  // namespace lockstep::engine
