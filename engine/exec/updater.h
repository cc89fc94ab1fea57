// SPDX-License-Identifier: Apache-2.0
// The update section: the only writer of the state after its first values. One pass over the
// reduced gradients decides whether the step counts (and measures their norm where they are
// clipped), a second one updates each parameter and its average while they are in cache.
// Thread-safety: one caller at a time.
#ifndef LOCKSTEP_ENGINE_EXEC_UPDATER_H_
#define LOCKSTEP_ENGINE_EXEC_UPDATER_H_

#include <utility>
#include <vector>

#include "engine/cpu/simd/simd.h"
#include "engine/exec/parameter_table.h"
#include "engine/exec/plan.h"
#include "engine/exec/state_region.h"

namespace lockstep::engine {

class Updater {
 public:
  // `scratch` has plan->optimizer_scratch_bytes(), and is used in Update alone. All outlive it.
  Updater(const CompiledPlan* plan, StateRegion* state, std::byte* scratch);

  // Fills the whole region with the state of step 0.
  void InitState();
  int64_t committed_step() const { return *step_; }
  double loss_scale() const { return *loss_scale_; }
  Tracking tracking() const { return *tracking_; }
  // As Executor::SetTracking.
  void SetTracking(const Tracking& tracking);
  // As Executor::Update. Allocates nothing.
  StepResult Update(int64_t step, absl::Span<const GradientSlice> reduced, ThreadPool* pool);
  // As those of Executor. Neither half allocates.
  void HoldMoments(std::vector<HeldRange> held);
  StepResult BeginUpdate(int64_t step, absl::Span<const GradientSlice> reduced, ThreadPool* pool);
  void FinishUpdate(int64_t step, absl::Span<const GradientSlice> weights, ThreadPool* pool);
  // As those of SpreadUpdate.
  void HoldSums(std::vector<int> blocks) { own_sums_ = std::move(blocks); }
  // The same.
  void SumSquares(absl::Span<const GradientSlice> reduced, absl::Span<double> sums,
                  ThreadPool* pool);
  // The same.
  StepResult BeginUpdateWith(int64_t step, absl::Span<const double> sums, ThreadPool* pool);
  int64_t begun_step() const { return begun_ ? *step_ + 1 : *step_; }
  // The weights come from elsewhere.
  void ForgetBegun() { begun_ = false; }

 private:
  using Slices = absl::Span<const GradientSlice>;
  // All zero, but for moments that are not there.
  void ZeroState();
  // What is looked at to decide whether a step counts.
  struct Findings {
    bool finite = true;
    double squares = 0;  // of the gradients, where they are clipped
    int nonfinite = -1;  // the first target with a gradient that is not finite, if it is one's
  };
  Findings Find(Slices reduced, ThreadPool* pool);
  // The same from the sums of squares of all blocks (Plan::SumBlocks).
  Findings FindIn(absl::Span<const double> sums) const;
  // Loss, count, finiteness and norm.
  StepResult Examine(Slices reduced, Findings findings) const;
  // All of a step but `step` itself; `change` changes weights and moments.
  template <typename Change>
  StepResult Advance(Slices reduced, Findings findings, Change change);
  StepResult BeginWith(int64_t step, Slices reduced, Findings findings, ThreadPool* pool);
  void Apply(const Optimizer::Update& update, Slices reduced, ThreadPool* pool);
  // The held moments, and the new weights beside the weights.
  void ApplyHeld(const Optimizer::Update& update, Slices reduced, ThreadPool* pool);
  void ApplyBeside(const Optimizer::Update& update, const ParameterTarget& target,
                   const float* gradient, int64_t at, int64_t count, float* weights) const;
  void ApplyElementwise(const Optimizer::Update& update, Slices reduced, ThreadPool* pool);
  void ApplyTrustRatio(const Optimizer::Update& update, Slices reduced, ThreadPool* pool);
  void ApplyMatrix(const Optimizer::Update& update, const ParameterTarget& target, Slices reduced,
                   ThreadPool* pool);
  // `count` elements from `at` of the target, whose gradients are at `gradient`.
  void ApplyRange(const Optimizer::Update& update, const ParameterTarget& target,
                  const float* gradient, int64_t at, int64_t count) const;
  // The moving average of `count` elements from `at`.
  void Average(const Optimizer::Update& update, const ParameterTarget& target, int64_t at,
               int64_t count) const;
  // `update` with the target's own settings.
  static Optimizer::Update For(const Optimizer::Update& update, const ParameterTarget& target);
  // Running statistics of one entry; see StatisticSpec.
  struct Statistic {
    int64_t begin = 0;  // in the gradient vector
    int64_t count = 0;
    double momentum = 0;
    float* running = nullptr;
  };
  void AddStatistics();
  void UpdateStatistics(Slices reduced);

  const CompiledPlan& plan_;
  StateRegion& state_;
  const SimdKernels& simd_;
  const OptimKernels& kernels_;
  ParameterTable table_;
  const int64_t tail_begin_;  // Plan::TailBegin, which asks for memory; no use for inference
  float* const scratch_;
  bool trust_ratio_ = false;
  std::vector<double> parameter_sums_;  // by block
  std::vector<double> direction_sums_;
  std::vector<Statistic> statistics_;
  std::vector<int64_t*> batches_tracked_;
  int64_t* const step_;
  int64_t* const update_count_;
  double* const loss_scale_;
  int64_t* const growth_count_;
  int64_t* const skip_count_;
  Tracking* const tracking_;
  std::vector<HeldRange> held_;            // with TrainSpec::shard_moments
  bool begun_ = false;                     // step *step_ + 1 is half done
  std::vector<GradientRange> sum_blocks_;  // with TrainSpec::shard_moments: Plan::SumBlocks
  std::vector<int> own_sums_;
  std::vector<GradientSlice> summed_;  // what SumSquares was last given
};

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_EXEC_UPDATER_H_
