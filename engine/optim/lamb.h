// SPDX-License-Identifier: Apache-2.0
// LAMB (Y. You et al., "Large Batch Optimization for Deep Learning", 2020, algorithm 2 with phi(z)
// = z), a trust ratio for each parameter:
//   m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2
//   u = (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps) + weight_decay w
//   w = w - lr ratio u,  ratio = |w| / |u|, or 1 where one of the norms is 0
// Thread-safety: immutable.
#ifndef LOCKSTEP_ENGINE_OPTIM_LAMB_H_
#define LOCKSTEP_ENGINE_OPTIM_LAMB_H_

#include "engine/optim/optimizer.h"

namespace lockstep::engine {

class Lamb : public Optimizer {
 public:
  // Errors: InvalidArgument.
  static absl::StatusOr<std::unique_ptr<Optimizer>> Make(const LambSpec& spec, Isa isa);

  Method method(const ParameterSpec& parameter) const override { return Method::kTrustRatio; }
  std::vector<std::string> moments(const ParameterSpec& parameter) const override;
  using Optimizer::learning_rate;
  double learning_rate() const override { return spec_.lr; }
  double weight_decay(const ParameterSpec& parameter) const override { return spec_.weight_decay; }
  std::string Describe() const override;
  void Measure(const Update& update, const float* gradient, int64_t count,
               absl::Span<float* const> moments, const float* parameter, NormLanes* parameter_lanes,
               NormLanes* direction_lanes) const override;
  void Move(const Update& update, double parameter_norm, double direction_norm, int64_t count,
            absl::Span<float* const> moments, float* parameter) const override;

 private:
  Lamb(const LambSpec& spec, Isa isa) : spec_(spec), kernels_(OptimKernelsFor(isa)) {}
  AdamArgs Args(const Update& update) const;

  const LambSpec spec_;
  const OptimKernels& kernels_;
};

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_OPTIM_LAMB_H_
