// SPDX-License-Identifier: Apache-2.0
// SGD as torch.optim.SGD defines it:
//   g = g + weight_decay w
//   v = g on the first update, else momentum v + (1 - dampening) g       (momentum > 0)
//   g = g + momentum v if nesterov, else v                               (momentum > 0)
//   w = w - lr g
// Thread-safety: immutable.
#ifndef LOCKSTEP_ENGINE_OPTIM_SGD_H_
#define LOCKSTEP_ENGINE_OPTIM_SGD_H_

#include "engine/cpu/simd/simd.h"
#include "engine/optim/optimizer.h"

namespace lockstep::engine {

class Sgd : public Optimizer {
 public:
  // Errors: InvalidArgument, as torch refuses the same settings.
  static absl::StatusOr<std::unique_ptr<Optimizer>> Make(const SgdSpec& spec, Isa isa);

  std::vector<std::string> moments(const ParameterSpec& parameter) const override;
  using Optimizer::learning_rate;
  double learning_rate() const override { return spec_.lr; }
  double weight_decay(const ParameterSpec& parameter) const override { return spec_.weight_decay; }
  std::string Describe() const override;
  void Apply(const Update& update, const float* gradient, int64_t count,
             absl::Span<float* const> moments, float* parameter) const override;

 private:
  Sgd(const SgdSpec& spec, Isa isa) : spec_(spec), simd_(SimdFor(isa)) {}

  const SgdSpec spec_;
  const SimdKernels& simd_;
};

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_OPTIM_SGD_H_
