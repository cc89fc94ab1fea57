// SPDX-License-Identifier: Apache-2.0
// Adam (D. Kingma and J. Ba, 2015) and AdamW (I. Loshchilov and F. Hutter, 2019) as
// torch.optim.Adam and torch.optim.AdamW define them; t counts updates from 1:
//   Adam:  g = g + weight_decay w          AdamW: w = w - lr weight_decay w
//   m = beta1 m + (1 - beta1) g
//   v = beta2 v + (1 - beta2) g^2
//   w = w - lr / (1 - beta1^t) m / (sqrt(v) / sqrt(1 - beta2^t) + eps)
// Thread-safety: immutable.
#ifndef LOCKSTEP_ENGINE_OPTIM_ADAM_H_
#define LOCKSTEP_ENGINE_OPTIM_ADAM_H_

#include "engine/optim/optimizer.h"

namespace lockstep::engine {

class Adam : public Optimizer {
 public:
  // Errors: InvalidArgument, as torch refuses the same settings.
  static absl::StatusOr<std::unique_ptr<Optimizer>> Make(const AdamSpec& spec, Isa isa);
  Adam(const AdamSpec& spec, Isa isa) : spec_(spec), kernels_(OptimKernelsFor(isa)) {}

  std::vector<std::string> moments(const ParameterSpec& parameter) const override;
  using Optimizer::learning_rate;
  double learning_rate() const override { return spec_.lr; }
  double weight_decay(const ParameterSpec& parameter) const override { return spec_.weight_decay; }
  std::string Describe() const override;
  void Apply(const Update& update, const float* gradient, int64_t count,
             absl::Span<float* const> moments, float* parameter) const override;

 private:
  const AdamSpec spec_;
  const OptimKernels& kernels_;
};

// The arguments that Adam and LAMB share. Errors of the settings: see CheckBetas.
AdamArgs MomentArgs(const Optimizer::Update& update, double beta1, double beta2, double eps);
// Errors: InvalidArgument; `name` is the optimizer's.
absl::Status CheckBetas(const std::string& name, double lr, double beta1, double beta2, double eps,
                        double weight_decay);

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_OPTIM_ADAM_H_
