// SPDX-License-Identifier: Apache-2.0
// The update section of a plan on a GPU: exec/updater.h's arithmetic with weights, moments,
// averages and running statistics in device memory. The counters stay in the host's state region,
// where the decisions are made: one look at the gradients' sums comes back from the device in each
// step. Thread-safety: confined to one thread.
#ifndef LOCKSTEP_ENGINE_CUDA_UPDATER_H_
#define LOCKSTEP_ENGINE_CUDA_UPDATER_H_

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/cuda/device.h"
#include "engine/cuda/gemm.h"
#include "engine/cuda/step_clock.h"
#include "engine/cuda/update_scratch.h"
#include "engine/exec/plan.h"
#include "engine/exec/state_region.h"

namespace lockstep::engine {

class CudaUpdater {
 public:
  // Where things lie in device memory.
  struct Places {
    std::byte* state = nullptr;
    float* gradients = nullptr;
    std::byte* scratch = nullptr;  // plan.optimizer_scratch_bytes()
    void* workspace = nullptr;
  };
  // All outlive it. Errors: ResourceExhausted, Internal.
  static absl::StatusOr<std::unique_ptr<CudaUpdater>> Make(const CompiledPlan* plan,
                                                           StateRegion* host, cuda::Device* device,
                                                           const Places& places, StepClock* clock);

  int64_t committed_step() const { return *step_; }
  double loss_scale() const { return *loss_scale_; }
  // As Executor::Update, on the reduced gradients in device memory. A device that fails here takes
  // the process with it: a step that is begun is whole or nowhere.
  StepResult Update(int64_t step);

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

  CudaUpdater(const CompiledPlan* plan, StateRegion* host, cuda::Device* device,
              const Places& places, StepClock* clock);
  absl::Status MakeTables();
  cuda::UpdateTensor TensorOf(size_t parameter) const;
  absl::Status MakeMatrix(size_t parameter, const cuda::UpdateTensor& tensor,
                          std::vector<cuda::UpdateBlock>* own);
  void AddStatistics();
  // Brings the sums and the vector's tail to the host. Blocks.
  absl::Status Measure();
  StepResult Examine() const;
  // What all rules of one update share.
  cuda::UpdateArgs ArgsFor(const StepResult& result, double schedule) const;
  absl::Status Apply(const cuda::UpdateArgs& args);
  absl::Status ApplyMatrix(const cuda::UpdateArgs& args, const Matrix& matrix);
  absl::Status UpdateStatistics() const;
  void Count(const StepResult& result, int64_t step);

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

  std::vector<cuda::UpdateTensor> tensors_;  // in the order of the state
  int64_t parameter_blocks_ = 0;
  int64_t block_count_ = 0;  // with those of what lies between and behind the gradients
  int64_t elementwise_blocks_ = 0;
  std::vector<Matrix> matrices_;
  std::vector<cuda::StatisticArgs> statistics_;
  std::vector<int64_t*> batches_tracked_;  // of the host's region
  // Device memory.
  cuda::UpdateTensor* device_tensors_ = nullptr;
  cuda::UpdateBlock* all_blocks_ = nullptr;
  cuda::UpdateBlock* elementwise_ = nullptr;
  cuda::UpdateBlock* own_blocks_ = nullptr;
  double* sums_ = nullptr;  // [block_count_], then two more of parameter_blocks_
  // Page-locked: the sums, then the vector's last 16 elements.
  double* host_sums_ = nullptr;
  float* host_tail_ = nullptr;
};

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_CUDA_UPDATER_H_
