// SPDX-License-Identifier: Apache-2.0
#include "engine/optim/sgd.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace lockstep::engine {

absl::StatusOr<std::unique_ptr<Optimizer>> Sgd::Make(const SgdSpec& spec, Isa isa) {
  const auto check = [](const char* name, double value, bool below_one) -> absl::Status {
    if (std::isfinite(value) && value >= 0 && (!below_one || value < 1)) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("sgd.", name, " is ", value, ": it must be ",
                                                   below_one ? "in [0, 1)" : "0 or more"));
  };
  for (const absl::Status& status :
       {check("lr", spec.lr, false), check("momentum", spec.momentum, true),
        check("weight_decay", spec.weight_decay, false)}) {
    if (!status.ok()) return status;
  }
  if (!std::isfinite(spec.dampening)) {
    return absl::InvalidArgumentError("sgd.dampening must be a finite number");
  }
  if (spec.nesterov && (spec.momentum <= 0 || spec.dampening != 0)) {
    return absl::InvalidArgumentError("sgd.nesterov needs a momentum above 0 and no dampening");
  }
  return std::unique_ptr<Optimizer>(new Sgd(spec, isa));
}

std::vector<std::string> Sgd::moments(const ParameterSpec& parameter) const {
  if (spec_.momentum > 0) return {"momentum"};
  return {};
}

std::string Sgd::Describe() const {
  return absl::StrFormat("sgd %a %a %a %a %d", spec_.lr, spec_.momentum, spec_.dampening,
                         spec_.weight_decay, spec_.nesterov);
}

void Sgd::Apply(const Update& update, const float* gradient, int64_t count,
                absl::Span<float* const> moments, float* parameter) const {
  SgdArgs args;
  args.scale = static_cast<float>(update.gradient_scale);
  args.lr = static_cast<float>(update.learning_rate);
  args.momentum = static_cast<float>(spec_.momentum);
  args.keep = static_cast<float>(1 - spec_.dampening);
  args.weight_decay = static_cast<float>(update.weight_decay);
  args.nesterov = spec_.nesterov;
  args.first = update.index == 0;
  simd_.sgd(args, gradient, count, moments.empty() ? nullptr : moments[0], parameter);
}

}  // namespace lockstep::engine
