// SPDX-License-Identifier: Apache-2.0
#include "engine/ops/registry.h"

#include "common/check.h"
#include "engine/cpu/kernels.h"
#include "engine/ops/ops.h"

namespace lockstep::engine {
namespace {

constexpr OpEntry kOps[] = {
    {&ops::kInput, nullptr, nullptr},
    {&ops::kParameter, nullptr, nullptr},
    {&ops::kReshape, nullptr, nullptr},
    {&ops::kAdd, &cpu::kAdd, nullptr},
    {&ops::kBiasBackward, &cpu::kBiasBackward, nullptr},
    {&ops::kCast, &cpu::kCast, nullptr},
    {&ops::kClassificationSums, &cpu::kClassificationSums, nullptr},
    {&ops::kDeposit, &cpu::kDeposit, nullptr},
    {&ops::kLinear, &cpu::kLinear, nullptr},
    {&ops::kLinearBackwardInput, &cpu::kLinearBackwardInput, nullptr},
    {&ops::kLinearBackwardWeight, &cpu::kLinearBackwardWeight, nullptr},
    {&ops::kRelu, &cpu::kRelu, nullptr},
    {&ops::kReluBackward, &cpu::kReluBackward, nullptr},
    {&ops::kScale, &cpu::kScale, nullptr},
    {&ops::kSoftmaxCrossEntropy, &cpu::kSoftmaxCrossEntropy, nullptr},
    {&ops::kSoftmaxCrossEntropyBackward, &cpu::kSoftmaxCrossEntropyBackward, nullptr},
    {&ops::kSoftmaxCrossEntropyWithGradient, &cpu::kSoftmaxCrossEntropyWithGradient, nullptr},
    {&ops::kAddPositions, &cpu::kAddPositions, nullptr},
    {&ops::kAddPositionsBackward, &cpu::kAddPositionsBackward, nullptr},
    {&ops::kAttention, &cpu::kAttention, nullptr},
    {&ops::kAttentionBackward, &cpu::kAttentionBackward, nullptr},
    {&ops::kAttentionStep, &cpu::kAttentionStep, nullptr},
    {&ops::kDropout, &cpu::kDropout, nullptr},
    {&ops::kEmbedding, &cpu::kEmbedding, nullptr},
    {&ops::kEmbeddingBackward, &cpu::kEmbeddingBackward, nullptr},
    {&ops::kGelu, &cpu::kGelu, nullptr},
    {&ops::kGeluBackward, &cpu::kGeluBackward, nullptr},
    {&ops::kLayerNorm, &cpu::kLayerNorm, nullptr},
    {&ops::kLayerNormBackwardInput, &cpu::kLayerNormBackwardInput, nullptr},
    {&ops::kLayerNormBackwardWeight, &cpu::kLayerNormBackwardWeight, nullptr},
    {&ops::kSigmoid, &cpu::kSigmoid, nullptr},
    {&ops::kSigmoidBackward, &cpu::kSigmoidBackward, nullptr},
    {&ops::kSilu, &cpu::kSilu, nullptr},
    {&ops::kSiluBackward, &cpu::kSiluBackward, nullptr},
    {&ops::kSoftmax, &cpu::kSoftmax, nullptr},
    {&ops::kSoftmaxBackward, &cpu::kSoftmaxBackward, nullptr},
    {&ops::kTakeRows, &cpu::kTakeRows, nullptr},
    {&ops::kTakeRowsBackward, &cpu::kTakeRowsBackward, nullptr},
    {&ops::kTanh, &cpu::kTanh, nullptr},
    {&ops::kTanhBackward, &cpu::kTanhBackward, nullptr},
    {&ops::kAvgPool2d, &cpu::kAvgPool2d, nullptr},
    {&ops::kAvgPool2dBackward, &cpu::kAvgPool2dBackward, nullptr},
    {&ops::kBatchNorm, &cpu::kBatchNorm, nullptr},
    {&ops::kBatchNormBackward, &cpu::kBatchNormBackward, nullptr},
    {&ops::kBatchNormInference, &cpu::kBatchNormInference, nullptr},
    {&ops::kChannelsFirst, &cpu::kChannelsFirst, nullptr},
    {&ops::kChannelsLast, &cpu::kChannelsLast, nullptr},
    {&ops::kConv2d, &cpu::kConv2d, nullptr},
    {&ops::kConv2dBackwardInput, &cpu::kConv2dBackwardInput, nullptr},
    {&ops::kConv2dBackwardWeight, &cpu::kConv2dBackwardWeight, nullptr},
    {&ops::kFoldBatchNorm, &cpu::kFoldBatchNorm, nullptr},
    {&ops::kGlobalAveragePool, &cpu::kGlobalAveragePool, nullptr},
    {&ops::kGlobalAveragePoolBackward, &cpu::kGlobalAveragePoolBackward, nullptr},
    {&ops::kMaxPool2d, &cpu::kMaxPool2d, nullptr},
    {&ops::kMaxPool2dBackward, &cpu::kMaxPool2dBackward, nullptr},
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

}  // namespace lockstep::engine
