// SPDX-License-Identifier: Apache-2.0
#include "engine/optim/optimizer.h"

#include "engine/optim/sgd.h"

namespace lockstep::engine {

absl::StatusOr<std::unique_ptr<Optimizer>> MakeOptimizer(const OptimizerSpec& spec, Isa isa) {
  return Sgd::Make(std::get<SgdSpec>(spec), isa);
}

}  // namespace lockstep::engine
