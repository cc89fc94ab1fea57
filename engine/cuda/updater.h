// SPDX-License-Identifier: Apache-2.0
// The update section of a plan on a GPU: exec/updater.h's arithmetic with weights, moments,
// averages and running statistics in device memory. The device decides whether a step counts and
// how its gradients are scaled, so that nothing waits for the host between gradients and update;
// the host looks at the same sums meanwhile, its only wait in a step, and keeps the counters in its
// state region. What changes from step to step is in device memory: the launches of an update are
// recorded once. Moments lie where moments.h puts them. Thread-safety: confined to one thread.
#ifndef LOCKSTEP_ENGINE_CUDA_UPDATER_H_
#define LOCKSTEP_ENGINE_CUDA_UPDATER_H_

#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/cuda/device.h"
#include "engine/cuda/device_state.h"
#include "engine/cuda/gemm.h"
#include "engine/cuda/moments.h"
#include "engine/cuda/step_clock.h"
#include "engine/exec/plan.h"
#include "engine/exec/state_region.h"
#include "engine/optim/cuda_scratch.h"

namespace lockstep::engine {

class CudaUpdater {
 public:
  // Where things lie in device memory.
  struct Places {
    DeviceState state;
    float* gradients = nullptr;
    std::byte* arena = nullptr;  // begins with plan.optimizer_scratch_bytes() for the update
    void* workspace = nullptr;
  };
  // All outlive it. Without TrainSpec::shard_moments all moments are held, with it none.
  // `moment_bytes`: as Memory::moment_bytes. Errors: ResourceExhausted, Internal.
  static absl::StatusOr<std::unique_ptr<CudaUpdater>> Make(const CompiledPlan* plan,
                                                           StateRegion* host, cuda::Device* device,
                                                           const Places& places,
                                                           size_t moment_bytes, StepClock* clock);
  ~CudaUpdater();

  int64_t committed_step() const { return *step_; }
  int64_t begun_step() const { return begun_ ? *step_ + 1 : *step_; }
  double loss_scale() const { return *loss_scale_; }
  const CudaMoments& moments() const { return *moments_; }
  // The weights come from elsewhere.
  void ForgetBegun() { begun_ = false; }

  // As Executor::Update, on the reduced gradients in device memory. After an error the state is
  // neither that before the step nor that after it. Errors: Internal when the device fails.
  absl::StatusOr<StepResult> Update(int64_t step);
  // The same, and before it what makes the gradients, in one recording: `programs` launches that,
  // and `variant` (0 or 1) tells the memory apart that it reads batches from. `meanwhile` is called
  // when all is launched, before the host waits for it. REQUIRES: !offload_moments.
  using Programs = std::function<absl::Status()>;
  absl::StatusOr<StepResult> UpdateAfter(int64_t step, int variant, const Programs& programs,
                                         const Programs& meanwhile);
  // As those of Executor. Errors: as Update.
  absl::Status HoldMoments(std::vector<HeldRange> held);
  // Also Executor::BeginUpdateWith: `sums` of all blocks, or empty, and they are made here.
  absl::StatusOr<StepResult> BeginUpdate(int64_t step, absl::Span<const double> sums = {});
  // As those of Executor, on the reduced gradients in device memory. Errors: as Update.
  absl::Status HoldSums(std::vector<int> blocks);
  absl::Status SumSquares(absl::Span<double> sums);
  absl::Status FinishUpdate(int64_t step, absl::Span<const GradientSlice> weights);

 private:
  // A matrix of Muon's.
  struct Matrix {
    cuda::UpdateTensor tensor;
    CudaUpdateScratch scratch;
    int64_t first_block = 0;  // in the list of all blocks
    int64_t blocks = 0;
    const cuda::UpdateBlock* own_blocks = nullptr;  // [begin, end) of the matrix itself
    double factor = 1;
    std::vector<cuda::Product> products;  // gram, square, step
  };

  // Blocks [begin, begin + count) of `elementwise_` are those of a chunk of moments.
  struct ChunkBlocks {
    int64_t begin = 0;
    int64_t count = 0;
  };

  // What the device tells the host of an update, page-locked.
  struct Told {
    cuda::UpdateNow now;
    float tail[kGradientTail];  // the vector's last elements
    double sums[1];             // [block_count_]
  };
  // The launches of an update; in two halves they are others.
  struct Recorded {
    int runs = 0;
    cuda::Recording recording = nullptr;
  };

