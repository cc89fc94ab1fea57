// SPDX-License-Identifier: Apache-2.0
// What the engine and the CUDA module say to each other in about the update: types.h's rules.
// Thread-safety: values.
#ifndef LOCKSTEP_ENGINE_CUDA_KERNELS_UPDATE_TYPES_H_
#define LOCKSTEP_ENGINE_CUDA_KERNELS_UPDATE_TYPES_H_

#include "engine/cuda/kernels/types.h"

namespace lockstep::engine::cuda {

// One parameter, as the update sees it.
struct UpdateTensor {
  int64_t gradient = 0;  // element of the gradient vector
  int64_t count = 0;
  int64_t first = 0;  // of the parameter's elements, where a part of it is meant
  View weights;
  View copy;  // of fp32 weights in 16 bits, written with them; no data: there is none
  float* moments[2] = {nullptr, nullptr};
  float* average = nullptr;
  float* direction = nullptr;  // Muon's, where it is made
  double learning_rate = 0;    // before the schedule
  double weight_decay = 0;
  uint64_t rounding_key = 0;
  int64_t first_block = 0;  // of the sums
  int64_t blocks = 0;
};
// Elements [begin, end) of tensor `tensor`, or of the gradient vector when that is -1.
struct UpdateBlock {
  int32_t tensor = 0;
  int64_t begin = 0;
  int64_t end = 0;
};
inline constexpr int64_t kUpdateBlock = 65536;

// What changes from one update to the next, in device memory: launches stay the same.
struct UpdateNow {
  // Set by the host before the update.
  int64_t index = 0;      // updates before this one
  double schedule = 1;    // factor of the learning rate
  double loss_scale = 1;  // that the gradients were made with
  float correction1 = 1;  // Adam's
  float correction2 = 1;
  // Made of the gradients by the device.
  double scale = 1;   // of the gradients
  int32_t skips = 0;  // 1: they are not finite, or there was no target; no kernel changes anything
};
// Looks at the gradients' sums as exec/updater.h does.
struct DecideArgs {
  const double* sums = nullptr;  // of squares, by block
  int64_t parameter_blocks = 0;  // the first ones, which make the norm
  int64_t block_count = 0;
  const float* loss = nullptr;     // the vector's entries
  const float* targets = nullptr;  // [2], high and low
  int64_t radix = 0;               // of these
  double nominal_targets = 0;
  double clip_norm = 0;  // 0: not clipped
  UpdateNow* now = nullptr;
};

// kTake: the weights are what lies where their gradients do.
enum class Rule : int32_t { kSgd, kAdam, kLambMeasure, kLambMove, kMuonDirection, kTake };
// One launch over `blocks`; the formulas are those of optim/.
struct UpdateArgs {
  Rule rule = Rule::kSgd;
  const UpdateTensor* tensors = nullptr;
  const UpdateBlock* blocks = nullptr;
  int64_t block_count = 0;
  const float* gradients = nullptr;
  // Not null: new weights go here, where their gradients are in the vector, and not to the weights;
  // averages stay. It may be the vector itself.
  float* beside = nullptr;
  int64_t first_block = 0;           // of these blocks among those of the sums
  double* parameter_sums = nullptr;  // LAMB: by block
  double* direction_sums = nullptr;
  const UpdateNow* now = nullptr;
  double ema_rate = 0;  // 1 - decay; averages are kept where there is memory for them
  float momentum = 0;   // SGD, Muon: 1 - momentum is `rate1`
  float keep = 1;       // SGD: 1 - dampening
  bool nesterov = false;
  bool decoupled = false;
  float rate1 = 0;
  float beta2 = 0;
  float rate2 = 0;
  float eps = 0;
};
// sums[i] = sum of squares of block i of the gradients (or of `values`), in fp64 and a fixed order.
struct SquaresArgs {
  const UpdateTensor* tensors = nullptr;
  const UpdateBlock* blocks = nullptr;
  int64_t block_count = 0;
  const float* gradients = nullptr;
  double* sums = nullptr;
};
// x /= max(|x|, eps), |x|^2 being the sum of `sums`.
struct NormaliseArgs {
  float* x = nullptr;
  int64_t count = 0;
  const double* sums = nullptr;
  int64_t sum_count = 0;
  double eps = 0;
};
// w = (1 - lr decay) w - lr factor x (Muon's last step), rounded and averaged as any update.
struct MoveArgs {
  UpdateTensor tensor;
  const float* x = nullptr;
  double factor = 1;
  const UpdateNow* now = nullptr;
  double ema_rate = 0;
};
// running = (1 - momentum) running + momentum sum / batches.
struct StatisticArgs {
  const float* sums = nullptr;
  float* running = nullptr;
  int64_t count = 0;
  double momentum = 0;
  double batches = 1;
  const UpdateNow* now = nullptr;
};

}  // namespace lockstep::engine::cuda

#endif  // LOCKSTEP_ENGINE_CUDA_KERNELS_UPDATE_TYPES_H_
