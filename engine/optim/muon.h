// SPDX-License-Identifier: Apache-2.0
// Muon (K. Jordan et al., 2024) as torch.optim.Muon defines it, on hidden weight matrices [A, B]:
//   b = momentum b + (1 - momentum) g
//   d = momentum b + (1 - momentum) g with nesterov, else b
//   X = d / max(|d|, eps), then ns_steps times  X = a X + (b G + c G G) X  with G = X X^T and
//       (a, b, c) = (3.4445, -4.7750, 2.0315)  (Newton-Schulz: towards the nearest orthogonal one)
//   w = w - lr weight_decay w;  w = w - lr f X,  f = sqrt(max(1, A / B)), or
//       0.2 sqrt(max(A, B)) with match_rms_adamw
// torch iterates in bf16, this in fp32: the same direction with less rounding. For A > B the
// iteration works on G = X^T X, which is the same in exact arithmetic. Everything else (vectors,
// embeddings, the output head: see IsHidden) is AdamW's. Thread-safety: immutable.
#ifndef LOCKSTEP_ENGINE_OPTIM_MUON_H_
#define LOCKSTEP_ENGINE_OPTIM_MUON_H_

#include "engine/optim/adam.h"
#include "engine/optim/optimizer.h"

namespace lockstep::engine {

class Muon : public Optimizer {
 public:
  // Errors: InvalidArgument.
  static absl::StatusOr<std::unique_ptr<Optimizer>> Make(const MuonSpec& spec, Isa isa);

  // A matrix that is neither an embedding nor the output head: the model says so, and the names
  // that the ecosystem gives those are known.
  static bool IsHidden(const ParameterSpec& parameter);

  Method method(const ParameterSpec& parameter) const override;
  std::vector<std::string> moments(const ParameterSpec& parameter) const override;
  double learning_rate() const override { return spec_.lr; }
  double learning_rate(const ParameterSpec& parameter) const override;
  double weight_decay(const ParameterSpec& parameter) const override;
  std::string Describe() const override;
  size_t scratch_bytes(const ParameterSpec& parameter, const CpuTarget& target) const override;
  void Apply(const Update& update, const float* gradient, int64_t count,
             absl::Span<float* const> moments, float* parameter) const override;
  void Direct(const Update& update, const float* gradient, int64_t count,
              absl::Span<float* const> moments, float* direction) const override;
  void MoveMatrix(const Update& update, const ParameterSpec& spec, double direction_norm,
                  float* scratch, float* parameter, const CpuTarget& target,
                  ThreadPool* pool) const override;

 private:
  Muon(const MuonSpec& spec, Isa isa)
      : spec_(spec), adamw_(spec.adamw, isa), kernels_(OptimKernelsFor(isa)) {}
  bool IsMatrix(const ParameterSpec& parameter) const;

  const MuonSpec spec_;
  const Adam adamw_;
  const OptimKernels& kernels_;
};

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_OPTIM_MUON_H_
