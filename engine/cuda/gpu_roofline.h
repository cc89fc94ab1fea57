// SPDX-License-Identifier: Apache-2.0
// What a GPU needs at the least for a plan's programs, on paper: for each launch, which is a node
// or a group of them (engine/passes/launch_groups.h), the longer of its arithmetic at the peak and
// of its bytes at the memory's speed, from the figures of the vendor's data sheets; and what our
// kernels move beyond that. Nothing of it is measured.
// Thread-safety: pure functions.
#ifndef LOCKSTEP_ENGINE_CUDA_GPU_ROOFLINE_H_
#define LOCKSTEP_ENGINE_CUDA_GPU_ROOFLINE_H_

#include <cstdint>
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
  int64_t shared_bytes = 0;  // of a multiprocessor's shared memory
};
// The GPU that is called so ("h200"), or one of that architecture ("sm_90": an H100).
// Errors: InvalidArgument with the names that there are.
absl::StatusOr<GpuFigures> GpuFiguresOf(std::string_view name);

// A launch, or all that are of one kind.
struct RooflineRow {
  std::string op;    // a group's are joined by " + "
  std::string name;  // of the layer, may be empty; empty for a kind
  int launches = 0;
  bool once = false;  // of a launch: once for all micro-batches of a step, or all blocks
  double flops = 0;
  double least_bytes = 0;  // each operand once; of a group those that come from or go elsewhere
  double moved_bytes = 0;  // what our kernels read and write
  double least_seconds = 0;
  double seconds = 0;  // expected: see kProductShare, kMemoryShare
};

struct Roofline {
  std::vector<RooflineRow> launches;  // of a micro-batch, or a block, in the order that they run in
  RooflineRow update;                 // nothing where the plan is for inference
  double once_seconds = 0;            // expected of the launches that are done once
  std::vector<RooflineRow> rows;      // all of these by kind; those that take longest come first
  double least_seconds = 0;           // of one micro-batch and the update
  double seconds = 0;

  // Expected of `micro_batches` one after another and the update.
  double StepSeconds(double micro_batches) const {
    const double once = once_seconds + update.seconds;
    return micro_batches * (seconds - once) + once;
  }
};

// What is expected of the peaks: shares that large products and streams of bytes are known to
// reach, not measurements of ours.
inline constexpr double kProductShare = 0.7;
inline constexpr double kMemoryShare = 0.85;

// Of one micro-batch and, in training, an update; of a block where the plan is for inference. The
// plan is one for CUDA.
Roofline RooflineOf(const Plan& plan, const GpuFigures& gpu);
// For people: a table.
std::string RooflineText(const Roofline& roofline, const GpuFigures& gpu);

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_CUDA_GPU_ROOFLINE_H_
