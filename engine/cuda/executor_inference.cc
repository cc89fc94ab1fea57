// SPDX-License-Identifier: Apache-2.0
// What an executor on a GPU computes without gradients: evaluation, prediction, decoding; and the
// hash by which devices are told apart.
#include <algorithm>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status.h"
#include "engine/cuda/executor.h"
#include "engine/cuda/kernels/types.h"
#include "engine/exec/batches.h"
#include "engine/exec/logits.h"
#include "engine/ops/ops.h"

namespace lockstep::engine {
namespace {

// Returns whether a token may have so many positions that its gradient is a sum of pieces.
bool AddsPieces(const CompiledPlan& plan) {
  const Graph& graph = plan.program(ProgramKind::kTraining).graph;
  return std::any_of(graph.nodes().begin(), graph.nodes().end(), [&](const Node& node) {
    return node.op == &ops::kEmbeddingBackward &&
           graph.type(node.inputs[0]).elements() > cuda::kEmbeddingPiece;
  });
}

}  // namespace

absl::Status CudaExecutor::RunBlock(Fields fields, int64_t valid, Weights weights,
                                    const BlockHooks& hooks, CudaContext* context) {
  if (hooks.cancelled && hooks.cancelled()) {
    return absl::AbortedError("the evaluation was cancelled");
  }
  const TrainSpec& spec = plan_->spec();
  LS_CHECK(spec.evaluates) << "the plan has no room for evaluations";
  if (valid < 0 || valid > spec.eval_block) {
    return absl::InvalidArgumentError(
        absl::StrCat(valid, " valid samples in a block of ", spec.eval_block));
  }
  LS_RETURN_IF_ERROR(CheckIntegers(spec, fields, valid));
  LS_CHECK(weights == Weights::kCurrent || spec.ema_decay > 0) << "there are no averaged weights";
  DeviceScalars scalars;
  scalars.valid_rows = valid * plan_->targets_per_sample();
  const std::optional<Ahead> wanted =
      hooks.staged ? std::optional(Ahead{.block = true}) : std::nullopt;
  LS_ASSIGN_OR_RETURN(const int slot, Stage(fields, spec.eval_block, scalars, wanted));
  *context = ContextFor(slots_[slot], weights);
  context->valid_rows = &slots_[slot].scalars->valid_rows;
  context->once = MakesOnce(ProgramKind::kEvaluation, weights);
  LS_RETURN_IF_ERROR(
      Launch(ProgramKind::kEvaluation, slot, weights == Weights::kAverage ? 1 : 0, *context));
  if (!hooks.meanwhile) return absl::OkStatus();
  absl::Status status = hooks.meanwhile();
  // Nothing reads the caller's memory after an error.
  if (!status.ok()) status.Update(device_->Wait(device_->compute()));
  return status;
}

absl::Status CudaExecutor::Evaluate(Fields fields, int64_t valid, EvalSums* sums, Weights weights,
                                    const BlockHooks& hooks) {
  CudaContext context;
  LS_RETURN_IF_ERROR(RunBlock(fields, valid, weights, hooks, &context));
  double out[4] = {};
  LS_RETURN_IF_ERROR(
      device_->Copy(out, context.At<double>(eval_sums_), sizeof(out), device_->compute()));
  LS_RETURN_IF_ERROR(device_->Wait(device_->compute()));
  *sums = {out[0], static_cast<int64_t>(out[1]), static_cast<int64_t>(out[2]),
           static_cast<int64_t>(out[3])};
  return absl::OkStatus();
}

absl::StatusOr<std::string> CudaExecutor::DeviceHash(float* gradients) {
  LS_CHECK_EQ(committed_step(), 0) << "the weights are not the initial ones";
  LS_ASSIGN_OR_RETURN(const MadeBatch batch, MadeBatch::Make(plan_->spec()));
  const double scale = plan_->scales_loss() ? plan_->spec().loss_scale.init : 1;
  LS_RETURN_IF_ERROR(LaunchTraining(0, batch.fields(), 0, 0, scale));
  LS_RETURN_IF_ERROR(BringGradients(gradients, {}));
  const std::string hash = HashOfGradients(gradients, plan_->gradient_count());
  // The kernels differ even where these gradients happen to be equal. (Before there were pieces, a
  // token's gradient was one sum.)
  return absl::StrCat(hash, AddsPieces(*plan_) ? "-pieces" : "", warpgroups_ ? "-wgmma" : "");
}

absl::StatusOr<absl::Span<const float>> CudaExecutor::LogitsOf(ProgramKind kind,
                                                               const CudaContext& context) {
  const Logits logits = engine::LogitsOf(plan_->program(kind));
  logits_.resize(static_cast<size_t>(logits.elements));
  LS_RETURN_IF_ERROR(device_->Copy(logits_.data(), context.At<float>(logits.storage),
                                   logits_.size() * sizeof(float), device_->compute()));
  LS_RETURN_IF_ERROR(device_->Wait(device_->compute()));
  return absl::MakeConstSpan(logits_);
}

absl::StatusOr<absl::Span<const float>> CudaExecutor::Predict(Fields fields, int64_t valid,
                                                              const BlockHooks& hooks) {
  if (!plan_->spec().inference) {
    return absl::InvalidArgumentError("only a plan for inference predicts");
  }
  CudaContext context;
  LS_RETURN_IF_ERROR(RunBlock(fields, valid, Weights::kCurrent, hooks, &context));
  return LogitsOf(ProgramKind::kEvaluation, context);
}

absl::StatusOr<absl::Span<const float>> CudaExecutor::Decode(int32_t token, int64_t position) {
  LS_RETURN_IF_ERROR(CheckDecode(*plan_, token, position, decoded_));
  DeviceScalars scalars;
  scalars.scalars.token = token;
  scalars.scalars.position = static_cast<int32_t>(position);
  LS_ASSIGN_OR_RETURN(const int slot, Stage({}, 0, scalars));
  const CudaContext context = ContextFor(slots_[slot], Weights::kCurrent);
  LS_RETURN_IF_ERROR(Launch(ProgramKind::kDecode, slot, 0, context));
  decoded_ = position + 1;
  return LogitsOf(ProgramKind::kDecode, context);
}

}  // namespace lockstep::engine
