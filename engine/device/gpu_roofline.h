// SPDX-License-Identifier: Apache-2.0
// What a GPU needs at the least for a plan's programs, on paper: for each node the longer of its
// arithmetic at the peak and of its bytes at the memory's speed, from the figures of the vendor's
// data sheets; and what our kernels move beyond that. Nothing of it is measured.
// Thread-safety: pure functions.
#ifndef LOCKSTEP_ENGINE_DEVICE_GPU_ROOFLINE_H_
#define LOCKSTEP_ENGINE_DEVICE_GPU_ROOFLINE_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/plan.h"

namespace lockstep::engine {

// Dense operations and bytes a second.
struct GpuFigures {
  const char* name;
  const char* architecture;
  double half_flops;  // of bf16 and fp16 products with fp32 sums
  double tf32_flops;
  double float_flops;  // of fp32, outside the tensor cores
  double bytes;
};
// The GPU that is called so ("h200"), or one of that architecture ("sm_90": an H100).
// Errors: InvalidArgument with the names that there are.
absl::StatusOr<GpuFigures> GpuFiguresOf(std::string_view name);

// All nodes of one kind.
struct RooflineRow {
  std::string op;
  int nodes = 0;
  double flops = 0;
  double least_bytes = 0;  // each operand once
  double moved_bytes = 0;  // what our kernels read and write
  double least_seconds = 0;
  double seconds = 0;  // expected: see kProductShare, kMemoryShare
};

struct Roofline {
  std::vector<RooflineRow> rows;  // those that take longest come first; the update is one
  double least_seconds = 0;       // of all
  double seconds = 0;
};

// What is expected of the peaks: shares that large products and streams of bytes are known to
// reach, not measurements of ours.
inline constexpr double kProductShare = 0.7;
inline constexpr double kMemoryShare = 0.85;

// Of one micro-batch and, in training, an update; of a block where the plan is for inference.
Roofline RooflineOf(const Plan& plan, const GpuFigures& gpu);
// For people: a table.
std::string RooflineText(const Roofline& roofline, const GpuFigures& gpu);

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_DEVICE_GPU_ROOFLINE_H_
