// SPDX-License-Identifier: Apache-2.0
#include "engine/optim/lamb.h"

#include "absl/strings/str_format.h"
#include "common/status.h"
#include "engine/optim/adam.h"

namespace lockstep::engine {

absl::StatusOr<std::unique_ptr<Optimizer>> Lamb::Make(const LambSpec& spec, Isa isa) {
  LS_RETURN_IF_ERROR(
      CheckBetas("lamb", spec.lr, spec.beta1, spec.beta2, spec.eps, spec.weight_decay));
  return std::unique_ptr<Optimizer>(new Lamb(spec, isa));
}

std::vector<std::string> Lamb::moments(const ParameterSpec& parameter) const {
  return {"exp_avg", "exp_avg_sq"};
}

std::string Lamb::Describe() const {
  return absl::StrFormat("lamb %a %a %a %a %a", spec_.lr, spec_.beta1, spec_.beta2, spec_.eps,
                         spec_.weight_decay);
}

AdamArgs Lamb::Args(const Update& update) const {
  AdamArgs args = MomentArgs(update, spec_.beta1, spec_.beta2, spec_.eps);
  args.weight_decay = static_cast<float>(update.weight_decay);
  return args;
}

void Lamb::Measure(const Update& update, const float* gradient, int64_t count,
                   absl::Span<float* const> moments, const float* parameter,
                   NormLanes* parameter_lanes, NormLanes* direction_lanes) const {
  kernels_.lamb_measure(Args(update), gradient, count, moments[0], moments[1], parameter,
                        parameter_lanes, direction_lanes);
}

void Lamb::Move(const Update& update, double parameter_norm, double direction_norm, int64_t count,
                absl::Span<float* const> moments, float* parameter) const {
  const double ratio =
      parameter_norm > 0 && direction_norm > 0 ? parameter_norm / direction_norm : 1;
  const auto step = static_cast<float>(update.learning_rate * ratio);
  kernels_.lamb_move(Args(update), step, count, moments[0], moments[1], parameter);
}

}  // namespace lockstep::engine
