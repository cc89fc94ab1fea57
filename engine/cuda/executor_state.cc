// SPDX-License-Identifier: Apache-2.0
// What changes the state of an executor on a GPU: it is brought there and back, and updated.
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status.h"
#include "engine/cuda/executor.h"

namespace lockstep::engine {
namespace {

constexpr const char* kUpdate = "the update of step";

}  // namespace

absl::Status CudaExecutor::CopyState() {
  const cuda::Stream stream = device_->compute();
  const StateRange& moments = device_state_.moments;
  LS_RETURN_IF_ERROR(device_->Copy(device_state_.base, state_.base(), moments.begin, stream));
  LS_RETURN_IF_ERROR(device_->Copy(device_state_.base + moments.begin, state_.base() + moments.end,
                                   plan_->state_bytes() - moments.end, stream));
  LS_RETURN_IF_ERROR(updater_->moments().Upload());
  LS_RETURN_IF_ERROR(device_->Wait(stream));
  published_ = true;
  resident_step_ = -1;
  pending_.reset();
  return absl::OkStatus();
}

absl::Status CudaExecutor::Noted(absl::Status status, const char* what, int64_t step) {
  if (status.ok() || !failed_.ok()) return status.ok() ? status : failed_;
  failed_ = absl::Status(status.code(),
                         absl::StrCat(what, step < 0 ? "" : absl::StrCat(" ", step), ": ",
                                      status.message(), "; the state of this worker is lost"));
  return failed_;
}

CudaExecutor::Constants CudaExecutor::TakeConstants() {
  const Constants now = std::exchange(constants_, std::nullopt);
  const Constants training{{ProgramKind::kTraining, Weights::kCurrent}};
  // Who looks at nodes sees them made in each step.
  const bool written = observer_ == nullptr && !plan_->weight_copies().empty();
  return written && now == training ? now : std::nullopt;
}

bool CudaExecutor::MakesOnce(ProgramKind kind, Weights weights) {
  const std::pair<ProgramKind, Weights> wanted{kind, weights};
  if (constants_ == wanted) return false;
  constants_.reset();
  if (plan_->program(kind).memory.once.empty()) return false;
  constants_ = wanted;
  return true;
}

void CudaExecutor::Upload() {
  constants_.reset();
  updater_->ForgetBegun();
  Noted(CopyState(), "taking the state").IgnoreError();  // the next call that can says it
}

void CudaExecutor::InitState() {
  host_updater_.InitState();
  Upload();
}

void* CudaExecutor::BeginLoad() {
  constants_.reset();
  state_.Open();
  return state_.base();
}

void CudaExecutor::EndLoad() {
  state_.Close();
  Upload();
}

absl::Status CudaExecutor::PublishState() {
  LS_RETURN_IF_ERROR(failed_);
  if (published_) return absl::OkStatus();
  const StateRegion::Writing writing(&state_);
  const cuda::Stream stream = device_->compute();
  for (const auto& [begin, end] : device_owned_) {
    LS_RETURN_IF_ERROR(
        device_->Copy(state_.base() + begin, device_state_.At(begin), end - begin, stream));
  }
  LS_RETURN_IF_ERROR(updater_->moments().Publish());
  LS_RETURN_IF_ERROR(device_->Wait(stream));
  published_ = true;
  return absl::OkStatus();
}

// ---- updates ----

absl::Status CudaExecutor::TakeReduced(int64_t step, absl::Span<const GradientSlice> reduced) {
  LS_RETURN_IF_ERROR(LaunchPending());
  if (resident_step_ == step) return absl::OkStatus();
  for (const GradientSlice& slice : reduced) {
    LS_RETURN_IF_ERROR(device_->Copy(gradients_ + slice.begin, slice.data,
                                     static_cast<size_t>(slice.end - slice.begin) * sizeof(float),
                                     device_->compute()));
  }
  return absl::OkStatus();
}

absl::StatusOr<StepResult> CudaExecutor::Update(int64_t step,
                                                absl::Span<const GradientSlice> reduced) {
  LS_RETURN_IF_ERROR(failed_);
  const bool joins = pending_.has_value() && pending_->step == step && resident_step_ == step;
  if (!joins) LS_RETURN_IF_ERROR(Noted(TakeReduced(step, reduced), kUpdate, step));
  resident_step_ = -1;
  const Constants constants = TakeConstants();
  absl::StatusOr<StepResult> result = joins ? UpdatePending(step) : updater_->Update(step);
  LS_RETURN_IF_ERROR(Noted(result.status(), kUpdate, step));
  if (!result->skipped) published_ = false;
  constants_ = constants;
  return result;
}

absl::StatusOr<StepResult> CudaExecutor::UpdatePending(int64_t step) {
  const Pending next = *std::exchange(pending_, std::nullopt);
  absl::StatusOr<StepResult> result = updater_->UpdateAfter(
      step, next.slot, [&] { return runner(ProgramKind::kTraining).RunAll(next.context); },
      [this] { return StageLater(); });
  if (!result.ok()) return result;
  // The host has waited for the whole step, so its batch is read.
  LS_RETURN_IF_ERROR(device_->Check(
      device_->runtime().record_event(slots_[next.slot].used, device_->compute()), "a batch"));
  return result;
}

absl::Status CudaExecutor::HoldMoments(std::vector<HeldRange> held) {
  LS_RETURN_IF_ERROR(failed_);
  host_updater_.HoldMoments(held);
  return Noted(updater_->HoldMoments(std::move(held)), "taking the optimizer's moments");
}

absl::StatusOr<StepResult> CudaExecutor::BeginUpdate(int64_t step,
                                                     absl::Span<const GradientSlice> reduced) {
  LS_RETURN_IF_ERROR(failed_);
  LS_RETURN_IF_ERROR(Noted(TakeReduced(step, reduced), kUpdate, step));
  resident_step_ = -1;
  constants_ = TakeConstants();
  absl::StatusOr<StepResult> result = updater_->BeginUpdate(step);
  LS_RETURN_IF_ERROR(Noted(result.status(), kUpdate, step));
  if (!result->skipped) published_ = false;
  return result;
}

absl::Status CudaExecutor::HoldSums(std::vector<int> blocks) {
  LS_RETURN_IF_ERROR(failed_);
  return Noted(updater_->HoldSums(std::move(blocks)), "dealing the sums of gradients");
}

absl::Status CudaExecutor::SumSquares(int64_t step, absl::Span<const GradientSlice> reduced,
                                      absl::Span<double> sums) {
  LS_RETURN_IF_ERROR(failed_);
  resident_step_ = -1;
  LS_RETURN_IF_ERROR(Noted(TakeReduced(step, reduced), kUpdate, step));
  LS_RETURN_IF_ERROR(Noted(updater_->SumSquares(sums), kUpdate, step));
  resident_step_ = step;
  return absl::OkStatus();
}

absl::StatusOr<StepResult> CudaExecutor::BeginUpdateWith(int64_t step,
                                                         absl::Span<const double> sums) {
  LS_RETURN_IF_ERROR(failed_);
  LS_CHECK_EQ(resident_step_, step) << "whose squares were summed";
  resident_step_ = -1;
  constants_ = TakeConstants();
  absl::StatusOr<StepResult> result = updater_->BeginUpdate(step, sums);
  LS_RETURN_IF_ERROR(Noted(result.status(), kUpdate, step));
  if (!result->skipped) published_ = false;
  return result;
}

absl::Status CudaExecutor::FinishUpdate(int64_t step, absl::Span<const GradientSlice> weights) {
  LS_RETURN_IF_ERROR(failed_);
  const Constants constants = TakeConstants();
  published_ = false;
  LS_RETURN_IF_ERROR(Noted(updater_->FinishUpdate(step, weights), kUpdate, step));
  constants_ = constants;
  return absl::OkStatus();
}

}  // namespace lockstep::engine
