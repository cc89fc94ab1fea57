// SPDX-License-Identifier: Apache-2.0
// Marks in the stream of kernels that tell where a step's time goes. Nothing waits for them: the
// times of a step are read when a later one is under way. Thread-safety: confined to one thread.
#ifndef LOCKSTEP_ENGINE_CUDA_STEP_CLOCK_H_
#define LOCKSTEP_ENGINE_CUDA_STEP_CLOCK_H_

#include <array>

#include "absl/status/status.h"
#include "engine/cuda/device.h"
#include "engine/engine.h"

namespace lockstep::engine {

class StepClock {
 public:
  // In the order in which a step passes them.
  enum Mark { kProgramsBegin, kProgramsEnd, kMeasured, kUpdateBegin, kUpdateEnd, kMarks };

  // `device` outlives it. Errors: Internal.
  absl::Status Start(cuda::Device* device);
  // The compute stream passes `mark` now. kProgramsBegin begins a step.
  void Pass(Mark mark);
  // Of the step before the newest. Zeros before there are two whole steps. REQUIRES: the newest
  // step's kMeasured has been waited for.
  DeviceTimes Read() const;

 private:
  double Between(cuda::Event from, cuda::Event to) const;

  cuda::Device* device_ = nullptr;
  std::array<cuda::Event, kMarks> marks_[2] = {};  // in turns
  int newest_ = 0;
  int64_t steps_ = 0;
};

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_CUDA_STEP_CLOCK_H_
