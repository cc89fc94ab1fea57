// SPDX-License-Identifier: Apache-2.0
// A convolution of 16-bit operands as a graph of cuDNN whose sums stay fp32 until all is done: with
// a bias, a residual and relu before its result is rounded once, or the gradient of its filters in
// fp32. Arrays have channels last. Thread-safety: its device's thread's.
#ifndef LOCKSTEP_ENGINE_CUDA_CUDNN_FUSED_CONVOLUTION_H_
#define LOCKSTEP_ENGINE_CUDA_CUDNN_FUSED_CONVOLUTION_H_

#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "engine/cuda/conv_plan.h"
#include "engine/cuda/cudnn_graph.h"
#include "engine/cuda/cudnn_plan.h"

namespace lockstep::engine::cuda {

// What follows a convolution, in this order. REQUIRES: something.
struct CudnnFusion {
  std::optional<Type> bias;
  bool residual = false;  // of the result's type
  bool relu = false;
};

class CudnnFusedConvolution {
 public:
  // The result, or the gradient of the filters, as `plan` says; `fusion` is of the result alone.
  // `backend` outlives it. Errors: Internal with what the library refuses.
  static absl::StatusOr<std::shared_ptr<const CudnnFusedConvolution>> Make(
      const CudnnBackend* backend, const CudnnPlace& place, const ConvPlan& plan,
      const CudnnFusion& fusion);

  const CudnnGraph& graph() const { return graph_; }

  struct Operands {
    const void* images = nullptr;
    void* filters = nullptr;  // their gradient, in fp32, is written
    void* places = nullptr;   // the result, or its gradient, which is read
    const void* bias = nullptr;
    const void* residual = nullptr;
  };
  // On the stream of `handle`.
  CudnnStatus Run(CudnnObject handle, const CudnnPlan& plan, const Operands& operands,
                  void* workspace) const;

 private:
  explicit CudnnFusedConvolution(const CudnnBackend* backend) : graph_(backend) {}
  void DescribeForward(const ConvPlan& plan);
  void DescribeFilters(const ConvPlan& plan);

  CudnnFusion fusion_;
  CudnnGraph graph_;
};

}  // namespace lockstep::engine::cuda

#endif  // LOCKSTEP_ENGINE_CUDA_CUDNN_FUSED_CONVOLUTION_H_
