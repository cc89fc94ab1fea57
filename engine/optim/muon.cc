// SPDX-License-Identifier: Apache-2.0
#include "engine/optim/muon.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/status.h"
#include "engine/cpu/gemm.h"
#include "engine/optim/groups.h"

namespace lockstep::engine {
namespace {

// Jordan's coefficients: the steepest slope at 0 of a quintic that stays near 1 on (0, 1].
constexpr float kA = 3.4445f, kB = -4.7750f, kC = 2.0315f;

constexpr const char* kNotHidden[] = {"embed", "wte", "wpe", "lm_head", "classifier"};

// The Newton-Schulz iteration's buffers and products, in floats from the start of the scratch.
struct Iteration {
  Iteration(const ParameterSpec& parameter, const CpuTarget& target)
      : rows(parameter.shape[0]),
        columns(parameter.shape[1]),
        side(std::min(rows, columns)),
        gram(rows > columns ? GemmShape{side, side, rows, true, false}
                            : GemmShape{side, side, columns, false, true},
             target.isa, target.threads),
        square({side, side, side}, target.isa, target.threads),
        step({rows, columns, side}, target.isa, target.threads) {
    const auto align = [](int64_t floats) { return (floats + 15) / 16 * 16; };
    next = align(rows * columns);
    g = 2 * next;
    gg = g + align(side * side);
    work = gg + align(side * side);
    const size_t most =
        std::max({gram.scratch_bytes(), square.scratch_bytes(), step.scratch_bytes()});
    bytes = static_cast<size_t>(work) * sizeof(float) + (most + 63) / 64 * 64;
  }

  // Makes X (at x) nearly orthogonal; the result is at the pointer that is returned.
  float* Run(int steps, float* scratch, const SimdKernels& simd, ThreadPool* pool) const {
    float* x = scratch;
    float* other = scratch + next;
    const int64_t squares = side * side;
    for (int i = 0; i < steps; ++i) {
      gram.Run(x, x, scratch + g, false, {}, scratch + work, pool);
      square.Run(scratch + g, scratch + g, scratch + gg, false, {}, scratch + work, pool);
      // gg = b g + c gg
      simd.scale(scratch + gg, kC, squares, false, scratch + gg);
      simd.scale(scratch + g, kB, squares, true, scratch + gg);
      const float* a = rows > columns ? x : scratch + gg;
      const float* b = rows > columns ? scratch + gg : x;
      step.Run(a, b, other, false, {}, scratch + work, pool);
      simd.scale(x, kA, rows * columns, true, other);
      std::swap(x, other);
    }
    return x;
  }

  int64_t rows, columns, side;
  Gemm gram, square, step;
  int64_t next = 0, g = 0, gg = 0, work = 0;
  size_t bytes = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Optimizer>> Muon::Make(const MuonSpec& spec, Isa isa) {
  LS_RETURN_IF_ERROR(CheckSetting("muon.lr", spec.lr, false));
  LS_RETURN_IF_ERROR(CheckSetting("muon.momentum", spec.momentum, true));
  LS_RETURN_IF_ERROR(CheckSetting("muon.weight_decay", spec.weight_decay, false));
  LS_RETURN_IF_ERROR(CheckSetting("muon.eps", spec.eps, false));
  if (spec.ns_steps < 1 || spec.ns_steps > 99) {
    return absl::InvalidArgumentError(
        absl::StrCat("muon.ns_steps is ", spec.ns_steps, ": it must be from 1 to 99"));
  }
  LS_RETURN_IF_ERROR(CheckBetas("muon.adamw", spec.adamw.lr, spec.adamw.beta1, spec.adamw.beta2,
                                spec.adamw.eps, spec.adamw.weight_decay));
  return std::unique_ptr<Optimizer>(new Muon(spec, isa));
}

bool Muon::IsHidden(const ParameterSpec& parameter) {
  if (parameter.shape.size() != 2 || !parameter.hidden) return false;
  return std::none_of(std::begin(kNotHidden), std::end(kNotHidden),
                      [&](const char* part) { return absl::StrContains(parameter.name, part); });
}

bool Muon::IsMatrix(const ParameterSpec& parameter) const {
  return IsHidden(parameter) &&
         std::none_of(spec_.adamw_match.begin(), spec_.adamw_match.end(),
                      [&](const std::string& glob) { return Matches(glob, parameter.name); });
}

Optimizer::Method Muon::method(const ParameterSpec& parameter) const {
  return IsMatrix(parameter) ? Method::kMatrix : Method::kElementwise;
}

std::vector<std::string> Muon::moments(const ParameterSpec& parameter) const {
  if (IsMatrix(parameter)) return {"momentum"};
  return adamw_.moments(parameter);
}

double Muon::learning_rate(const ParameterSpec& parameter) const {
  return IsMatrix(parameter) ? spec_.lr : spec_.adamw.lr;
}

double Muon::weight_decay(const ParameterSpec& parameter) const {
  return IsMatrix(parameter) ? spec_.weight_decay : spec_.adamw.weight_decay;
}

std::string Muon::Describe() const {
  return absl::StrFormat("muon %a %a %a %a %d %d %d [%s] ", spec_.lr, spec_.momentum,
                         spec_.weight_decay, spec_.eps, spec_.nesterov, spec_.ns_steps,
                         spec_.match_rms_adamw, absl::StrJoin(spec_.adamw_match, ",")) +
         adamw_.Describe();
}

size_t Muon::scratch_bytes(const ParameterSpec& parameter, const CpuTarget& target) const {
  return IsMatrix(parameter) ? Iteration(parameter, target).bytes : 0;
}

void Muon::Apply(const Update& update, const float* gradient, int64_t count,
                 absl::Span<float* const> moments, float* parameter) const {
  adamw_.Apply(update, gradient, count, moments, parameter);
}

void Muon::Direct(const Update& update, const float* gradient, int64_t count,
                  absl::Span<float* const> moments, float* direction) const {
  kernels_.muon_direction(static_cast<float>(update.gradient_scale),
                          static_cast<float>(1 - spec_.momentum), spec_.nesterov, gradient, count,
                          moments[0], direction);
}

void Muon::MoveMatrix(const Update& update, const ParameterSpec& spec, double direction_norm,
                      float* scratch, float* parameter, const CpuTarget& target,
                      ThreadPool* pool) const {
  const SimdKernels& simd = SimdFor(target.isa);
  const Iteration iteration(spec, target);
  const int64_t count = iteration.rows * iteration.columns;
  simd.scale(scratch, static_cast<float>(1 / std::max(direction_norm, spec_.eps)), count, false,
             scratch);
  const float* x = iteration.Run(spec_.ns_steps, scratch, simd, pool);
  const double a = static_cast<double>(iteration.rows), b = static_cast<double>(iteration.columns);
  const double factor =
      spec_.match_rms_adamw ? 0.2 * std::sqrt(std::max(a, b)) : std::sqrt(std::max(1.0, a / b));
  kernels_.move(static_cast<float>(1 - update.learning_rate * update.weight_decay),
                static_cast<float>(update.learning_rate * factor), x, count, parameter);
}

}  // namespace lockstep::engine
