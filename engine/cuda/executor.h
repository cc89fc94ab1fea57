// SPDX-License-Identifier: Apache-2.0
// Runs a plan's programs on a GPU. State, arena and gradients lie in device memory, allocated at
// Create and never again. Batches are staged in page-locked memory, two deep; gradients go back to
// the host bucket by bucket, while later ones are still being made, unless the job has one shard:
// then the reduced gradient is that shard's, and the update takes it where it lies.
// Thread-safety: confined to one thread.
#ifndef LOCKSTEP_ENGINE_CUDA_EXECUTOR_H_
#define LOCKSTEP_ENGINE_CUDA_EXECUTOR_H_

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/cuda/cudnn_tuning.h"
#include "engine/cuda/device.h"
#include "engine/cuda/program_runner.h"
#include "engine/cuda/step_clock.h"
#include "engine/cuda/updater.h"
#include "engine/exec/plan.h"
#include "engine/exec/state_region.h"
#include "engine/exec/updater.h"

namespace lockstep::engine {

class CudaExecutor : public Executor, public SpreadUpdate {
 public:
  // Errors: FailedPrecondition when the GPU cannot be used; ResourceExhausted when the plan does
  // not fit into what is free or allowed, with what would make it fit; InvalidArgument, Internal.
  static absl::StatusOr<std::unique_ptr<Executor>> Create(std::shared_ptr<const CompiledPlan> plan,
                                                          const Memory& memory);
  ~CudaExecutor() override;

  void InitState() override;
  void* BeginLoad() override;
  void EndLoad() override;
  void EndBorrow() override { state_.Close(); }
  absl::Status PublishState() override;
  absl::Status RunShard(int64_t step, int shard, int micro, Fields fields, float* gradients,
                        const Hooks& hooks) override;
  absl::Status StageAhead(int64_t step, int shard, int micro, Fields fields) override;
  bool stages_ahead() const override { return true; }
  absl::StatusOr<StepResult> Update(int64_t step, absl::Span<const GradientSlice> reduced) override;
  absl::Status HoldMoments(std::vector<HeldRange> held) override;
  absl::StatusOr<StepResult> BeginUpdate(int64_t step,
                                         absl::Span<const GradientSlice> reduced) override;
  SpreadUpdate* spread_update() override { return this; }
  absl::Status HoldSums(std::vector<int> blocks) override;
  absl::Status SumSquares(int64_t step, absl::Span<const GradientSlice> reduced,
                          absl::Span<double> sums) override;
  absl::StatusOr<StepResult> BeginUpdateWith(int64_t step, absl::Span<const double> sums) override;
  absl::Status FinishUpdate(int64_t step, absl::Span<const GradientSlice> weights) override;
  int64_t begun_step() const override { return updater_->begun_step(); }
  int64_t committed_step() const override { return updater_->committed_step(); }
  using Inference::Evaluate;
  absl::Status Evaluate(Fields fields, int64_t valid, EvalSums* sums, Weights weights,
                        const BlockHooks& hooks) override;
  absl::Status StageBlock(Fields fields) override;
  bool stages_blocks() const override { return true; }
  void LockFields(void* memory, size_t bytes) override;
  void UnlockFields(void* memory) override;
  Tracking tracking() const override { return host_updater_.tracking(); }
  void SetTracking(const Tracking& tracking) override { host_updater_.SetTracking(tracking); }
  absl::StatusOr<std::string> DeviceHash(float* gradients) override;
  using Inference::Predict;
  absl::StatusOr<absl::Span<const float>> Predict(Fields fields, int64_t valid,
                                                  const BlockHooks& hooks) override;
  absl::StatusOr<absl::Span<const float>> Decode(int32_t token, int64_t position) override;
  DeviceTimes device_times() const override { return clock_.Read(); }
  std::map<std::string, int> engines() const override { return engines_; }
  void Observe(NodeObserver* observer) override;

 private:
  // What the kernels read that changes from run to run. The first member is where graphs' leaves
  // are bound to (Region::kScalars).
  struct DeviceScalars {
    Scalars scalars;
    int64_t valid_rows = 0;
  };
  // One of the two places that batches go through in turn.
  struct Slot {
    std::byte* host = nullptr;
    std::byte* device = nullptr;
    DeviceScalars* host_scalars = nullptr;
    DeviceScalars* scalars = nullptr;
    cuda::Event copied = nullptr;  // to the device
    cuda::Event used = nullptr;    // by the program that read it
    bool straight = false;         // copied from the caller's memory
  };

  // The micro-batch, or the block, that lies in the next slot already.
  struct Ahead {
    int64_t step = 0;
    int shard = 0;
    int micro = 0;
    bool block = false;
    bool operator==(const Ahead&) const = default;
  };
  // A training program on a staged micro-batch that the update's recording begins with.
  struct Pending {
    int64_t step = 0;
    int micro = 0;
    int slot = 0;
    CudaContext context;
  };

