// SPDX-License-Identifier: Apache-2.0
// Which of several ways to do the same is the quickest on a device, by its own clock.
// Thread-safety: its device's thread's.
#ifndef LOCKSTEP_ENGINE_CUDA_STOPWATCH_H_
#define LOCKSTEP_ENGINE_CUDA_STOPWATCH_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/cuda/device.h"

namespace lockstep::engine::cuda {

class Stopwatch {
 public:
  // Launches one of the ways on the device's stream of kernels.
  using Way = std::function<Code()>;
  struct Result {
    size_t quickest = 0;
    std::vector<float> milliseconds;  // of a run of each way
  };

  // Errors: Internal.
  static absl::StatusOr<Stopwatch> Make(Device* device);

  // Runs `ways`, which have run before, in turns. A later way must be clearly quicker than an
  // earlier one. `what` is said in errors. REQUIRES: ways. Blocks. Errors: Internal.
  absl::StatusOr<Result> Compare(const std::vector<Way>& ways, const char* what);

 private:
  explicit Stopwatch(Device* device) : device_(device) {}
  // Milliseconds of a run, the mean of `runs`.
  absl::StatusOr<float> Time(const Way& way, int runs, const char* what);

  Device* device_;
  Event begin_ = nullptr;
  Event end_ = nullptr;
};

}  // namespace lockstep::engine::cuda

#endif  // LOCKSTEP_ENGINE_CUDA_STOPWATCH_H_
