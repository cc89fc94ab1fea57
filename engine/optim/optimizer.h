// SPDX-License-Identifier: Apache-2.0
// The optimizer's arithmetic on one parameter. Which steps run at all, with which gradient scale,
// is the executor's decision (exec/updater.h). An optimizer is one file of this folder and one line
// in optimizer.cc. Thread-safety: immutable.
#ifndef LOCKSTEP_ENGINE_OPTIM_OPTIMIZER_H_
#define LOCKSTEP_ENGINE_OPTIM_OPTIMIZER_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/cpu/isa.h"
#include "engine/engine.h"

namespace lockstep::engine {

class Optimizer {
 public:
  // What holds for all parameters of one update.
  struct Update {
    int64_t index = 0;         // 0-based count of updates that were not skipped
    float learning_rate = 0;   // scheduled
    float gradient_scale = 1;  // D / (N x loss_scale)
  };

  virtual ~Optimizer() = default;
  // Names of the moments that each parameter has, as suffixes: {"momentum"}.
  virtual std::vector<std::string> moments() const = 0;
  virtual double learning_rate() const = 0;
  // Updates `count` elements; moments[i] belongs to moments()[i]. Elementwise, so cuts do not
  // matter.
  virtual void Apply(const Update& update, const float* gradient, int64_t count,
                     absl::Span<float* const> moments, float* parameter) const = 0;
};

// Errors: InvalidArgument.
absl::StatusOr<std::unique_ptr<Optimizer>> MakeOptimizer(const OptimizerSpec& spec, Isa isa);

// Errors: InvalidArgument.
absl::Status CheckSchedule(const ScheduleSpec& schedule);

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_OPTIM_OPTIMIZER_H_