  CudaExecutor(std::shared_ptr<const CompiledPlan> plan, const Memory& memory,
               std::unique_ptr<cuda::Device> device);
  absl::Status CheckRoom(size_t limit) const;
  absl::Status AllocateAll();
  absl::Status Prepare(const Memory& memory);
  // Returns what chooses between our own kernels and cuDNN's, with the files of `tuning`; null when
  // all are our own. Errors: FailedPrecondition when cuDNN must be used and cannot.
  absl::StatusOr<std::unique_ptr<cuda::CudnnTuning>> OpenCudnnTuning(CudnnUse use,
                                                                     cuda::ProductTuning* tuning);
  absl::Status CopyState();
  void Upload();
  // `status` of something that changes the state. After an error nothing of it can be trusted, and
  // every later call fails with what this returns: `what` (and `step`) names it.
  absl::Status Noted(absl::Status status, const char* what, int64_t step = -1);
  // Brings the reduced gradients to the device, unless they lie there.
  absl::Status TakeReduced(int64_t step, absl::Span<const GradientSlice> reduced);
  // Stages a batch of `samples` samples and the scalars into the next slot. The samples may be
  // there if they are `wanted`.
  absl::StatusOr<int> Stage(Fields fields, int64_t samples, const DeviceScalars& scalars,
                            std::optional<Ahead> wanted = {});
  // Brings the samples to the next slot, when what it had before is used.
  absl::Status StageFields(Fields fields, int64_t samples);
  // Brings the micro-batch that was to be staged before the update had launched this one.
  absl::Status StageLater();
  // Returns whether these bytes are page-locked fields.
  bool IsLocked(const void* data, size_t bytes) const;
  // Waits until a slot's batch is copied, if that reads the caller's memory.
  absl::Status EndStage(const Slot& slot) const;
  CudaContext ContextFor(const Slot& slot, Weights weights) const;
  DeviceScalars ScalarsAt(int64_t step, int shard, int micro, double loss_scale) const;
  // Returns whether a program that runs next has to make what is done once for these weights. It is
  // there from then on, until another program or an update writes over the arena or the weights
  // change and it does not with them. REQUIRES: the program is launched, by Launch or with the
  // update.
  bool MakesOnce(ProgramKind kind, Weights weights);
  // The program whose constants the arena holds, and the weights that they are made of.
  using Constants = std::optional<std::pair<ProgramKind, Weights>>;
  // Forgets them for an update, and returns those that hold after it, as it writes them.
  Constants TakeConstants();
  // Launches a program on a slot's batch; after each training segment its buckets' event.
  absl::Status Launch(ProgramKind kind, int slot, int variant, const CudaContext& context);
  // With `joins` the program is left to the update, unless it makes what is done once.
  absl::Status LaunchTraining(int micro, Fields fields, int64_t step, int shard, double loss_scale,
                              bool joins = false);
  // Returns whether a step's last micro-batch is one recording with the update
  // (PassOptions::whole_step_graph), as nobody takes its gradients or looks at its nodes.
  bool JoinsUpdate(const Hooks& hooks) const;
  // Launches what was left to an update, since something else comes before it.
  absl::Status LaunchPending();
  absl::StatusOr<StepResult> UpdatePending(int64_t step);
  // Brings the gradients to the host, calling the hooks.
  absl::Status BringGradients(float* gradients, const Hooks& hooks);
  absl::Status RunObserved(ProgramKind kind, const CudaContext& context);
  absl::Status Observed(ProgramKind kind, int id, const CudaContext& context);
  absl::Status RunBlock(Fields fields, int64_t valid, Weights weights, const BlockHooks& hooks,
                        CudaContext* context);
  absl::StatusOr<absl::Span<const float>> LogitsOf(ProgramKind kind, const CudaContext& context);
  CudaProgramRunner& runner(ProgramKind kind) { return runners_[static_cast<size_t>(kind)]; }

  const std::shared_ptr<const CompiledPlan> plan_;
  const size_t moment_bytes_;
  const std::unique_ptr<cuda::Device> device_;
  bool warpgroups_ = false;                              // attention goes by warpgroups
  StateRegion state_;                                    // the host's
  Updater host_updater_;                                 // initial values and tracking
  bool published_ = true;                                // the host's state is that of the device
  absl::Status failed_;                                  // not OK: the device's state is lost
  std::vector<std::pair<size_t, size_t>> device_owned_;  // [begin, end) bytes of the state

  DeviceState device_state_;
  std::byte* arena_ = nullptr;
  float* gradients_ = nullptr;
  void* workspace_ = nullptr;
  Slot slots_[2];
  int next_slot_ = 0;
  std::optional<Ahead> ahead_;
  std::optional<Ahead> later_;  // to be staged when the pending program is launched
  std::vector<const void*> later_fields_;
  std::map<const void*, size_t> locked_;  // fields: bytes of them
  std::vector<std::pair<int64_t, int64_t>> gaps_;
  // By training segment: the buckets that are complete after it, and when.
  std::vector<std::vector<int>> segment_buckets_;
  std::vector<cuda::Event> bucket_made_;     // by segment
  std::vector<cuda::Event> bucket_brought_;  // by bucket
  int64_t resident_step_ = -1;               // whose whole gradient lies in gradients_
  std::optional<Pending> pending_;           // and is yet to be made

  std::vector<CudaProgramRunner> runners_;  // by ProgramKind
  StepClock clock_;
  int64_t timed_step_ = -1;
  std::unique_ptr<CudaUpdater> updater_;
  Storage eval_sums_;
  Constants constants_;
  std::vector<float> logits_;
  int64_t decoded_ = 0;
  NodeObserver* observer_ = nullptr;
  std::map<std::string, int> engines_;
};

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_CUDA_EXECUTOR_H_
