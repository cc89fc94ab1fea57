// SPDX-License-Identifier: Apache-2.0
#include "engine/optim/optimizer.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "engine/optim/adam.h"
#include "engine/optim/lamb.h"
#include "engine/optim/muon.h"
#include "engine/optim/sgd.h"

namespace lockstep::engine {
namespace {

struct Maker {
  const Isa isa;
  absl::StatusOr<std::unique_ptr<Optimizer>> operator()(const SgdSpec& spec) const {
    return Sgd::Make(spec, isa);
  }
  absl::StatusOr<std::unique_ptr<Optimizer>> operator()(const AdamSpec& spec) const {
    return Adam::Make(spec, isa);
  }
  absl::StatusOr<std::unique_ptr<Optimizer>> operator()(const LambSpec& spec) const {
    return Lamb::Make(spec, isa);
  }
  absl::StatusOr<std::unique_ptr<Optimizer>> operator()(const MuonSpec& spec) const {
    return Muon::Make(spec, isa);
  }
};

}  // namespace

absl::StatusOr<std::unique_ptr<Optimizer>> MakeOptimizer(const OptimizerSpec& spec, Isa isa) {
  return std::visit(Maker{isa}, spec);
}

absl::Status CheckSetting(const char* name, double value, bool below_one) {
  if (std::isfinite(value) && value >= 0 && (!below_one || value < 1)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, " is ", value, ": it must be ", below_one ? "in [0, 1)" : "0 or more"));
}

void Optimizer::Apply(const Update&, const float*, int64_t, absl::Span<float* const>,
                      float*) const {
  LS_CHECK(false) << "not an elementwise optimizer";
}
void Optimizer::Measure(const Update&, const float*, int64_t, absl::Span<float* const>,
                        const float*, NormLanes*, NormLanes*) const {
  LS_CHECK(false) << "not an optimizer with a trust ratio";
}
void Optimizer::Move(const Update&, double, double, int64_t, absl::Span<float* const>,
                     float*) const {
  LS_CHECK(false) << "not an optimizer with a trust ratio";
}
void Optimizer::Direct(const Update&, const float*, int64_t, absl::Span<float* const>,
                       float*) const {
  LS_CHECK(false) << "not an optimizer of matrices";
}
void Optimizer::MoveMatrix(const Update&, const ParameterSpec&, double, float*, float*,
                           const CpuTarget&, ThreadPool*) const {
  LS_CHECK(false) << "not an optimizer of matrices";
}

}  // namespace lockstep::engine
