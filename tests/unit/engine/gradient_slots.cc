// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/engine/gradient_slots.h"

#include "engine/exec/plan.h"

namespace lockstep::engine {

std::map<std::string, std::pair<int64_t, int64_t>> SlotsOf(const Plan& plan) {
  std::map<std::string, std::pair<int64_t, int64_t>> slots;
  for (const GradientSlot& slot : dynamic_cast<const CompiledPlan&>(plan).layout().slots) {
    slots[slot.parameter] = {slot.begin, slot.begin + slot.count};
  }
  return slots;
}

std::vector<float> ByParameter(const Plan& plan, const std::vector<float>& gradients) {
  std::vector<float> ordered;
  for (const auto& [parameter, slot] : SlotsOf(plan)) {
    ordered.insert(ordered.end(), gradients.begin() + slot.first, gradients.begin() + slot.second);
  }
  return ordered;
}

}  // namespace lockstep::engine
