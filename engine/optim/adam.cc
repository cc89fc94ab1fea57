// SPDX-License-Identifier: Apache-2.0
#include "engine/optim/adam.h"

#include <cmath>

#include "absl/strings/str_format.h"
#include "common/status.h"
#include "engine/math/math.h"

namespace lockstep::engine {

absl::Status CheckBetas(const std::string& name, double lr, double beta1, double beta2, double eps,
                        double weight_decay) {
  LS_RETURN_IF_ERROR(CheckSetting((name + ".lr").c_str(), lr, false));
  LS_RETURN_IF_ERROR(CheckSetting((name + ".beta1").c_str(), beta1, true));
  LS_RETURN_IF_ERROR(CheckSetting((name + ".beta2").c_str(), beta2, true));
  LS_RETURN_IF_ERROR(CheckSetting((name + ".eps").c_str(), eps, false));
  return CheckSetting((name + ".weight_decay").c_str(), weight_decay, false);
}

AdamArgs MomentArgs(const Optimizer::Update& update, double beta1, double beta2, double eps) {
  const double t = static_cast<double>(update.index + 1);
  AdamArgs args;
  args.scale = static_cast<float>(update.gradient_scale);
  args.rate1 = static_cast<float>(1 - beta1);
  args.beta2 = static_cast<float>(beta2);
  args.rate2 = static_cast<float>(1 - beta2);
  args.correction1 = static_cast<float>(1 / (1 - Power(beta1, t)));
  args.correction2 = static_cast<float>(1 / std::sqrt(1 - Power(beta2, t)));
  args.eps = static_cast<float>(eps);
  return args;
}

absl::StatusOr<std::unique_ptr<Optimizer>> Adam::Make(const AdamSpec& spec, Isa isa) {
  LS_RETURN_IF_ERROR(CheckBetas(spec.decoupled ? "adamw" : "adam", spec.lr, spec.beta1, spec.beta2,
                                spec.eps, spec.weight_decay));
  return std::unique_ptr<Optimizer>(new Adam(spec, isa));
}

std::vector<std::string> Adam::moments(const ParameterSpec& parameter) const {
  return {"exp_avg", "exp_avg_sq"};
}

std::string Adam::Describe() const {
  return absl::StrFormat("adam %a %a %a %a %a %d", spec_.lr, spec_.beta1, spec_.beta2, spec_.eps,
                         spec_.weight_decay, spec_.decoupled);
}

void Adam::Apply(const Update& update, const float* gradient, int64_t count,
                 absl::Span<float* const> moments, float* parameter) const {
  AdamArgs args = MomentArgs(update, spec_.beta1, spec_.beta2, spec_.eps);
  args.lr = static_cast<float>(update.learning_rate);
  if (spec_.decoupled) {
    args.keep = static_cast<float>(1 - update.learning_rate * update.weight_decay);
  } else {
    args.l2 = static_cast<float>(update.weight_decay);
  }
  kernels_.adam(args, gradient, count, moments[0], moments[1], parameter);
}

}  // namespace lockstep::engine
