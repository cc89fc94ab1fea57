// SPDX-License-Identifier: Apache-2.0
// The update section: the only writer of the state after its first values. One pass over the
// reduced gradients decides whether the step counts, a second one updates each parameter.
// Thread-safety: one caller at a time.
#ifndef LOCKSTEP_ENGINE_EXEC_UPDATER_H_
#define LOCKSTEP_ENGINE_EXEC_UPDATER_H_

#include <memory>
#include <vector>

#include "engine/cpu/simd/simd.h"
#include "engine/exec/plan.h"
#include "engine/exec/state_region.h"

namespace lockstep::engine {

class Updater {
 public:
  // Both outlive it.
  Updater(const CompiledPlan* plan, StateRegion* state);

  // Fills the whole region with the state of step 0.
  void InitState();
  int64_t committed_step() const { return *step_; }
  double loss_scale() const { return *loss_scale_; }
  // As Executor::Update. Allocates nothing.
  StepResult Update(int64_t step, absl::Span<const GradientSlice> reduced, ThreadPool* pool);

 private:
  struct Target {
    int64_t begin = 0;  // in the gradient vector
    int64_t count = 0;
    float* parameter = nullptr;
    std::vector<float*> moments;
  };
  // Running statistics of one entry; see StatisticSpec.
  struct Statistic {
    int64_t begin = 0;  // in the gradient vector
    int64_t count = 0;
    double momentum = 0;
    float* running = nullptr;
  };
  void AddStatistics();
  void UpdateStatistics(absl::Span<const GradientSlice> reduced);
  void Apply(const Optimizer::Update& update, absl::Span<const GradientSlice> reduced,
             ThreadPool* pool);
  void ApplyRange(const Optimizer::Update& update, const Target& target, const GradientSlice& slice,
                  int64_t begin, int64_t end) const;

  const CompiledPlan& plan_;
  StateRegion& state_;
  const SimdKernels& simd_;
  std::vector<Target> targets_;
  std::vector<Statistic> statistics_;
  std::vector<int64_t*> batches_tracked_;
  int64_t* const step_;
  int64_t* const update_count_;
  double* const loss_scale_;
};

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_EXEC_UPDATER_H_
