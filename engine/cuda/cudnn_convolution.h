// SPDX-License-Identifier: Apache-2.0
// A convolution, or one of its gradients, as cuDNN does it: images [n, h, w, c], filters
// [o, kh, kw, c / groups], all of one type, with fp32 sums. Thread-safety: its device's thread's.
#ifndef LOCKSTEP_ENGINE_CUDA_CUDNN_CONVOLUTION_H_
#define LOCKSTEP_ENGINE_CUDA_CUDNN_CONVOLUTION_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/cuda/conv_plan.h"
#include "engine/cuda/cudnn.h"
#include "engine/cuda/tuning.h"

namespace lockstep::engine::cuda {

class CudnnConvolution {
 public:
  // That of `plan`, whose `factors` is the type of all operands. fp32 factors are not rounded but
  // with `tf32`. Errors: Internal with the library's reason.
  static absl::StatusOr<std::shared_ptr<const CudnnConvolution>> Make(
      std::shared_ptr<const Cudnn> cudnn, const ConvPlan& plan, bool tf32);
  ~CudnnConvolution();
  CudnnConvolution(const CudnnConvolution&) = delete;
  CudnnConvolution& operator=(const CudnnConvolution&) = delete;

  // The library's algorithms that give the same bits in each run and need no more than
  // `workspace_bytes`; those that it thinks quickest first. May be none. Errors: Internal with the
  // library's reason.
  absl::StatusOr<std::vector<CudnnAlgorithm>> Algorithms(size_t workspace_bytes) const;
  // Returns whether the library still has it, with no more workspace than it says.
  bool Has(const CudnnAlgorithm& algorithm) const;
  // result = the convolution, on the device's stream of kernels. Forward the operands are images
  // and filters, for the gradient of the images filters and dy, for that of the filters images and
  // dy.
  Code Run(const CudnnAlgorithm& algorithm, const void* first, const void* second, void* result,
           void* workspace) const;

 private:
  explicit CudnnConvolution(std::shared_ptr<const Cudnn> cudnn) : cudnn_(std::move(cudnn)) {}
  CudnnStatus Describe(const ConvPlan& plan, bool tf32);

  const std::shared_ptr<const Cudnn> cudnn_;
  const CudnnDirection* direction_ = nullptr;
  CudnnObject images_ = nullptr;  // x or dx
  CudnnObject filters_ = nullptr;
  CudnnObject places_ = nullptr;  // y or dy
  CudnnObject convolution_ = nullptr;
  // In the library's order.
  CudnnObject first_ = nullptr;
  CudnnObject second_ = nullptr;
  CudnnObject result_ = nullptr;
};

}  // namespace lockstep::engine::cuda

#endif  // LOCKSTEP_ENGINE_CUDA_CUDNN_CONVOLUTION_H_
