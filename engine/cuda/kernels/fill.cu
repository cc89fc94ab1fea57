// SPDX-License-Identifier: Apache-2.0
// Made data, on which kernels are timed.
#include "engine/cuda/kernels/all.h"
#include "engine/cuda/kernels/device_code.h"

namespace lockstep::engine::cuda {
namespace {

constexpr int kThreads = 256;

// Sign, two bits and the low byte but for its second bit are random, the rest is 0x3c00: as bf16
// from 2^-7 to 2, as fp16 from 1 to 2, as a byte of FP8 no NaN and no infinity, as fp32 what the
// upper half is.
constexpr uint32_t kRandom = 0x83bf83bf, kFixed = 0x3c003c00;

__global__ void __launch_bounds__(kThreads) FillKernel(FillArgs args) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= args.count) return;
  const Words words = Philox<7>(static_cast<uint32_t>(i), static_cast<uint32_t>(i >> 32), 0, 0, 1);
  uint4 value;
  value.x = (words.x[0] & kRandom) | kFixed;
  value.y = (words.x[1] & kRandom) | kFixed;
  value.z = (words.x[2] & kRandom) | kFixed;
  value.w = (words.x[3] & kRandom) | kFixed;
  static_cast<uint4*>(args.data)[i] = value;
}

}  // namespace

Code LaunchFill(const FillArgs& args, Stream stream) {
  return Launch(FillKernel, Grid(DivideUp(args.count, kThreads)), kThreads, stream, args);
}

}  // namespace lockstep::engine::cuda
