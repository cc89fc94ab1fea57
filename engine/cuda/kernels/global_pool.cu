// SPDX-License-Identifier: Apache-2.0
// The mean of each channel over all pixels of an image, and its gradient. A thread has eight
// channels of an image, or of a pixel of the gradient; pixels are added in order.
#include "engine/cuda/kernels/all.h"
#include "engine/cuda/kernels/channels.h"

namespace lockstep::engine::cuda {
namespace {

constexpr int kThreads = 256;

template <int kType>
__global__ void __launch_bounds__(kThreads) GlobalPoolKernel(GlobalPoolArgs args) {
  const int64_t image = OwnRow(), channel = OwnColumn(), channels = args.channels;
  if (image >= args.images || channel >= channels) return;
  const int64_t base = image * args.pixels * channels + channel;
  Eight sum = {};
#pragma unroll 8
  for (int64_t p = 0; p < args.pixels; ++p) {
    const Eight x = LoadChannels<kType>(args.in, base + p * channels, channels - channel);
#pragma unroll
    for (int e = 0; e < 8; ++e) sum.x[e] += x.x[e];
  }
  const float factor = 1.0f / static_cast<float>(args.pixels);
#pragma unroll
  for (int e = 0; e < 8; ++e) sum.x[e] *= factor;
  StoreChannels<kType>(args.out, image * channels + channel, sum, channels - channel);
}

template <int kType>
__global__ void __launch_bounds__(kThreads) GlobalPoolBackwardKernel(GlobalPoolArgs args) {
  const int64_t pixel = OwnRow(), channel = OwnColumn(), channels = args.channels;
  if (pixel >= args.images * args.pixels || channel >= channels) return;
  const int64_t image = pixel / args.pixels;
  Eight x = LoadChannels<kType>(args.in, image * channels + channel, channels - channel);
  const float factor = 1.0f / static_cast<float>(args.pixels);
#pragma unroll
  for (int e = 0; e < 8; ++e) x.x[e] *= factor;
  StoreChannels<kType>(args.out, pixel * channels + channel, x, channels - channel);
}

}  // namespace

Code LaunchGlobalPool(const GlobalPoolArgs& args, Stream stream) {
  const Eights eights =
      EightsOf(args.backward ? args.images * args.pixels : args.images, args.channels);
  const View used[] = {args.in, args.out}, floats[] = {View{}};
  return WithType(TypeOfAll(used, floats, args.channels), [&](auto type) {
    return Launch(args.backward ? GlobalPoolBackwardKernel<type()> : GlobalPoolKernel<type()>,
                  eights.grid, eights.block, stream, args);
  });
}

}  // namespace lockstep::engine::cuda
