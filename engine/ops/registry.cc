// SPDX-License-Identifier: Apache-2.0
#include "engine/ops/registry.h"

#include "common/check.h"
#include "engine/cpu/kernels.h"
#include "engine/cuda/kernels.h"
#include "engine/ops/ops.h"

namespace lockstep::engine {
namespace {

constexpr OpEntry kOps[] = {
    {&ops::kInput, nullptr, nullptr},
    {&ops::kParameter, nullptr, nullptr},
    {&ops::kReshape, nullptr, nullptr},
    {&ops::kAdd, &cpu::kAdd, &cuda::kAdd},
    {&ops::kBiasBackward, &cpu::kBiasBackward, &cuda::kBiasBackward},
    {&ops::kCast, &cpu::kCast, &cuda::kCast},
    {&ops::kClassificationSums, &cpu::kClassificationSums, &cuda::kClassificationSums},
    {&ops::kDeposit, &cpu::kDeposit, &cuda::kDeposit},
    {&ops::kLinear, &cpu::kLinear, &cuda::kLinear},
    {&ops::kLinearBackwardInput, &cpu::kLinearBackwardInput, &cuda::kLinearBackwardInput},
    {&ops::kLinearBackwardWeight, &cpu::kLinearBackwardWeight, &cuda::kLinearBackwardWeight},
    {&ops::kLinearSoftmaxCrossEntropy, &cpu::kLinearSoftmaxCrossEntropy, nullptr},
    {&ops::kQuantizeFp8, &cpu::kQuantizeFp8, &cuda::kQuantizeFp8},
    {&ops::kRelu, &cpu::kRelu, &cuda::kRelu},
    {&ops::kReluBackward, &cpu::kReluBackward, &cuda::kReluBackward},
    {&ops::kScale, &cpu::kScale, &cuda::kScale},
    {&ops::kSoftmaxCrossEntropy, &cpu::kSoftmaxCrossEntropy, &cuda::kSoftmaxCrossEntropy},
    {&ops::kSoftmaxCrossEntropyBackward, &cpu::kSoftmaxCrossEntropyBackward,
     &cuda::kSoftmaxCrossEntropyBackward},
    {&ops::kSoftmaxCrossEntropyWithGradient, &cpu::kSoftmaxCrossEntropyWithGradient,
     &cuda::kSoftmaxCrossEntropyWithGradient},
    {&ops::kAddPositions, &cpu::kAddPositions, &cuda::kAddPositions},
    {&ops::kAddPositionsBackward, &cpu::kAddPositionsBackward, &cuda::kAddPositionsBackward},
    {&ops::kAttention, &cpu::kAttention, &cuda::kAttention},
    {&ops::kAttentionBackward, &cpu::kAttentionBackward, &cuda::kAttentionBackward},
    {&ops::kAttentionStep, &cpu::kAttentionStep, &cuda::kAttentionStep},
    {&ops::kDropout, &cpu::kDropout, &cuda::kDropout},
    {&ops::kEmbedding, &cpu::kEmbedding, &cuda::kEmbedding},
    {&ops::kEmbeddingBackward, &cpu::kEmbeddingBackward, &cuda::kEmbeddingBackward},
    {&ops::kGelu, &cpu::kGelu, &cuda::kGelu},
    {&ops::kGeluBackward, &cpu::kGeluBackward, &cuda::kGeluBackward},
    {&ops::kLayerNorm, &cpu::kLayerNorm, &cuda::kLayerNorm},
    {&ops::kLayerNormBackwardInput, &cpu::kLayerNormBackwardInput, &cuda::kLayerNormBackwardInput},
    {&ops::kLayerNormBackwardWeight, &cpu::kLayerNormBackwardWeight,
     &cuda::kLayerNormBackwardWeight},
    {&ops::kSigmoid, &cpu::kSigmoid, &cuda::kSigmoid},
    {&ops::kSigmoidBackward, &cpu::kSigmoidBackward, &cuda::kSigmoidBackward},
    {&ops::kSilu, &cpu::kSilu, &cuda::kSilu},
    {&ops::kSiluBackward, &cpu::kSiluBackward, &cuda::kSiluBackward},
    {&ops::kSoftmax, &cpu::kSoftmax, &cuda::kSoftmax},
    {&ops::kSoftmaxBackward, &cpu::kSoftmaxBackward, &cuda::kSoftmaxBackward},
    {&ops::kTakeRows, &cpu::kTakeRows, &cuda::kTakeRows},
    {&ops::kTakeRowsBackward, &cpu::kTakeRowsBackward, &cuda::kTakeRowsBackward},
    {&ops::kTanh, &cpu::kTanh, &cuda::kTanh},
    {&ops::kTanhBackward, &cpu::kTanhBackward, &cuda::kTanhBackward},
    {&ops::kAvgPool2d, &cpu::kAvgPool2d, &cuda::kAvgPool2d},
    {&ops::kAvgPool2dBackward, &cpu::kAvgPool2dBackward, &cuda::kAvgPool2dBackward},
    {&ops::kBatchNorm, &cpu::kBatchNorm, &cuda::kBatchNorm},
    {&ops::kBatchNormBackward, &cpu::kBatchNormBackward, &cuda::kBatchNormBackward},
    {&ops::kBatchNormInference, &cpu::kBatchNormInference, &cuda::kBatchNormInference},
    {&ops::kChannelsFirst, &cpu::kChannelsFirst, &cuda::kChannelsFirst},
    {&ops::kChannelsLast, &cpu::kChannelsLast, &cuda::kChannelsLast},
    {&ops::kConv2d, &cpu::kConv2d, &cuda::kConv2d},
    {&ops::kConv2dBackwardInput, &cpu::kConv2dBackwardInput, &cuda::kConv2dBackwardInput},
    {&ops::kConv2dBackwardWeight, &cpu::kConv2dBackwardWeight, &cuda::kConv2dBackwardWeight},
    {&ops::kConv2dMaxPool, &cpu::kConv2dMaxPool, &cuda::kConv2dMaxPool},
    {&ops::kConv2dMaxPoolBackwardWeight, &cpu::kConv2dMaxPoolBackwardWeight,
     &cuda::kConv2dMaxPoolBackwardWeight},
    {&ops::kFoldBatchNorm, &cpu::kFoldBatchNorm, &cuda::kFoldBatchNorm},
    {&ops::kGlobalAveragePool, &cpu::kGlobalAveragePool, &cuda::kGlobalAveragePool},
    {&ops::kGlobalAveragePoolBackward, &cpu::kGlobalAveragePoolBackward,
     &cuda::kGlobalAveragePoolBackward},
    {&ops::kMaxPool2d, &cpu::kMaxPool2d, &cuda::kMaxPool2d},
    {&ops::kMaxPool2dBackward, &cpu::kMaxPool2dBackward, &cuda::kMaxPool2dBackward},
    {&ops::kMaxUnpool2d, &cpu::kMaxUnpool2d, &cuda::kMaxUnpool2d},
};

}  // namespace

absl::Span<const OpEntry> AllOps() { return kOps; }

const OpDef* FindOp(std::string_view name) {
  for (const OpEntry& entry : kOps) {
    if (entry.op->name == name) return entry.op;
  }
  return nullptr;
}

const CpuKernelDef& CpuKernelOf(const OpDef& op) {
  for (const OpEntry& entry : kOps) {
    if (entry.op != &op) continue;
    LS_CHECK(entry.cpu != nullptr) << op.name;
    return *entry.cpu;
  }
  LS_CHECK(false) << op.name << " is not of the table";
  __builtin_unreachable();
}

const CudaKernelDef& CudaKernelOf(const OpDef& op) {
  for (const OpEntry& entry : kOps) {
    if (entry.op != &op) continue;
    LS_CHECK(entry.cuda != nullptr) << op.name;
    return *entry.cuda;
  }
  LS_CHECK(false) << op.name << " is not of the table";
  __builtin_unreachable();
}

}  // namespace lockstep::engine
