// SPDX-License-Identifier: Apache-2.0
// The nodes of convolutions by cuDNN. Thread-safety: pure functions.
#ifndef LOCKSTEP_ENGINE_CUDA_CONV_CUDNN_H_
#define LOCKSTEP_ENGINE_CUDA_CONV_CUDNN_H_

#include <memory>

#include "engine/cuda/conv_plan.h"
#include "engine/cuda/cudnn.h"
#include "engine/cuda/cudnn_convolution.h"
#include "engine/cuda/cudnn_fused_convolution.h"
#include "engine/cuda/kernel.h"

namespace lockstep::engine::cuda {

// Returns whether cuDNN could do it with no more roundings than our own kernels: all of its
// operands are of one type and aligned; nothing is added to a result of 16 bits; the gradient of
// the filters, which is a sum in fp32, is of fp32 operands.
bool CanBeCudnn(const Operands& operands, const ConvPlan& plan);

// Returns whether it could as a graph, where 16-bit operands have fp32 sums: with a bias, or as the
// gradient of the filters. Groups are not.
bool CanBeFused(const Operands& operands, const ConvPlan& plan);

// Returns what follows the convolution of a node.
CudnnFusion FusionOf(const Operands& operands, const Node& node, const ConvPlan& plan);

// Bytes that an algorithm may use: the part of the node's scratch that the filters leave, or the
// workspace of matrix products, whichever is larger.
size_t CudnnWorkspaceBytes(const ConvPlan& plan);

// The kernel of a conv2d node or of one of its gradients. REQUIRES: CanBeCudnn.
CudaKernel PrepareCudnn(const Operands& operands, const Node& node, const ConvPlan& plan,
                        std::shared_ptr<const CudnnConvolution> convolution,
                        const CudnnAlgorithm& algorithm);

// A convolution as a graph, prepared. Members end in the opposite order: plans before their handle.
struct FusedWay {
  std::shared_ptr<const Cudnn> cudnn;
  std::shared_ptr<const CudnnFusedConvolution> convolution;
  std::shared_ptr<const CudnnPlan> plan;
};
// The same as a graph. REQUIRES: CanBeFused.
CudaKernel PrepareFused(const Operands& operands, const ConvPlan& plan, const FusedWay& way);

}  // namespace lockstep::engine::cuda

#endif  // LOCKSTEP_ENGINE_CUDA_CONV_CUDNN_H_