  CudaUpdater(const CompiledPlan* plan, StateRegion* host, cuda::Device* device,
              const Places& places, StepClock* clock);
  absl::Status MakeTables();
  absl::Status MakeMatrices();
  // Makes the tables of what is held.
  absl::Status Hold(const std::vector<CudaMoments::Piece>& pieces);
  cuda::UpdateTensor TensorOf(size_t parameter) const;
  absl::Status MakeMatrix(size_t parameter, const cuda::UpdateTensor& tensor,
                          std::vector<cuda::UpdateBlock>* own);
  void AddStatistics();
  absl::Status MakeDecision();
  // Launches what measures the gradients, unless `sums` are known, and decides.
  absl::Status Decide(absl::Span<const double> sums);
  // Sends the host what it is to know of it.
  absl::Status Tell();
  // sums_[i] = the sum of squares of blocks[i]. Queues.
  absl::Status LaunchSquares(const cuda::UpdateBlock* blocks, int64_t count);
  // Blocks until it is here.
  absl::Status Listen();
  StepResult Examine() const;
  // Returns what all rules of all updates share.
  cuda::UpdateArgs SharedArgs() const;
  void SetNow(double schedule);
  // Runs `launches`: the first time one by one, the second time they are recorded, from then on the
  // recording is launched.
  absl::Status Replay(Recorded* known, const Programs& launches);
  // Launches the update, in full or to the gradients' places.
  absl::Status Launch(bool beside);
  absl::Status LaunchAll(bool beside);
  void ForgetRecorded();
  // All of a step but `step` itself; `beside`: the new weights go to the gradients' places.
  absl::StatusOr<StepResult> Advance(bool beside, absl::Span<const double> sums = {});
  // Hears what was decided, and counts.
  absl::StatusOr<StepResult> Conclude(double schedule);
  absl::Status Apply(const cuda::UpdateArgs& args);
  // One rule over all chunks.
  absl::Status ApplyRule(const cuda::UpdateArgs& args);
  absl::Status ApplyMatrix(const cuda::UpdateArgs& args, const Matrix& matrix);
  absl::Status UpdateStatistics() const;
  void Count(const StepResult& result);

  const CompiledPlan& plan_;
  StateRegion& host_;
  cuda::Device& device_;
  const Places places_;
  StepClock& clock_;
  int64_t* const step_;
  int64_t* const update_count_;
  double* const loss_scale_;
  int64_t* const growth_count_;
  int64_t* const skip_count_;

  std::unique_ptr<CudaMoments> moments_;
  std::vector<ChunkBlocks> chunk_blocks_;
  std::vector<HeldRange> held_;              // with TrainSpec::shard_moments
  bool begun_ = false;                       // step *step_ + 1 is half done
  std::vector<cuda::UpdateTensor> tensors_;  // in the order of the state, without moments
  int64_t parameter_blocks_ = 0;
  int64_t block_count_ = 0;  // with those of what lies between and behind the gradients
  std::vector<cuda::UpdateBlock> blocks_;  // as Plan::SumBlocks
  std::vector<int> own_sums_;              // of these, by HoldSums
  std::vector<Matrix> matrices_;
  std::vector<cuda::StatisticArgs> statistics_;
  std::vector<int64_t*> batches_tracked_;  // of the host's region
  // Device memory.
  cuda::UpdateTensor* device_tensors_ = nullptr;
  cuda::UpdateBlock* all_blocks_ = nullptr;
  cuda::UpdateTensor* held_tensors_ = nullptr;  // of the pieces
  cuda::UpdateBlock* elementwise_ = nullptr;    // of what is held
  cuda::UpdateBlock* summed_ = nullptr;         // of own_sums_
  cuda::UpdateBlock* own_blocks_ = nullptr;
  double* sums_ = nullptr;  // [block_count_], then two more of parameter_blocks_
  cuda::UpdateNow* now_ = nullptr;
  cuda::UpdateNow* next_ = nullptr;  // page-locked: what the host sets
  Told* told_ = nullptr;
  cuda::Event decided_ = nullptr;
  cuda::Event heard_ = nullptr;  // told_ is there
  Recorded recorded_[2];         // an update: in full, beside
  Recorded whole_[2];            // a step, by variant
};

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_CUDA_UPDATER_H_
