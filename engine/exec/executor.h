// SPDX-License-Identifier: Apache-2.0
// Runs a plan's programs: a flat list of prepared kernels, nothing allocated after Create.
// Thread-safety: confined to one thread.
#ifndef LOCKSTEP_ENGINE_EXEC_EXECUTOR_H_
#define LOCKSTEP_ENGINE_EXEC_EXECUTOR_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/cpu/numerics.h"
#include "engine/exec/plan.h"
#include "engine/exec/state_region.h"
#include "engine/exec/updater.h"

namespace lockstep::engine {

class PlanExecutor : public Executor, public SpreadUpdate {
 public:
  // Errors: as Executor::Create.
  static absl::StatusOr<std::unique_ptr<Executor>> Create(std::shared_ptr<const CompiledPlan> plan,
                                                          const Memory& memory);
  // REQUIRES: the memory is aligned, as Create sees to.
  PlanExecutor(std::shared_ptr<const CompiledPlan> plan, const Memory& memory);

  void InitState() override;
  void* BeginLoad() override;
  void EndLoad() override {
    updater_.ForgetBegun();
    state_.Close();
  }
  absl::Status PublishState() override { return absl::OkStatus(); }
  absl::Status RunShard(int64_t step, int shard, int micro, Fields fields, float* gradients,
                        const Hooks& hooks) override;
  absl::StatusOr<StepResult> Update(int64_t step,
                                    absl::Span<const GradientSlice> reduced) override {
    return updater_.Update(step, reduced, &pool_);
  }
  absl::Status HoldMoments(std::vector<HeldRange> held) override {
    updater_.HoldMoments(std::move(held));
    return absl::OkStatus();
  }
  absl::StatusOr<StepResult> BeginUpdate(int64_t step,
                                         absl::Span<const GradientSlice> reduced) override {
    return updater_.BeginUpdate(step, reduced, &pool_);
  }
  absl::Status FinishUpdate(int64_t step, absl::Span<const GradientSlice> weights) override {
    updater_.FinishUpdate(step, weights, &pool_);
    return absl::OkStatus();
  }
  SpreadUpdate* spread_update() override { return this; }
  absl::Status HoldSums(std::vector<int> blocks) override {
    updater_.HoldSums(std::move(blocks));
    return absl::OkStatus();
  }
  absl::Status SumSquares(int64_t /*step*/, absl::Span<const GradientSlice> reduced,
                          absl::Span<double> sums) override {
    updater_.SumSquares(reduced, sums, &pool_);
    return absl::OkStatus();
  }
  absl::StatusOr<StepResult> BeginUpdateWith(int64_t step, absl::Span<const double> sums) override {
    return updater_.BeginUpdateWith(step, sums, &pool_);
  }
  int64_t begun_step() const override { return updater_.begun_step(); }
  int64_t committed_step() const override { return updater_.committed_step(); }
  using Inference::Evaluate;
  absl::Status Evaluate(Fields fields, int64_t valid, EvalSums* sums, Weights weights,
                        const BlockHooks& hooks) override;
  Tracking tracking() const override { return updater_.tracking(); }
  void SetTracking(const Tracking& tracking) override { updater_.SetTracking(tracking); }
  absl::StatusOr<std::string> DeviceHash(float* gradients) override;
  using Inference::Predict;
  absl::StatusOr<absl::Span<const float>> Predict(Fields fields, int64_t valid,
                                                  const BlockHooks& hooks) override;
  absl::StatusOr<absl::Span<const float>> Decode(int32_t token, int64_t position) override;
  absl::Status Prefill(absl::Span<const int32_t> tokens, int64_t position) override;
  void Observe(NodeObserver* observer) override;

 private:
  struct Step {
    std::unique_ptr<CpuKernel> kernel;
    bool writes_gradients = false;  // the first node that does
    std::vector<int> buckets;       // complete after it
  };

  static std::vector<Step> Prepare(const Program& program, const CpuTargets& targets);
  void MarkGradients();
  // The gaps between gradients, so that every element of the vector is defined.
  void ZeroGaps(float* gradients) const;
  static void BindFields(Fields fields, RunContext* context);
  absl::Status RunSteps(const RunContext& context, int micro, const Hooks& hooks);
  // Does what a program does once for its parameters, unless that is done and no other program,
  // which has the same arena, has run since. REQUIRES: the evaluation or the decode program.
  absl::Status RunOnce(ProgramKind kind, Weights weights, const RunContext& context);
  // The evaluation program on a block.
  absl::Status RunBlock(Fields fields, int64_t valid, Weights weights,
                        const std::function<bool()>& cancelled, RunContext* context);
  // Of the decode and the prefill programs.
  RunContext DecodeContext();
  // The logits that a program has written.
  absl::Span<const float> LogitsOf(ProgramKind kind, const RunContext& context) const;
  // Runs node `id` of a program, if it does anything.
  absl::Status RunStep(ProgramKind kind, const Step& step, size_t id, const RunContext& context) {
    if (step.kernel == nullptr) return absl::OkStatus();
    FlushDenormals();
    if (observer_ != nullptr) return RunObserved(kind, step, id, context);
    step.kernel->Run(context);
    return absl::OkStatus();
  }
  // The same between the observer's calls.
  absl::Status RunObserved(ProgramKind kind, const Step& step, size_t id,
                           const RunContext& context);

  const std::shared_ptr<const CompiledPlan> plan_;
  std::byte* const arena_;
  StateRegion state_;
  Updater updater_;
  ThreadPool pool_;
  Scalars scalars_;
  std::vector<Step> train_;
  std::vector<Step> evaluate_;
  std::vector<Step> decode_;
  std::vector<Step> prefill_, long_prefill_;
  int64_t decoded_ = 0;  // positions that are kept
  Storage eval_sums_;
  // The program whose constants the arena holds, and the weights that they are made of.
  std::optional<std::pair<ProgramKind, Weights>> constants_;
  std::vector<std::pair<int64_t, int64_t>> gaps_;
  NodeObserver* observer_ = nullptr;
};

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_EXEC_EXECUTOR_H_
