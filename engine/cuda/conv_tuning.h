// SPDX-License-Identifier: Apache-2.0
// Whether a convolution is done by our own kernels or by one of cuDNN's algorithms, as
// cudnn_tuning.h chooses. The tolerance is less than what one product too few makes of a sum: of
// 2^20 products in fp32, of 2^14 in 16 bits and tf32.
// Thread-safety: its device's thread's.
#ifndef LOCKSTEP_ENGINE_CUDA_CONV_TUNING_H_
#define LOCKSTEP_ENGINE_CUDA_CONV_TUNING_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/cuda/conv_plan.h"
#include "engine/cuda/cudnn_tuning.h"
#include "engine/cuda/kernel.h"

namespace lockstep::engine::cuda {

// A convolution as one word, by which files name it: equal for equal ones.
std::string DescribeConvolution(const Operands& operands, const Node& node, const ConvPlan& plan,
                                bool tf32);

// "" when `made`, values of `type`, are `expected` but for the rounding of sums of `terms` products
// and of the results; else what is wrong. REQUIRES: as many of both.
std::string Disagreement(absl::Span<const float> made, absl::Span<const float> expected, Type type,
                         int64_t terms, bool tf32);

// The kernel of the node, `own` being that of our own kernels (cudnn_tuning.h). Blocks while it is
// measured. Errors: those of CudnnTuning::Choose.
absl::StatusOr<CudaKernel> ChooseConvolution(CudnnTuning* tuning, const Operands& operands,
                                             const Node& node, const ConvPlan& plan, bool tf32,
                                             CudaKernel own);

}  // namespace lockstep::engine::cuda

#endif  // LOCKSTEP_ENGINE_CUDA_CONV_TUNING_H_
