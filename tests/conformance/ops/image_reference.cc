// SPDX-License-Identifier: Apache-2.0
// The image ops in float64.
#include <algorithm>
#include <cmath>
#include <limits>

#include "common/check.h"
#include "engine/ops/conv_geometry.h"
#include "tests/conformance/ops/reference.h"

namespace lockstep::engine {
namespace {

// Calls body(x index, weight index, y index) for every product of a convolution.
template <typename Body>
void ForProducts(const ConvGeometry& g, const Body& body) {
  const Window& window = g.window;
  for (int64_t n = 0; n < g.images; ++n) {
    for (int64_t r = 0; r < g.out_height; ++r) {
      for (int64_t c = 0; c < g.out_width; ++c) {
        for (int64_t o = 0; o < g.filters; ++o) {
          const int64_t first = o / g.group_filters() * g.group_channels();
          for (int64_t i = 0; i < window.kernel[0]; ++i) {
            const int64_t h = r * window.stride[0] - window.padding[0] + i * window.dilation[0];
            for (int64_t j = 0; j < window.kernel[1]; ++j) {
              const int64_t w = c * window.stride[1] - window.padding[1] + j * window.dilation[1];
              if (h < 0 || h >= g.height || w < 0 || w >= g.width) continue;
              for (int64_t k = 0; k < g.group_channels(); ++k) {
                body(static_cast<size_t>(((n * g.height + h) * g.width + w) * g.channels + first +
                                         k),
                     static_cast<size_t>(((o * g.group_channels() + k) * window.kernel[0] + i) *
                                             window.kernel[1] +
                                         j),
                     static_cast<size_t>(((n * g.out_height + r) * g.out_width + c) * g.filters +
                                         o));
              }
            }
          }
        }
      }
    }
  }
}

Doubles Zeros(const TensorType& type) { return Doubles(static_cast<size_t>(type.elements())); }

// Extents alone count: 16-bit operands have the geometry of fp32 ones.
ConvGeometry GeometryOf(TensorType x, TensorType weight, const Attrs& attrs) {
  x.dtype = weight.dtype = DType::kF32;
  return *ConvOf(x, weight, attrs);
}

Doubles Conv(const OpCase& test, const TensorType& output, const std::vector<Doubles>& in) {
  const ConvGeometry g = GeometryOf(test.inputs[0], test.inputs[1], test.attrs);
  Doubles y = Zeros(output);
  ForProducts(g, [&](size_t x, size_t w, size_t to) { y[to] += in[0][x] * in[1][w]; });
  for (size_t i = 0; i < y.size(); ++i) {
    if (in.size() >= 3) y[i] += in[2][i % static_cast<size_t>(g.filters)];
    if (in.size() == 4) y[i] += in[3][i];
    if (test.attrs.String("activation") == "relu") y[i] = std::max(y[i], 0.0);
  }
  return y;
}

Doubles ConvBackwardInput(const OpCase& test, const TensorType& output,
                          const std::vector<Doubles>& in) {
  Doubles dx = Zeros(output);
  ForProducts(GeometryOf(output, test.inputs[1], test.attrs),
              [&](size_t x, size_t w, size_t y) { dx[x] += in[0][y] * in[1][w]; });
  for (size_t i = 0; in.size() == 3 && i < dx.size(); ++i) dx[i] = in[2][i] > 0 ? dx[i] : 0;
  return dx;
}

Doubles ConvBackwardWeight(const OpCase& test, const TensorType& output,
                           const std::vector<Doubles>& in) {
  Doubles dw = Zeros(output);
  ForProducts(GeometryOf(test.inputs[1], output, test.attrs),
              [&](size_t x, size_t w, size_t y) { dw[w] += in[0][y] * in[1][x]; });
  return dw;
}

// Calls body(y index, x indices of the window) for every window and channel.
template <typename Body>
void ForWindows(const TensorType& x, const TensorType& y, const Attrs& attrs, const Body& body) {
  const Window window = *WindowOf(attrs);
  for (int64_t at = 0; at < y.elements(); ++at) {
    const int64_t k = at % y.shape[3], c = at / y.shape[3] % y.shape[2];
    const int64_t r = at / y.shape[3] / y.shape[2] % y.shape[1];
    const int64_t n = at / y.shape[3] / y.shape[2] / y.shape[1];
    std::vector<size_t> places;
    for (int64_t i = 0; i < window.kernel[0]; ++i) {
      const int64_t h = r * window.stride[0] - window.padding[0] + i;
      for (int64_t j = 0; j < window.kernel[1]; ++j) {
        const int64_t w = c * window.stride[1] - window.padding[1] + j;
        if (h < 0 || h >= x.shape[1] || w < 0 || w >= x.shape[2]) continue;
        places.push_back(
            static_cast<size_t>(((n * x.shape[1] + h) * x.shape[2] + w) * x.shape[3] + k));
      }
    }
    const double count = attrs.Int("count_padding", 1) != 0
                             ? static_cast<double>(window.kernel[0] * window.kernel[1])
                             : static_cast<double>(places.size());
    body(static_cast<size_t>(at), places, count);
  }
}

Doubles Pooling(const std::string& name, const OpCase& test, const TensorType& output,
                const std::vector<Doubles>& in) {
  Doubles out = Zeros(output);
  const bool backward = name.find("backward") != std::string::npos;
  const TensorType& x = backward ? output : test.inputs[0];
  const TensorType& y = backward ? test.inputs[0] : output;
  ForWindows(x, y, test.attrs, [&](size_t at, const std::vector<size_t>& places, double count) {
    if (name == "avg_pool2d") {
      for (const size_t p : places) out[at] += in[0][p] / count;
    } else if (name == "avg_pool2d_backward") {
      for (const size_t p : places) out[p] += in[0][at] / count;
    } else {
      const Doubles& values = in[backward ? 1 : 0];
      size_t best = places[0];
      for (const size_t p : places) {  // NaN is the largest
        const bool larger = std::isnan(values[p]) && !std::isnan(values[best]);
        best = values[p] > values[best] || larger ? p : best;
      }
      if (!backward) {
        out[at] = values[best];
      } else if (test.attrs.Int("relu") == 0 || !(values[best] <= 0)) {
        out[best] += in[0][at];
      }
    }
  });
  return out;
}

// The pixel of the unpooled images that is place `place` of pooled value `at`.
size_t PixelAt(const Shape& unpooled, const Shape& pooled, size_t at, size_t place) {
  const auto extent = [](const Shape& shape, size_t i) { return static_cast<size_t>(shape[i]); };
  const size_t channel = at % extent(pooled, 3), pixel = at / extent(pooled, 3);
  const size_t column = pixel % extent(pooled, 2), rows = pixel / extent(pooled, 2);
  const size_t row = rows % extent(pooled, 1), image = rows / extent(pooled, 1);
  return ((image * extent(unpooled, 1) + 2 * row + place / 2) * extent(unpooled, 2) + 2 * column +
          place % 2) *
             extent(unpooled, 3) +
         channel;
}

std::vector<Doubles> ConvMaxPool(const OpCase& test, const std::vector<TensorType>& outputs,
                                 const std::vector<Doubles>& in) {
  const ConvGeometry g = GeometryOf(test.inputs[0], test.inputs[1], test.attrs);
  const TensorType unpooled{DType::kF32, {g.images, g.out_height, g.out_width, g.filters}};
  OpCase conv = test;
  conv.attrs.Set("activation", std::string("none"));
  const Doubles x = Conv(conv, unpooled, in);
  Doubles y = Zeros(outputs[0]), places = y;
  for (size_t i = 0; i < y.size(); ++i) {
    size_t best = 0;
    for (size_t p = 1; p < 4; ++p) {
      const double value = x[PixelAt(unpooled.shape, outputs[0].shape, i, p)];
      if (value > x[PixelAt(unpooled.shape, outputs[0].shape, i, best)]) best = p;
    }
    y[i] = x[PixelAt(unpooled.shape, outputs[0].shape, i, best)];
    if (test.attrs.String("activation") == "relu") y[i] = std::max(y[i], 0.0);
    places[i] = static_cast<double>(best);
  }
  return {y, places};
}

Doubles Unpool(const Shape& pooled, const TensorType& unpooled, const Doubles& dy,
               const Doubles& places) {
  Doubles dx = Zeros(unpooled);
  for (size_t i = 0; i < dy.size(); ++i) {
    if (places[i] < 0) continue;
    dx[PixelAt(unpooled.shape, pooled, i, static_cast<size_t>(places[i]))] = dy[i];
  }
  return dx;
}

Doubles ConvMaxPoolBackwardWeight(const OpCase& test, const TensorType& output,
                                  const std::vector<Doubles>& in) {
  const ConvGeometry g = GeometryOf(test.inputs[2], output, test.attrs);
  const TensorType unpooled{DType::kF32, {g.images, g.out_height, g.out_width, g.filters}};
  OpCase conv = test;
  conv.inputs = {unpooled, test.inputs[2]};
  return ConvBackwardWeight(conv, output,
                            {Unpool(test.inputs[0].shape, unpooled, in[0], in[1]), in[2]});
}

Doubles GlobalPooling(bool backward, const OpCase& test, const TensorType& output,
                      const std::vector<Doubles>& in) {
  Doubles out = Zeros(output);
  const Shape& x = backward ? output.shape : test.inputs[0].shape;
  const auto channels = static_cast<size_t>(x[3]);
  const auto each = static_cast<size_t>(x[1] * x[2]);
  for (size_t i = 0; i < each * channels * static_cast<size_t>(x[0]); ++i) {
    const size_t pooled = i / (each * channels) * channels + i % channels;
    if (backward) {
      out[i] = in[0][pooled] / static_cast<double>(each);
    } else {
      out[pooled] += in[0][i] / static_cast<double>(each);
    }
  }
  return out;
}

std::vector<Doubles> BatchNorm(const OpCase& test, const std::vector<Doubles>& in) {
  const size_t c = in[1].size(), rows = in[0].size() / c;
  const double n = static_cast<double>(rows);
  Doubles y(in[0].size()), mean(c), inverse(c), variance(c);
  for (size_t i = 0; i < in[0].size(); ++i) mean[i % c] += in[0][i] / n;
  for (size_t i = 0; i < in[0].size(); ++i) {
    variance[i % c] += (in[0][i] - mean[i % c]) * (in[0][i] - mean[i % c]);
  }
  for (size_t j = 0; j < c; ++j) {
    inverse[j] = 1 / std::sqrt(variance[j] / n + test.attrs.Double("eps", 1e-5));
    variance[j] /= n - 1;
  }
  for (size_t i = 0; i < y.size(); ++i) {
    y[i] = (in[0][i] - mean[i % c]) * inverse[i % c] * in[1][i % c] + in[2][i % c];
    if (in.size() == 4) y[i] += in[3][i];
    if (test.attrs.String("activation") == "relu") y[i] = std::max(y[i], 0.0);
  }
  return {y, mean, inverse, variance};
}

std::vector<Doubles> BatchNormBackward(const std::vector<Doubles>& in) {
  const size_t c = in[2].size();
  const double n = static_cast<double>(in[0].size() / c);
  Doubles dx(in[0].size()), dweight(c), dbias(c), dy = in[0];
  for (size_t i = 0; i < dx.size(); ++i) {
    if (in.size() == 6 && in[5][i] <= 0) dy[i] = 0;
    dbias[i % c] += dy[i];
    dweight[i % c] += dy[i] * (in[1][i] - in[3][i % c]) * in[4][i % c];
  }
  for (size_t i = 0; i < dx.size(); ++i) {
    const size_t j = i % c;
    const double normal = (in[1][i] - in[3][j]) * in[4][j];
    dx[i] = in[2][j] * in[4][j] * (dy[i] - dbias[j] / n - normal * dweight[j] / n);
  }
  return {dx, dweight, dbias};
}

Doubles Inference(const OpCase& test, const std::vector<Doubles>& in) {
  const size_t c = in[1].size();
  Doubles y = in[0];
  for (size_t i = 0; i < y.size(); ++i) {
    const size_t j = i % c;
    y[i] = (y[i] - in[3][j]) / std::sqrt(in[4][j] + test.attrs.Double("eps")) * in[1][j] + in[2][j];
    if (test.attrs.String("activation") == "relu") y[i] = std::max(y[i], 0.0);
  }
  return y;
}

std::vector<Doubles> Fold(const OpCase& test, const std::vector<Doubles>& in) {
  Doubles weight = in[0], bias = in[2];
  const size_t each = weight.size() / bias.size();
  for (size_t o = 0; o < bias.size(); ++o) {
    const double scale = in[1][o] / std::sqrt(in[4][o] + test.attrs.Double("eps"));
    for (size_t i = 0; i < each; ++i) weight[o * each + i] *= scale;
    bias[o] += ((in.size() == 6 ? in[5][o] : 0) - in[3][o]) * scale;
  }
  return {weight, bias};
}

// [a, b, c] -> [a, c, b].
Doubles Swap(const Doubles& x, int64_t b, int64_t c) {
  Doubles y(x.size());
  for (int64_t i = 0; i < static_cast<int64_t>(x.size()); ++i) {
    const int64_t a = i / (b * c), j = i / c % b, k = i % c;
    y[static_cast<size_t>((a * c + k) * b + j)] = x[static_cast<size_t>(i)];
  }
  return y;
}

}  // namespace

std::vector<Doubles> ImageReference(const std::string& name, const OpCase& test,
                                    const std::vector<TensorType>& outputs,
                                    const std::vector<Doubles>& in) {
  const Shape& x = test.inputs[0].shape;
  if (name == "conv2d") return {Conv(test, outputs[0], in)};
  if (name == "conv2d_backward_input") return {ConvBackwardInput(test, outputs[0], in)};
  if (name == "conv2d_backward_weight") return {ConvBackwardWeight(test, outputs[0], in)};
  if (name == "conv2d_max_pool") return ConvMaxPool(test, outputs, in);
  if (name == "max_unpool2d") return {Unpool(x, outputs[0], in[0], in[1])};
  if (name == "conv2d_max_pool_backward_weight") {
    return {ConvMaxPoolBackwardWeight(test, outputs[0], in)};
  }
  if (name == "batch_norm") return BatchNorm(test, in);
  if (name == "batch_norm_backward") return BatchNormBackward(in);
  if (name == "batch_norm_inference") return {Inference(test, in)};
  if (name == "fold_batch_norm") return Fold(test, in);
  if (name == "channels_last") return {Swap(in[0], x[1], x[2] * x[3])};
  if (name == "channels_first") return {Swap(in[0], x[1] * x[2], x[3])};
  if (name.find("global_average_pool") == 0) {
    return {GlobalPooling(name != "global_average_pool", test, outputs[0], in)};
  }
  if (name.find("_pool2d") != std::string::npos) {
    return {Pooling(name, test, outputs[0], in)};
  }
  return {};
}

}  // namespace lockstep::engine
