// SPDX-License-Identifier: Apache-2.0
// Where a plan's gradients lie, for tests that look at one parameter's.
// Thread-safety: a pure function.
#ifndef LOCKSTEP_TESTS_UNIT_ENGINE_GRADIENT_SLOTS_H_
#define LOCKSTEP_TESTS_UNIT_ENGINE_GRADIENT_SLOTS_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"

namespace lockstep::engine {

// Parameter -> elements [first, second) of the gradient vector.
std::map<std::string, std::pair<int64_t, int64_t>> SlotsOf(const Plan& plan);
// The gradients of all parameters, in the order of their names.
std::vector<float> ByParameter(const Plan& plan, const std::vector<float>& gradients);

}  // namespace lockstep::engine

#endif  // LOCKSTEP_TESTS_UNIT_ENGINE_GRADIENT_SLOTS_H_
