// SPDX-License-Identifier: Apache-2.0
// The optimizer's arithmetic on one parameter. Which steps run at all, with which gradient scale
// and learning rate, is the updater's decision (exec/updater.h). An optimizer is one file of this
// folder and one line in optimizer.cc. Thread-safety: immutable.
#ifndef LOCKSTEP_ENGINE_OPTIM_OPTIMIZER_H_
#define LOCKSTEP_ENGINE_OPTIM_OPTIMIZER_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/cpu/isa.h"
#include "engine/cpu/kernel.h"
#include "engine/cpu/simd/optim_kernels.h"
#include "engine/engine.h"
#include "engine/models/model.h"

namespace lockstep::engine {

class Optimizer {
 public:
  // What holds for one parameter in one update.
  struct Update {
    int64_t index = 0;          // 0-based count of updates that were not skipped
    double learning_rate = 0;   // scheduled, with the parameter's factor
    double weight_decay = 0;    // the parameter's
    double gradient_scale = 1;  // D / (N x loss_scale), times the clip factor
  };
  // How a parameter is updated.
  enum class Method {
    kElementwise,  // Apply
    kTrustRatio,   // Measure on all of it, then Move
    kMatrix,       // Direct on all of it, then MoveMatrix
  };

  virtual ~Optimizer() = default;
  virtual Method method(const ParameterSpec& parameter) const { return Method::kElementwise; }
  // Names of the moments that the parameter has, as suffixes: {"momentum"}.
  virtual std::vector<std::string> moments(const ParameterSpec& parameter) const = 0;
  // Before the schedule and the parameter's factor. The first is the one that is reported.
  virtual double learning_rate() const = 0;
  virtual double learning_rate(const ParameterSpec& parameter) const { return learning_rate(); }
  virtual double weight_decay(const ParameterSpec& parameter) const = 0;
  // Everything that decides the arithmetic, exactly: for the plan's hash.
  virtual std::string Describe() const = 0;
  // Bytes that MoveMatrix needs, a multiple of 64; the first elements hold the direction.
  virtual size_t scratch_bytes(const ParameterSpec& parameter, const CpuTarget& target) const {
    return 0;
  }

  // Updates `count` elements; moments[i] belongs to moments(parameter)[i]. Elementwise, so cuts do
  // not matter. REQUIRES (as of the others): method(parameter) says so.
  virtual void Apply(const Update& update, const float* gradient, int64_t count,
                     absl::Span<float* const> moments, float* parameter) const;
  // Updates the moments; adds the squares of the parameter and of its direction to the lanes.
  virtual void Measure(const Update& update, const float* gradient, int64_t count,
                       absl::Span<float* const> moments, const float* parameter,
                       NormLanes* parameter_lanes, NormLanes* direction_lanes) const;
  // Moves by the direction. `parameter_norm` and `direction_norm` are those of the whole parameter.
  virtual void Move(const Update& update, double parameter_norm, double direction_norm,
                    int64_t count, absl::Span<float* const> moments, float* parameter) const;
  // Updates the moments and writes the direction.
  virtual void Direct(const Update& update, const float* gradient, int64_t count,
                      absl::Span<float* const> moments, float* direction) const;
  // Moves the whole parameter; its direction, of norm `direction_norm`, is at the start of
  // `scratch`, which has scratch_bytes(spec).
  virtual void MoveMatrix(const Update& update, const ParameterSpec& spec, double direction_norm,
                          float* scratch, float* parameter, const CpuTarget& target,
                          ThreadPool* pool) const;
};

// Errors: InvalidArgument.
absl::StatusOr<std::unique_ptr<Optimizer>> MakeOptimizer(const OptimizerSpec& spec, Isa isa);

// "adamw.beta2 is 1: it must be in [0, 1)" when it is not. Errors: InvalidArgument.
absl::Status CheckSetting(const char* name, double value, bool below_one);

// Errors: InvalidArgument.
absl::Status CheckSchedule(const ScheduleSpec& schedule);
// Everything that decides the factor, exactly: for the plan's hash.
std::string DescribeSchedule(const ScheduleSpec& schedule);

// Returns the schedule without the run's length where no factor depends on it: a longer run begins
// with the same updates.
ScheduleSpec WithoutLength(ScheduleSpec schedule);

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_OPTIM_OPTIMIZER_H_
